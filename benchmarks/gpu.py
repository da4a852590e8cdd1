"""Is it right on this GPU, and how fast? One run of under six minutes, results as JSON.

    python benchmarks/gpu.py --json out.json
    python benchmarks/gpu.py --only products models --minutes 3
    python benchmarks/gpu.py --small          does the script itself run?

Needs numpy, cuda-core, cuda-bindings, nvidia-cuda-nvrtc and this checkout, no model files. (With a
driver older than CUDA 13: pip install numpy 'cuda-core[cu12]' nvidia-cuda-nvrtc-cu12.) First
correctness: products of every weight type, also with experts, attention over every kind of head
and storage, the largest logits, every architecture's fixture, the same bits for every width of a
step. Then speed,
beside the rate at which the device copies: products by type and tokens, layers of experts,
attention by context, the choice from logits, decode and prompts of models whose weights are
random.

Each part is a process of its own: after a case that fails, crashes or says nothing for two minutes,
the next one starts a new process. What was found is in the file at once. Any failure makes the exit
status 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _gpu_attention as heads  # noqa: E402
import _gpu_cases as cases  # noqa: E402
import _gpu_models as models  # noqa: E402
import _gpu_speed as speed  # noqa: E402
from _gpu_run import Case, Row, Run, serve  # noqa: E402
from kernels.cases_attention import ATTENTION  # noqa: E402

from edgerun.backends.base import Attention  # noqa: E402
from edgerun.backends.cuda import CudaBackend  # noqa: E402
from edgerun.backends.cuda_weights import LINEAR_TYPES  # noqa: E402
from edgerun.gguf import GGMLType  # noqa: E402

_COMMON = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.Q4_0, GGMLType.Q8_0)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured, and with how much."""

    #: Shape, type mix, least bytes of free memory.
    models: Sequence[tuple[str, str, float]] = (
        ("llama-8b", "Q4_K_M", 6.5e9),
        ("llama-1b", "Q4_K_M", 2e9),
        ("qwen3moe-1b", "Q4_K_M", 2e9),
        ("smollm2-135m", "Q4_1", 1e9),
    )
    n_ctx: int = 4352
    #: Of so many experts of n_embd and n_ff: a 30B model's layer, a 1B model's, gpt-oss's in size.
    experts: Sequence[tuple[int, int, int, int]] = (
        (8, 128, 2048, 768), (8, 64, 2048, 1024), (4, 32, 2816, 2816),
    )  # fmt: skip
    #: Of the 8B shape: one KV head serves four query heads of 128.
    heads: Attention = Attention(32, 8, 128, 128**-0.5)  # noqa: RUF009
    contexts: Sequence[int] = (1024, 8192)
    widths: Sequence[int] = (1, 2, 4, 8, 16, 64, 512)
    side: int = 4096  # of a matrix
    spread: int = 768 << 20  # bytes of weights that no cache holds
    kinds: Sequence[int] = _COMMON
    others: Sequence[int] = tuple(t for t in LINEAR_TYPES if t not in _COMMON)
    types: Sequence[int] = LINEAR_TYPES  # that must be right
    checked: Sequence[str] | None = None  # architectures, None = all
    attention: Sequence[heads.Heads] = ATTENTION
    context: int = 900
    vocabularies: Sequence[int] = (1000, 49152, 262208)


SMALL = Sizes(
    models=(("llama-tiny", "Q8_0", 1e6),), n_ctx=320, experts=((2, 4, 256, 256),),
    heads=Attention(4, 2, 32, 0.2), contexts=(40,), widths=(1, 8), side=256, spread=9000,
    kinds=(GGMLType.Q4_K,), others=(GGMLType.F16,), types=(0, 8, 12), checked=("gemma2",),
    attention=ATTENTION[3:4], context=300, vocabularies=(300,),
)  # fmt: skip

CHECKS = (
    "compile", "architectures", "products right", "experts right", "attention right",
    "largest right", "pages",
)  # fmt: skip
SPEEDS = ("rates", "products", "models", "experts", "attention", "choices", "types")


