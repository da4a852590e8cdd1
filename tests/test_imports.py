"""The shape of the source: which package may import which, and how large a file may grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT

LEAVES = {"amounts", "chat", "checks", "core", "errors", "folders", "native", "edgerun"}
LOW = {"engine", "arch", "text", "gguf", "catalog"}
#: What each part may import of edgerun, besides itself. Some small modules belong to `llm`.
ALLOWED: dict[str, set[str]] = {
    "amounts": set(),
    "errors": set(),
    "chat": {"errors"},
    "checks": {"errors"},
    "core": {"chat", "checks", "errors"},
    "folders": set(),
    "native": {"errors", "edgerun"},
    "edgerun": {"llm", "chat", "core", "errors"},
    "gguf": LEAVES,
    "text": LEAVES,
    "engine": LEAVES | {"backends"},
    "catalog": LEAVES,
    "arch": LEAVES | {"gguf", "backends"},
    "backends": LEAVES | {"gguf", "engine", "arch"},
    "llm": LEAVES | LOW | {"backends"},
    "perplexity": LEAVES | LOW | {"llm", "backends"},
    "cli": LEAVES | LOW | {"llm", "perplexity", "backends", "server", "tui"},
    "tui": LEAVES | LOW | {"llm"},
    "server": LEAVES | LOW | {"llm"},
    "__main__": {"cli"},
}
PART_OF_LLM = {
    "bench", "calling", "conversing", "coroutines", "delivery", "embedding", "gating", "kv_disk",
    "kv_swap", "loading", "notices", "perplexity", "placing", "planning", "planning_layers",
    "requests", "shifting", "speculating", "structured",
}  # fmt: skip

MAX_FILE, MAX_FUNCTION = 450, 80


def sources() -> list[Path]:
    return sorted([*ROOT.glob("edgerun/**/*.py"), *ROOT.glob("backends/**/*.py")])


def part(path: Path) -> str:
    """``gguf`` of edgerun/gguf/reader.py, ``llm`` of edgerun/llm.py, ``edgerun`` of its init."""
    first = path.relative_to(ROOT).parts
    if first[0] == "backends":
        return "backends"
    name = first[1].removesuffix(".py")
    return "edgerun" if name == "__init__" else "llm" if name in PART_OF_LLM else name


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and part of each import of edgerun, wherever in the file it stands."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            words = name.split(".")
            if words[0] == "edgerun":
                known = len(words) > 1 and (words[1] in ALLOWED or words[1] in PART_OF_LLM)
                target = words[1] if known else "edgerun"
                yield node.lineno, "llm" if target in PART_OF_LLM else target
            assert words[0] != "backends", f"line {node.lineno}: say edgerun.backends"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    own = part(path)
    assert own in ALLOWED, f"{own} has no place in the import rule yet"
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports edgerun.{target}"
        for line, target in imported(ast.parse(path.read_text(encoding="utf-8")))
        if target != own and target not in ALLOWED[own]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_itself_can_fail() -> None:
    tree = ast.parse("def f():\n    from edgerun.llm import LLM\nimport edgerun.engine.worker")
    assert sorted(imported(tree)) == [(2, "llm"), (3, "engine")]
    assert "llm" not in ALLOWED["gguf"]


def test_files_and_functions_stay_small() -> None:
    long = []
    kernels = [*ROOT.glob("kernels_*/**/*")]
    code = [p for p in kernels if p.suffix in {".py", ".cpp", ".h", ".cu", ".cuh", ".metal"}]
    tests = [*ROOT.glob("tests/**/*.py")]
    for path in [*sources(), *code, *ROOT.glob("benchmarks/**/*.py"), *tests]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        if (lines := text.count("\n")) > MAX_FILE:
            long.append(f"{name}: {lines} lines, at most {MAX_FILE}")
        if path.suffix != ".py" or path in tests:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION:
                    long.append(f"{name}:{node.lineno}: {node.name} has {lines} lines")
    assert not long, "\n".join(long)
