"""Rotary frequencies with every scaling rule a GGUF file can ask for.

Linear (position interpolation, arXiv:2306.15595), YaRN (arXiv:2309.00071), LongRoPE
(arXiv:2402.13753) and Llama 3's rule, which files carry as per-frequency divisors in the tensor
``rope_freqs.weight``. Frequencies are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgerun.arch.base import Params
from edgerun.backends.base import Rope
from edgerun.errors import GGUFError, UnsupportedModelError, printable

__all__ = ["inverse_frequencies", "read_rope", "yarn_frequencies", "yarn_mscale"]

F64 = npt.NDArray[np.float64]


def inverse_frequencies(n_rot: int, base: float) -> F64:
    """``base ** (-2i / n_rot)`` for i < n_rot / 2: radians per position."""
    return np.asarray(base, np.float64) ** (-np.arange(0, n_rot, 2) / n_rot)


def yarn_frequencies(
    inv_freq: F64,
    base: float,
    factor: float,
    n_ctx_orig: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    ext_factor: float = 1.0,
    exact: bool = False,
) -> F64:
    """YaRN's blend: dimensions that turn more than ``beta_fast`` times within the original context
    keep their frequency, those under ``beta_slow`` are divided by ``factor``, with a ramp between,
    whose ends are rounded to whole dimensions unless ``exact``.
    """
    n_rot = 2 * len(inv_freq)

    def dimension(turns: float) -> float:
        return n_rot * math.log(n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    start, stop = dimension(beta_fast), dimension(beta_slow)
    low = max(start if exact else math.floor(start), 0)
    high = min(stop if exact else math.ceil(stop), n_rot - 1)
    ramp = np.clip((np.arange(len(inv_freq)) - low) / max(high - low, 0.001), 0.0, 1.0)
    keep = (1.0 - ramp) * ext_factor
    blend: F64 = inv_freq / factor * (1.0 - keep) + inv_freq * keep
    return blend


def yarn_mscale(factor: float) -> float:
    """YaRN's attention temperature: ``0.1 ln(factor) + 1``."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def read_rope(
    p: Params,
    head_dim: int,
    n_ctx: int,
    n_ctx_train: int,
    *,
    interleaved: bool,
    exact_yarn: bool = False,
) -> Rope:
    """The rope the file's ``{arch}.rope.*`` keys and ``rope_*`` tensors describe.

    Raises:
        GGUFError: a value or a factor tensor is impossible.
        UnsupportedModelError: an unknown scaling type.
    """
    n_rot = p.get_int("rope.dimension_count", head_dim, lo=2, hi=head_dim)
    if n_rot % 2:
        raise GGUFError(
            f"metadata key '{p.key('rope.dimension_count')}' is {n_rot}; it must be even"
        )
    base = p.get_float("rope.freq_base", 10000.0, lo=1.0)
    n_ctx_orig = p.get_int("rope.scaling.original_context_length", n_ctx_train)
    inv_freq = inverse_frequencies(n_rot, base)
    mscale = p.get_float("rope.scaling.attn_factor", 1.0)

    kind = _scaling_type(p)
    if kind == "linear":
        inv_freq = inv_freq / _factor(p)
    elif kind == "yarn":
        factor = _factor(p)
        ext_factor = p.get_float("rope.scaling.yarn_ext_factor", 1.0, lo=-2.0)
        if ext_factor < 0:  # the writers' mark for "not set"
            ext_factor = 1.0
        inv_freq = yarn_frequencies(
            inv_freq,
            base,
            factor,
            n_ctx_orig,
            beta_fast=p.get_float("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=p.get_float("rope.scaling.yarn_beta_slow", 1.0),
            ext_factor=ext_factor,
            exact=exact_yarn,
        )
        mscale *= p.get_float("rope.scaling.yarn_attn_factor", 1.0)
        if ext_factor > 0:
            mscale *= yarn_mscale(factor)

    divisors = _divisors(p, n_rot // 2, kind, n_ctx > n_ctx_orig)
    if divisors is not None:
        inv_freq = inv_freq / divisors
        longrope = "rope_freqs.weight" not in p.source.shapes
        if longrope and not p.has("rope.scaling.attn_factor") and n_ctx_train > n_ctx_orig > 1:
            mscale = math.sqrt(1.0 + math.log(n_ctx_train / n_ctx_orig) / math.log(n_ctx_orig))
    return Rope(inv_freq.astype(np.float32), interleaved, mscale)


def _scaling_type(p: Params) -> str:
    """One of none, linear, yarn, longrope. Old files name a linear factor and no type."""
    implied = "linear" if p.has("rope.scaling.factor") or p.has("rope.scale_linear") else "none"
    kind = p.get_str("rope.scaling.type", implied)
    known: Sequence[str] = ("none", "linear", "yarn", "longrope")
    if kind not in known:
        raise UnsupportedModelError(
            f"metadata key '{p.key('rope.scaling.type')}' is '{printable(kind)}'; "
            f"known: {', '.join(known)}"
        )
    return kind


def _factor(p: Params) -> float:
    name = "rope.scaling.factor" if p.has("rope.scaling.factor") else "rope.scale_linear"
    factor = p.get_float(name, 1.0, lo=-1.0)
    return factor if factor > 0 else 1.0  # writers use 0 for "not scaled"


def _divisors(p: Params, n: int, kind: str, long: bool) -> F64 | None:
    """The frequency divisors from the file's tensors, float64 [n]."""
    shapes = p.source.shapes
    if "rope_freqs.weight" in shapes:
        name = "rope_freqs.weight"
    elif (
        kind == "longrope"
        or "rope_factors_long.weight" in shapes
        or "rope_factors_short.weight" in shapes
    ):
        name = f"rope_factors_{'long' if long else 'short'}.weight"
    else:
        return None
    if shapes.get(name) != (n,):
        found = list(shapes[name]) if name in shapes else "missing"
        raise GGUFError(f"tensor '{name}' is {found}; {p.arch} needs it as [{n}]")
    factors = p.source.vector(name).astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise GGUFError(f"tensor '{name}' holds a value that is not a positive number")
    return factors
