"""The chain of samplers a request asked for: only those that do something."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgerun.core import SamplingParams
from edgerun.engine.sampling.dense import Pool
from edgerun.engine.sampling.sparse import COLDEST

__all__ = ["Stage", "Usual", "leading", "truncation", "usual"]

#: (pool, XTC's coin for this token) -> pool
Stage = Callable[[Pool, float], Pool]


#: k, top_p, min_p and temperature of :meth:`~edgerun.engine.sampling.native.Scans.usual`.
Usual = tuple[int, float, float, float]
_FEW = 256  # candidates that are quickly weighed one by one
_USUAL = ("top_k", "top_p", "min_p", "temperature")


def usual(steps: Sequence[str], p: SamplingParams, n_vocab: int) -> Usual | None:
    """What one native call needs that does all of ``steps``; None if it cannot.

    ``steps`` are the names of those that do something, in order.
    """
    plain = p.temperature > 0.0 and p.dynatemp_range <= 0.0 and p.min_keep <= 1 and p.mirostat == 0
    few = "top_k" in steps and p.top_k <= min(_FEW, n_vocab - 1)
    if not plain or not few or list(steps) != [s for s in _USUAL if s in steps]:
        return None
    return p.top_k, min(p.top_p, 1.0), max(p.min_p, 0.0), max(p.temperature, COLDEST)


def leading(steps: Sequence[str], p: SamplingParams, n_vocab: int) -> int:
    """How many of a row's largest logits may decide what ``steps`` choose; 0 if it is none.

    ``steps`` are the names of those that do something, in order; without any, it is the whole row,
    or with ``p.temperature`` <= 0 the largest.
    """
    if p.logprobs is not None:
        return 0
    if p.temperature <= 0.0:
        return 1
    first = next((s for s in steps if s not in ("bias", "penalties", "dry")), "")
    k = {"top_k": max(p.top_k, p.min_keep), "min_p": max(p.min_keep, 1)}.get(first, 0)
    return k if k < n_vocab else 0


def truncation(name: str, p: SamplingParams) -> Stage | None:
    """One sampler of the chain that needs no history; ``None`` if its setting is neutral.

    ``name`` is one of :data:`edgerun.core.DEFAULT_SAMPLERS` but ``penalties`` and ``dry``.
    """
    return _BUILDERS[name](p)


def _temperature(p: SamplingParams) -> Stage | None:
    if p.dynatemp_range > 0.0:
        return lambda pool, _: pool.dynatemp(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    if p.temperature == 1.0:
        return None
    return lambda pool, _: pool.temperature(p.temperature)


def _top_k(p: SamplingParams) -> Stage | None:
    k = max(p.top_k, p.min_keep)
    return (lambda pool, _: pool.top_k(k)) if p.top_k > 0 else None


def _top_p(p: SamplingParams) -> Stage | None:
    return (lambda pool, _: pool.top_p(p.top_p, p.min_keep)) if p.top_p < 1.0 else None


def _min_p(p: SamplingParams) -> Stage | None:
    return (lambda pool, _: pool.min_p(p.min_p, p.min_keep)) if p.min_p > 0.0 else None


def _typical(p: SamplingParams) -> Stage | None:
    return (lambda pool, _: pool.typical(p.typical_p, p.min_keep)) if p.typical_p < 1.0 else None


def _top_n_sigma(p: SamplingParams) -> Stage | None:
    if p.top_n_sigma <= 0.0:
        return None
    return lambda pool, _: pool.top_n_sigma(p.top_n_sigma, p.min_keep)


def _xtc(p: SamplingParams) -> Stage | None:
    # Above 1/2 only one token can reach the threshold, and the last to reach it stays.
    if p.xtc_probability <= 0.0 or p.xtc_threshold > 0.5:
        return None
    chance, threshold, min_keep = p.xtc_probability, p.xtc_threshold, p.min_keep
    return lambda pool, coin: pool.xtc(threshold, min_keep) if coin < chance else pool


_BUILDERS: dict[str, Callable[[SamplingParams], Stage | None]] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typ_p": _typical,
    "top_n_sigma": _top_n_sigma,
    "xtc": _xtc,
}
