"""One request's sampler: logits in, the next token out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

import numpy as np

from edgerun.core import SamplingParams
from edgerun.engine.sampling import rng
from edgerun.engine.sampling.chain import Stage, leading, truncation, usual
from edgerun.engine.sampling.constraint import TokenConstraint, unpack
from edgerun.engine.sampling.dense import Dense, Pool
from edgerun.engine.sampling.dry import Dry
from edgerun.engine.sampling.leading import Leading, UnknownError
from edgerun.engine.sampling.mirostat import Mirostat
from edgerun.engine.sampling.native import F32, F64, I32, address, scans
from edgerun.engine.sampling.penalties import Bias, Penalties
from edgerun.errors import RequestError

__all__ = ["Sampled", "Sampler"]


class Sampled(NamedTuple):
    """A chosen token.

    With ``logprobs``, ``logprob`` is its natural-log probability under the model itself (before
    bias, penalties, temperature and truncation, as in OpenAI's API) and ``top`` the likeliest
    tokens with theirs, best first, equal ones by id. Both ``None`` otherwise.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None


class Sampler:
    """Chooses the tokens of one request; for each: ``sample`` a row of logits, then ``accept``.

    A constraint's mask comes first, then ``logit_bias`` and ``ignore_eos``, then
    ``params.samplers`` in their order, then the draw. A setting at its neutral value adds no
    step. With ``temperature`` <= 0 the likeliest token after bias, penalties and DRY is taken (of
    equals the smallest id), wherever, or whether, ``temperature`` stands in the order; truncating
    samplers are not run. Mirostat replaces the truncating samplers; penalties, DRY and
    temperature stay.

    The draw depends on the seed and on how many tokens were accepted, nothing else: see
    :mod:`~edgerun.engine.sampling.rng`. It walks the candidates likeliest first, or by id where
    no sampler had to sort them. To verify drafts, sample and accept row after row while the sample
    equals the draft; stop at the first that differs. State only moves forward, in ``accept``:
    about a microsecond. ``sample`` leaves no trace but mirostat's note of what it chose.

    Args:
        params: the request's settings.
        n_vocab: ids from 0 up to this may be sampled.
        eog_ids: end-of-generation tokens, masked under ``params.ignore_eos``.
        seed: 64-bit; ``params.seed``, or a fresh one where that is ``None``.
        stream: which of a request's ``params.n`` samples; they share the seed, not the numbers.
        token_bytes: a token's bytes, for DRY's sequence breakers.
        prompt_ids: the prompt, for ``repeat_penalty`` and DRY.
        constraint: what the text must look like; this sampler's own.

    Raises:
        RequestError: ``logit_bias``, ``logprobs`` or the prompt name tokens past the vocabulary.
        ValueError: DRY has sequence breakers and ``token_bytes`` is missing.
        BackendUnavailableError: the native library is missing.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        *,
        eog_ids: Collection[int] = (),
        seed: int,
        stream: int = 0,
        token_bytes: Callable[[int], bytes] | None = None,
        prompt_ids: Sequence[int] = (),
        constraint: TokenConstraint | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self._constraint = constraint
        self._seed, self._stream = seed, stream
        self._position = 0
        self._logprobs = params.logprobs
        self._greedy = params.temperature <= 0.0
        self._penalties = _penalties(params, n_vocab, prompt_ids)
        self._dry = _dry(params, n_vocab, token_bytes, prompt_ids)
        self._mirostat = (
            Mirostat(params.mirostat, params.mirostat_tau, params.mirostat_eta, n_vocab)
            if params.mirostat and not self._greedy
            else None
        )
        bias = Bias(params.logit_bias, eog_ids if params.ignore_eos else (), n_vocab)
        stages = [("bias", (lambda pool, _: bias.apply(pool)) if bias else None)]
        stages += [(name, self._stage(name, params)) for name in params.samplers]
        self._stages: list[Stage] = [stage for _, stage in stages if stage is not None]
        #: The names of the steps that do something, in order; ``bias`` is the first.
        self.steps = tuple(name for name, stage in stages if stage is not None)
        alone = constraint is None and params.logprobs is None
        self._usual = usual(self.steps, params, n_vocab) if alone else None
        self._leading = 0 if self._mirostat else leading(self.steps, params, n_vocab)
        scans(n_vocab)  # fail now, not at the first token, if the library is missing

    def _stage(self, name: str, params: SamplingParams) -> Stage | None:
        if name == "penalties":
            penalties = self._penalties
            return (lambda pool, _: penalties.apply(pool)) if penalties else None
        if name == "dry":
            dry = self._dry
            return (lambda pool, _: dry.apply(pool, scans(self._n_vocab))) if dry else None
        if self._greedy or (self._mirostat and name != "temperature"):
            return None
        return truncation(name, params)

    @property
    def greedy_fast(self) -> bool:
        """Whether ``sample`` would be a plain argmax: the backend may do it where logits lie. With
        a constraint it is one if the argmax is allowed."""
        return self._greedy and not self._stages and self._logprobs is None

    @property
    def plain(self) -> bool:
        """Whether it is one in any case."""
        return self.greedy_fast and self._constraint is None

    def leading(self, most: int) -> int:
        """How many of the largest logits ``sample`` should be shown, where there are ``most`` to be
        had; 0 if it takes the whole row, or no more than an argmax."""
        if self.plain or not 0 < self._leading <= most:
            return 0
        if self._usual is not None:
            return self._leading
        # A mask or a penalty moves some of them back: then those behind them count.
        return most

    @property
    def ended(self) -> bool:
        """Whether a constraint allows nothing more."""
        return self._constraint is not None and self._constraint.ended

    @property
    def position(self) -> int:
        """How many tokens were accepted."""
        return self._position

    def sample(
        self,
        logits: np.ndarray | Callable[[], np.ndarray],
        best: int | None = None,
        top: tuple[I32, F32] | None = None,
    ) -> Sampled:
        """The next token; the same for the same logits until ``accept``.

        Args:
            logits: float32 [n_vocab] or longer; only the first n_vocab count. Not written to. Or
                what gives them, asked only if neither ``best`` nor ``top`` suffices.
            best: where the largest of all logits is, the first of equals, if that is known and
                all are finite; else negative or None. Used where :attr:`greedy_fast`.
            top: a row's part of :class:`edgerun.backends.base.Top`, ids and logits, if that is
                known. Used where :meth:`leading`; what is returned does not depend on it.

        Raises:
            GenerationError: a logit is NaN or +inf, or nothing is left to sample.
            ValueError: the array has another shape or type.
        """
        if (
            best is not None
            and 0 <= best < self._n_vocab
            and self.greedy_fast
            and (self._constraint is None or self._constraint.mask()[best >> 5] >> (best & 31) & 1)
        ):
            return Sampled(best)
        if top is not None and self._leading:
            found = self._sample_top(*top)
            if found is not None:
                return Sampled(found)
        row = self._row(logits() if callable(logits) else logits)
        if self._usual is not None:
            u = rng.draws(self._seed, self._position, self._stream)[0]
            found = scans(self._n_vocab).usual(address(row), *self._usual, u)
            if found >= 0:  # else what follows says why
                return Sampled(found)
        pool = Dense(row, scans(self._n_vocab))
        if self._logprobs is None:
            return Sampled(self._choose(pool))
        norm = pool.best + math.log(pool.mass())
        listed: tuple[tuple[int, float], ...] = ()
        if self._logprobs:
            likeliest = pool.top_k(self._logprobs).sparse().sort()
            listed = tuple(
                zip(likeliest.ids.tolist(), (likeliest.logits - norm).tolist(), strict=True)
            )
        token_id = self._choose(pool)
        return Sampled(token_id, float(row[token_id]) - norm, listed)

    def _sample_top(self, ids: I32, logits: F32) -> int | None:
        """What :meth:`sample` gives, if the largest logits decide it."""
        n_vocab = self._n_vocab
        if int(ids.max()) >= n_vocab:
            real = ids < n_vocab
            ids, logits = ids[real], logits[real]
        if not len(ids) or ids[0] < 0:
            return None  # the whole row says why
        whole = bool(ids[-1] < 0)
        if self._usual is None:
            n = int(np.count_nonzero(ids >= 0)) if whole else len(ids)
            pool = cast(Dense, Leading(ids[:n], logits[:n], n_vocab, whole=whole))
            try:
                return self._choose(pool)
            except UnknownError:
                return None
        if not whole and self._leading > len(ids):
            return None
        u = rng.draws(self._seed, self._position, self._stream)[0]
        n = min(len(ids), n_vocab)
        at = scans(n_vocab).usual(address(logits), *self._usual, u, n)
        return int(ids[at]) if at >= 0 else None

    def distribution(self, logits: np.ndarray) -> tuple[I32, F64]:
        """What the next token is drawn from, for tests and tools: slower than ``sample``.

        Returns:
            Ids int32 [m] and their probabilities float64 [m], likeliest first.

        Raises:
            GenerationError, ValueError: as in ``sample``.
        """
        pool = self._candidates(Dense(self._row(logits), scans(self._n_vocab)))[0]
        left = (self._mirostat.cut(pool) if self._mirostat else pool.sparse()).sort()
        weights = np.exp(left.logits - left.logits[0])
        return left.ids, weights / weights.sum()

    def _row(self, logits: np.ndarray) -> F32:
        if logits.dtype != np.float32 or logits.ndim != 1 or len(logits) < self._n_vocab:
            raise ValueError(
                f"logits must be float32 [{self._n_vocab}], not {logits.dtype} {logits.shape}"
            )
        return np.ascontiguousarray(logits[: self._n_vocab])

    def _candidates(self, row: Dense) -> tuple[Pool, float]:
        """The pool after every step, and the number that picks from it."""
        u, coin = 0.0, 0.0
        pool: Pool = row
        if not self._greedy:
            u, coin = rng.draws(self._seed, self._position, self._stream)
        if self._constraint is not None:
            pool = row.only(unpack(self._constraint.mask(), self._n_vocab))
        for stage in self._stages:
            pool = stage(pool, coin)
        return pool.greedy() if self._greedy else pool, u

    def _choose(self, row: Dense) -> int:
        pool, u = self._candidates(row)
        if self._mirostat is not None:
            return self._mirostat.choose(pool, u)
        return pool.pick(u)

    def accept(self, token_id: int) -> None:
        """Advance by one emitted token.

        Raises:
            ValueError: no such token.
        """
        if not 0 <= token_id < self._n_vocab:
            raise ValueError(f"token {token_id} is not in a vocabulary of {self._n_vocab}")
        self._position += 1
        if self._constraint is not None:
            self._constraint.accept(token_id)
        if self._penalties is not None:
            self._penalties.accept(token_id)
        if self._dry is not None:
            self._dry.accept(token_id)
        if self._mirostat is not None:
            self._mirostat.accept(token_id)


def _check_prompt(prompt_ids: Sequence[int], n_vocab: int) -> None:
    for i in prompt_ids:
        if not 0 <= i < n_vocab:
            raise RequestError(
                f"the prompt holds token {i}, but the vocabulary ends at {n_vocab - 1}",
                param="prompt",
            )


def _penalties(p: SamplingParams, n_vocab: int, prompt_ids: Sequence[int]) -> Penalties | None:
    repeats = p.repeat_penalty != 1.0 and p.repeat_last_n != 0
    if "penalties" not in p.samplers:
        return None
    if not repeats and p.presence_penalty == 0.0 and p.frequency_penalty == 0.0:
        return None
    if repeats:
        _check_prompt(prompt_ids, n_vocab)
    return Penalties(
        p.repeat_penalty, p.repeat_last_n, p.presence_penalty, p.frequency_penalty, prompt_ids
    )


def _dry(
    p: SamplingParams,
    n_vocab: int,
    token_bytes: Callable[[int], bytes] | None,
    prompt_ids: Sequence[int],
) -> Dry | None:
    active = p.dry_multiplier > 0.0 and p.dry_base >= 1.0 and p.dry_penalty_last_n != 0
    if not active or "dry" not in p.samplers:
        return None
    _check_prompt(prompt_ids, n_vocab)
    return Dry(
        p.dry_multiplier,
        p.dry_base,
        p.dry_allowed_length,
        p.dry_penalty_last_n,
        p.dry_sequence_breakers,
        token_bytes,
        prompt_ids,
    )
