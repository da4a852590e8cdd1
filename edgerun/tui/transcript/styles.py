"""The transcript's styles: names used in rows, and their CSS in terms of the theme."""

from __future__ import annotations

__all__ = ["CSS", "NAMES"]

#: Name -> CSS. In a row's style later names win over earlier ones. Everything that matters can be
#: told apart without colours too.
_STYLES = {
    "user": "color: $text-primary; text-style: bold;",
    "assistant": "color: $text-secondary; text-style: bold;",
    "tool": "color: $text-accent; text-style: bold;",
    "cursor": "color: $accent; text-style: bold;",
    "gutter": "color: $primary-muted;",
    "muted": "color: $text-muted;",
    "fold": "color: $text-muted; text-style: italic;",
    "error": "color: $text-error; text-style: bold;",
    "more": "background: $primary; color: $text; text-style: bold;",
    "reasoning": "color: $text-muted;",
    "quote": "text-style: italic;",
    "h1": "color: $text-primary; text-style: bold underline;",
    "h2": "color: $text-primary; text-style: bold;",
    "h3": "text-style: bold;",
    "h4": "text-style: bold italic;",
    "em": "text-style: italic;",
    "strong": "text-style: bold;",
    "strike": "text-style: strike;",
    "code": "background: $surface-lighten-1; color: $text-warning;",
    "math": "color: $text-accent;",
    "link": "color: $text-primary; text-style: underline;",
    "url": "color: $text-muted;",
    "bar": "color: $foreground-darken-2;",
    "marker": "color: $text-secondary;",
    "code-block": "background: $surface-lighten-1;",
    "label": "color: $text-muted;",
    "keyword": "color: $text-primary; text-style: bold;",
    "name": "color: $text-secondary;",
    "builtin": "color: $text-accent;",
    "string": "color: $text-success;",
    "number": "color: $text-warning;",
    "comment": "color: $text-muted; text-style: italic;",
    "deleted": "color: $text-error;",
    "inserted": "color: $text-success;",
}

NAMES = frozenset(_STYLES)

CSS = "\n".join(f"    & > .transcript--{name} {{ {css} }}" for name, css in _STYLES.items())
