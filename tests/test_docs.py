"""The documents tell the truth: names exist, links resolve, and the way of a token is that way."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI
from helpers.paths import ROOT

from edgerun.cli import COMMANDS, build_parser

ARCHITECTURE = ROOT / "docs" / "architecture.md"
CASES = ROOT / "docs" / "cases.md"
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
DOTTED = re.compile(r"[a-z_]+(\.\w+)+")


def quoted(text: str) -> Iterator[str]:
    """What stands in backticks, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from re.findall(r"`([^`\n]+)`", text)


def find(name: str) -> Any:
    """The object called ``name``, relative to the package; fields of dataclasses count.

    Raises:
        AttributeError, ImportError: there is none.
    """
    words = name.removeprefix("edgerun.").split(".")
    found: Any = importlib.import_module("edgerun")
    for i, word in enumerate(words):
        if inspect.ismodule(found):
            module = ".".join(["edgerun", *words[: i + 1]])
            # `cli.run` is a module although the package exports other names, too.
            try:
                found = importlib.import_module(module)
                continue
            except ModuleNotFoundError as e:
                if e.name != module:
                    raise
        if word not in getattr(found, "__dataclass_fields__", {}):
            found = getattr(found, word)
    return found


def names(text: str) -> list[str]:
    # `general.architecture` is a key of GGUF files, which are documented elsewhere.
    return [q for q in quoted(text) if DOTTED.fullmatch(q) and not q.startswith("general.")]


def kernel_sources() -> str:
    return "\n".join(p.read_text("utf-8") for p in sorted(ROOT.glob("kernels_cpu/src/*")))


