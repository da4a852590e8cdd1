"""The MLX backend on the fixtures, and its Metal kernels run by the engine of tests/simt."""

from __future__ import annotations

import dataclasses
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from edgerun.backends import mlx_kernels
from edgerun.backends.mlx import MLXBackend
from helpers import metal
from helpers.paths import FIXTURES
from helpers.runner import Runner

F32 = npt.NDArray[np.float32]


class Kernels:
    """Runs launches at once instead of putting them into MLX's graph; ``names`` of all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._modules = metal.Modules()
        self.names: list[str] = []
        monkeypatch.setattr(mlx_kernels.Launch, "run", lambda launch: self._run(launch))

    def _run(self, launch: mlx_kernels.Launch) -> mx.array:
        mx.eval(*launch.arrays)
        self.names.append(launch.source.name)
        arrays = tuple(_numpy(a) for a in launch.arrays)
        out = self._modules.run(dataclasses.replace(launch, arrays=arrays))
        assert launch.dtype != "bfloat16"
        return mx.array(out)


def _numpy(a: mx.array) -> Any:
    if a.dtype == mx.bfloat16:
        return metal.Bfloat16(np.array(a.view(mx.uint16)))
    return np.array(a)


def run(name: str, *, exact: bool = False, **options: object) -> Runner:
    """A runner of an architecture's fixture; ``options`` are its own."""
    options.setdefault("n_ctx", 256)
    return Runner(FIXTURES / "arch" / f"{name}.gguf", MLXBackend(exact), **options)  # type: ignore[arg-type]


def same_bits(a: F32, b: F32) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))
