"""Code in colours: Pygments' own, whole, and at a price per line that does not grow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgerun.tui.transcript.code import highlight, language
from edgerun.tui.transcript.flow import Flow
from edgerun.tui.transcript.lines import Run, plain

PYTHON = 'def f(x):  # twice\n    """Doc\n    string."""\n    return f"{x}" + 1\n'


def styles(runs: tuple[Run, ...]) -> list[tuple[str, str]]:
    return [(r.text.strip(), r.style[0] if r.style else "") for r in runs if r.text.strip()]


def test_colours() -> None:
    first, doc, doc_end, last = highlight(PYTHON, "python")
    assert styles(first)[:2] == [("def", "keyword"), ("f", "name")]
    assert styles(first)[-1] == ("# twice", "comment")
    assert {s for _, s in styles(doc)} == {s for _, s in styles(doc_end)} == {"string"}
    assert ("1", "number") in styles(last)


@pytest.mark.parametrize("name", ["python", "c", "json", "bash", "html", "diff", "rust", "console"])
def test_no_character_is_changed(name: str) -> None:
    text = PYTHON + "\n\tif (a < b) { /* c */ }\n$ ls\n- x\n+ y\n\n{'a': nul\n\n"
    lines = highlight(text, name)
    assert [plain(x) for x in lines] == [
        x.expandtabs(4) for x in text.removesuffix("\n").split("\n")
    ]


@pytest.mark.parametrize(
    ("info", "name"),
    [("py", "py"), ("{.py}", "py"), ("Python,linenos", "python"), ("js:a.js", "js"), ("", "")],
)
def test_names(info: str, name: str) -> None:
    assert language(info) == name


@pytest.mark.parametrize("info", ["", "nosuchlanguage", "\x1b[31m", "../x", "text", "a" * 999])
def test_unknown_languages_are_plain(info: str) -> None:
    assert highlight("a = 1\nb", info) == [(Run("a = 1"),), (Run("b"),)]


def test_the_growing_line_keeps_the_colour_of_an_open_string() -> None:
    *_, last = highlight('x = """a\nstill in', "python", partial=True)
    assert last == (Run("still in", ("string",)),)
    *_, last = highlight("x = 1  # a\nif x", "python", partial=True)
    assert ("if", "keyword") in styles(last)


def test_a_long_block_is_coloured_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgerun.tui.transcript import code

    lexed: list[int] = []
    tokens = code._tokens

    def counted(text: str, lexer: object) -> object:
        lexed.append(len(text))
        return tokens(text, lexer)  # type: ignore[arg-type]

    monkeypatch.setattr(code, "_tokens", counted)
    code._lines.cache_clear()
    flow = Flow("```python\n")
    for i in range(200):
        flow.feed(f"value_{i} = {i} + 1\n" if i % 9 else "\n")
        flow.lay(80)
    assert max(lexed) < 1500
    rows = flow.lay(80)
    numbers = [r for row in rows for r in row.runs if "number" in r.style]
    assert len(numbers) > 300


def test_lexers_are_loaded_when_code_comes() -> None:
    script = (
        "import sys; from edgerun.tui.transcript import Transcript\n"
        "bad = {'numpy', 'sqlite3', 'httpx', 'edgerun.llm', 'pygments.lexers', 'markdown_it'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    run = [sys.executable, "-c", script]
    out = subprocess.run(run, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
