"""``edgerun run`` with a schema, an expression or a grammar."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, one_line_error

ARGS = ["--backend", "cpu", "-q", "--raw", "--temp", "2", "--seed", "1", "hello"]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=1))


def test_a_schema_in_place_and_in_a_file(cli: CLI, model: str, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    file = tmp_path / "größe.json"
    file.write_text(json.dumps(schema), encoding="utf-8")
    for given in (json.dumps(schema), str(file)):
        code, out, err = cli("run", "-m", model, "--json-schema", given, *ARGS)
        assert (code, err) == (0, "")
        assert json.loads(out) in ({"ok": True}, {"ok": False})


def test_an_expression(cli: CLI, model: str) -> None:
    code, out, _ = cli("run", "-m", model, "--regex", "[ab]{5}-(x|yz)", *ARGS)
    assert code == 0
    assert re.fullmatch("[ab]{5}-(x|yz)", out)


@pytest.mark.parametrize("text", ['root ::= "q" [0-9] "!"', 'start: "q" /[0-9]/ "!"'])
def test_a_grammar(cli: CLI, model: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "grammar"
    file.write_text(text, encoding="utf-8")
    code, out, _ = cli("run", "-m", model, "--grammar", str(file), *ARGS)
    assert code == 0
    assert re.fullmatch("q[0-9]!", out)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--json-schema", '{"type": "array", "uniqueItems": true}'], "uniqueItems"),
        (["--json-schema", "{"], "not JSON"),
        (["--json-schema", "/nowhere/a.json"], "/nowhere/a.json"),
        (["--grammar", "/nowhere/a.gbnf"], "/nowhere/a.gbnf"),
        (["--regex", "("], "unclosed group"),
        (["--regex", ""], "empty"),
    ],
)
def test_errors_are_one_line(cli: CLI, model: str, given: list[str], word: str) -> None:
    result = cli("run", "-m", model, *given, *ARGS)
    assert word in one_line_error(result)