def test_names_exist() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    found = names(text)
    assert len(found) > 40
    missing = []
    for name in found:
        try:
            find(name)
        except (AttributeError, ImportError) as e:
            missing.append(f"{name}: {e}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("name", ["llm.LLM.stroll", "llm.LM", "lim.LLM", "core.Chunk.txt"])
def test_the_check_of_names_can_fail(name: str) -> None:
    assert names(f"see `{name}`") == [name]
    with pytest.raises((AttributeError, ImportError)):
        find(name)


def test_native_names_exist() -> None:
    sources = kernel_sources()
    wanted = [q for q in quoted(ARCHITECTURE.read_text("utf-8")) if re.match(r"er_|\w+::", q)]
    assert len(wanted) >= 5
    missing = [n for n in wanted if not re.search(rf"\b{re.escape(n)}\(", sources)]
    assert not missing


def links(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    for q in quoted(text):
        if re.fullmatch(r"(edgerun|backends|kernels_\w+|tests|docs|benchmarks)/[\w./]*", q):
            yield str(Path(*[".."] * len(path.relative_to(ROOT).parents[1:]), q))


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_resolve(path: Path) -> None:
    broken = []
    for link in links(path):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue  # the web is not this test's business
        file = path.parent / target if target else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert not broken


# -- commands and figures ------------------------------------------------------------------------


def shell_lines(text: str) -> Iterator[str]:
    """Lines of the text's shell blocks, those that a backslash joins in one."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S):
        yield from block.replace("\\\n", " ").splitlines()


def commands(lines: Iterable[str], program: str) -> Iterator[list[str]]:
    """The arguments of each call of ``program`` in shell lines."""
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        for i, word in enumerate(words):
            if Path(word).name == program and (i == 0 or words[i - 1] in ("|", "&&", "(")):
                rest = words[i + 1 :]
                ends = [j for j, w in enumerate(rest) if w in ("|", "&&", ")")]
                yield rest[: ends[0] if ends else None]


@pytest.mark.parametrize("path", [*DOCUMENTS, "help"], ids=lambda p: getattr(p, "name", p))
def test_commands_are_what_the_program_takes(path: Path | str) -> None:
    if isinstance(path, Path):
        found = list(commands(shell_lines(path.read_text("utf-8")), "edgerun"))
    else:  # the examples that each command's help ends with
        parsers: Any = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
        lines = [x for p in parsers.values() for x in str(p.epilog).splitlines()]
        examples = (re.split(r" {4,}", x[2:])[0] for x in lines if x.startswith("  "))
        found = list(commands(examples, "edgerun"))
        assert len(found) > 25
    for argv in found:
        args, unknown = build_parser().parse_known_args(argv)
        assert args.command in COMMANDS
        assert not unknown, argv


def test_options_exist() -> None:
    """``--kv q8_0`` in the README is an option of a command, or of the script named beside it."""
    sources = [*ROOT.glob("edgerun/cli/*.py"), *ROOT.glob("benchmarks/*.py")]
    text = "\n".join(p.read_text("utf-8") for p in sources)
    named = {w for q in quoted((ROOT / "README.md").read_text("utf-8")) for w in q.split()}
    named = {w for w in named if re.fullmatch(r"--[a-z][a-z-]+", w)}
    assert len(named) > 15
    assert [w for w in sorted(named) if f'"{w}"' not in text] == []


MODELS = {"SmolLM2": "smollm2", "Gemma": "gemma3", "llama-1b": "llama-1b", "1.7B": "experts"}
CASES_OF = {"prefill 512": "prefill 512", "decode": "decode 128", "8 sequences": "8 sequences"}


def ratio(peer: Mapping[str, float] | None) -> str:
    """``2.7 (2.5-2.8)``, and two digits below 1."""
    if peer is None:
        return ""
    digits = 1 if peer["ratio"] >= 1 else 2
    middle, least, most = (f"{peer[k]:.{digits}f}" for k in ("ratio", "least", "most"))
    return f"{middle} ({least}-{most})"


def measured() -> set[tuple[str, ...]]:
    """Model, case, tokens a second, and the ratios to both peers, as the table words them."""
    out = set()
    for file in ROOT.glob("benchmarks/results/*.json"):
        for row in json.loads(file.read_text("utf-8")).get("rows", ()):
            ratios = (ratio(row["peers"].get(peer)) for peer in ("llama_cpp", "openvino"))
            if row["section"] == "speed":
                out.add((row["model"], row["case"], f"{row['value']:.0f}", *ratios))
    return out


def test_speeds_were_measured() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*?) ?\| (.+?) \| (\d+) \| (.*?) ?\| ?(.*?) ?\|$", text, flags=re.M)
    assert len(rows) == 12
    known, model = measured(), ""
    for name, case, *figures in rows:
        model = next((m for n, m in MODELS.items() if name.startswith(n)), model)
        assert (model, CASES_OF[case], *figures) in known, (model, case, figures)


# -- cases and their tests -----------------------------------------------------------------------


def is_test(name: str) -> bool:
    """Whether ``tests/FILE.py::[Class::]test_name`` is defined there, parameters left out."""
    file, *words = name.partition("[")[0].split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    body: list[ast.stmt] = ast.parse(path.read_text("utf-8")).body
    for i, word in enumerate(words):
        kind = ast.FunctionDef if i == len(words) - 1 else ast.ClassDef
        found = [n for n in body if isinstance(n, kind) and n.name == word]
        if not found:
            return False
        body = found[0].body
    return bool(words) and words[-1].startswith("test_")


def named_tests(text: str) -> list[str]:
    return [q for q in quoted(text) if q.startswith("tests/") and "::" in q]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_named_tests_exist(path: Path) -> None:
    assert [n for n in named_tests(path.read_text("utf-8")) if not is_test(n)] == []


def test_every_case_has_a_test() -> None:
    rows = re.findall(r"^\| (?!Case |---).*\|$", CASES.read_text("utf-8"), flags=re.M)
    assert len(rows) > 25
    assert [r for r in rows if not named_tests(r)] == []


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_docs.py::test_nothing",
        "tests/test_nothing.py::test_names_exist",
        "tests/test_docs.py::TestX::test_names_exist",
        "tests/test_docs.py::quoted",
    ],
)
def test_the_check_of_tests_can_fail(name: str) -> None:
    assert named_tests(f"see `{name}`") == [name]
    assert not is_test(name)


# -- a token's way, walked -----------------------------------------------------------------------


def numbered_lists(text: str) -> list[list[str]]:
    """The dotted names in each numbered list, in order."""
    lists: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        item = re.match(r"\d+\. ", line)
        if item and line.startswith("1. "):
            lists.append([])
        inside = bool(item) or (inside and line.startswith("   "))
        if inside:
            lists[-1] += names(line)
    return lists


def code_of(name: str) -> CodeType | None:
    """The code that a call of ``name`` runs; None for what is no call, such as a value type."""
    found = find(name)
    if inspect.isclass(found):
        found = found.__init__
    return getattr(inspect.unwrap(getattr(found, "__func__", found)), "__code__", None)


def test_a_request_goes_the_documented_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    path = gb.scripted_model(tmp_path / "m.gguf", ["Hel", "lo"], vocab=[" "], extra=extra)
    lists = numbered_lists(ARCHITECTURE.read_text("utf-8"))
    documented = [[c for n in part if (c := code_of(n)) is not None] for part in lists]
    assert [len(part) > 2 for part in documented] == [True] * 4
    wanted = {c for part in documented for c in part}
    calls: list[CodeType] = []
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code in wanted and frame.f_code not in seen:
            seen.add(frame.f_code)
            calls.append(frame.f_code)

    cli = CLI(capsys, monkeypatch)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        result = cli("run", "-m", path, "--backend", "cpu", "--temp", "0", "hi", "--stop", "x")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert (result.status, result.out) == (0, "Hello")
    for part in documented:
        assert [c.co_name for c in part if c not in seen] == []
        order = [c for c in calls if c in part]
        assert [c.co_name for c in order] == [c.co_name for c in dict.fromkeys(part)]
