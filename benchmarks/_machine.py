"""Facts of the machine a benchmark ran on, and its memory read rate."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_BYTES = 512 << 20
_arrays: list[npt.NDArray[np.int64]] = []


def read_rate(threads: int) -> float:
    """GB/s that ``threads`` threads read from a block larger than most caches, once through."""
    if not _arrays:
        _arrays.extend(np.ones(_BYTES // 8 // threads, np.int64) for _ in range(threads))
    jobs = [threading.Thread(target=a.max) for a in _arrays]  # numpy lets go of the lock
    start = time.perf_counter()
    for j in jobs:
        j.start()
    for j in jobs:
        j.join()
    return _BYTES / (time.perf_counter() - start) / 1e9


def machine_facts() -> dict[str, Any]:
    """CPU, load, date and commit: what a figure means little without."""
    facts: dict[str, Any] = {"cpu": _cpu(), "date": datetime.date.today().isoformat()}
    if hasattr(os, "getloadavg"):
        facts["load"] = round(os.getloadavg()[0], 2)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    if commit.returncode == 0:
        facts["commit"] = commit.stdout.strip()
    return facts


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
