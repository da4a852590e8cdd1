"""Every sampler written down plainly: float64, full sorts, history walked from scratch.

Follows llama.cpp's documented behaviour and the papers, with edgerun's decisions: a logit of -inf
is no candidate; presence and frequency count generated tokens only; temperature 0 or less is
greedy. Shares no code with edgerun's samplers; slow on purpose.

``Reference.margin`` is how far the closest decision was from going the other way, so that a test
comparing with float32 sums can tell a wrong answer from a tie broken otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from edgerun.core import SamplingParams


class Reference:
    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        *,
        eog_ids: Sequence[int] = (),
        token_bytes: Callable[[int], bytes] = lambda _: b"",
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self.p = params
        self.n_vocab = n_vocab
        self.eog_ids = eog_ids
        self.token_bytes = token_bytes
        self.prompt = list(prompt_ids)
        self.generated: list[int] = []
        self.mu = 2.0 * params.mirostat_tau
        self.margin = math.inf

    def distribution(self, logits: np.ndarray, coin: float) -> tuple[np.ndarray, np.ndarray]:
        """Ids and probabilities, likeliest first; ``coin`` decides whether XTC acts."""
        self.margin = math.inf
        x = np.array(logits[: self.n_vocab], np.float64)
        for i, v in self.p.logit_bias.items():
            x[i] += v
        if self.p.ignore_eos:
            x[list(self.eog_ids)] = -np.inf
        ids = np.flatnonzero(x > -np.inf)
        x = x[ids]
        greedy = self.p.temperature <= 0
        for name in self.p.samplers:
            if name in ("penalties", "dry"):
                ids, x = getattr(self, "_" + name)(ids, x)
            elif greedy or (self.p.mirostat and name != "temperature"):
                continue
            elif name == "xtc":
                ids, x = self._xtc(*_sorted(ids, x), coin)
            else:
                ids, x = getattr(self, "_" + name)(*_sorted(ids, x))
        ids, x = _sorted(ids, x)
        if greedy:
            self._near(x[0] - x[1:2])
            ids, x = ids[:1], x[:1]
        elif self.p.mirostat == 1:
            ids, x = self._mirostat_1(ids, x)
        elif self.p.mirostat == 2:
            ids, x = self._mirostat_2(ids, x)
        return ids, _softmax(x)

    def accept(self, token_id: int, p: float) -> None:
        """``p`` is its probability in the last distribution."""
        self.generated.append(token_id)
        self.mu -= self.p.mirostat_eta * (-math.log2(p) - self.p.mirostat_tau)

    def _near(self, differences: np.ndarray | float) -> None:
        d = np.abs(np.atleast_1d(differences))
        d = d[d > 0]
        if len(d):
            self.margin = min(self.margin, float(d.min()))

    def _doubt(self, differences: np.ndarray | float) -> None:
        """As _near, where an exact tie is in doubt too."""
        d = np.abs(np.atleast_1d(differences))
        if len(d):
            self.margin = min(self.margin, float(d.min()))

    # samplers that look back

    def _penalties(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, out = self.p, x.copy()
        history = self.prompt + self.generated
        n = len(history) if p.repeat_last_n < 0 else p.repeat_last_n
        window = set(history[len(history) - n :] if n < len(history) else history) if n else set()
        for i in set(history) & set(ids.tolist()):
            k = int(np.flatnonzero(ids == i)[0])
            if i in window:
                positive = out[k] > 0
                out[k] = out[k] / p.repeat_penalty if positive else out[k] * p.repeat_penalty
            count = self.generated.count(i)
            out[k] -= p.frequency_penalty * count + (p.presence_penalty if count else 0.0)
        return ids, out

    def _dry(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, out = self.p, x.copy()
        everything = self.prompt + self.generated
        n = len(everything) if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
        history = everything[len(everything) - n :] if n < len(everything) else everything
        if p.dry_multiplier == 0 or p.dry_base < 1 or n == 0:
            return ids, x
        if len(history) <= p.dry_allowed_length:
            return ids, x
        limit = min(self._since_breaker(everything), len(history))
        worst: dict[int, int] = {}
        for j in range(1, len(history)):
            length = 0
            while length < j and history[j - 1 - length] == history[-1 - length]:
                length += 1
            length = min(length, limit)
            if length >= p.dry_allowed_length:
                worst[history[j]] = max(worst.get(history[j], 0), length)
        breakers = [b.encode() for b in p.dry_sequence_breakers if b]
        for i, length in worst.items():
            if not any(b in self.token_bytes(i) for b in breakers):
                cost = p.dry_multiplier * p.dry_base ** (length - p.dry_allowed_length)
                out[ids == i] -= cost
        return ids, out

    def _since_breaker(self, history: list[int]) -> int:
        """How many tokens follow the one in which the last breaker ended."""
        text, owner = b"", []
        for k, i in enumerate(history):
            text += self.token_bytes(i)
            owner += [k] * len(self.token_bytes(i))
        last = -1
        for b in (s.encode() for s in self.p.dry_sequence_breakers if s):
            for at in range(len(text) - len(b) + 1):
                if text[at : at + len(b)] == b:
                    last = max(last, owner[at + len(b) - 1])
        return len(history) - 1 - last

    # samplers of the distribution alone: candidates come sorted

    def _temperature(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = self.p.temperature
        if self.p.dynatemp_range > 0:
            if len(ids) <= 1:
                return ids, x
            low = max(0.0, t - self.p.dynatemp_range)
            high = t + self.p.dynatemp_range
            q = _softmax(x)
            q = q[q > 0]
            share = -(q * np.log(q)).sum() / math.log(len(ids))
            self._doubt(share * 1e-3)  # a share near 0 has no accurate powers
            t = low + (high - low) * min(max(share, 0.0), 1.0) ** self.p.dynatemp_exponent
            if t <= 0:
                return ids[:1], x[:1]
        return ids, x / t

    def _top_k(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.p.top_k <= 0:
            return ids, x
        k = max(self.p.top_k, self.p.min_keep)
        if k < len(ids):
            self._near(x[k - 1] - x[k])
        return ids[:k], x[:k]

    def _top_p(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.p.top_p >= 1:
            return ids, x
        run = np.cumsum(_softmax(x))
        self._doubt(run - self.p.top_p)
        enough = (run >= self.p.top_p) & (np.arange(len(ids)) + 1 >= self.p.min_keep)
        cut = int(np.argmax(enough)) + 1 if enough.any() else len(ids)
        if cut < len(ids):
            self._near(x[cut - 1] - x[cut])
        return ids[:cut], x[:cut]

    def _min_p(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.p.min_p <= 0:
            return ids, x
        return self._from(ids, x, x[0] + math.log(self.p.min_p))

    def _from(self, ids: np.ndarray, x: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
        self._near(x - floor)
        cut = max(int((x >= floor).sum()), self.p.min_keep)
        if cut < len(ids):
            self._near(x[cut - 1] - x[cut])
        return ids[:cut], x[:cut]

    def _top_n_sigma(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.p.top_n_sigma <= 0:
            return ids, x
        return self._from(ids, x, x[0] - self.p.top_n_sigma * math.sqrt(x.var()))

    def _typ_p(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.p.typical_p >= 1:
            return ids, x
        log_q = x - x[0] - math.log(np.exp(x - x[0]).sum())
        q = np.exp(log_q)
        entropy = -(q[q > 0] * log_q[q > 0]).sum()
        off = np.abs(-log_q - entropy)
        order = np.argsort(off, kind="stable")
        run = np.cumsum(q[order])
        self._doubt(run - self.p.typical_p)
        enough = (run > self.p.typical_p) & (np.arange(len(ids)) + 1 >= self.p.min_keep)
        cut = int(np.argmax(enough)) + 1 if enough.any() else len(ids)
        if cut < len(ids) and x[order[cut - 1]] != x[order[cut]]:
            self._doubt(off[order[cut]] - off[order[cut - 1]])
        keep = np.sort(order[:cut])
        return ids[keep], x[keep]

    def _xtc(self, ids: np.ndarray, x: np.ndarray, coin: float) -> tuple[np.ndarray, np.ndarray]:
        p = self.p
        if p.xtc_probability <= 0 or p.xtc_threshold > 0.5 or len(ids) < 2:
            return ids, x
        if coin >= p.xtc_probability:
            return ids, x
        q = _softmax(x)
        self._doubt(q - p.xtc_threshold)
        last = int((q >= p.xtc_threshold).sum()) - 1
        if last > 0 and len(ids) - last >= p.min_keep:
            self._near(x[last - 1] - x[last])
            return ids[last:], x[last:]
        return ids, x

    # mirostat

    def _mirostat_1(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        top = x[:100]
        if len(top) < 2:
            return ids[:1], x[:1]
        t = [math.log((i + 2) / (i + 1)) for i in range(len(top) - 1)]
        b = [float(top[i] - top[i + 1]) for i in range(len(top) - 1)]
        s = sum(i * j for i, j in zip(t, b, strict=True)) / sum(i * i for i in t)
        self._doubt(s * 1e-3)  # flat, or eps = 0: the formula breaks down
        self._doubt((s - 1) * 1e-3)
        if s == 0 or s == 1:
            return ids, x
        eps = s - 1
        base = eps * 2.0**self.mu / (1 - float(self.n_vocab) ** -eps)
        k = math.exp(min(math.log(base) / s, 700.0))  # a nearly flat row: more than there are
        self._doubt((k - round(k)) / k * 0.1)
        cut = max(int(min(k, 1e9)), 1)
        if cut < len(ids):
            self._near(x[cut - 1] - x[cut])
        return ids[:cut], x[:cut]

    def _mirostat_2(self, ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        q = _softmax(x)
        surprise = -np.log2(np.maximum(q, 1e-300))
        self._doubt(surprise - self.mu)
        cut = max(int((surprise <= self.mu).sum()), 1)
        return ids[:cut], x[:cut]


def _sorted(ids: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((ids, -x))  # descending, then by id
    return ids[order], x[order]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()
