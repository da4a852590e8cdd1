"""Requests of editors and agents, in the shapes that their sources and documentation give.

Each file in fixtures/http has the path, headers and body a client sends, and what it reads of the
answer: names of events, or fields of the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import answers
from helpers.http import Endpoint
from helpers.paths import FIXTURES

SAID = ["return", " a", " +", " b"]
RECORDED = sorted((FIXTURES / "http").glob("*.json"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("models")
    files = answers.models(folder)
    files["coder"] = answers.coder(folder / "coder.gguf", SAID)
    with Endpoint(files) as endpoint:
        yield endpoint


def recorded(name: str) -> Any:
    sent = json.loads((FIXTURES / "http" / f"{name}.json").read_text("utf-8"))
    if sent["body"]["model"] == "call":
        sent["body"]["temperature"] = 0  # which tool it calls is a draw between equals
    return sent


def test_there_are_many() -> None:
    assert len(RECORDED) >= 13


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_it_is_answered_as_the_client_reads_it(server: Endpoint, path: Path) -> None:
    sent = recorded(path.stem)
    if not sent["body"].get("stream"):
        out = server.post(sent["path"], sent["body"], headers=sent["headers"])
        assert set(sent["reads"]) <= out.keys()
        return
    stream = server.named_events(sent["path"], sent["body"], headers=sent["headers"])
    names = [name for name, _ in stream] + [data for _, data in stream if isinstance(data, str)]
    for name in sent["reads"]:
        assert name in names
    assert not any(isinstance(d, dict) and "error" in d and d["error"] for _, d in stream)


def test_claude_code_gets_its_call(server: Endpoint) -> None:
    sent = recorded("claude_code")
    stream = server.named_events(sent["path"], sent["body"], headers=sent["headers"])
    starts = [d["content_block"] for n, d in stream if n == "content_block_start"]
    assert starts[-1]["type"] == "tool_use"
    assert starts[-1]["name"] == "Add"
    deltas = [d["delta"] for n, d in stream if n == "content_block_delta"]
    text = "".join(d["partial_json"] for d in deltas if d["type"] == "input_json_delta")
    assert json.loads(text) == answers.ARGUMENTS


def test_claude_codes_changing_note_costs_no_cache(server: Endpoint) -> None:
    sent = recorded("claude_code")
    body = sent["body"] | {"stream": False}
    server.post(sent["path"], body)
    note = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.36.abd; cch=9f;"}
    again = server.post(sent["path"], body | {"system": [note, *body["system"][1:]]})
    assert again["usage"]["input_tokens"] < 5


def test_codex_gets_its_call_and_is_told_which_tools_it_has(server: Endpoint) -> None:
    sent = recorded("codex")
    final = server.events(sent["path"], sent["body"], headers=sent["headers"])[-1]["response"]
    assert final["output"][-1]["type"] == "function_call"
    assert json.loads(final["output"][-1]["arguments"]) == answers.ARGUMENTS
    assert [t["name"] for t in final["tools"]] == ["shell", "update_plan", "apply_patch", "add"]
    assert final["store"] is False


@pytest.mark.parametrize(
    "name", ["llama_vim", "llama_vscode", "continue_autocomplete", "zed_edit_prediction"]
)
def test_editors_get_the_middle(server: Endpoint, name: str) -> None:
    sent = recorded(name)
    if sent["path"] == "/infill":
        assert server.post(sent["path"], sent["body"])["content"] == "".join(SAID)
        return
    body = sent["body"] | {"stream": False}
    choice = server.post(sent["path"], body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("".join(SAID), "stop")
