"""Models split over several files are one model: pulled, listed, found and removed as one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgerun import catalog
from edgerun.catalog import store
from edgerun.catalog.sources import Job
from edgerun.catalog.split import parts
from edgerun.errors import ChecksumError, DownloadError, ModelFileError, NotPulledError

BODY = b"GGUF" + bytes(range(256)) * 512
FILES = [f"big-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]


class Publisher:
    """Stands for the fetchers, which have tests of their own; ``refuse`` fails one file."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refuse = ""

    def __call__(self, source: str, job: Job) -> str:
        self.asked.append(source)
        if self.refuse and source.endswith(self.refuse):
            raise DownloadError(f"{source} cannot be fetched")
        body = BODY + source.encode()
        job.target.write_bytes(body)
        job.report(len(body), len(body))
        return hashlib.sha256(body).hexdigest()


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    p = Publisher()
    monkeypatch.setattr(store, "fetch", p)
    return p


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("EDGERUN_HOME", str(home))
    return home


def entry(home: Path, source: str, extra: str = "") -> None:
    (home / "models.toml").write_text(f'[big]\nsource = "{source}"\n{extra}', encoding="utf-8")


def listed() -> list[catalog.Entry]:
    return [e for e in catalog.list_models() if "big" in e.name]


@pytest.mark.parametrize(
    ("name", "first", "n"),
    [
        ("m-00002-of-00003.gguf", "m-00001-of-00003.gguf", 3),
        ("hf:a/b/x/m-00003-of-00003.gguf", "hf:a/b/x/m-00001-of-00003.gguf", 3),
        ("https://h/m-00001-of-00002.gguf?d=1", "https://h/m-00001-of-00002.gguf?d=1", 2),
        ("m.gguf", "m.gguf", 1),
        ("m-00004-of-00003.gguf", "m-00004-of-00003.gguf", 1),
        ("m-00000-of-00003.gguf", "m-00000-of-00003.gguf", 1),
        ("m-1-of-3.gguf", "m-1-of-3.gguf", 1),
        ("m-00001-of-00003.bin", "m-00001-of-00003.bin", 1),
    ],
)
def test_parts(name: str, first: str, n: int) -> None:
    assert parts(name)[0] == first
    assert len(set(parts(name))) == n
    assert name in parts(name)


@pytest.mark.parametrize("named", FILES)
def test_a_set_on_disk_is_one_model(home: Path, named: str) -> None:
    for file in FILES:
        (home / file).write_bytes(BODY)
    entry(home, named, f"size = {3 * len(BODY)}")
    assert catalog.resolve("big").path == home / named
    assert [(e.name, e.path, e.stored) for e in listed()] == [("big", home / named, False)]
    (home / FILES[1]).unlink()
    with pytest.raises(NotPulledError):
        catalog.resolve("big", pull=False)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ('file = "m.gguf"', "file and source must both be split"),
        ('file = "m-00001-of-00002.gguf"', "file and source must both be split"),
        (f'sha256 = "{"0" * 64}"', "sha256 must be left out"),
    ],
)
def test_entries_that_cannot_be(home: Path, extra: str, says: str) -> None:
    entry(home, f"hf:a/b/{FILES[0]}", extra)
    with pytest.raises(ModelFileError, match=says):
        catalog.load_catalog()


def test_a_pull_fetches_every_file(home: Path, publisher: Publisher) -> None:
    entry(home, f"hf:a/b/sub/{FILES[0]}")
    path = catalog.pull("big").path
    assert path == home / "models/big" / FILES[0]
    assert publisher.asked == [f"hf:a/b/sub/{f}" for f in FILES]
    for file in FILES:
        assert (path.parent / file).read_bytes().endswith(file.encode())
    assert [(e.name, e.stored) for e in listed()] == [("big", True)]
    assert catalog.pull("big").path == path
    assert len(publisher.asked) == 3
    assert catalog.remove("big") > 3 * len(BODY)
    assert not path.parent.exists()


def test_any_file_of_a_source_means_the_set(home: Path, publisher: Publisher) -> None:
    paths = {catalog.pull(f"https://example.org/{f}?download=1").path for f in FILES}
    assert len(paths) == 1
    assert len(publisher.asked) == 3
    assert [(e.path, e.stored) for e in listed()] == [(next(iter(paths)), True)]
    catalog.remove(f"https://example.org/{FILES[2]}?download=1")
    assert listed() == []


def test_an_interrupted_set_goes_on(home: Path, publisher: Publisher) -> None:
    entry(home, f"hf:a/b/{FILES[0]}")
    publisher.refuse = FILES[1]
    with pytest.raises(DownloadError):
        catalog.pull("big")
    assert [(e.path, e.stored, e.partial > 0) for e in listed()] == [(None, False, True)]
    publisher.refuse = ""
    publisher.asked.clear()
    catalog.pull("big")
    assert publisher.asked == [f"hf:a/b/{f}" for f in FILES[1:]]


def test_an_interrupted_source_goes_on_by_its_stored_name(publisher: Publisher) -> None:
    publisher.refuse = FILES[2]
    with pytest.raises(DownloadError):
        catalog.pull(f"hf:a/b/{FILES[0]}")
    publisher.refuse = ""
    name = listed()[0].name
    assert catalog.pull(name).path.name == FILES[0]
    assert len(publisher.asked) == 4
    assert [(e.name, e.stored) for e in listed()] == [(name, True)]


def test_mirrors_are_not_mixed(home: Path, publisher: Publisher) -> None:
    text = f'[big]\nsource = ["hf:a/a/{FILES[0]}", "hf:b/b/{FILES[0]}"]\n'
    (home / "models.toml").write_text(text, encoding="utf-8")
    publisher.refuse = f"a/a/{FILES[2]}"
    path = catalog.pull("big").path
    for file in FILES:
        assert (path.parent / file).read_bytes().endswith(f"b/b/{file}".encode())


def test_a_set_of_another_size_is_refused(home: Path, publisher: Publisher) -> None:
    entry(home, f"hf:a/b/{FILES[0]}", "size = 1000")
    with pytest.raises(ChecksumError, match="do not add up to 1000 bytes"):
        catalog.pull("big")
    assert not list((home / "models/big").glob("*.gguf"))
