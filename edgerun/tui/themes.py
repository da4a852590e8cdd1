"""Colours of the terminal chat: a dark, a light and a colourless theme, and Textual's own.

Every text of the three reaches the contrast that WCAG 2.2 asks for (4.5 : 1; 7 : 1 for what is
read most), on each of the backgrounds it stands on.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import App
from textual.color import Color
from textual.theme import Theme

__all__ = ["DARK", "LIGHT", "MONO", "OWN", "begin_with", "choose", "contrast", "names", "register"]


def _variables(colors: Mapping[str, str], **more: str) -> dict[str, str]:
    """Textual's names for what the chat draws, so that its own widgets match."""
    text, muted, surface = colors["foreground"], colors["muted"], colors["surface"]
    accent, cursor = colors["primary"], colors["cursor"]
    return {
        "text": text,
        "text-muted": muted,
        "text-disabled": muted,
        "text-primary": accent,
        "text-secondary": colors["secondary"],
        "text-success": colors["success"],
        "text-warning": colors["warning"],
        "text-error": colors["error"],
        "text-accent": colors["accent"],
        "foreground-muted": muted,
        "border": colors["line"],
        "border-blurred": colors["line"],
        "block-cursor-background": cursor,
        "block-cursor-foreground": text,
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-background": cursor,
        "block-cursor-blurred-foreground": text,
        "block-cursor-blurred-text-style": "none",
        "block-hover-background": colors["hover"],
        "input-cursor-background": text,
        "input-cursor-foreground": surface,
        "input-selection-background": colors["selection"],
        "input-selection-foreground": text,
        "screen-selection-background": colors["selection"],
        "screen-selection-foreground": text,
        "scrollbar": colors["line"],
        "scrollbar-hover": muted,
        "scrollbar-active": accent,
        "scrollbar-background": colors["background"],
        "scrollbar-background-hover": colors["background"],
        "scrollbar-background-active": colors["background"],
        "scrollbar-corner-color": colors["background"],
        "footer-key-foreground": accent,
        "link-color": accent,
        "link-color-hover": text,
        "link-background-hover": colors["selection"],
        **more,
    }


def _theme(name: str, dark: bool, colors: Mapping[str, str], **more: str) -> Theme:
    plain = ("primary", "secondary", "accent", "success", "warning", "error")
    grounds = ("foreground", "background", "surface", "panel")
    return Theme(
        name=name,
        dark=dark,
        variables=_variables(colors, **more),
        **{k: colors[k] for k in (*plain, *grounds)},  # type: ignore[arg-type]
    )


#: A quiet blue-grey that does not glow beside an editor.
DARK = _theme(
    "edgerun-dark",
    True,
    {
        "foreground": "#d8dce4",
        "muted": "#969eae",
        "background": "#14171d",
        "surface": "#1a1e26",
        "panel": "#222732",
        "cursor": "#2c3648",
        "hover": "#232a37",
        "selection": "#33507a",
        "line": "#3d4657",
        "primary": "#82b1ff",
        "secondary": "#a9b8d4",
        "accent": "#e5b567",
        "success": "#86cc90",
        "warning": "#e5b567",
        "error": "#ff8f88",
    },
)

#: Paper, not white: the same quiet in daylight.
LIGHT = _theme(
    "edgerun-light",
    False,
    {
        "foreground": "#1f242d",
        "muted": "#545c69",
        "background": "#fafaf7",
        "surface": "#f3f3ef",
        "panel": "#e9eae5",
        "cursor": "#d8e3f5",
        "hover": "#e6ebf3",
        "selection": "#b9d0f3",
        "line": "#b9bcbf",
        "primary": "#1b52a6",
        "secondary": "#44546e",
        "accent": "#7a4a00",
        "success": "#1a612a",
        "warning": "#7a4a00",
        "error": "#a3211d",
    },
)

#: No colour at all: weight, reverse and glyphs tell things apart.
MONO = _theme(
    "edgerun-mono",
    True,
    {
        "foreground": "#e4e4e4",
        "muted": "#a8a8a8",
        "background": "#101010",
        "surface": "#101010",
        "panel": "#1c1c1c",
        "cursor": "#3a3a3a",
        "hover": "#262626",
        "selection": "#4e4e4e",
        "line": "#5f5f5f",
        "primary": "#ffffff",
        "secondary": "#d0d0d0",
        "accent": "#ffffff",
        "success": "#e4e4e4",
        "warning": "#ffffff",
        "error": "#ffffff",
    },
    # Reversed text stays visible where colours are taken away altogether.
    **{
        "input-cursor-background": "#101010",
        "input-cursor-foreground": "#e4e4e4",
        "input-cursor-text-style": "reverse",
    },
)

OWN = (DARK, LIGHT, MONO)


def register(app: App[object]) -> None:
    """Make the chat's own themes known to ``app``; Textual's are known to it already."""
    for theme in OWN:
        app.register_theme(theme)


def begin_with(app: App[object], name: str) -> None:
    """Choose the theme of a program that does not run yet.

    Assigned, it would have all styles parsed and laid on twice before the first paint. What an
    assignment does beyond this is about the terminal's own colours, which ``OWN`` do not use.
    """
    if app.available_themes[name] not in OWN:
        app.theme = name
        return
    app.set_reactive(App.theme, name)
    dark = app.current_theme.dark
    app.set_class(dark, "-dark-mode", update=False)
    app.set_class(not dark, "-light-mode", update=False)
    app.set_class(True, f"-theme-{name}", update=False)
    app.stylesheet.set_variables(app.get_css_variables())


def names(app: App[object]) -> list[str]:
    """What may be chosen: the chat's own first, then Textual's, by name."""
    own = [t.name for t in OWN]
    return [*own, *sorted(n for n in app.available_themes if n not in own)]


def choose(saved: str | None, known: Mapping[str, object], env: Mapping[str, str]) -> str:
    """The theme to begin with.

    Args:
        saved: what was chosen before; a name that is no longer known counts as none.
        known: the themes there are, by name.
        env: the environment. ``NO_COLOR`` (no-color.org) beats what was saved; ``COLORFGBG``, set
            by some terminals, tells a light background.
    """
    if env.get("NO_COLOR"):
        return MONO.name
    if saved in known and saved is not None:
        return saved
    ground = env.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT.name if ground in ("7", "15") else DARK.name


def contrast(a: str, b: str) -> float:
    """The contrast ratio of two opaque colours, 1 to 21, as WCAG 2.2 defines it."""
    lighter, darker = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    def linear(c: int) -> float:
        v = c / 255
        return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4

    r, g, b = Color.parse(color).rgb
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
