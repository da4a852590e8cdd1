"""The build backend, the native library's dependencies, and what an installation holds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from types import ModuleType

import pytest
from helpers.paths import ROOT

from edgerun import native
from edgerun.errors import BackendUnavailableError


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The in-tree build backend, over a stand-in for the library it extends."""
    stub = types.ModuleType("scikit_build_core")
    stub.build = types.SimpleNamespace(  # type: ignore[attr-defined]
        get_requires_for_build_wheel=lambda settings: ["cmake>=3.20"],
        get_requires_for_build_editable=lambda settings: ["cmake>=3.20"],
        get_requires_for_build_sdist=lambda settings: [],
    )
    monkeypatch.setitem(sys.modules, "scikit_build_core", stub)
    spec = importlib.util.spec_from_file_location(
        "edgerun_build_under_test", ROOT / "kernels_cpu/edgerun_build.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("CXX", "EDGERUN_BUILD_WITH_ZIG"):
        monkeypatch.delenv(name, raising=False)
    return module


def fake_tool(folder: Path, name: str, status: int) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)


def test_zig_is_required_where_no_compiler_is(build, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not build.have_compiler()
    needs = build.get_requires_for_build_wheel()
    assert needs == ["cmake>=3.20", "ninja", build.ZIG_REQUIREMENT]
    assert build.get_requires_for_build_editable() == needs
    assert build.get_requires_for_build_sdist() == []


@pytest.mark.skipif(os.name != "posix", reason="shell scripts")
def test_a_compiler_that_does_not_work_does_not_count(build, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_tool(tmp_path, "c++", 1)
    assert not build.have_compiler()
    fake_tool(tmp_path, "g++", 0)
    assert build.have_compiler()
    assert build.get_requires_for_build_wheel() == ["cmake>=3.20"]


def test_the_environment_decides(build, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "my-compiler")
    assert build.have_compiler()
    monkeypatch.setenv("EDGERUN_BUILD_WITH_ZIG", "1")
    assert not build.have_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("EDGERUN_BUILD_WITH_ZIG")
    monkeypatch.setattr("sys.platform", "win32")  # MSVC does not speak GNU C++
    assert not build.have_compiler()


@pytest.mark.parametrize(
    ("system", "machine", "target"),
    [
        ("win32", "AMD64", "x86_64-windows-gnu"),
        ("darwin", "arm64", "aarch64-macos.13.0-none"),
        ("linux", "x86_64", "x86_64-linux-"),
        ("linux", "aarch64", "aarch64-linux-"),
    ],
)
def test_zig_never_compiles_for_the_build_machines_cpu(build, system, machine, target) -> None:
    assert build.zig_target(system, machine).startswith(target)
    text = build.toolchain_text("C:\\x y\\zig.exe", build.zig_target(system, machine))
    assert text.count("-target " + target) == 2  # without one zig means -march=native


def test_the_toolchain_is_taken_back(build, monkeypatch, tmp_path) -> None:
    ziglang = types.ModuleType("ziglang")
    ziglang.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "ziglang", ziglang)
    monkeypatch.setenv("EDGERUN_BUILD_WITH_ZIG", "1")
    before = dict(os.environ)
    with build._compiler():
        toolchain = Path(os.environ["CMAKE_TOOLCHAIN_FILE"])
        assert str(tmp_path.as_posix()) in toolchain.read_text()
        assert os.environ["CMAKE_GENERATOR"] == "Ninja"
    assert not toolchain.exists()
    assert dict(os.environ) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF")
def test_the_library_needs_no_cpp_runtime() -> None:
    content = native.lib_path().read_bytes()
    assert content[:4] == b"\x7fELF"
    assert b"libstdc++" not in content
    assert b"libc++" not in content


def test_data_files() -> None:
    assert native.data("models.toml").is_file()
    with pytest.raises(FileNotFoundError, match="edgerun/no/such"):
        native.data("no", "such")


def test_a_library_that_is_missing_or_foreign(monkeypatch, tmp_path) -> None:
    native.lib.cache_clear()
    monkeypatch.setenv("EDGERUN_CPU_LIB", str(tmp_path / "no.so"))
    with pytest.raises(BackendUnavailableError, match="EDGERUN_CPU_LIB names"):
        native.lib()
    (tmp_path / "no.so").write_bytes(b"not a library")
    with pytest.raises(BackendUnavailableError, match=r"EDGERUN_CPU_LIB .* does not load .*unset"):
        native.lib()
    monkeypatch.delenv("EDGERUN_CPU_LIB")
    monkeypatch.setattr("edgerun.__path__", [str(tmp_path)])
    with pytest.raises(BackendUnavailableError, match="pip install"):
        native.lib_path()
    native.lib.cache_clear()


@pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None, reason="scikit-build-core is absent"
)
def test_the_sdist_holds_what_a_build_needs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'kernels_cpu'); import edgerun_build;"
        f"print(edgerun_build.build_sdist({str(tmp_path)!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    import tarfile

    with tarfile.open(tmp_path / run.stdout.split()[-1]) as t:
        names = {n.partition("/")[2] for n in t.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "models.toml", "kernels_cpu/CMakeLists.txt"}
    needed |= {"kernels_cpu/edgerun_build.py", "edgerun/py.typed", "backends/__init__.py"}
    assert needed <= names
    sources = {f"kernels_cpu/src/{p.name}" for p in (ROOT / "kernels_cpu/src").iterdir()}
    assert sources <= names
    assert not [n for n in names if n.endswith((".so", ".pyc"))]


def test_one_name_only_is_installed() -> None:
    """No global package called ``backends`` or ``kernels_cpu``."""
    try:
        files = importlib.metadata.distribution("edgerun").files
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("edgerun runs from its source tree here")
    assert files
    assert not {f.parts[0] for f in files} & {p.name for p in ROOT.iterdir() if p.name != "edgerun"}
