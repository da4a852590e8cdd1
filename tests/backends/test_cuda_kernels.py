"""Kernels by name: machine code for every architecture without a GPU, and what is kept on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import cuda_names
from helpers.cuda_names import ARCHITECTURES

from edgerun.backends import cuda_kernels, cuda_nvrtc
from edgerun.backends.cuda_nvrtc import Resources
from edgerun.errors import BackendError, BackendUnavailableError
from edgerun.native import data

try:
    cuda_nvrtc.version()
except BackendUnavailableError as e:
    pytest.skip(str(e), allow_module_level=True)

_ALL = os.environ.get("EDGERUN_NVRTC_ALL") == "1"  # minutes instead of seconds


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, on disk and in memory."""
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    cuda_kernels._cubin.cache_clear()
    cuda_kernels._sources.cache_clear()
    yield
    cuda_kernels._cubin.cache_clear()
    cuda_kernels._sources.cache_clear()


def test_every_kernel_is_compiled_somewhere() -> None:
    assert not cuda_names.files()
    started = {n.partition("<")[0] for arch in ARCHITECTURES for n in cuda_names.some(arch)}
    assert started == set(cuda_kernels.FILES)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_compile_and_fit(arch: int) -> None:
    names = cuda_names.everything() if _ALL else cuda_names.some(arch)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda n: cuda_kernels.compiled(n, arch), names))
    for name, compiled in zip(names, found, strict=True):
        assert compiled.cubin.startswith(b"\x7fELF")
        assert compiled.symbol.encode() in compiled.cubin
        assert name.partition("<")[0] in compiled.symbol
        takes = Resources.of(compiled)
        assert not takes.spilled, f"{name} on sm_{arch} spills: {takes}"
        assert takes.shared <= 48 << 10, f"{name} on sm_{arch}: {takes}"
        granted = -(-takes.registers // 8) * 8  # registers come in eights
        assert granted * cuda_names.most_threads(name) <= 65536, (
            f"{name} on sm_{arch} cannot start: {takes}"
        )


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((7, 5), 75), ((8, 6), 86), ((8, 9), 89), ((9, 0), 90), ((12, 0), 120), ((12, 9), 121)],
)
def test_the_architecture_for_a_card(capability: tuple[int, int], arch: int) -> None:
    assert cuda_nvrtc.architecture(capability) == arch


@pytest.mark.parametrize("capability", [(7, 0), (6, 1), (99, 0)])
def test_a_card_that_the_compiler_does_not_know(capability: tuple[int, int]) -> None:
    with pytest.raises(BackendError, match=r"compute capability \d+\.\d: install another"):
        cuda_kernels.cubin("glu", capability)


@pytest.mark.parametrize("name", ["nonesuch", "glu<1>", "rope_kv<9>x", "rope_kv", ""])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(BackendError) as error:
        cuda_kernels.cubin(name, (8, 9))
    assert "\n" not in str(error.value)


def _kernels(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A copy of the kernels' folder, in place of it."""
    copy = folder / "kernels_cuda"
    shutil.copytree(data("kernels_cuda"), copy)
    monkeypatch.setattr(cuda_kernels, "data", lambda *parts: folder.joinpath(*parts))
    return copy


def _kept(home: Path) -> list[Path]:
    return sorted((home / "cuda").iterdir(), key=lambda p: p.stat().st_mtime)


def _count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is compiled from now on."""
    seen: list[str] = []
    real = cuda_nvrtc.compile_kernel

    def counted(*args: object) -> cuda_nvrtc.Compiled:
        seen.append(str(args[3]))
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cuda_nvrtc, "compile_kernel", counted)
    return seen


def test_code_is_kept_until_something_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = _kernels(monkeypatch, tmp_path)
    seen = _count(monkeypatch)
    first = cuda_kernels.cubin("rotate_heads", (8, 9))
    before = cuda_kernels.digest.__wrapped__()

    def again() -> int:
        cuda_kernels._cubin.cache_clear()
        cuda_kernels._sources.cache_clear()
        cuda_kernels.cubin("rotate_heads", (8, 9))
        return len(seen)

    assert again() == 1
    assert cuda_kernels.cubin("rotate_heads", (8, 9)) == first
    header = folder / "hadamard.cuh"
    header.write_text(header.read_text() + "// changed\n")
    assert again() == 2
    assert cuda_kernels.digest.__wrapped__() != before
    (folder / "glu.cu").write_text("// another kernel's file\n")
    assert again() == 2
    monkeypatch.setattr(cuda_nvrtc, "version", lambda: (99, 9))
    assert again() == 3
    monkeypatch.setattr(cuda_nvrtc, "OPTIONS", (*cuda_nvrtc.OPTIONS, "--use_fast_math"))
    assert again() == 4
    cuda_kernels.cubin("rotate_heads", (8, 6))
    assert len(seen) == 5


def test_old_code_is_cleared_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _kernels(monkeypatch, tmp_path)
    cuda_kernels.cubin("glu", (8, 9))
    file = folder / "copy_page.cu"
    for i in range(5):
        file.write_text(file.read_text() + f"// {i}\n")
        cuda_kernels._sources.cache_clear()
        cuda_kernels._cubin.cache_clear()
        cuda_kernels.cubin("copy_page", (8, 9))
    names = [p.name.rpartition("-")[0] for p in _kept(tmp_path)]
    assert sorted(names) == ["copy_page-sm89"] * 3 + ["glu-sm89"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "folder"])
def test_damaged_code_is_made_anew(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = cuda_kernels.cubin("glu", (8, 9))
    (path,) = _kept(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes({"cut": raw[:-9], "flipped": raw, "empty": b""}[damage])
    cuda_kernels._cubin.cache_clear()
    seen = _count(monkeypatch)
    assert cuda_kernels.cubin("glu", (8, 9)) == wanted
    assert seen == ["glu"]
    if damage != "folder":
        assert _kept(tmp_path) == [path]
        cuda_kernels._cubin.cache_clear()
        cuda_kernels.cubin("glu", (8, 9))
        assert seen == ["glu"]


def test_a_folder_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "file"))
    code, symbol = cuda_kernels.cubin("glu", (8, 9))
    assert code.startswith(b"\x7fELF")
    assert symbol == "glu"


def test_several_are_prepared_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = _count(monkeypatch)
    cuda_kernels.prepare(["glu", "copy_page", "glu"], (8, 9))
    cuda_kernels.cubin("copy_page", (8, 9))
    assert sorted(seen) == ["copy_page", "glu"]
    with pytest.raises(BackendError, match="nonesuch"):
        cuda_kernels.prepare(["glu", "nonesuch"], (8, 9))