def cases_of(part: str, opened: cases.Open, sizes: Sizes) -> Iterable[Case]:
    """The cases of a part, in order."""
    s, small = sizes, sizes is SMALL
    names = cases.product_kernels()
    checked = (40, (256,)) if small else (272, (256, 1280))
    parts: dict[str, Callable[[], Iterator[Case]]] = {
        "device": lambda: described(opened),
        "compile": lambda: cases.compile_all(opened, ("glu", "copy_page") if small else names),
        "architectures": lambda: cases.architectures(opened, s.checked),
        "products right": lambda: cases.products(opened, s.types, *checked),
        "experts right": lambda: cases.experts(opened, s.types, n_ids=20 if small else 400),
        "attention right": lambda: heads.attention(opened, cases=s.attention),
        "largest right": lambda: cases.largest(opened, s.vocabularies),
        "pages": lambda: cases.pages(opened, s.context),
        "rates": lambda: speed.rates(opened, 1 << 16 if small else 512 << 20),
        "products": lambda: speed.products(opened, s.kinds, s.widths, s.side, s.side, s.spread),
        "types": lambda: speed.products(opened, s.others, s.widths[::3], s.side, s.side, s.spread),
        "models": lambda: models.models(
            opened, s.models, s.n_ctx, 1 << 16 if small else 512 << 20
        ),
        "experts": lambda: speed.experts(
            opened, _COMMON[0], s.experts, (1, 2, 8, 17) if small else (1, 8, 16, 64, 256, 512),
            s.spread,
        ),
        "choices": lambda: speed.choices(opened, s.vocabularies[-2:], (1, 2) if small else (1, 8)),
        "attention": lambda: speed.attention(
            opened, s.contexts, (1, 2 if small else 8), ("f16", "q8_0", "q4r"), s.heads
        ),
    }  # fmt: skip
    return parts[part]()


def about() -> Row:
    """What the run is of."""
    facts: Row = {
        "date": datetime.date.today().isoformat(), "python": platform.python_version(),
        "system": platform.platform(), "cpus": os.cpu_count(),
    }  # fmt: skip
    asked = {
        "commit": ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"],
        "smi": [
            "nvidia-smi", "--format=csv,noheader", "--query-gpu=name,driver_version,memory.total,"
            "clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.max,pcie.link.width.max",
        ],
    }  # fmt: skip
    for name, command in asked.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            facts[name] = done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            facts[name] = ""
    return facts


def described(opened: cases.Open) -> Iterator[Case]:
    """What the backend says of the GPU; fails where there is none that works."""

    def act() -> Iterator[Row]:
        backend = opened()
        yield dict(backend.describe())
        backend.close()

    yield "device", act


def main(command: Sequence[str] = (sys.executable, str(Path(__file__).resolve()))) -> int:
    """``command`` starts this script."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--json", metavar="FILE", type=Path, help="write all results there")
    ap.add_argument("--minutes", type=float, default=5.7, help="end after so long")
    ap.add_argument("--only", nargs="+", choices=("correctness", *SPEEDS), help="default: all")
    ap.add_argument("--small", action="store_true", help="next to no work")
    ap.add_argument("--part", nargs=2, metavar=("PART", "FIRST"), help=argparse.SUPPRESS)
    a = ap.parse_args()
    sizes = SMALL if a.small else Sizes()
    if a.part:
        if a.small:
            speed.LEAST, speed.ROUNDS = 0.0, 1
        return serve(cases_of(a.part[0], CudaBackend, sizes), int(a.part[1]))
    run = Run(a.minutes, a.json, [*command, *(["--small"] if a.small else []), "--part"])
    run.add(**about())
    run.part("device")
    for part in (*CHECKS, *SPEEDS) if "device" in run.out else ():
        name = "correctness" if part in CHECKS else part
        if not a.only or name in a.only:
            run.part(part)
    failures = run.out["failures"]
    print(f"\n{len(failures)} failures" if failures else "\nno failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
