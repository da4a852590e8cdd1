"""Is it right on this Mac's GPU, and how fast, beside mlx-lm? Results as JSON.

    pip install '.[test]' mlx-lm && python benchmarks/apple.py --json out.json
    python benchmarks/apple.py --shapes llama-1b --device cpu    # anywhere: shows that it runs

First correctness: every architecture's fixture, and the same bits for every width of a step in the
exact mode; a failure is said at once and ends the run with status 1. Then tokens per second of
prompts of 512 tokens, decode, and 8 sequences, of models whose weights are random: edgerun in both
modes, each step waited for and ("ahead") as greedy texts run, and mlx-lm's model of the same shape
with 4 bits in groups of 64, which have as many bits a weight as Q4_K, as its generator runs it.
(Not called mlx.py: that name would stand before MLX itself on Python's path.)
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from _blocks import SHAPES  # noqa: E402
from _models import synthesize  # noqa: E402

from edgerun import bench  # noqa: E402
from edgerun.backends.base import Batch, Program  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.loading import LoadedModel, load  # noqa: E402

_PROMPT, _DECODE, _BATCH = 512, 64, 8


def logits(model: LoadedModel, ids: list[int], chunk: int) -> np.ndarray[Any, Any]:
    pages = range(-(-len(ids) // 32))
    parts = []
    for at in range(0, len(ids), chunk):
        part = ids[at : at + chunk]
        rows = [(part, at, pages, range(len(part)))]
        parts.append(np.array(model.program.run(Batch.pack(rows))))
    return np.concatenate(parts)


def check(failures: list[str], fixtures: Path) -> list[dict[str, Any]]:
    """Every architecture against an independent implementation's logits, by steps of any width."""
    rows = []
    for file in sorted(fixtures.glob("*.npz")):
        known = np.load(file)
        ids, expected = known["ids"].tolist(), known["logits"]
        for exact in (False, True):
            model = load(file.with_suffix(".gguf"), MLXBackend(exact), n_ctx=128)
            found = [logits(model, ids, chunk) for chunk in (512, 7, 1)]
            scale = float(np.abs(expected).max())
            error = max(float(np.abs(x - expected).max()) for x in found) / scale
            same = all(np.array_equal(x, found[0]) for x in found)
            row = {"fixture": file.stem, "exact": exact, "error": error, "same_bits": same}
            if not error < 0.02 or (exact and not same):
                failures.append(str(row))
                print("FAILED", row, flush=True)
            rows.append(row)
            model.backend.close()
    print(f"{len(rows)} fixtures: worst error {max(r['error'] for r in rows):.1e}", flush=True)
    return rows


