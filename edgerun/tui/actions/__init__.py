"""What commands and keys do: one method a command, ``do_NAME``, in the file of its group."""

from edgerun.tui.actions.all import Handlers

__all__ = ["Handlers"]
