"""The list of chats: search over all text, rename, export, delete and undelete, taking one up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tui_screens import NOW, SESSIONS, FakeSessions, Stage, on_stage, shown, typed, until
from textual.pilot import Pilot

from edgerun.tui.conversation import Conversation
from edgerun.tui.screens.sessions import SessionScreen
from edgerun.tui.store import SessionInfo, Store


class _Rig:
    def __init__(self, sessions: list[SessionInfo] | None = None, folder: Path | None = None):
        self.store = FakeSessions(sessions)
        self.folder = folder
        self.changed: list[str] = []

    def __call__(self) -> SessionScreen:
        return SessionScreen(
            self.store, "s1", changed=self.changed.append, folder=self.folder, clock=lambda: NOW
        )


def test_chats_are_listed_newest_first_with_dates() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        lines = [li for li in shown(app).splitlines() if "│" in li]
        first = next(i for i, li in enumerate(lines) if "borrow" in li)
        assert "10:00" in lines[first]
        assert "●" in lines[first]
        assert "yesterday" in lines[first + 1]
        assert "Fri" in lines[first + 2]
        assert "[/red] [bold]not markup[/bold]" in shown(app)
        await pilot.press("down", "enter")

    assert on_stage(_Rig(), script) == [("s2", None)]


def test_search_finds_text_as_it_is_typed_and_opens_there() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press(*"pipe")
        rows = app.screen.list  # type: ignore[attr-defined]
        await until(pilot, lambda: rows.row is not None and ("pipe", "match") in rows.row.below)
        assert "Regex" not in shown(app)
        assert "set -euo pipefail makes" in shown(app)
        await pilot.press("enter")

    assert on_stage(_Rig(), script) == [("s5", "m-s5")]


def test_a_search_without_a_hit_says_so_and_backspace_returns() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await typed(app, pilot, "zzz")
        await until(pilot, lambda: "nothing found" in shown(app))
        await pilot.press("enter", "ctrl+d", "f2", "ctrl+e")  # on nothing: nothing
        await pilot.press("ctrl+u")
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press("escape")

    assert on_stage(_Rig(), script) == [None]


def test_deleting_can_be_undone() -> None:
    rig = _Rig()

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press("down", "ctrl+d")
        await until(pilot, lambda: "deleted: Regex for ISO dates · ctrl+z" in shown(app))
        assert app.screen.key == "s3"  # type: ignore[attr-defined]
        await pilot.press("ctrl+d")
        await pilot.press("ctrl+z", "ctrl+z")
        await until(pilot, lambda: "restored: Regex" in shown(app))
        await until(pilot, lambda: app.screen.key == "s2")  # type: ignore[attr-defined]

    on_stage(rig, script)
    assert rig.store.calls == [
        ("delete", "s2"), ("delete", "s3"), ("restore", "s3"), ("restore", "s2"),
    ]  # fmt: skip
    assert len(rig.store.all) == len(SESSIONS)
    assert rig.changed == ["s2", "s3", "s3", "s2"]


def test_renaming_starts_with_the_old_title() -> None:
    rig = _Rig()

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press("down", "ctrl+r")
        await until(pilot, lambda: "Rename" in shown(app))
        await typed(app, pilot, app.focused.value + " two")  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: "Regex for ISO dates two" in shown(app))
        await pilot.press("ctrl+r", "ctrl+u", "enter", "escape")  # an empty title is none
        await until(pilot, lambda: "Chats" in shown(app))

    on_stage(rig, script)
    assert rig.store.calls == [("rename", "s2", "Regex for ISO dates two")]


def test_exports_ask_before_they_overwrite(tmp_path: Path) -> None:
    rig = _Rig(folder=tmp_path)
    written = tmp_path / "regex-for-iso-dates.md"

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press("down", "ctrl+e", "enter")
        await until(pilot, written.exists)
        assert written.read_text() == "# Regex for ISO dates\n"
        written.write_text("mine")
        await pilot.press("ctrl+e", "enter")
        await until(pilot, lambda: "Overwrite?" in shown(app))
        await pilot.press("n")
        await pilot.press("ctrl+e")
        await typed(app, pilot, str(written.with_suffix(".txt")))
        await pilot.press("enter")
        await until(pilot, lambda: "must end in .md or .json" in shown(app))
        await typed(app, pilot, str(written.with_suffix(".json")))
        await pilot.press("enter")
        await until(pilot, written.with_suffix(".json").exists)

    on_stage(rig, script, (160, 24))
    assert written.read_text() == "mine"
    assert json.loads(written.with_suffix(".json").read_text()) == {"id": "s2"}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    def full(session: str) -> str:
        raise OSError(28, "No space left on device")

    rig = _Rig(folder=tmp_path)
    rig.store.export_markdown = full  # type: ignore[method-assign]

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Regex" in shown(app))
        await pilot.press("ctrl+e", "enter")
        await until(pilot, lambda: "not written" in shown(app))
        assert "No space left" in shown(app)

    on_stage(rig, script, (160, 24))


def test_no_chats_yet_says_how_they_come() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "no chats yet" in shown(app))

    on_stage(_Rig([]), script)


def test_thousands_of_chats_are_read_as_one_scrolls() -> None:
    many = [SessionInfo(f"s{i}", f"chat {i}", NOW - i, 2, "m") for i in range(450)]

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        rows = lambda: len(app.screen.list.rows)  # type: ignore[attr-defined]  # noqa: E731
        await until(pilot, lambda: rows() == 100)
        for n in (200, 300, 400, 450):
            await pilot.press("ctrl+end")
            await until(pilot, lambda n=n: rows() == n)  # type: ignore[misc]
        await pilot.press("ctrl+end", "enter")

    assert on_stage(_Rig(many), script) == [("s449", None)]


@pytest.mark.parametrize("size", [(60, 16), (20, 6)])
def test_small_terminals_still_show_a_row(size: tuple[int, int]) -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "What" in shown(app))
        await pilot.press("pagedown", "ctrl+end")
        await pilot.resize_terminal(40, 8)
        await until(pilot, lambda: "[/red]" in shown(app))  # the cursor stays in sight
        await pilot.resize_terminal(*size)
        await pilot.press("ctrl+home", "enter")

    assert len(on_stage(_Rig(), script, size)) == 1


def test_the_real_store_behind_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    ids = []
    for title in ("sorting algorithms", "garden plans"):
        c = Conversation()
        c.add("user", title)
        c.add("assistant", f"all about {title}: \x1b[2J merge sort is stable")
        store.save(c)
        for m in c.messages.values():
            store.put(c.id, m)
        ids.append(c.id)

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "garden plans" in shown(app))
        await typed(app, pilot, "sorting merge")
        await until(pilot, lambda: "in the same message" in shown(app) or "merge" in shown(app))
        await until(pilot, lambda: "garden" not in shown(app) and "stable" in shown(app))
        assert "\x1b" not in shown(app)
        await pilot.press("ctrl+d", "ctrl+u")
        await until(pilot, lambda: "garden" in shown(app) and "sorting" not in list_of(app))
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "sorting" in list_of(app))
        await pilot.press("enter")

    try:
        ((session, _message),) = on_stage(lambda: SessionScreen(store), script)
    finally:
        store.close()
    assert session == ids[0]


def list_of(app: Stage) -> str:
    return "\n".join(li for li in shown(app).splitlines() if "stored" not in li and "del" not in li)
