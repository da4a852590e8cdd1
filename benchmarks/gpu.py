"""Is it right on this GPU, and how fast? One run of under six minutes, results as JSON.

    python benchmarks/gpu.py --json out.json
    python benchmarks/gpu.py --only products models --minutes 3

Needs numpy, cuda-core, cuda-bindings, nvidia-cuda-nvrtc and this checkout, no model files. First
correctness: products of every weight type, also with experts, every architecture's fixture, the
same bits for every width of a step; a failure is said at once and ends the run with status 1. Then
speed, beside the rate at which the device copies: products by type and tokens, layers of experts,
attention by context, decode and prompts of models whose weights are random.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _gpu_cases as cases  # noqa: E402
import _gpu_speed as speed  # noqa: E402

from edgerun.backends.base import Attention  # noqa: E402
from edgerun.backends.cuda import CudaBackend  # noqa: E402
from edgerun.backends.cuda_weights import LINEAR_TYPES  # noqa: E402
from edgerun.errors import EdgerunError, OutOfMemoryError  # noqa: E402
from edgerun.gguf import GGMLType  # noqa: E402

_COMMON = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q4_0, GGMLType.Q8_0)
#: Of the 8B shape: one KV head serves four query heads of 128.
_HEADS = Attention(32, 8, 128, 128**-0.5)
#: Shape, type mix, least bytes of free memory.
_MODELS = (
    ("llama-8b", "Q4_K_M", 8 << 30),
    ("llama-1b", "Q4_K_M", 2 << 30),
    ("qwen3moe-1b", "Q4_K_M", 2 << 30),
    ("smollm2-135m", "Q4_1", 1 << 30),
)


#: So many of so many experts, n_embd, n_ff: a 30B model's layer, a 1B model's, gpt-oss's in size.
_EXPERTS = ((8, 128, 2048, 768), (8, 64, 2048, 1024), (4, 32, 2816, 2816))


class Run:
    """Results so far, and the time that is left."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes
        self._begin = time.monotonic()
        self.out: dict[str, Any] = {"date": datetime.date.today().isoformat(), "failures": []}

    def part(self, name: str, rows: Callable[[], Iterator[Any]]) -> None:
        """Collect the rows of a part, each printed as it comes, until time is up."""
        kept: list[Any] = []
        if time.monotonic() < self._end:  # a part without time is not begun, not even its set-up
            print(f"\n{name} ({time.monotonic() - self._begin:.0f} s)", flush=True)
        else:
            self.out.setdefault("skipped", []).append(name)
            return
        self.out.setdefault(name, kept)
        try:
            for row in rows():
                kept.append(row)
                print(f"  {said(row)}", flush=True)
                if time.monotonic() > self._end:
                    self.out.setdefault("skipped", []).append(f"the rest of {name}")
                    return
        except OutOfMemoryError as e:
            self.out.setdefault("skipped", []).append(f"{name}: {e}")
        except Exception as e:
            if not isinstance(e, EdgerunError):
                traceback.print_exc()
            self.fail(f"{name}: {type(e).__name__}: {e}")

    def fail(self, what: str) -> None:
        print(f"  FAILED {what}", flush=True)
        self.out["failures"].append(what)

    def check(self, name: str, verdicts: Callable[[], Iterator[cases.Verdict]]) -> None:
        def rows() -> Iterator[dict[str, Any]]:
            for what, bad in verdicts():
                if bad:
                    self.fail(f"{what}: {bad}")
                yield {"case": what, "ok": not bad}

        self.part(name, rows)


def said(row: dict[str, Any]) -> str:
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())


def correctness(run: Run, opened: speed.Open) -> None:
    backend = opened()
    run.out["device"] = dict(backend.describe())
    print(said(run.out["device"]), flush=True)
    start = time.monotonic()
    backend.device.load(cases.product_kernels())
    run.out["compile_seconds"] = time.monotonic() - start
    print(f"kernels compiled in {run.out['compile_seconds']:.1f} s", flush=True)
    run.check("correct: architectures", lambda: cases.architectures(backend))
    run.check("correct: products", lambda: cases.products(backend))
    run.check("correct: experts", lambda: cases.experts(backend))
    run.check("correct: long texts", lambda: cases.long_texts(backend))
    backend.close()


def measure(run: Run, opened: speed.Open, only: list[str] | None) -> None:
    backend = opened()
    rates = {**speed.copies(backend.device), **speed.overheads(backend.device)}
    free = backend.memory().free
    backend.close()
    run.out["rates"] = rates
    print(f"\n{said(rates)}", flush=True)

    def wanted(name: str) -> bool:
        return not only or name in only

    if wanted("products"):
        tokens = (1, 2, 4, 8, 16, 64, 512)
        run.part("products", lambda: speed.products(opened, _COMMON, tokens, 4096, 4096))
    for shape, quant, least in _MODELS:
        if wanted("models") and free >= least:
            name = f"models: {shape}"
            run.part(name, lambda s=shape, q=quant: speed.models(opened, s, q, rates["copy_gbs"]))
    if wanted("experts"):
        sizes = _EXPERTS if free >= 4 << 30 else ()
        widths = (1, 2, 8, 16, 64, 512)
        run.part("experts", lambda: speed.experts(opened, _COMMON[0], sizes, widths))
    if wanted("attention"):
        args = ((1024, 8192), (1, 8), ("f16", "q8_0", "q4r"), _HEADS)
        run.part("attention", lambda: speed.attention(opened, *args))
    if wanted("types"):
        rest = [t for t in LINEAR_TYPES if t not in _COMMON]
        run.part("types", lambda: speed.products(opened, rest, (1, 8, 512), 4096, 4096))


def main() -> int:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--json", metavar="FILE", help="write all results there")
    ap.add_argument("--minutes", type=float, default=5.5, help="begin nothing after so long")
    parts = ("correctness", "products", "models", "experts", "attention", "types")
    ap.add_argument("--only", nargs="+", choices=parts, help="parts to run (default: all)")
    a = ap.parse_args()
    run = Run(a.minutes)
    try:
        if not a.only or "correctness" in a.only:
            correctness(run, CudaBackend)
        if not a.only or set(a.only) - {"correctness"}:
            measure(run, CudaBackend, a.only)
    except EdgerunError as e:
        run.fail(str(e))
    finally:
        if a.json:
            Path(a.json).write_text(json.dumps(run.out, indent=1) + "\n")
    failures = run.out["failures"]
    print(f"\n{len(failures)} failures" if failures else "\nno failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
