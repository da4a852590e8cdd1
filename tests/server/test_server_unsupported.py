"""Fields whose effect a client would miss are refused by name; those that change no answer are not
looked at."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.http import Endpoint

HI: Any = [{"role": "user", "content": "hi"}]
SAMPLING: list[Any] = [
    ({"guided_json": {}}, "guided_json"),
    ({"guided_regex": "a+"}, "guided_regex"),
    ({"guided_choice": ["a", "b"]}, "guided_choice"),
    ({"guided_grammar": "root ::= 'a'"}, "guided_grammar"),
    ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/completion": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("more", "param"), SAMPLING, ids=[p for _, p in SAMPLING])
def test_other_servers_constraints(
    server: Endpoint, path: str, more: dict[str, Any], param: str
) -> None:
    error = server.refused(path, {"model": "scripted", **BODIES[path], **more})
    assert param in error["message"]
    if path != "/v1/messages":  # Anthropic's errors have no param
        assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        ("/v1/chat/completions", {"modalities": ["audio"]}, "modalities"),
        ("/v1/chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
        ("/v1/chat/completions", {"web_search_options": {}}, "web_search_options"),
        ("/v1/messages", {"mcp_servers": [{"type": "url", "url": "x"}]}, "mcp_servers"),
        ("/v1/messages", {"container": "c_1"}, "container"),
    ],
)
def test_what_runs_elsewhere(server: Endpoint, path: str, more: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        body = {"model": "scripted", **BODIES[path], **more, "stream": stream}
        assert param in server.refused(path, body)["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (
            "/v1/chat/completions",
            {
                "modalities": ["text"],
                "store": True,
                "metadata": {"a": "b"},
                "service_tier": "flex",
                "prediction": {"type": "content", "content": "x"},
                "prompt_cache_key": "k",
                "verbosity": "low",
                "user": "u",
                "lora": [],
            },
        ),
        ("/v1/messages", {"mcp_servers": [], "container": None, "service_tier": "auto"}),
    ],
)
def test_what_changes_no_answer(server: Endpoint, path: str, more: dict[str, Any]) -> None:
    body = {"model": "scripted", **BODIES[path], "temperature": 0}
    plain, other = server.post(path, body), server.post(path, body | more)
    key = "content" if "content" in plain else "choices"
    assert other[key] == plain[key]
