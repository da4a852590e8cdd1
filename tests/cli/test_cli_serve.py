"""``edgerun serve`` as a process: what it says, what it refuses, how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, EDGERUN, environment, one_line_error

PIECES = ["Hel", "lo", ", ", "wor", "ld", "! "]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    gb.scripted_model(found / "one.gguf", PIECES)
    gb.random_model(found / "two.gguf", n_ctx=4096)
    (found / "bad.gguf").write_bytes(b"GGUF and no more")
    return found


class Process:
    """A running server; ``lines`` are what it has said on stdout."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[Any] = []

    def read_until(self, event: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                found: dict[str, Any] = self.lines[-1]
                return found

    def end(self, sig: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(sig)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        err = self.process.communicate(timeout=30)[1]
        return self.process.returncode, err


@contextlib.contextmanager
def serving(*args: str | Path, **env: str) -> Iterator[Process]:
    command = [*EDGERUN, "serve", "--json", "--port", "0", "--threads", "1", *map(str, args)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**env)
    )
    try:
        yield Process(process)
    finally:
        process.kill()
        process.communicate()


def test_one_model_from_start_to_end(folder: Path) -> None:
    with serving("-m", folder / "one.gguf", "--log-json") as server:
        listening, ready = server.read_until("listening"), server.read_until("ready")
        assert ready["models"] == ["one"]
        assert ready["url"] == listening["url"]
        client = httpx.Client(base_url=ready["url"], trust_env=False, timeout=30)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models").json()["data"][0]["loaded"]
        body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
        done = client.post("/v1/chat/completions", json=body).json()
        assert done["choices"][0]["message"]["content"] == "".join(PIECES)
        status, err = server.end()
    assert status == 0
    lines = [json.loads(line) for line in err.splitlines()]
    chat = [line for line in lines if line.get("route") == "/v1/chat/completions"]
    assert chat[0]["completion_tokens"] == len(PIECES)


def test_a_folder_and_keys(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfrom-file\n\n")
    args = ("-m", folder, "--api-key", "from-line", "--api-key-file", keys)
    with serving(*args, EDGERUN_API_KEY="from-environment") as server:
        url = server.read_until("ready")["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
            assert client.get("/v1/models").status_code == 401
            for key in ("from-line", "from-file", "from-environment"):
                models = client.get("/v1/models", headers={"api-key": key}).json()["data"]
                assert [m["id"] for m in models] == ["one", "two"]  # the bad one is left out
                assert not any(m["loaded"] for m in models)
            body = {"model": "one", "prompt": "Go", "temperature": 0}
            done = client.post("/v1/completions", json=body, headers={"api-key": "from-file"})
            assert done.json()["choices"][0]["text"] == "".join(PIECES)
        status, err = server.end(signal.SIGTERM)
    assert status == 0
    assert "bad" in err
    assert "from-" not in err


def test_twice_is_at_once(folder: Path) -> None:
    with serving("-m", folder / "two.gguf", "--drain", "60") as server:
        url = server.read_until("ready")["url"]
        body = {"prompt": "a", "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
            parts = response.iter_raw()
            next(parts)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            assert server.process.poll() is None  # it lets the answer end
            began = time.perf_counter()
            server.process.send_signal(signal.SIGINT)
            text = b"".join(parts)
        status, _ = server.wait()
    assert time.perf_counter() - began < 10
    assert status == 0
    assert b'"code":"closed"' in text


def test_a_unix_socket(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving("-m", folder / "one.gguf", "--unix-socket", path) as server:
        assert server.read_until("ready")["url"] == f"unix:{path}"
        assert path.stat().st_mode & 0o077 == 0
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://any.example") as client:
            assert client.get("/health").json() == {"status": "ok"}
        assert server.end()[0] == 0
    assert not path.exists()


def test_tls(folder: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl here to make a certificate")
    with serving("-m", folder / "one.gguf", "--tls-cert", cert, "--tls-key", key) as server:
        url = server.read_until("ready")["url"]
        assert url.startswith("https://")
        import ssl

        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.get(f"{url}/health").json() == {"status": "ok"}
        assert server.end()[0] == 0


def test_the_only_model_is_bad(folder: Path) -> None:
    with serving("-m", folder / "bad.gguf") as server:
        status, err = server.wait()
    assert status == 1
    assert err.splitlines()[-1].startswith("error: ")
    assert "bad.gguf" in err


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    """Whoever puts models there later need not start it again."""
    process = subprocess.Popen(
        [*EDGERUN, "serve", "--port", "0", "-m", str(tmp_path)],
        stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("no model yet, at http://127.0.0.1:")
    finally:
        process.kill()
        process.communicate()


def test_open_to_others_is_said(folder: Path) -> None:
    with serving("-m", folder / "one.gguf", "--host", "0.0.0.0") as server:
        server.read_until("ready")
        assert "--api-key" in server.end()[1]


def test_a_port_in_use(cli: CLI, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = one_line_error(cli("serve", "-m", folder / "one.gguf", "--port", str(port)))
    assert f"port {port}" in error
    assert "--port" in error


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--host", "203.0.113.7"], "--host"),
        (["--host", "no such host"], "--host"),
        (["--port", "70000"], "--port"),
        (["--tls-key", "x"], "--tls-cert"),
        (["--tls-cert", "/nowhere.pem"], "/nowhere.pem"),
        (["--api-key-file", "/nowhere"], "--api-key-file"),
        (["--api-key", ""], "key"),
        (["--max-batch", "0"], "max_batch"),
        (["--max-queue", "-1"], "max_queue"),
        (["--timeout", "0"], "timeout"),
        (["--cors-origin", "example.org"], "like https://example.org, not 'example.org'"),
        (["--cors-origin", "https://example.org/app"], "cors_origin"),
        (["--allowed-host", "https://box.lan"], "without scheme and port"),
        (["--allowed-host", "box.lan:8080"], "allowed_host"),
        (["--ttl", "-1"], "--ttl"),
        (["--drain", "nan"], "--drain"),
        (["-m", "/nowhere.gguf"], "/nowhere.gguf"),
        (["--unix-socket", "/nowhere/at/all"], "--unix-socket"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_wrong_options(cli: CLI, folder: Path, args: list[str], names: str) -> None:
    given = args if args[0] == "-m" else ["-m", str(folder / "one.gguf"), *args]
    assert names in one_line_error(cli("serve", "--port", "0", *given))
