"""The protocol of phases without barriers, on its own; see relay_stress.cpp."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "kernels_cpu" / "src"


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler or sys.platform == "win32":
        pytest.skip("no C++ compiler here")
    out = tmp_path_factory.mktemp("native") / "relay_stress"
    files = [HERE / "relay_stress.cpp", *(SOURCES / f"{n}.cpp" for n in ("relay", "pool", "os"))]
    command = [*compiler.split(), "-std=c++17", "-O1", "-pthread", "-I", SOURCES, *files]
    subprocess.run([*map(str, command), "-o", str(out)], check=True)
    return out


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sleeping_threads_lose_nothing(stress: Path, threads: int) -> None:
    run = subprocess.run(
        [str(stress), str(threads), "200"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout
    assert run.stdout.startswith(f"ok {threads} threads")
