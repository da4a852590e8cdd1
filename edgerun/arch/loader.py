"""From an open GGUF file to a configuration and the tensors a backend uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgerun.arch.base import Architecture, ModelConfig, Params, Source, TensorSpec
from edgerun.backends.base import RawTensor
from edgerun.errors import GGUFError, printable
from edgerun.gguf import GGUFFile, dequantize

__all__ = ["configure", "match_tensors", "raw_tensors", "source"]

# Read by configure(), or a cache of what rope computes anyway: not weights of the forward pass.
_NOT_WEIGHTS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.(attn_rot_embd|rope_freqs)\.weight"
    r"|blk\.\d+\.attn\.rotary_emb\.inv_freq"
)


def source(file: GGUFFile) -> Source:
    """The view of ``file`` that an architecture's ``configure`` reads."""

    def vector(name: str) -> npt.NDArray[np.float32]:
        return dequantize(file.rows(name), file.tensors[name].type).reshape(-1)

    return Source(file.metadata, {n: t.shape for n, t in file.tensors.items()}, vector)


def configure(arch: Architecture, file: GGUFFile, n_ctx: int | None = None) -> ModelConfig:
    """The model's configuration for a context of ``n_ctx`` tokens; ``None`` = as trained.

    Raises:
        GGUFError: a metadata value is missing or impossible; names key, value and expectation.
        UnsupportedModelError: a variant the architecture's code lacks.
    """
    return arch.configure(Params(arch.name, source(file), n_ctx))


def match_tensors(
    arch: str, specs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Which file tensor serves each spec; an absent optional one is left out.

    Raises:
        GGUFError: a required tensor is missing, one has another shape, or the file holds weights
            the forward pass would ignore. Names the tensor, the shape found and the one expected.
    """
    chosen: dict[str, str] = {}
    for key, spec in specs.items():
        name = spec.name
        if name not in shapes and spec.fallback is not None and spec.fallback in shapes:
            name = spec.fallback
        if name not in shapes:
            if spec.optional:
                continue
            raise GGUFError(
                f"tensor '{printable(name)}' is missing; {arch} needs it as {list(spec.shape)}"
            )
        if shapes[name] != spec.shape:
            raise GGUFError(
                f"tensor '{printable(name)}' is {list(shapes[name])}; {arch} needs it as "
                f"{list(spec.shape)} (rows first)"
            )
        chosen[key] = name
    used = set(chosen.values())
    left = [n for n in shapes if n not in used and not _NOT_WEIGHTS.fullmatch(n)]
    if left:  # a forward pass that ignores weights answers nonsense
        names = ", ".join(f"'{printable(n)}'" for n in left[:3])
        raise GGUFError(
            f"the file holds {len(left)} tensors that {arch} does not use, e.g. {names}: "
            "its metadata and its tensors do not belong together"
        )
    return chosen


def raw_tensors(arch: str, specs: Mapping[str, TensorSpec], file: GGUFFile) -> dict[str, RawTensor]:
    """Each spec's tensor as it lies in the file, checked by :func:`match_tensors`; not copied."""
    shapes = {n: t.shape for n, t in file.tensors.items()}
    found: dict[str, RawTensor] = {}
    for key, name in match_tensors(arch, specs, shapes).items():
        spec = specs[key]
        data = file.rows(name)
        label = name
        if spec.rows is not None:
            start, stop = spec.rows
            data = data[start:stop]
            label = f"{name}[{start}:{stop}]"
        found[key] = RawTensor(label, int(file.tensors[name].type), spec.used_shape, data)
    return found