def ours(path: Path, exact: bool, rounds: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    prompt, decode, batch = sizes
    need = bench.tokens_needed(prompt, decode, (1, batch))
    model = load(path, MLXBackend(exact), n_ctx=need)
    found = bench.measure(model.program, prompt, decode, (1, batch), rounds)
    row: dict[str, Any] = {m.name: round(m.median, 2) for m in found}
    each = -(-(64 + decode) // 32)
    spans = [range(i * each, (i + 1) * each) for i in range(batch)]
    one = [range(-(-(prompt + decode) // 32))]
    for name, past, rows in ((f"decode {decode}", prompt, one), (f"{batch} sequences", 64, spans)):
        seconds = [ahead(model.program, past, rows, decode) for _ in range(rounds + 1)]
        row[f"{name} ahead"] = round(len(rows) * decode / statistics.median(seconds[1:]), 2)
    row |= {"engine": "edgerun exact" if exact else "edgerun", "memory": mx.get_peak_memory()}
    model.backend.close()
    return row


def ahead(program: Program, past: int, rows: Sequence[Sequence[int]], n: int) -> float:
    """Seconds of ``n`` greedy steps as the engine runs them, each started before the ids of the one
    before are known; ``rows`` are the pages of texts of ``past`` tokens."""

    def batch(i: int, tokens: Sequence[int]) -> Batch:
        packed = [([t], past + i, p, [0]) for t, p in zip(tokens, rows, strict=True)]
        return Batch.pack(packed, want_best=True)

    start = time.perf_counter()
    step = program.start(batch(0, [17] * len(rows)))
    for i in range(1, n):
        behind = program.start(batch(i, [-1 - j for j in range(len(rows))]), step)
        step.wait()
        step = behind
    step.wait()
    return time.perf_counter() - start


def mlx_lm(shape: str, rounds: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """mlx-lm's model with random weights: its speed does not depend on them."""
    import mlx.nn as nn
    from mlx_lm.models import cache, llama

    _, d, ff, layers, heads, kv, head_dim, vocab, tied = SHAPES[shape]
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama", hidden_size=d, num_hidden_layers=layers, intermediate_size=ff,
            num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim, vocab_size=vocab,
            rms_norm_eps=1e-5, tie_word_embeddings=tied,
        )
    )  # fmt: skip
    model.set_dtype(mx.float16)
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())

    prompt, decode, batch = sizes

    def steps(n_rows: int, past: int, new: int, width: int) -> float:
        """Seconds of ``new`` steps of ``width`` tokens behind ``past`` others."""
        kept = cache.make_prompt_cache(model)
        if past:
            mx.eval(model(mx.ones((n_rows, past), mx.int32), cache=kept))
        ids = mx.ones((n_rows, width), mx.int32)
        start = time.perf_counter()
        for _ in range(new):  # one step ahead, as its own generator
            best = mx.argmax(model(ids, cache=kept)[:, -1], axis=-1)
            mx.async_eval(best)
            ids = best[:, None].astype(mx.int32) if width == 1 else ids
        mx.eval(ids, best)
        return time.perf_counter() - start

    def rate(tokens: int, seconds: Callable[[], float]) -> float:
        seconds()
        return round(tokens / statistics.median(seconds() for _ in range(rounds)), 2)

    return {
        "engine": f"mlx-lm {importlib.metadata.version('mlx-lm')}",
        f"prefill {prompt}": rate(prompt, lambda: steps(1, 0, 1, prompt)),
        f"decode {decode}": rate(decode, lambda: steps(1, prompt, decode, 1)),
        f"{batch} sequences": rate(batch * decode, lambda: steps(batch, 64, decode, 1)),
    }


def speed(shape: str, quant: str, rounds: int, sizes: tuple[int, int, int]) -> list[dict[str, Any]]:
    path = Path(tempfile.gettempdir()) / f"edgerun-{shape}-{quant}.gguf"
    if not path.exists():
        synthesize(path, shape, quant)
    runs: list[Callable[[], dict[str, Any]]] = [
        lambda: ours(path, False, rounds, sizes),
        lambda: ours(path, True, rounds, sizes),
        lambda: mlx_lm(shape, rounds, sizes),
    ]
    rows = []
    for run in runs:
        mx.clear_cache()
        mx.reset_peak_memory()
        try:
            row = run()
        except ImportError as e:
            row = {"engine": "mlx-lm", "skipped": str(e)}
        rows.append({"shape": shape, "quant": quant, **row})
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--shapes", nargs="+", choices=SHAPES, default=["smollm2-135m", "llama-1b"])
    p.add_argument("--quant", default="Q4_K_M")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tokens", type=int, default=_PROMPT, help="of a prompt")
    p.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    if args.device == "gpu" and not mx.metal.is_available():
        print("this MLX has no Metal; --device cpu shows that the script runs", file=sys.stderr)
        return 2
    out: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "platform": platform.platform(),
        "backend": dict(MLXBackend().describe()), "failures": [], "speed": [],
    }  # fmt: skip
    out["fixtures"] = check(out["failures"], ROOT / "tests" / "fixtures" / "arch")
    sizes = (args.tokens, _DECODE, _BATCH) if args.device == "gpu" else (args.tokens, 4, 2)
    for shape in args.shapes:
        # SmolLM2 is too narrow for superblocks of 256.
        quant = "Q4_1" if SHAPES[shape][1] % 256 else args.quant
        out["speed"] += speed(shape, quant, args.rounds, sizes)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return 1 if out["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
