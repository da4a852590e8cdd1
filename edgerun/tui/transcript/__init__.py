"""The conversation on the screen: streaming Markdown, reasoning, calls of tools, selection."""

from edgerun.tui.transcript.view import Transcript

__all__ = ["Transcript"]
