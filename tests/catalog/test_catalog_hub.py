"""hf sources, against a local server that speaks the hub's download protocol."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgerun import catalog
from edgerun.catalog import hub
from edgerun.errors import ChecksumError, DownloadError

BODY = b"GGUF" + bytes(range(256)) * 2000
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """``/{repo}/resolve/{revision}/{file}``: what huggingface_hub reads of an LFS file."""

    etag = ""
    seen: list[str]

    def do_HEAD(self) -> None:
        self._reply(body=False)

    def do_GET(self) -> None:
        self._reply(body=True)

    def _reply(self, body: bool) -> None:
        type(self).seen.append(f"{self.command} {self.path} {self.headers.get('Range')}")
        if "/resolve/" not in self.path or not self.path.endswith("/sub/m.gguf"):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = (self.headers.get("Range") or "").removeprefix("bytes=").split("-")[0]
        start = int(asked or 0) if body else 0
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{type(self).etag}"')
        self.send_header("ETag", f'"{type(self).etag}"')
        self.send_header("X-Linked-Size", str(len(BODY)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        if body:
            self.wfile.write(BODY[start:])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.etag, Hub.seen = hashlib.sha256(BODY).hexdigest(), []
    http = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{http.server_port}")
    yield Hub
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return tmp_path / "home"


SOURCE = "hf:owner/repo/sub/m.gguf"


def test_pull_checks_the_published_hash(server: type[Hub], home: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    found = catalog.resolve(SOURCE, progress=lambda done, total: seen.append((done, total)))
    assert found.path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert {p.name for p in found.path.parent.iterdir()} == {"m.gguf", "model.json"}
    n = len(server.seen)
    assert catalog.resolve(SOURCE).path == found.path
    assert catalog.resolve(found.name).path == found.path  # by the name that list shows, too
    assert [e.path for e in catalog.list_models() if e.name == found.name] == [found.path]
    assert len(server.seen) == n
    assert catalog.remove(SOURCE) >= len(BODY)
    assert not found.path.exists()


def test_a_published_hash_that_does_not_match(server: type[Hub], home: Path) -> None:
    server.etag = "0" * 64
    with pytest.raises(ChecksumError, match="sha256"):
        catalog.resolve(SOURCE)
    assert not list(home.rglob("m.gguf*"))


def test_an_absent_file(server: type[Hub]) -> None:
    with pytest.raises(DownloadError, match="cannot be fetched") as e:
        catalog.resolve("hf:owner/repo/other.gguf")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("source", ["hf:x", "hf:a/b", "hf:a/b/../../c", "hf:../b/c.gguf x"])
def test_a_malformed_source(source: str) -> None:
    with pytest.raises(DownloadError, match="not a hub source"):
        catalog.resolve(source)


def test_a_revision(server: type[Hub]) -> None:
    assert hub.parse("hf:o/r@v1.0/d/f.gguf") == ("o/r", "v1.0", "d/f.gguf")
    catalog.resolve("hf:owner/repo@v1/sub/m.gguf")
    assert "/owner/repo/resolve/v1/sub/m.gguf" in server.seen[0]


def test_the_hubs_cache_is_used_in_place(tmp_path: Path) -> None:
    repo = tmp_path / "hf/hub/models--owner--repo"
    file = repo / f"snapshots/{COMMIT}/sub/m.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(BODY)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text(COMMIT)
    assert catalog.resolve(SOURCE).path == file
