"""Metal kernels on the CPU: the sources that MLX generates for their launches, compiled as C++ and
run from numpy by the engine of tests/simt."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.mlx_kernels import Launch, Source, metal_kernel
from helpers import simt
from helpers.simt import Guarded


@dataclass(frozen=True, eq=False)
class Bfloat16:
    """An array of bfloat16, which numpy does not know: float32's upper halves."""

    bits: NDArray[np.uint16]
    dtype = "mlx.core.bfloat16"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @classmethod
    def of(cls, x: NDArray[np.float32]) -> Bfloat16:
        """``x`` cut, not rounded."""
        return cls((x.view(np.uint32) >> 16).astype(np.uint16))

    def floats(self) -> NDArray[np.float32]:
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


def _output_of(call: Callable[[], object]) -> str:
    """What ``call`` writes to the process' standard output."""
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            call()
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return file.read().decode()


def generated(launch: Launch) -> str:
    """The source that MLX hands to Metal's compiler: it writes it while it exports a graph, for
    which no GPU is needed. Skips the calling test where MLX is not installed."""
    key = (launch.source, launch.template, _kinds(launch))
    if key not in _generated:
        _generated[key] = _generate(launch)
    return _generated[key]


_generated: dict[object, str] = {}


def _kinds(launch: Launch) -> tuple[object, ...]:
    """What of the arrays the signature depends on: small ones are ``constant``."""
    small = [int(np.prod(a.shape)) < 8 for a in launch.arrays]
    return (*((str(a.dtype), s) for a, s in zip(launch.arrays, small, strict=True)), launch.dtype)


