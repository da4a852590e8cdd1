"""https sources: resume, validators, checksums, failing servers. All on a local server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.web import FileServer, serve

from edgerun import catalog
from edgerun.catalog import web
from edgerun.errors import ChecksumError, DownloadError

BODY = b"GGUF" + bytes(range(256)) * 4096


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve(FileServer(BODY)) as s:
        yield s


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "a b　漢"
    home.mkdir()
    monkeypatch.setenv("EDGERUN_HOME", str(home))
    monkeypatch.setattr(web.time, "sleep", lambda seconds: None)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return home


def entry(home: Path, url: str, sha: str | None = "right", extra: str = "") -> None:
    digest = hashlib.sha256(BODY).hexdigest() if sha == "right" else sha
    line = f'sha256 = "{digest}"\n' if digest else ""
    text = f'[m]\nsource = "{url}"\nfile = "m.gguf"\n{line}{extra}'
    (home / "models.toml").write_text(text, encoding="utf-8")


def leave_partial(home: Path, server: FileServer) -> Path:
    """Interrupt a pull as Ctrl-C would."""

    class Stop(BaseException):
        pass

    def stop(done: int, total: int | None) -> None:
        if done >= 300_000:
            raise Stop

    with pytest.raises(Stop):
        catalog.pull("m", progress=stop)
    part = home / "models/m/m.gguf.part"
    assert part.stat().st_size >= 300_000
    assert not (home / "models/m/m.gguf").exists()
    part.write_bytes(part.read_bytes()[:300_000])
    server.requests.clear()
    return part


def test_pull_reports_and_stores(home: Path, server: FileServer) -> None:
    entry(home, server.url, extra=f"size = {len(BODY)}\n")
    seen: list[tuple[int, int | None]] = []
    found = catalog.pull("m", progress=lambda done, total: seen.append((done, total)))
    assert found.path == home / "models/m/m.gguf"
    assert found.path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)
    assert {p.name for p in found.path.parent.iterdir()} == {"m.gguf", "model.json"}
    n = len(server.requests)
    assert catalog.resolve("m").path == found.path
    assert len(server.requests) == n  # what is here is not asked for again


def test_an_interrupted_pull_goes_on(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    leave_partial(home, server)
    assert catalog.pull("m").path.read_bytes() == BODY
    assert server.requests[0]["Range"] == "bytes=300000-"
    assert server.requests[0]["If-Range"] == '"v1"'


def test_a_changed_file_starts_again(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    part = leave_partial(home, server)
    part.write_bytes(b"old version" * 100)
    server.etag = '"v2"'
    assert catalog.pull("m").path.read_bytes() == BODY


def test_a_server_without_ranges(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    leave_partial(home, server)
    server.ranges = False
    assert catalog.pull("m").path.read_bytes() == BODY


def test_a_partial_file_that_is_whole(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    leave_partial(home, server).write_bytes(BODY)
    assert catalog.pull("m").path.read_bytes() == BODY  # the server answers 416


def test_a_partial_file_that_is_too_long(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    leave_partial(home, server).write_bytes(BODY + b"x")
    assert catalog.pull("m").path.read_bytes() == BODY


def test_dropped_connections_and_busy_servers(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    server.statuses = [503, 429]
    server.cuts = [200_000, 1, 0]
    assert catalog.pull("m").path.read_bytes() == BODY
    assert [r.get("Range") for r in server.requests] == [
        None, None, None, "bytes=200000-", "bytes=200001-", "bytes=200001-",
    ]  # fmt: skip


def test_giving_up_keeps_what_is_here(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    server.cuts = [100_000] + [0] * 20
    with pytest.raises(DownloadError, match="100000 bytes are kept"):
        catalog.pull("m")
    server.cuts = []
    assert catalog.pull("m").path.read_bytes() == BODY


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_final(home: Path, server: FileServer, status: int) -> None:
    entry(home, server.url)
    server.statuses = [status] * 9
    with pytest.raises(DownloadError, match=str(status)):
        catalog.pull("m")
    assert len(server.requests) == 1


def test_nobody_listens(home: Path) -> None:
    entry(home, "http://127.0.0.1:9/x.gguf")
    with pytest.raises(DownloadError, match="cannot be fetched"):
        catalog.pull("m")


def test_wrong_checksum_leaves_nothing(home: Path, server: FileServer) -> None:
    entry(home, server.url, sha="0" * 64)
    with pytest.raises(ChecksumError, match="sha256"):
        catalog.pull("m")
    assert not list((home / "models/m").glob("m.gguf*"))


def test_wrong_size_is_seen_before_the_download(home: Path, server: FileServer) -> None:
    entry(home, server.url, extra="size = 5\n")
    with pytest.raises(ChecksumError, match=str(len(BODY))):
        catalog.pull("m")
    assert not (home / "models/m/m.gguf.part").exists()


def test_a_web_page_is_no_model(home: Path, server: FileServer) -> None:
    server.body = b"<!DOCTYPE html>" * 10
    entry(home, server.url, sha=hashlib.sha256(server.body).hexdigest())
    with pytest.raises(ChecksumError, match="not a GGUF file"):
        catalog.pull("m")


def test_plain_http_needs_a_checksum(home: Path, server: FileServer) -> None:
    entry(home, server.url, sha=None)
    with pytest.raises(DownloadError, match="not encrypted"):
        catalog.pull("m")
    assert server.requests == []


def test_a_full_disk(home: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    entry(home, server.url)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("edgerun.catalog.sources.shutil.disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="are free: make room or set EDGERUN_HOME"):
        catalog.pull("m")


def test_the_next_mirror_is_tried(home: Path, server: FileServer) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    text = f'[m]\nsource = ["http://127.0.0.1:9/x.gguf", "{server.url}"]\nsha256 = "{digest}"\n'
    (home / "models.toml").write_text(text + 'file = "m.gguf"\n')
    assert catalog.pull("m").path.read_bytes() == BODY


def test_two_pulls_at_once_fetch_once(home: Path, server: FileServer) -> None:
    import subprocess
    import sys

    entry(home, server.url)
    command = [sys.executable, "-m", "edgerun", "pull", "m"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [run.communicate(timeout=60)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert set(outs) == {str(home / "models/m/m.gguf")}
    assert len(server.requests) == 1


def test_an_unwritable_store(home: Path, server: FileServer) -> None:
    entry(home, server.url)
    (home / "models").write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match="cannot be stored"):
        catalog.pull("m")
