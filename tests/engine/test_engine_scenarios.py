"""Thousands of random loads: arrivals, cancels, forks, drafts, shifts, pools down to starvation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers import scenarios
from helpers.fake_program import N_VOCAB, AheadProgram, engine, logits_of

from edgerun.backends.base import F32
from edgerun.backends.cpu import CPUBackend

BLOCK = 100


class Poisoned(AheadProgram):
    def predict(self, ids: Sequence[int]) -> F32:
        return scenarios.poisoned(logits_of)(ids)


@pytest.mark.parametrize("block", range(20))
def test_every_request_gets_what_it_gets_alone(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other program lets its steps be started ahead, two of three give the largest logits."""
    happened = "preemptions", "evictions", "cached_tokens", "drafts", "ahead", "tops"
    counts = dict.fromkeys(happened, 0)
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        ahead = 1000 * (seed % 2)
        params = scenarios.GREEDY if ahead else scenarios.PARAMS
        s = scenarios.draw(seed, None, N_VOCAB, 24, poison=True, params=params)
        scenarios.expect(s, scenarios.poisoned(logits_of), N_VOCAB)
        program = Poisoned(s.n_pages, s.page_size)
        program.ahead = ahead
        program.n_top = (0, 40, 8)[seed % 3]
        monkeypatch.setattr("edgerun.engine.ahead._QUIET", seed // 2 % 5)
        e = engine(s.n_pages, s.page_size, s.limits, program)
        scenarios.run(s, e, seed)
        m = e.metrics()
        counts["preemptions"] += m.preemptions
        counts["evictions"] += m.evictions
        counts["cached_tokens"] += m.cached_tokens
        counts["ahead"] += program.n_ahead
        counts["tops"] += program.n_tops
        counts["drafts"] += sum(d.accepted for d in m.drafts.values())
    assert all(n > 5 for n in counts.values()), counts  # it all did happen


@pytest.fixture(scope="module")
def cpu() -> Iterator[CPUBackend]:
    backend = CPUBackend(threads=1)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3, n_layer=1)


@pytest.mark.parametrize("block", range(5))
def test_the_same_on_a_real_model(cpu: CPUBackend, path: Path, block: int) -> None:
    """Bits that depend on the batch, the chunks or the cache would show here."""
    scenarios.run_on_backend(path, cpu, range(block * 10, (block + 1) * 10), 256, 100)