def _generate(launch: Launch) -> str:
    import pytest

    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    named = [getattr(mx, str(a.dtype).rpartition(".")[2]) for a in launch.arrays]
    arrays = [mx.zeros(a.shape, d) for a, d in zip(launch.arrays, named, strict=True)]

    def call() -> object:
        template = [(n, getattr(mx, v) if isinstance(v, str) else v) for n, v in launch.template]
        return metal_kernel(launch.source)(
            inputs=arrays, template=template, grid=launch.grid, threadgroup=launch.threadgroup,
            output_shapes=[launch.shape], output_dtypes=[getattr(mx, launch.dtype)], verbose=True,
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        text = _output_of(lambda: mx.export_function(f"{folder}/kernel.mlxfn", call))
    (source,) = re.findall(r"Generated source code for `[^`]*`:\n```\n(.*?)\n```", text, re.DOTALL)
    return str(source)


def _cpp(launch: Launch) -> tuple[str, str]:
    """A kernel's name, and its C++ behind the header: the function, and an entry without template
    and attributes."""
    text = generated(launch)
    header = launch.source.header
    assert text.startswith(header), "MLX no longer puts the header first"
    function, _, instance = text[len(header) :].rpartition("template [[host_name(")
    (expression,) = re.findall(r"decltype\((.*?)\) custom_kernel", instance)
    head, body = function.replace("const constant", "constant").split(") {\n", 1)
    (name,) = re.findall(r"void (\w+)\(", head)
    given, passed = [], []
    for type_, param, kind in re.findall(r"^ *(.+?) (\w+) \[\[(\w+)(?:\(\d+\))?\]\]", head, re.M):
        if kind == "buffer":
            given.append(f"{type_} {param}")
            passed.append(param)
        else:
            passed.append(f"simt::{kind}()")
    head = re.sub(r" ?\[\[.*?\]\]", "", head)
    body = _threadgroup_variables(body)
    call = f"if (simt::exists()) {expression}({', '.join(passed)});"
    entry = f"void run_{name}({', '.join(given)}) {{\n  {call}\n}}\n"
    return name, f'{head}) {{\n{body}\n{entry}SIMT_KERNEL("{name}", run_{name})\n'


def _includes(text: str) -> str:
    """Metal's own headers are all in the shim."""
    return re.sub(r"#include <metal_\w+>", "", text)


def _threadgroup_variables(text: str) -> str:
    """``threadgroup`` before a variable says where it lies; before a pointer, what it points to."""
    return re.sub(r"^( *)threadgroup (\w+ \w+\[.*\];)", r"\1SIMT_THREADGROUP \2", text, flags=re.M)


class Modules:
    """Compiled kernels. ``planted`` replaces text of the kernels' own; ``sanitizer`` as simt's."""

    def __init__(self, sanitizer: str = "", planted: tuple[str, str] | None = None) -> None:
        self._sanitizer, self._planted = sanitizer, planted
        self._modules: dict[str, simt.Module] = {}
        self.order = (0, 1)

    def prepare(self, launches: Sequence[Launch]) -> None:
        """Compile the kernels of several launches, one library for each source."""
        simt.compiler()  # skips the test where there is none
        groups: dict[Source, dict[str, str]] = {}
        for launch in launches:
            name, text = _cpp(launch)
            if name not in self._modules:
                groups.setdefault(launch.source, {})[name] = text
        with ThreadPoolExecutor(2) as pool:
            libraries = pool.map(self._library, groups, groups.values())
            for kernels, library in zip(groups.values(), libraries, strict=True):
                self._modules.update(dict.fromkeys(kernels, simt.Module(library)))

    def _library(self, source: Source, kernels: dict[str, str]) -> Path:
        whole = _includes(source.header) + "".join(kernels.values())
        if self._planted is not None:
            old, new = self._planted
            assert old in whole, f"the kernels no longer hold what the fault replaces: {old}"
            whole = whole.replace(old, new)
        unit = f'#include "metal_shim.h"\n{whole}'
        flags = ["-O1", "-Wno-attributes", *simt.SANITIZERS[self._sanitizer]]
        return simt.shared_object(source.name, unit, flags, "", self._sanitizer)

    def run(self, launch: Launch) -> NDArray[Any]:
        """The output; bytes that a kernel leaves alone are 0xFF."""
        name, _ = _cpp(launch)
        self.prepare([launch])
        module = self._modules[name]
        dtype = np.uint16 if launch.dtype == "bfloat16" else np.dtype(launch.dtype)
        out = Guarded(launch.shape, dtype)
        wanted = re.findall(r" (\w+) \[\[buffer", generated(launch))
        arrays: list[Any] = []
        given = dict(zip(launch.source.inputs, launch.arrays, strict=True))
        for param in wanted[:-1]:
            if param in given:
                array = given[param]
                arrays.append(array.bits if isinstance(array, Bfloat16) else array)
            else:
                arrays.append(np.array(given[param.removesuffix("_shape")].shape, np.int32))
        threads = [min(g, t) for g, t in zip(launch.grid, launch.threadgroup, strict=True)]
        groups = [-(-g // t) for g, t in zip(launch.grid, threads, strict=True)]
        module._lib.simt_metal_grid(*map(ctypes.c_uint, launch.grid))
        with simt.ordered(module, self.order):
            module.launch(name, groups, threads, *arrays, out.array)
        out.check()
        return out.array


def lint(source: str) -> list[str]:
    """What clang says of a source that MLX generated, with Metal's address spaces. Skips the
    calling test where there is no libclang."""
    import pytest

    cindex = pytest.importorskip("clang.cindex", reason="the libclang wheel is not installed")
    text = _includes(_threadgroup_variables(source))
    text = re.sub(r" ?\[\[.*?\]\]", "", text.replace("const constant", "constant"))
    flags = [
        *("-x", "c++", "-std=c++17", "-nostdinc", "-fno-exceptions", "-fno-rtti", "-Wall"),
        *("-Wextra", "-Wno-unknown-pragmas", "-Wno-sign-compare"),
        *("-Wno-undefined-inline", "-Wno-undefined-internal"),
        *("-include", str(simt.ENGINE / "metal_lint.h")),
    ]
    unit = cindex.Index.create().parse("kernel.cpp", flags, [("kernel.cpp", text)])
    return [str(d) for d in unit.diagnostics]
