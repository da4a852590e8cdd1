"""Every CUDA kernel on every architecture: what it takes of a multiprocessor, whether it may."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.cuda_names import ARCHITECTURES, everything, most_threads  # noqa: E402

from edgerun.backends import cuda_kernels  # noqa: E402
from edgerun.backends.cuda_nvrtc import Resources  # noqa: E402
from edgerun.errors import BackendError  # noqa: E402

__all__ = ["ARCHITECTURES", "everything", "load", "matrix", "most", "write", "wrong"]

#: Registers of a multiprocessor; the most shared memory that a kernel has without asking.
REGISTERS, SHARED = 65536, 48 << 10
#: Kernel -> registers, bytes spilled, bytes of shared memory; of one architecture.
Takes = dict[str, list[int]]


def wrong(name: str, takes: Iterable[int]) -> str | None:
    """What is wrong with a kernel, None = nothing."""
    registers, spilled, shared = takes
    granted = -(-registers // 8) * 8 * most_threads(name)
    if spilled:
        return f"{spilled} bytes of registers lie in memory"
    if shared > SHARED:
        return f"{shared} bytes of shared memory"
    return f"{granted} registers a block" if granted > REGISTERS else None


def matrix(
    architectures: Iterable[int], names: Iterable[str], path: Path | None,
    say: Callable[[str], None] = print,
) -> tuple[dict[int, Takes], list[str]]:  # fmt: skip
    """Compile what ``path`` does not have of these sources already, and keep it there as it comes:
    whoever is interrupted goes on where it was. Returns what kernels take, and what is wrong."""
    version = ".".join(map(str, cuda_kernels.nvrtc_version()))
    data = load(path) if path else {}
    names, found, bad = list(names), {}, []
    files = {f: cuda_kernels.digest(f) for f in sorted({_file(n) for n in names})}
    old = data.get("files", {}) if data.get("nvrtc") == version else {}
    same = {f for f in files if old.get(f) == files[f]}
    data |= {"nvrtc": version, "files": files}
    data["takes"] = {
        a: {n: t for n, t in takes.items() if n in names and _file(n) in same}
        for a, takes in data.get("takes", {}).items()
    }
    for arch in architectures:
        takes: Takes = data["takes"].setdefault(str(arch), {})
        for done in _batches(arch, [n for n in names if n not in takes]):
            takes |= done
            if path:
                write(path, data)
        found[arch] = {n: takes[n] for n in names}
        bad += [f"{n} on sm_{arch}: {w}" for n, t in found[arch].items() if (w := wrong(n, t))]
        say(f"sm_{arch}: {len(names)} kernels, {most(found[arch])}")
    for line in bad:
        say(f"WRONG {line}")
    return found, bad


def _file(name: str) -> str:
    return cuda_kernels.source(name)[0].name


def _batches(arch: int, names: list[str], size: int = 16) -> Iterator[Takes]:
    with ThreadPoolExecutor() as pool:
        for i in range(0, len(names), size):
            some = names[i : i + size]
            yield dict(zip(some, pool.map(lambda n: _takes(n, arch), some), strict=True))


def _takes(name: str, arch: int) -> list[int]:
    made = cuda_kernels.compiled(name, arch)
    if made.symbol.encode() not in made.cubin:
        raise BackendError(f"{name} on sm_{arch}: its symbol is not in the code")
    x = Resources.of(made)
    return [x.registers, x.spilled, x.shared]


def most(takes: Takes) -> str:
    """The largest of each number, for people."""
    registers, spilled, shared = (max(column) for column in zip(*takes.values(), strict=True))
    return f"at most {registers} registers, {spilled} bytes spilled, {shared} of shared memory"


def load(path: Path) -> dict[str, Any]:
    """What a file has, nothing if it is not there."""
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return data


def write(path: Path, data: dict[str, Any]) -> None:
    """JSON with a line for each architecture and each prediction."""
    lines: list[str] = []
    for key, value in data.items():
        if key == "takes":
            rows = [f'  "{a}": {json.dumps(t)}' for a, t in value.items()]
            lines.append(' "takes": {\n' + ",\n".join(rows) + "\n }")
        elif key == "predictions":
            rows = [f"  {json.dumps(p)}" for p in value]
            lines.append(' "predictions": [\n' + ",\n".join(rows) + "\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    part = path.with_name(f"{path.name}.part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    os.replace(part, path)
