"""The composer: commands, values and files that are completed, and files that go along."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tui_app import Driver, chat, play
from textual import events
from textual.keys import _character_to_key

from edgerun.tui.composer import files
from edgerun.tui.composer.area import Area
from edgerun.tui.composer.complete import commands_for, wanted


def area(d: Driver) -> Area:
    return d.app.chat.composer.area


@pytest.mark.parametrize(
    ("line", "first", "kind", "text"),
    [
        ("/", True, "command", ""),
        ("/he", True, "command", "he"),
        ("/he", False, None, None),
        ("a /he", True, None, None),
        ("/model qw", True, "value", "qw"),
        ("/retry x", True, None, None),
        ("see @sr", True, "file", "sr"),
        ("see @sr", False, "file", "sr"),
        ('see @"my fi', True, "file", "my fi"),
        ("me@example.com", True, None, None),
        ("see @a b", True, None, None),
        ("(@src/x", True, "file", "src/x"),
    ],
)
def test_what_is_completed(line: str, first: bool, kind: str | None, text: str | None) -> None:
    found = wanted(line, len(line), first)
    assert (found.kind if found else None, found.text if found else None) == (kind, text)


def test_commands_are_offered_best_first() -> None:
    assert [i.label.split()[0] for i in commands_for("he")] == ["/help", "/theme"]
    assert commands_for("cl")[0].label.startswith("/new")  # by its alias /clear
    assert len(commands_for("")) > 20
    assert commands_for("zz") == []


def test_a_command_is_completed_and_done() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            popup = d.app.chat.composer.popup
            await d.press("slash")
            assert popup.display
            assert popup.item is None  # nothing is chosen yet: enter does nothing by accident
            await d.press("t", "h", "e")
            assert popup.item is not None
            assert popup.item.label.startswith("/theme")
            await d.press("tab")
            assert d.draft == "/theme "
            await d.type("edgerun-l")
            await d.settle()
            assert [i.label for i in popup.items] == ["edgerun-light"]
            await d.press("enter")
            assert d.app.theme == "edgerun-light"
            assert d.draft == ""

    play(go)


def test_enter_is_faster_than_the_popup(tmp_path: Path) -> None:
    """Its rows are still those of what was typed before: none of them is taken."""

    async def go() -> None:
        async with chat("fine", base=tmp_path) as d:
            await d.idle()
            await d.press(*"/exp")
            assert d.app.chat.composer.popup.item is not None
            for key in "ort /no/x.md":
                d.app.post_message(events.Key(_character_to_key(key), key))
            d.app.post_message(events.Key("enter", None))
            await d.until(lambda: d.notice)
            assert d.notice == "cannot write /no/x.md: No such file or directory"
            assert d.draft == ""

    play(go)


def test_escape_closes_the_popup_for_this_text() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.press("slash", "h")
            assert d.app.chat.composer.popup.display
            await d.press("escape")
            assert not d.app.chat.composer.popup.display
            assert d.draft == "/h"
            await d.press("e")
            assert d.app.chat.composer.popup.display

    play(go)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "README.md": "# Read me\n",
        "src/main.py": "print('main')\n",
        "src/util.py": "x = 1\n",
        "src/my notes.txt": "notes\n",
        ".hidden/secret.txt": "no",
        ".env": "KEY=1",
        "node_modules/x/index.js": "no",
        "__pycache__/a.py": "no",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "big.log").write_bytes(b"x" * (files.MAX_BYTES + 1))
    return tmp_path


def test_the_listing_skips_what_nobody_asks_about(tree: Path) -> None:
    names = files.Listing(tree).names()
    assert names == [
        "big.log", "latin.txt", "photo.png", "README.md", "src/", "src/main.py",
        "src/my notes.txt", "src/util.py",
    ]  # fmt: skip


def test_the_listing_asks_git(tree: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    (tree / ".gitignore").write_text("*.log\nnode_modules\n__pycache__\n")
    names = files.Listing(tree).names()
    assert "big.log" not in names
    assert "src/main.py" in names
    assert not any(n.startswith((".", "node_modules")) for n in names)


@pytest.mark.parametrize(
    ("wanted", "first"),
    [("main", "src/main.py"), ("read", "README.md"), ("smp", "src/main.py"), ("sr", "src/")],
)
def test_fuzzy_names(tree: Path, wanted: str, first: str) -> None:
    assert files.rank(files.Listing(tree).names(), wanted)[0] == first


def test_patterns(tree: Path) -> None:
    assert files.expand("src/*.py", tree) == ["src/main.py", "src/util.py"]
    assert files.expand("**/*.py", tree) == ["src/main.py", "src/util.py"]
    assert files.expand("nothing.py", tree) == []
    assert files.expand("src", tree) == []
    assert files.expand(str(tree / "README.md"), tree) == [str(tree / "README.md")]
    assert files.expand("bad\0name", tree) == []


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("photo.png", "not text"),
        ("latin.txt", "not UTF-8 text"),
        ("big.log", "too large, at most 1.0 MB"),
        ("gone.txt", "no such file or directory"),
        ("README.md", ""),
    ],
)
def test_what_is_refused(tree: Path, name: str, refusal: str) -> None:
    assert files.read(name, tree).refusal == refusal


def test_mentions() -> None:
    text = 'see @a.py, @"b c.txt" and (@d/*.py) but not me@x.org or @ alone'
    found = files.mentions(text)
    assert [m.path for m in found] == ["a.py", "b c.txt", "d/*.py"]
    assert [text[m.start : m.end] for m in found] == ["@a.py", '@"b c.txt"', "@d/*.py"]
    assert [files.quoted(p) for p in ("a.py", "b c.txt", "odd.")] == [
        "@a.py", '@"b c.txt"', '@"odd."',
    ]  # fmt: skip


def test_a_file_is_completed_counted_and_sent(tree: Path) -> None:
    async def go() -> None:
        async with chat(base=tree) as d:
            await d.idle()
            await d.type("explain @main")
            await d.until(lambda: d.app.chat.composer.popup.open)
            await d.press("tab")
            assert d.draft == "explain @src/main.py "
            chips = d.app.chat.composer.chips
            await d.until(lambda: chips.chips)
            assert [(c.kind, c.text) for c in chips.chips] == [
                ("file", "src/main.py  14 B · 1 tokens")
            ]
            await d.press("enter")
            await d.idle()
            question = d.path[0]
            assert question.text == "explain @src/main.py "
            assert [(a.path, a.text, a.n_tokens) for a in question.attachments] == [
                ("src/main.py", "print('main')\n", 1)
            ]
            sent = d.partner.asked[0][0][-1]["content"]
            assert "```src/main.py\nprint('main')\n```" in sent
            await d.until(lambda: not chips.chips)

    play(go)


def test_a_pattern_attaches_all(tree: Path) -> None:
    async def go() -> None:
        async with chat(base=tree) as d:
            await d.idle()
            await d.say("compare @src/*.py and @nothing.py")
            assert [a.path for a in d.path[0].attachments] == ["src/main.py", "src/util.py"]

    play(go)


def test_a_binary_file_is_refused_and_nothing_is_lost(tree: Path) -> None:
    async def go() -> None:
        async with chat(base=tree) as d:
            await d.idle()
            await d.type("what is @photo.png")
            chips = d.app.chat.composer.chips
            await d.until(lambda: chips.chips)
            assert chips.chips[0].kind == "bad"
            await d.press("escape", "enter")
            await d.until(lambda: "photo.png" in d.notice)
            assert d.notice == "not sent: photo.png: not text"
            assert d.draft == "what is @photo.png"
            assert d.path == []

    play(go)


def test_too_many_files_are_refused(tree: Path) -> None:
    (tree / "many").mkdir()
    for i in range(files.MAX_FILES + 5):
        (tree / "many" / f"{i}.txt").write_text("x")

    async def go() -> None:
        async with chat(base=tree) as d:
            await d.idle()
            await d.say("see @many/*.txt", wait=False)
            await d.until(lambda: d.notice)
            assert d.notice == "not sent: many/0.txt: one of more than 50 files"
            assert d.draft == "see @many/*.txt"

    play(go)


def test_a_chip_is_removed_by_a_click(tree: Path) -> None:
    async def go() -> None:
        async with chat(base=tree) as d:
            await d.idle()
            await d.type("see @README.md please")
            chips = d.app.chat.composer.chips
            await d.until(lambda: chips.chips)
            await d.press("escape")
            await d.pilot.click("Chips", offset=(4, 0))
            assert d.draft == "see please"
            await d.until(lambda: not chips.chips)

    play(go)


def test_paths_outside_the_folder(tree: Path) -> None:
    (tree / "src" / "zeta").mkdir()
    assert files.in_folder("../", tree / "src")[:1] == ["../__pycache__/"]
    assert files.in_folder(f"{tree}/READ", tree / "src") == [f"{tree}/README.md"]
    assert files.in_folder("./z", tree / "src") == ["./zeta/"]
    assert files.in_folder("/no/such/", tree) == []
