"""What an architecture is: how it reads a file's metadata, which tensors it needs, its forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import (
    Activation,
    Attention,
    Experts,
    Feature,
    Forward,
    KVLayer,
    Ops,
    Role,
    Rope,
    Tensor,
    Weight,
)
from edgerun.errors import GGUFError, UnsupportedModelError, printable
from edgerun.gguf.metadata import Metadata

__all__ = ["Architecture", "ModelConfig", "Params", "Source", "TensorSpec"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """Everything a forward pass may branch on.

    ``attention`` and ``ropes`` have one entry a layer; layers that agree share the object.
    ``n_ctx`` is the context the ropes and windows were made for: positions stay below it.
    ``n_vocab`` counts the embedding's rows, which may be more than the tokenizer's tokens.
    """

    arch: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    eps: float
    attention: tuple[Attention, ...]
    ropes: tuple[Rope, ...]
    act: Activation = "silu"
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and feed-forward add
    logit_scale: float = 1.0
    final_softcap: float = 0.0
    experts: Experts | None = None  # in every layer, in place of the feed-forward
    sinks: bool = False


class TensorSpec(NamedTuple):
    """A tensor a forward pass uses, as it must stand in the file.

    Attributes:
        name: in the file.
        shape: of the file's tensor, rows first: ``(n_out, n_in)`` or ``(n,)``; experts have one
            dimension more, before the others.
        role: what the backend does with it.
        optional: a model may lack it.
        fallback: a tensor of the same shape to use instead where ``name`` is absent.
        rows: use only rows ``[start, stop)`` of the file's tensor; rows are whole runs of
            blocks, so a slice of a fused tensor keeps the file's codes.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    optional: bool = False
    fallback: str | None = None
    rows: tuple[int, int] | None = None

    @property
    def used_shape(self) -> tuple[int, ...]:
        """The shape after ``rows`` is applied."""
        if self.rows is None:
            return self.shape
        return (self.rows[1] - self.rows[0], *self.shape[1:])


@dataclass(frozen=True, eq=False)
class Source:
    """What ``configure`` may look at in a model file.

    ``shapes`` maps tensor names to shapes, rows first; ``vector(name)`` reads a small
    one-dimensional tensor as float32.
    """

    metadata: Metadata
    shapes: Mapping[str, tuple[int, ...]]
    vector: Callable[[str], F32]


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model family: one value of the metadata key ``general.architecture``.

    ``configure(params)`` raises :class:`GGUFError` for impossible values and
    :class:`UnsupportedModelError` for possible ones this code lacks. ``tensors(config)`` maps the
    names ``forward`` uses to what the file must hold. ``forward(ops, w, config)`` returns what
    ``ops.logits`` returned; an absent optional tensor is absent from ``w``.
    """

    name: str
    configure: Callable[[Params], ModelConfig]
    tensors: Callable[[ModelConfig], dict[str, TensorSpec]]
    forward: Callable[[Ops, Mapping[str, Weight], ModelConfig], Tensor]

    def bind(self, weights: Mapping[str, Weight], config: ModelConfig) -> Forward:
        """``forward`` with weights and config bound, as ``Backend.prepare`` takes it."""
        return lambda ops: self.forward(ops, weights, config)

    def kv_layers(self, config: ModelConfig) -> list[KVLayer]:
        """What each layer stores per token."""
        return [KVLayer(a.n_kv_heads, a.head_dim, a.window) for a in config.attention]

    def features(self, config: ModelConfig) -> list[Feature]:
        """What of a backend's features the model needs."""
        needed: list[tuple[Feature, bool]] = [
            ("moe", config.experts is not None),
            ("sinks", config.sinks),
        ]
        return [name for name, wanted in needed if wanted]


class Params:
    """The metadata of one architecture: ``get_int("head_count")`` reads ``{arch}.head_count``.

    ``n_ctx`` is the context asked for; ``None`` = what the model was trained for. Every getter
    raises :class:`GGUFError` naming key, value and what was expected.
    """

    def __init__(self, arch: str, source: Source, n_ctx: int | None = None) -> None:
        self.arch = arch
        self.source = source
        self._n_ctx = n_ctx

    def key(self, name: str) -> str:
        return f"{self.arch}.{name}"

    def has(self, name: str) -> bool:
        return self.key(name) in self.source.metadata

    def _bad(self, name: str, value: object, wanted: str) -> GGUFError:
        return GGUFError(
            f"metadata key '{printable(self.key(name))}' is {printable(value, 60)}; "
            f"it must be {wanted}"
        )

    def get_int(
        self, name: str, default: int | None = None, lo: int = 1, hi: int = 2**31 - 1
    ) -> int:
        """A whole number between ``lo`` and ``hi``; required unless ``default`` is given."""
        if default is not None and not self.has(name):
            return default
        value = self.source.metadata.get_int(self.key(name))
        if not lo <= value <= hi:
            raise self._bad(name, value, f"between {lo} and {hi}")
        return value

    def get_layers_int(
        self, name: str, n_layers: int, default: int | None = None, lo: int = 1
    ) -> int:
        """A whole number that files store once or per layer; all layers must agree."""
        if default is not None and not self.has(name):
            return default
        values = set(self.source.metadata.get_per_layer(self.key(name), n_layers))
        if len(values) != 1:
            raise UnsupportedModelError(
                f"metadata key '{printable(self.key(name))}' differs between layers "
                f"({printable(sorted(values), 60)}); {self.arch} needs one value for all"
            )
        value = values.pop()
        if not lo <= value < 2**31:
            raise self._bad(name, value, f"between {lo} and {2**31 - 1}")
        return value

    def get_float(
        self, name: str, default: float | None = None, lo: float = 0.0, hi: float = math.inf
    ) -> float:
        """A finite number with ``lo < value <= hi``; required unless ``default`` is given."""
        if default is not None and not self.has(name):
            return default
        value = self.source.metadata.get_float(self.key(name))
        if not (math.isfinite(value) and lo < value <= hi):
            below = "" if math.isinf(hi) else f" and at most {hi:g}"
            raise self._bad(name, value, f"a finite number above {lo:g}{below}")
        return value

    def get_bool(self, name: str, default: bool) -> bool:
        return self.source.metadata.get_bool(self.key(name), default)

    def get_str(self, name: str, default: str) -> str:
        return self.source.metadata.get_str(self.key(name), default)

    def raw(self, name: str) -> Any:
        """The value as the file holds it, or ``None``."""
        return self.source.metadata.get(self.key(name))

    def n_ctx(self, n_ctx_train: int) -> int:
        """The context to build for."""
        return n_ctx_train if self._n_ctx is None else self._n_ctx
