"""The MLX backend in float32 on MLX's CPU device against an independent float32 implementation, on
two real models.

MLX's Linux wheel multiplies matrices at half a billion products a second, so the short form takes
few tokens, and perplexity lends it numpy's product: everything else is MLX's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import golden as g
from helpers.runner import Runner

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.mlx_weights import Matrix  # noqa: E402
from edgerun.text.tokenizer import load_tokenizer  # noqa: E402


@pytest.fixture(scope="module", params=g.MODELS)
def case(request: pytest.FixtureRequest) -> tuple[g.Golden, Runner]:
    golden = g.load(request.param)
    if not g.full():
        shortest = sorted(golden.prompts, key=lambda p: len(p.ids))[:2]
        golden = replace(golden, prompts=shortest)
    return golden, Runner(golden.model, MLXBackend(), n_ctx=golden.context, kv_type="f32")


@pytest.mark.timeout(900)
def test_first_token_distribution(case: tuple[g.Golden, Runner]) -> None:
    assert max(g.first_token_kl(*case)) < 1e-6


@pytest.mark.timeout(900)
def test_greedy(case: tuple[g.Golden, Runner]) -> None:
    g.check_greedy(*case, limit=12 if g.full() else 3)


@pytest.mark.skipif(not g.full(), reason="the short form has two prompts only")
@pytest.mark.timeout(900)
def test_every_step_of_the_golden_texts(
    case: tuple[g.Golden, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Matrix, "times", _numpy_product)
    g.check_forced(*case, tolerance=1e-3)


@pytest.mark.skipif(not g.full(), reason="a minute each; set EDGERUN_TEST_FULL=1")
@pytest.mark.timeout(900)
def test_perplexity(case: tuple[g.Golden, Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Matrix, "times", _numpy_product)
    golden, runner = case
    ids = g.eval_ids(golden, load_tokenizer(runner.file.metadata).encode)
    g.check_perplexity(golden, runner, ids, 5e-4, chunks=[0, 4, 8, 11])


def _numpy_product(w: Matrix, x: mx.array, alone: bool = False) -> mx.array:
    step = max(1, (64 << 20) // (4 * w.n_in))
    host = np.array(x)
    tiles = [
        host @ np.array(w.rows(slice(i, min(i + step, w.n_out)))).T for i in range(0, w.n_out, step)
    ]
    return mx.array(np.concatenate(tiles, axis=1))
