"""What a terminal, and what a log file, is shown while a model comes."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from edgerun.cli import _progress
from edgerun.cli._progress import load_progress, pull_progress

NAME = "m[/bold]\x1b]0;x\x07"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


Show = Callable[[io.StringIO], io.StringIO]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Makes a stream the stderr; for the test itself, since pytest sets its own after setup."""
    monkeypatch.setenv("TERM", "xterm")

    def use(stream: io.StringIO) -> io.StringIO:
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return use


def test_a_log_gets_one_line(show: Show) -> None:
    log = show(io.StringIO())
    with pull_progress(NAME) as report:
        for done in range(0, 1000, 10):
            report(done, 1000)
    with load_progress() as loading:
        loading(1, 2)
    assert log.getvalue() == "pulling m[/bold]\\x1b]0;x\\x07\n"


def test_nothing_to_pull_shows_nothing(show: Show) -> None:
    terminal = show(Terminal())
    with pull_progress(NAME):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("total", [1000, None])
def test_a_terminal_gets_a_bar(show: Show, total: int | None) -> None:
    terminal = show(Terminal())
    with pull_progress(NAME) as report:
        report(10, total)
        report(990, total)
    shown = terminal.getvalue()
    assert "pulling m[/bold]\\x1b" in shown
    assert "\x1b]" not in shown
    assert "\x07" not in shown


def test_the_bar_ends_when_the_pull_fails(show: Show) -> None:
    terminal = show(Terminal())

    def pull() -> None:
        with pull_progress("m") as report:
            report(10, 100)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull()
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_slow_load_counts_and_cleans_up(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = show(Terminal())
    monkeypatch.setattr(_progress, "_PATIENCE", 0.0)
    with load_progress() as report:
        report(1, 3)
        report(3, 3)
    assert terminal.getvalue() == "\rloading  33 %\rloading 100 %\r\033[K"


def test_a_quick_load_shows_nothing(show: Show) -> None:
    terminal = show(Terminal())
    with load_progress() as report:
        report(1, 3)
    assert terminal.getvalue() == ""
