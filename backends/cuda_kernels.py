"""The CUDA kernels by name: which file holds them, and their machine code for a GPU.

A name is what a launch says: a function, or an instance of a template such as ``rope_kv<1>``.
Sources are compiled at run time and kept, so only the first start after an update waits for NVRTC.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgerun.backends import cuda_nvrtc
from edgerun.errors import BackendError
from edgerun.folders import data_dir
from edgerun.native import data

__all__ = [
    "FILES",
    "TOP",
    "argmax_chunks",
    "compiled",
    "cubin",
    "digest",
    "nvrtc_version",
    "prepare",
    "source",
    "tokenwise",
    "topk_chunks",
]

#: Kernel -> its file in kernels_cuda.
FILES = {
    "argmax": "argmax.cu",
    "argmax_part": "argmax.cu",
    "attention": "attention.cu",
    "attention_merge": "attention.cu",
    "copy_page": "copy_page.cu",
    "fmm": "fmm.cu",
    "fmm_experts": "fmm.cu",
    "glu": "glu.cu",
    "place": "experts.cu",
    "qgemm": "qgemm.cu",
    "qgemm_experts": "qgemm.cu",
    "qmm": "qmm.cu",
    "qmm_experts": "qmm.cu",
    "repack": "repack.cu",
    "repack_float": "repack_float.cu",
    "rope_kv": "rope_kv.cu",
    "rotate_heads": "rotate_heads.cu",
    "route": "experts.cu",
    "sum_experts": "experts.cu",
    "tokenwise": "tokenwise.cu",
    "topk": "topk.cu",
    "topk_part": "topk.cu",
    "unpack_float_rows": "repack_float.cu",
    "unpack_rows": "rows.cu",
}

#: The largest logits of a row that ``topk`` finds.
TOP = 128

#: Generations of one kernel that stay on disk: installations of two versions take turns.
_KEPT = 3
_MAGIC = b"edgerun cubin 1\n"

nvrtc_version = cuda_nvrtc.version


def tokenwise(k: int, acts: bool) -> tuple[str, int]:
    """The kernel that works on rows of ``k`` values, and its threads: a function of the width
    alone, as the order of its sums depends on them."""
    return f"tokenwise<{int(acts)}>", min(1024, -(-k // 256) * 32)


def argmax_chunks(n_vocab: int) -> int:
    """Blocks that share a row of logits; each leaves 8 bytes for ``argmax``."""
    return min(64, -(-n_vocab // 1024))


def topk_chunks(n_vocab: int) -> int:
    """Blocks that share a row of logits, at most 4096 each; they leave ``topk`` 8 * TOP bytes."""
    return max(argmax_chunks(n_vocab), -(-n_vocab // 4096))


def source(name: str) -> tuple[Path, str]:
    """The file of a kernel, and the expression that names it there.

    Raises:
        BackendError: there is no such kernel.
    """
    file = FILES.get(name.partition("<")[0])
    if file is None:
        raise BackendError(f"there is no CUDA kernel {name}")
    try:
        return data("kernels_cuda", file), name
    except FileNotFoundError as e:
        raise BackendError(str(e)) from None


@functools.cache
def _sources(file: str) -> tuple[bytes, dict[str, bytes]]:
    """A kernel file, and the headers it includes, directly or not."""
    path = data("kernels_cuda", file)
    text = path.read_bytes()
    headers: dict[str, bytes] = {}
    waiting = [text]
    while waiting:
        for found in re.findall(rb'^#include "([\w.]+)"', waiting.pop(), re.MULTILINE):
            header = found.decode()
            if header not in headers:
                headers[header] = path.with_name(header).read_bytes()
                waiting.append(headers[header])
    return text, dict(sorted(headers.items()))


@functools.cache
def digest(*files: str) -> str:
    """Changes with any kernel's source; with those of ``files`` and what they include."""
    state = hashlib.sha256()
    for file in sorted(files or set(FILES.values())):
        text, headers = _sources(file)
        for part in (text, *headers.values()):
            state.update(hashlib.sha256(part).digest())
    return state.hexdigest()[:16]


def cubin(name: str, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code with a kernel for GPUs of a compute capability, and the kernel's symbol in it.

    Raises:
        BackendError: no such kernel, or it does not compile.
        BackendUnavailableError: it is not on disk yet and NVRTC is not installed.
    """
    return _cubin(name, cuda_nvrtc.architecture(capability))


def prepare(names: Iterable[str], capability: tuple[int, int]) -> None:
    """Compile what :func:`cubin` will be asked for, several at once.

    Raises:
        As :func:`cubin`.
    """
    arch = cuda_nvrtc.architecture(capability)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in [pool.submit(_cubin, name, arch) for name in dict.fromkeys(names)]:
            done.result()


@functools.cache
def _cubin(name: str, arch: int) -> tuple[bytes, str]:
    path = _cache_path(name, arch)
    kept = _load(path)
    if kept is not None:
        return kept
    made = compiled(name, arch)
    with contextlib.suppress(OSError):  # a folder that cannot be written costs time only
        _save(path, made.cubin, made.symbol)
        _prune(path)
    return made.cubin, made.symbol


def compiled(name: str, arch: int) -> cuda_nvrtc.Compiled:
    """The kernel fresh from NVRTC. Raises as :func:`cubin`."""
    file, expression = source(name)
    text, headers = _sources(file.name)
    return cuda_nvrtc.compile_kernel(file.name, text, headers, expression, arch)


def _cache_path(name: str, arch: int) -> Path:
    """Where a kernel's code is kept: by source with headers, options, architecture, compiler."""
    file, expression = source(name)
    text, headers = _sources(file.name)
    facts = (expression, arch, cuda_nvrtc.version(), cuda_nvrtc.OPTIONS, file.name, *headers)
    state = hashlib.sha256(repr(facts).encode())
    for part in (text, *headers.values()):
        state.update(hashlib.sha256(part).digest())
    return data_dir() / "cuda" / f"{_stem(name, arch)}-{state.hexdigest()[:16]}.cubin"


def _stem(name: str, arch: int) -> str:
    return f"{re.sub('[^a-z0-9_]+', '.', name).strip('.')}-sm{arch}"


def _load(path: Path) -> tuple[bytes, str] | None:
    """What :func:`_save` wrote, or None if it is not there or not whole."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    at = len(_MAGIC) + 32
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(raw[at:]).digest() != raw[len(_MAGIC) : at]:
        return None
    symbol, _, code = raw[at:].partition(b"\n")
    return code, symbol.decode()


def _save(path: Path, code: bytes, symbol: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = symbol.encode() + b"\n" + code
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _prune(path: Path) -> None:
    """Delete what earlier sources of the same kernel left, but for the newest few."""
    stem = path.name.rpartition("-")[0]
    others = [p for p in path.parent.glob("*.cubin") if p.name.rpartition("-")[0] == stem]
    for old in sorted(others, key=lambda p: p.stat().st_mtime)[:-_KEPT]:
        old.unlink()
