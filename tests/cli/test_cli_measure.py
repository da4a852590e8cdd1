"""``edgerun perplexity`` and ``edgerun doctor``, and what they are made of."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, one_line_error
from helpers.runner import Runner

from edgerun.backends.base import Batch, Program
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import GenerationError, RequestError
from edgerun.loading import BACKENDS
from edgerun.perplexity import perplexity

TEXT = "the sound of the sea and the rain on a tin roof " * 8


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=6, std=0.1)


def by_hand(path: Path, ids: list[int], n_ctx: int) -> tuple[list[float], int]:
    """Negative log-likelihoods by the definition, from one whole forward pass a chunk."""
    runner = Runner(path, ReferenceBackend())
    scores: list[float] = []
    chunks = [ids[i : i + n_ctx] for i in range(0, len(ids) - n_ctx + 1, n_ctx)]
    for chunk in chunks:
        chunk[0] = gb.BOS_ID
        z = runner.logits(chunk).astype(np.float64)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        scores += [-math.log(p[i - 1, chunk[i]]) for i in range(n_ctx // 2, n_ctx)]
    return scores, len(chunks)


@pytest.mark.parametrize(("backend", "tolerance"), [("cpu", 5e-3), ("reference", 1e-5)])
@pytest.mark.parametrize("ctx", [16, 33, 160])
def test_perplexity_is_its_definition(
    cli: CLI, model: Path, tmp_path: Path, backend: str, tolerance: float, ctx: int
) -> None:
    from edgerun import LLM

    (tmp_path / "t.txt").write_text(TEXT)
    args = ["-m", model, "--backend", backend, "--ctx", str(ctx)]
    r = cli("perplexity", *args, "--json", tmp_path / "t.txt")
    assert r.status == 0, r.err
    got = json.loads(r.out)
    with LLM(model, backend="reference") as llm:
        ids = llm.tokenize(TEXT)
    scores, n_chunks = by_hand(model, ids, ctx)
    assert (got["tokens"], got["chunks"]) == (len(scores), n_chunks)
    want = math.exp(np.mean(scores))
    assert got["perplexity"] == pytest.approx(want, rel=tolerance)
    error = want * np.std(scores, ddof=1) / math.sqrt(len(scores))
    assert got["error"] == pytest.approx(error, rel=10 * tolerance)
    plain = cli("perplexity", *args, tmp_path / "t.txt").out
    assert plain.startswith(f"perplexity {got['perplexity']:.4f} ± ")


def test_perplexity_errors(cli: CLI, model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a few words")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    run = ["perplexity", "-m", model, "--backend", "reference"]
    assert "fewer than one chunk of 512" in one_line_error(cli(*run, tmp_path / "short.txt"))
    assert "at least 4" in one_line_error(cli(*run, "--ctx", "3", tmp_path / "short.txt"))
    assert "binary.txt" in one_line_error(cli(*run, tmp_path / "binary.txt"))
    assert "none.txt" in one_line_error(cli(*run, tmp_path / "none.txt"))
    assert one_line_error(cli(*run, tmp_path))


class Constant(Program):
    """The same logits everywhere; ``tokens`` are the widths of the steps."""

    n_vocab = 4

    def __init__(self, logits: list[float]) -> None:
        self.logits = np.array(logits, np.float32)
        self.tokens: list[int] = []

    def run(self, batch: Batch):  # type: ignore[no-untyped-def]
        self.tokens.append(batch.n_tokens)
        return np.tile(self.logits, (len(batch.outputs), 1))


def test_uniform_logits_give_the_size_of_the_vocabulary() -> None:
    program = Constant([3.0] * 4)
    r = perplexity(program, [i % 4 for i in range(5000)], 2500)
    assert r.value == pytest.approx(4)
    assert r.error == pytest.approx(0, abs=1e-9)
    assert (r.n_scored, r.n_chunks) == (2500, 2)
    assert max(program.tokens) <= 512
    assert sum(program.tokens) == 2 * 2499  # the last token of a chunk predicts nothing


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e9])
def test_unusable_logits_are_an_error(bad: float) -> None:
    with pytest.raises(GenerationError):
        perplexity(Constant([bad, 0, 0, 0]), [1, 2] * 8, 8)


def test_too_short() -> None:
    with pytest.raises(RequestError) as e:
        perplexity(Constant([0.0] * 4), [1] * 7, 8)
    assert e.value.param == "ctx"


# -- doctor --------------------------------------------------------------------------------------


def test_doctor(cli: CLI) -> None:
    r = cli("doctor", "--json")
    assert (r.status, r.err) == (0, "")
    facts = json.loads(r.out)
    found = {b["name"]: b for b in facts["backends"]}
    assert tuple(found) == BACKENDS
    isas = found["cpu"]["facts"]["isas"].split()
    assert not set(isas) & set(found["cpu"]["isas_not_used"])
    assert {*isas, *found["cpu"]["isas_not_used"]} >= {"avx512vnni", "avx2", "neon"}
    assert found["reference"]["available"] is True
    assert found["cpu"]["facts"]["isa"] in found["cpu"]["facts"]["isas"].split()
    assert found["cpu"]["facts"]["threads"] >= 1
    assert "llama" in facts["architectures"]
    assert 0 < facts["memory"]["free"] <= facts["memory"]["total"]
    plain = cli("doctor")
    assert plain.status == 0
    assert f"isa {found['cpu']['facts']['isa']}" in plain.out


def test_doctor_says_how_mlx_computes(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core", reason="MLX is not installed")
    found = {b["name"]: b for b in json.loads(cli("doctor", "--json").out)["backends"]}
    assert "--exact" in found["mlx"]["facts"]["last bits"]


def test_doctor_says_that_there_is_no_mlx(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    monkeypatch.delitem(sys.modules, "edgerun.backends.mlx", raising=False)
    found = {b["name"]: b for b in json.loads(cli("doctor", "--json").out)["backends"]}
    assert found["mlx"]["available"] is False
    assert "pip install 'edgerun[mlx]'" in found["mlx"]["reason"]


def test_doctor_says_that_there_is_no_driver(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.backends.cuda_driver.nvidia_driver", lambda: False)
    assert "no  cuda       no NVIDIA driver is installed" in cli("doctor").out


def test_doctor_says_why_not(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERUN_ISA", "non\x1bsense")
    r = cli("doctor", "--json")
    cpu = next(b for b in json.loads(r.out)["backends"] if b["name"] == "cpu")
    assert (r.status, cpu["available"]) == (0, False)
    assert "one of: " in cpu["reason"]
    plain = cli("doctor")
    assert plain.status == 0
    assert "no  cpu" in plain.out
    assert "\x1b" not in plain.out
