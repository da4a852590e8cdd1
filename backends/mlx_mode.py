"""How the MLX backend computes."""

from __future__ import annotations

from dataclasses import dataclass

from edgerun.backends.mlx_elementwise import Elementwise

__all__ = ["Mode"]


@dataclass(frozen=True, eq=False)
class Mode:
    """How the ops compute.

    Attributes:
        metal: on a GPU.
        kernels: with our own kernels.
        narrow: whether what meets matrices of groups is rounded to float16, as their scales are.
        exact: a row's bits do not depend on the rest of the batch.
        fused: functions of elements.
    """

    metal: bool
    kernels: bool
    narrow: bool
    exact: bool
    fused: Elementwise
