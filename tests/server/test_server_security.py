"""Who gets in, and what is too much: names, keys, origins, bodies."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.http import Endpoint

from edgerun.errors import RequestError
from edgerun.server.limits import too_deep
from edgerun.server.options import ServerOptions
from edgerun.server.security import Keys, given_key, host_allowed, origin_allowed, split_host

PATH = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def locked(models: dict[str, Path]) -> Iterator[Endpoint]:
    with Endpoint(
        {"scripted": models["scripted"]},
        api_keys=KEYS,
        cors_origins=("https://good.example",),
        allowed_hosts=("box.lan",),
        max_body=4000,
        body_timeout=0.4,
    ) as endpoint:
        yield endpoint


# -- Host ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("localhost:8080", "localhost"),
        ("LOCALHOST.", "localhost"),
        ("[::1]:80", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("", None),
        ("a/b", None),
        ("user@localhost", None),
        ("localhost:x", None),
        ("[::1", None),
        ("evil.com#localhost", None),
    ],
)
def test_hosts_are_read_strictly(value: str, name: str | None) -> None:
    assert split_host(value) == name


def test_hosts_allowed() -> None:
    local = ServerOptions(allowed_hosts=("Box.lan",))
    for good in ("localhost", "127.0.0.1:1", "127.1.2.3", "[::1]:8", "a.localhost", "box.LAN:8"):
        assert host_allowed(good, local), good
    for bad in ("evil.com", "localhost.evil.com", "127.0.0.1.nip.io", "192.168.0.2", None, ""):
        assert not host_allowed(bad, local), bad
    assert host_allowed("evil.com", ServerOptions(host="0.0.0.0"))
    assert not host_allowed("evil.com", ServerOptions(host="0.0.0.0", allowed_hosts=("me.lan",)))
    assert host_allowed(None, ServerOptions(unix_socket=True))
    assert host_allowed("evil.com", ServerOptions(allowed_hosts=("*",)))


def test_a_rebound_name_is_turned_away(server: Endpoint) -> None:
    for path in ("/v1/models", "/health", "/", "/nothing"):
        response = server.client.get(path, headers={"host": "evil.example"})
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"
    assert server.client.get("/v1/models", headers={"host": "localhost:1"}).status_code == 200


# -- keys ----------------------------------------------------------------------------------------


def test_keys() -> None:
    keys = Keys(KEYS)
    assert all(keys.open_to(k) for k in KEYS)
    assert not any(keys.open_to(k) for k in (None, "", "first", "first-key ", "\udcff"))
    assert Keys(()).open_to(None)
    assert given_key({"authorization": "bearer  x "}) == "x"
    assert given_key({"authorization": "Basic abc", "api-key": "k"}) == "k"
    assert given_key({}) is None
    with pytest.raises(RequestError):
        ServerOptions(api_keys=(" ",))


@pytest.mark.parametrize("path", [PATH, "/v1/models", "/metrics", "/nothing"])
def test_without_a_key(locked: Endpoint, path: str) -> None:
    with httpx.Client(base_url=locked.url, trust_env=False) as client:
        for headers in ({}, {"authorization": "Bearer nope"}, {"x-api-key": "first-key2"}):
            response = client.post(path, json=BODY, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("key", KEYS)
def test_each_way_to_bring_a_key(locked: Endpoint, key: str) -> None:
    ways = ({"authorization": f"Bearer {key}"}, {"api-key": key}, {"x-api-key": key})
    with httpx.Client(base_url=locked.url, trust_env=False) as client:
        for headers in ways:
            assert client.post(PATH, json=BODY, headers=headers).status_code == 200
    with locked.openai(api_key=key) as openai:
        assert [m.id for m in openai.models.list()] == ["scripted"]


# -- CORS ----------------------------------------------------------------------------------------


def test_origins() -> None:
    options = ServerOptions(cors_origins=("https://good.example/",))
    for good in (
        "http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "https://good.example",
        "vscode-webview://abc", "http://box.lan:8080", "tauri://localhost",
    ):  # fmt: skip
        assert origin_allowed(good, "box.lan:8080", options), good
    for bad in ("https://evil.example", "null", "http://good.example", "http://localhost.evil", ""):
        assert not origin_allowed(bad, "box.lan:8080", options), bad
    assert origin_allowed("https://any.example", None, ServerOptions(cors_origins=("*",)))
    extension = "chrome-extension://abcdef"
    assert origin_allowed(extension, None, ServerOptions(cors_origins=(extension,)))


def test_preflight_needs_no_key(locked: Endpoint) -> None:
    asks = {
        "origin": "https://good.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
        "access-control-request-private-network": "true",
    }
    with httpx.Client(base_url=locked.url, trust_env=False) as client:
        response = client.options(PATH, headers=asks)
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == "https://good.example"
        assert "POST" in response.headers["access-control-allow-methods"]
        allowed = response.headers["access-control-allow-headers"]
        assert allowed == asks["access-control-request-headers"]
        assert response.headers["access-control-allow-private-network"] == "true"
        refused = client.options(PATH, headers=asks | {"origin": "https://evil.example"})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
        post = client.post(PATH, json=BODY, headers={"origin": "https://good.example"})
        assert post.status_code == 401
        assert post.headers["access-control-allow-origin"] == "https://good.example"
        assert "Origin" in post.headers["vary"]


def test_cors_headers_of_answers(server: Endpoint) -> None:
    local = {"origin": "http://localhost:3000"}
    good = server.client.post(PATH, json=BODY, headers=local)
    assert good.status_code == 200
    assert good.headers["access-control-allow-origin"] == "http://localhost:3000"
    missing = server.client.post(PATH, json=BODY | {"model": "x"}, headers=local)
    assert missing.headers["access-control-allow-origin"] == "http://localhost:3000"
    # A page that cannot read the answer must not be able to keep the machine busy, either.
    evil = {"origin": "https://evil.example", "content-type": "text/plain"}
    refused = server.client.post(PATH, content=json.dumps(BODY), headers=evil)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "origin_not_allowed"
    seen = server.client.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in seen.headers


# -- bodies --------------------------------------------------------------------------------------


def test_nesting() -> None:
    assert not too_deep(b"[" * 8 + b"]" * 8, 8)
    assert too_deep(b"[" * 9, 8)
    assert too_deep(b'{"a":' * 9, 8)
    assert not too_deep(b'{"code": "' + b"{[" * 500 + b'"}', 8)
    assert not too_deep(b'{"a": "\\"[[[[[[[[[[", "b": "\\\\"}', 8)
    assert too_deep(b'["\\\\", ' + b"[" * 9, 8)
    assert not too_deep(b"[],[],[],[],[],[],[],[],[],[]", 8)
    began = time.perf_counter()
    too_deep(b'["' + b'\\"[' * 300_000, 8)  # a string that never ends
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("part", ["[", '{"a":'])
def test_deep_json_is_refused(server: Endpoint, part: str) -> None:
    for text in (part * 10_000, '{"messages": ' + part * 10_000):
        response = server.client.post(PATH, content=text)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "json_too_deep"
    assert server.client.post(PATH, json=BODY).status_code == 200


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '"x"', "{'a': 1}", b"\xff\xfe", '{"messages": NaN}', "1" * 5000],
)
def test_bodies_that_are_no_objects(server: Endpoint, text: str | bytes) -> None:
    response = server.client.post(PATH, content=text)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("text", "headers", "status", "code", "said"),
    [
        ('{"a": "\xe9"}'.encode("latin-1"), {}, 400, "invalid_json", "it is not UTF-8 text"),
        (b'{"seed": ' + b"9" * 5000 + b"}", {}, 400, "invalid_json", "4300"),
        (b"\x1f\x8b", {"content-encoding": "gzip"}, 415, "unsupported_media_type", "(gzip)"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(
    server: Endpoint, text: bytes, headers: dict[str, str], status: int, code: str, said: str
) -> None:
    response = server.client.post(PATH, content=text, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert said in error["message"]


def test_odd_values_of_good_json(server: Endpoint) -> None:
    for body in (
        '{"model":"scripted","messages":[{"role":"user","content":"\\ud800"}]}',
        '{"model":"\\ud800","messages":[{"role":"user","content":"x"}]}',
        '{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        '{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        '{"model":"scripted","messages":[{"role":"user","content":"x"}],"stop":["\\udfff"]}',
    ):
        assert server.client.post(PATH, content=body).status_code in (200, 400, 404), body


def test_content_type_does_not_matter(server: Endpoint) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json", ""):
        response = server.client.post(
            PATH, content=json.dumps(BODY), headers={"content-type": kind}
        )
        assert response.status_code == 200


def test_large_bodies(locked: Endpoint) -> None:
    large = BODY | {"user": "x" * 5000}
    error = locked.refused(PATH, large, 413)
    assert error["code"] == "request_too_large"
    assert "4000" in error["message"]

    def pieces() -> Iterator[bytes]:  # no Content-Length
        yield from (b"x" * 1000 for _ in range(6))

    assert locked.client.post(PATH, content=pieces()).status_code == 413
    assert locked.client.post(PATH, json=BODY).status_code == 200


def test_slow_senders_are_cut_off(locked: Endpoint) -> None:
    host, port = locked.url.removeprefix("http://").split(":")
    heads = {
        b"POST /v1/chat/completions HTT": b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer first-key"
        b"\r\nContent-Length: 50\r\n\r\n{": b"408",
    }
    for head, answer in heads.items():
        with socket.create_connection((host, int(port)), timeout=10) as s:
            s.sendall(head)
            began = time.perf_counter()
            got = b""
            while part := s.recv(4096):
                got += part
            assert answer in got
            assert time.perf_counter() - began < 5


# -- other routes --------------------------------------------------------------------------------


def test_unknown_routes_and_methods(server: Endpoint) -> None:
    missing = server.client.get("/v2/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    wrong = server.client.get(PATH)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/models", "/v1/models/scripted", "/v2/no", PATH]
)
def test_head_is_get_without_the_body(server: Endpoint, path: str) -> None:
    """As ``wget --spider`` and ``curl -I`` ask, over one connection."""
    head, get = server.client.head(path), server.client.get(path)
    assert head.content == b""
    assert head.status_code == get.status_code
    kept = ("content-type", "content-length", "allow")
    assert [head.headers.get(k) for k in kept] == [get.headers.get(k) for k in kept]


def test_models(server: Endpoint) -> None:
    listed = server.client.get("/v1/models").json()
    assert listed["object"] == "list"
    first = listed["data"][0]
    assert first["id"] == "scripted"
    assert first["owned_by"] == "edgerun"
    assert first["context_length"] == first["meta"]["n_ctx"] == 512
    assert set(first["meta"]) >= {"n_ctx", "n_ctx_train", "n_params", "size", "ftype"}
    assert server.client.get("/v1/models/scripted").json() == first
    assert server.client.get("/v1/models/").json() == listed
    missing = server.client.get("/v1/models/org/none")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_request_ids(server: Endpoint) -> None:
    own = server.client.get("/health").headers["x-request-id"]
    assert len(own) == 24
    for given, kept in (("abc-1", True), ("a" * 200, False), ("a b", False)):
        found = server.client.get("/health", headers={"x-request-id": given})
        assert (found.headers["x-request-id"] == given) is kept
