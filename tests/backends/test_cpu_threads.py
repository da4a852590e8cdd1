"""How many threads are the default, on machines made of files."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from edgerun.backends.cpu_threads import (
    default_threads,
    linux_quota,
    linux_threads,
    macos_threads,
    windows_threads,
)


def machine(
    root: Path, cores: list[list[int]], files: dict[str, str] | None = None, **per_cpu: list[int]
) -> Path:
    """A /sys with these cores' hardware threads; ``per_cpu``: file name -> value by CPU."""
    cpu = root / "sys/devices/system/cpu"
    n = sum(map(len, cores))
    files = {"sys/devices/system/cpu/present": f"0-{n - 1}\n"} | (files or {})
    for threads in cores:
        for t in threads:
            siblings = ",".join(map(str, threads)) + "\n"
            files[f"{cpu.relative_to(root)}/cpu{t}/topology/thread_siblings_list"] = siblings
    for name, values in per_cpu.items():
        for t, value in enumerate(values):
            files[f"{cpu.relative_to(root)}/cpu{t}/{name.replace('__', '/')}"] = f"{value}\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_one_for_each_core_not_for_each_hardware_thread(tmp_path: Path) -> None:
    root = machine(tmp_path, [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert linux_threads(root, range(8)) == 4
    assert linux_threads(root, {0, 4}) == 1
    assert linux_threads(root, {1, 2, 6}) == 2


def test_intel_hybrid_counts_performance_cores(tmp_path: Path) -> None:
    kinds = {"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4-7\n"}
    root = machine(tmp_path, [[0, 1], [2, 3], [4], [5], [6], [7]], kinds)
    assert linux_threads(root, range(8)) == 2
    # An affinity to the others is a choice.
    assert linux_threads(root, {4, 5, 6}) == 3
    assert linux_threads(root, {2, 4, 5, 6}) == 1


def test_intel_without_efficiency_cores(tmp_path: Path) -> None:
    root = machine(tmp_path, [[0], [1]], {"sys/devices/cpu_core/cpus": "0-1\n"})
    assert linux_threads(root, range(2)) == 2


@pytest.mark.parametrize(
    ("capacity", "threads"),
    [
        ([446, 446, 446, 446, 1024, 1024], 2),  # big.LITTLE
        ([250, 250, 820, 820, 820, 1024], 4),  # three kinds: the middle one is fast enough
        ([1024, 1024, 1024, 1024], 4),
    ],
)
def test_arm_counts_by_capacity(tmp_path: Path, capacity: list[int], threads: int) -> None:
    n = len(capacity)
    root = machine(tmp_path, [[c] for c in range(n)], cpu_capacity=capacity)
    assert linux_threads(root, range(n)) == threads


def test_clock_tells_where_nothing_else_does(tmp_path: Path) -> None:
    clocks = [5100000, 5000000, 3300000, 3300000]
    root = machine(tmp_path, [[0], [1], [2], [3]], cpufreq__cpuinfo_max_freq=clocks)
    assert linux_threads(root, range(4)) == 2
    # Turbo bins are no kinds of cores, nor is a CPU without a clock.
    near = machine(tmp_path / "b", [[0], [1]], cpufreq__cpuinfo_max_freq=[5700000, 5300000])
    assert linux_threads(near, range(2)) == 2
    some = machine(tmp_path / "c", [[0], [1]], cpufreq__cpuinfo_max_freq=[5700000])
    assert linux_threads(some, range(2)) == 2


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert linux_threads(tmp_path, {3, 5, 7}) == 3
    assert linux_quota(tmp_path) is None


def group(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    return machine(root, [[c] for c in range(8)], {"proc/self/cgroup": cgroup, **files})


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000 100000", 4), ("150000 100000", 1), ("20000 100000", 1), ("max 100000", None)],
)
def test_quota_of_a_container(tmp_path: Path, quota: str, expected: int | None) -> None:
    root = group(tmp_path, "0::/\n", {"sys/fs/cgroup/cpu.max": quota + "\n"})
    assert linux_quota(root) == expected
    assert linux_threads(root, range(8)) == (expected or 8)


def test_the_narrowest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/user.slice/app.scope/cpu.max": "max 100000\n",
        "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
    }
    root = group(tmp_path, "0::/user.slice/app.scope\n", files)
    assert linux_quota(root) == 3


def test_a_path_the_container_cannot_see(tmp_path: Path) -> None:
    root = group(tmp_path, "0::/../../docker/abc\n", {"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert linux_quota(root) == 2


def test_quota_of_version_1(tmp_path: Path) -> None:
    cgroup = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/\n"
    base = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        f"{base}/cpu.cfs_quota_us": "-1\n",
        f"{base}/cpu.cfs_period_us": "100000\n",
        f"{base}/docker/x/cpu.cfs_quota_us": "250000\n",
        f"{base}/docker/x/cpu.cfs_period_us": "100000\n",
    }
    assert linux_quota(group(tmp_path, cgroup, files)) == 2


@pytest.mark.parametrize("text", ["", "rubbish", "4:cpu", "0::", "\x00"])
def test_groups_that_make_no_sense(tmp_path: Path, text: str) -> None:
    files = {"sys/fs/cgroup/cpu.max": "rubbish 0\n", "sys/devices/cpu_core/cpus": "x-y"}
    assert linux_quota(group(tmp_path, text, files)) is None
    assert linux_threads(tmp_path, range(8)) == 8


def test_macos() -> None:
    apple = {"hw.perflevel0.physicalcpu": 4, "hw.physicalcpu": 10}
    assert macos_threads(lambda name: apple.get(name, 0)) == 4
    assert macos_threads({"hw.physicalcpu": 6, "hw.perflevel0.physicalcpu": 0}.__getitem__) == 6


def core(efficiency: int, mask: int, kind: int = 0) -> bytes:
    """A SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX of one core."""
    body = struct.pack("<BB20xH", 0, efficiency, 1) + struct.pack("<QHHHH", mask, 0, 0, 0, 0)
    return struct.pack("<II", kind, 8 + len(body)) + body


def test_windows_counts_the_highest_class() -> None:
    hybrid = core(1, 0b11) + core(1, 0b1100) + core(0, 1 << 4) + core(0, 1 << 5) + core(0, 1 << 6)
    assert windows_threads(hybrid) == 2
    assert windows_threads(hybrid, 0b1110000) == 3
    assert windows_threads(hybrid, 0b0000011) == 1
    assert windows_threads(core(0, 1) + core(0, 2) + core(0, 4)) == 3
    assert windows_threads(core(0, 1) + core(9, 0xFF, kind=3)) == 1


@pytest.mark.parametrize("data", [b"", b"\0" * 7, core(0, 1)[:-1], struct.pack("<II", 0, 0) * 4])
def test_windows_gives_rubbish(data: bytes) -> None:
    assert windows_threads(data) == 0


def test_here() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
