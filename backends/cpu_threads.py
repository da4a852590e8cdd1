"""How many threads a matrix product should have on this machine, without being told.

Threads work at the pace of the slowest, and two that share a core are no faster than one: so one
for each physical core, on hybrid CPUs for each performance core, among those this process may run
on, and no more than its container's CPU quota. ``root`` stands for ``/`` in tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["default_threads", "linux_quota", "linux_threads", "macos_threads", "windows_threads"]

#: A core with less than this share of the fastest one's capacity or clock is an efficiency core.
#: ARM phones mix three kinds; the middle one, at about 0.8, is nearly as fast as the fastest.
_FAST = 0.7


def default_threads() -> int:
    """Physical cores (performance ones, where there are two kinds) that this process may run on, at
    most its cgroup's CPU quota, at least 1."""
    found = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.platform == "linux":
            found = linux_threads(Path("/"), os.sched_getaffinity(0))
        elif sys.platform == "darwin":
            found = macos_threads(_sysctl)
        elif sys.platform == "win32":
            found = windows_threads(_processor_information(), _windows_affinity())
    if not found:
        import psutil

        found = psutil.cpu_count(logical=False) or os.cpu_count()
    return max(1, found or 1)


# -- Linux --------------------------------------------------------------------------------------


def linux_threads(root: Path, allowed: Iterable[int]) -> int:
    """One for each physical core of ``allowed`` CPUs, of the fast kind only, within the quota.

    If none of the fast kind is allowed, whoever chose the affinity meant the others.
    """
    cpus = set(allowed)
    fast = cpus & _fast_cpus(root, cpus)
    cores = {_core(root, cpu) for cpu in fast or cpus}
    quota = linux_quota(root)
    return max(1, min(len(cores), quota or len(cores)))


def _fast_cpus(root: Path, cpus: set[int]) -> set[int]:
    devices = root / "sys/devices"
    performance = _cpu_list(_read(devices / "cpu_core/cpus"))  # Intel
    if performance and _read(devices / "cpu_atom/cpus"):
        return performance
    # The speed of the whole machine's fastest, not of the fastest allowed.
    everyone = _cpu_list(_read(devices / "system/cpu/present")) or cpus
    for entry in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speed = {c: _int(_read(devices / f"system/cpu/cpu{c}/{entry}")) for c in everyone}
        known = {c: v for c, v in speed.items() if v}
        if cpus <= known.keys():
            top = max(known.values())
            return {c for c, v in known.items() if v >= _FAST * top}
    return cpus


def _core(root: Path, cpu: int) -> tuple[int, ...]:
    """What the hardware threads of one core have in common."""
    siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return tuple(sorted(_cpu_list(siblings))) or (cpu,)


def linux_quota(root: Path) -> int | None:
    """Whole CPUs that the process's control groups, v2 or v1, and all around them allow; at least
    1; None = no limit."""
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = _mounted(root, controllers), _quota_v1
        else:
            continue
        # In a container the path may be the host's: then the mount itself is the group.
        group = base / path.strip("/")
        for folder in (group, *group.parents):
            if (quota := read(folder)) is not None:
                quotas.append(quota)
            if folder == base:
                break
    return max(1, int(min(quotas))) if quotas else None


def _mounted(root: Path, controllers: str) -> Path:
    base = root / "sys/fs/cgroup"
    return next((base / c for c in (controllers, "cpu") if (base / c).is_dir()), base / "cpu")


def _quota_v2(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    return _int(quota) / _int(period) if _int(quota) > 0 and _int(period) > 0 else None


def _quota_v1(group: Path) -> float | None:
    quota, period = (
        _int(_read(group / "cpu.cfs_quota_us")),
        _int(_read(group / "cpu.cfs_period_us")),
    )
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _cpu_list(text: str) -> set[int]:
    """``0-3,8`` -> {0, 1, 2, 3, 8}; what cannot be read, empty."""
    cpus: set[int] = set()
    try:
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return set()
    return cpus


# -- macOS --------------------------------------------------------------------------------------


def macos_threads(sysctl: Callable[[str], int]) -> int:
    """``sysctl`` gives a number by name, 0 if there is none. Level 0 is the fastest kind of core;
    Intel Macs have no levels."""
    return sysctl("hw.perflevel0.physicalcpu") or sysctl("hw.physicalcpu")


def _sysctl(name: str) -> int:
    libc = ctypes.CDLL(None)
    value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
    failed = libc.sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, None)
    return 0 if failed else max(0, value.value)


# -- Windows ------------------------------------------------------------------------------------


def windows_threads(information: bytes, allowed: int | None = None) -> int:
    """Cores of the highest efficiency class in what GetLogicalProcessorInformationEx gives for
    RelationProcessorCore; ``allowed`` is the affinity mask within the only processor group, None =
    all.

    A record is Relationship and Size (DWORD), then PROCESSOR_RELATIONSHIP: Flags, EfficiencyClass
    (BYTE), 20 reserved, GroupCount (WORD), and group masks (pointer-sized Mask, WORD Group, 6
    reserved).

    https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-processor_relationship
    """
    pointer = struct.calcsize("P")
    at, classes = 0, []
    while at + 8 <= len(information):
        kind, size = struct.unpack_from("<II", information, at)
        if size < 32 + pointer or at + size > len(information):
            break
        if kind == 0:
            mask = int.from_bytes(information[at + 32 : at + 32 + pointer], "little")
            if allowed is None or mask & allowed:
                classes.append(information[at + 9])
        at += size
    return classes.count(max(classes)) if classes else 0


def _processor_information() -> bytes:
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    size = ctypes.c_uint32(0)
    kernel.GetLogicalProcessorInformationEx(0, None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    if not kernel.GetLogicalProcessorInformationEx(0, buffer, ctypes.byref(size)):
        return b""
    return buffer.raw[: size.value]


def _windows_affinity() -> int | None:
    """None where the machine has more than 64 CPUs: the mask then tells of one group only."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    if kernel.GetActiveProcessorGroupCount() != 1:
        return None
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    mine, system = ctypes.c_size_t(0), ctypes.c_size_t(0)
    done = kernel.GetProcessAffinityMask(
        ctypes.c_void_p(kernel.GetCurrentProcess()), ctypes.byref(mine), ctypes.byref(system)
    )
    return mine.value or None if done else None
