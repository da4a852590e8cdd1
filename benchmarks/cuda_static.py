"""What the CUDA kernels need of a GPU, and what that promises, on a machine without one.

    python benchmarks/cuda_static.py
    python benchmarks/cuda_static.py --cards "RTX 4090" --models llama-8b --json out.json
    python benchmarks/cuda_static.py --every --json out.json

With ``--every``, every kernel for every architecture from sm_75 to sm_120 first: an hour of one
core, and where ``--json`` names a file, only what it does not have of these sources. A kernel that
spills, or takes more than a multiprocessor has, makes the exit status 1.

NVRTC compiles every kernel that decoding launches, for each card's architecture: registers, spills,
shared memory, blocks and warps per multiprocessor. Then the bytes that a step moves, and a
prediction: a launch takes its bytes at the rate that a plain copy reaches, or that its warps can
ask for (bytes in flight over the latency of memory), plus a start. ``share`` is the step's part of
a plain copy's rate. What one kernel leaves for the next comes from L2. Needs cuda-bindings and
nvidia-cuda-nvrtc; knows nothing of clocks that fall, nor of instructions that take longer than
memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from _cuda_matrix import ARCHITECTURES, everything, load, matrix, write  # noqa: E402

from edgerun.backends import cuda_attention as attention  # noqa: E402
from edgerun.backends import cuda_experts, cuda_kernels, cuda_weights  # noqa: E402
from edgerun.backends.cuda_lowered import Choice  # noqa: E402
from edgerun.backends.cuda_nvrtc import Resources  # noqa: E402

#: Seconds: from one kernel of a graph to the next, and from a load to its data in DRAM and in L2.
START, LATENCY, L2_LATENCY = 1.0e-6, 0.7e-6, 0.3e-6
#: The share of its nominal rate that DRAM gives to a plain copy.
PLAIN = 0.92
#: Seconds of a round of the search for the largest logits, and rounds until it has found them: a
#: round halves the range of a float's bits.
ROUND, ROUNDS = 0.2e-6, 24
F32, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K = 0, 2, 3, 8, 12, 14


class Card(NamedTuple):
    """A GPU's numbers. ``shared`` is KiB per multiprocessor, ``dram`` bytes per second."""

    arch: int
    sms: int
    dram: float
    threads: int
    blocks: int
    shared: int


CARDS = {
    "RTX 2080 Ti": Card(75, 68, 616e9, 1024, 16, 64),
    "RTX 3060": Card(86, 28, 360e9, 1536, 16, 100),
    "RTX 4090": Card(89, 128, 1008e9, 1536, 24, 100),
    "RTX 5090": Card(120, 170, 1792e9, 1536, 24, 100),
}


class Model(NamedTuple):
    """A decoder's shape and the types of its matrices; ``vd``: V and the down projection. With
    ``experts``, ``used`` of them for each token, ``ff`` is one's."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    vocab: int
    types: int
    vd: int
    head: int
    experts: int = 0
    used: int = 0


MODELS = {
    "smollm2-135m": Model(30, 576, 9, 3, 64, 1536, 49152, Q4_1, Q4_1, Q8_0),
    "llama-1b": Model(16, 2048, 32, 8, 64, 8192, 128256, Q4_K, Q6_K, Q6_K),
    "qwen3-30b-a3b": Model(48, 2048, 32, 4, 128, 768, 151936, Q4_K, Q6_K, Q6_K, 128, 8),
    "llama-8b": Model(32, 4096, 32, 8, 128, 14336, 128256, Q4_K, Q6_K, Q6_K),
}


class Launch(NamedTuple):
    """``n`` launches of a kernel in a step; ``flight``: bytes a warp has under way; ``passes`` over
    what comes from L2, or 0 for what comes from DRAM."""

    kernel: str
    n: int
    blocks: int
    threads: int
    bytes: int
    flight: int
    passes: int = 0


def occupancy(card: Card, takes: Resources, threads: int) -> int:
    """Blocks a multiprocessor holds at once."""
    warps = -(-threads // 32)
    per_warp = -(-takes.registers * 32 // 256) * 256  # registers are granted by 256 a warp
    # Warps are spread over four schedulers, each with a quarter of the registers.
    by_registers = 4 * (16384 // per_warp) // warps if per_warp else card.blocks
    by_shared = card.shared * 1024 // (takes.shared + 1024)  # the system keeps 1 KiB a block
    return min(card.threads // threads, card.blocks, by_registers, by_shared)


def seconds(card: Card, launch: Launch, blocks_per_sm: int) -> float:
    """One launch of it."""
    warps = min(launch.blocks, card.sms * max(blocks_per_sm, 1)) * launch.threads / 32
    latency = L2_LATENCY if launch.passes else LATENCY
    asked = warps * launch.flight / latency  # bytes per second (Little's law)
    rate = asked if launch.passes else min(card.dram * PLAIN, asked)
    return waiting(launch) + launch.bytes * max(launch.passes, 1) / rate


def waiting(launch: Launch) -> float:
    """The part of it in which no byte comes."""
    return START + (launch.passes * L2_LATENCY or LATENCY)


def _product(
    model: Model, types: tuple[int, int], rows: tuple[int, int], k: int, n: int, t: int
) -> Launch:
    """``n`` products of ``t`` tokens with rows of up to two types."""
    tiles = [cuda_weights.n_tiles(r) for r in rows]
    shape = cuda_weights.matmul(*types, *tiles, k, t)
    size = sum(cuda_weights.packed_bytes(y, r, k) for y, r in zip(types, rows, strict=True) if r)
    size += cuda_weights.act_bytes(k, t) + 4 * t * sum(rows)
    threads = shape.block[0] * shape.block[1] * shape.block[2]
    blocks = shape.grid[0] * shape.grid[1]
    # A warp asks for a chunk of 256 k of a tile while it works on the one before.
    return Launch(shape.name, n, blocks, threads, size, cuda_weights.tile_bytes(types[0], 256))


def _expert_product(
    m: Model, ggml_type: int, rows: int, k: int, tokens: int, paired: bool
) -> Launch:
    """One of a layer's two, of tokens that share no expert while there are others."""
    choice = Choice(m.used, m.experts)
    tiles = cuda_weights.n_tiles(rows, paired)
    shape = cuda_experts.product(ggml_type, tiles, k, tokens, choice).shape
    chosen = min(tokens * m.used, m.experts)
    columns = cuda_experts.n_columns(tokens, choice)
    size = chosen * tiles * cuda_weights.tile_bytes(ggml_type, k) + 4 * tokens * m.used * rows
    size += cuda_weights.act_bytes(k, columns)
    threads = shape.block[0] * shape.block[1] * shape.block[2]
    blocks = shape.grid[0] * shape.grid[1]
    flight = cuda_weights.tile_bytes(ggml_type, 256)
    return Launch(shape.name, m.layers, blocks, threads, size, flight)


def feed_forward(m: Model, tokens: int) -> Iterator[Launch]:
    """What follows attention and its projection."""
    acts, threads = cuda_kernels.tokenwise(m.width, acts=True)
    if not m.experts:
        yield Launch(acts, m.layers, tokens, threads, 4 * m.width * tokens, 1024, 3)
        yield _product(m, (m.types, m.types), (2 * m.ff, 0), m.width, m.layers, tokens)
        name, threads = cuda_kernels.tokenwise(m.ff, acts=True)
        yield Launch(name, m.layers, tokens, threads, 4 * m.ff * tokens, 1024, 3)
        yield _product(m, (m.vd, m.vd), (m.width, 0), m.ff, m.layers, tokens)
        return
    columns = cuda_experts.n_columns(tokens, Choice(m.used, m.experts))
    pairs = tokens * m.used
    floats, threads = cuda_kernels.tokenwise(m.width, acts=False)
    yield Launch(floats, m.layers, tokens, threads, 4 * m.width * tokens, 1024, 3)
    yield _product(m, (F32, F32), (m.experts, 0), m.width, m.layers, tokens)
    block = cuda_experts.route_block(tokens)
    # A rank is a reading of the logits.
    yield Launch("route", m.layers, 1, 32 * block[1], 4 * m.experts * tokens, 128, m.used)
    yield Launch(acts, m.layers, columns, threads, 4 * m.width * pairs, 1024, 2)
    yield _expert_product(m, m.types, m.ff, m.width, tokens, True)
    name, threads = cuda_kernels.tokenwise(m.ff, acts=True)
    yield Launch(name, m.layers, columns, threads, 4 * m.ff * pairs, 1024, 3)
    yield _expert_product(m, m.vd, m.width, m.ff, tokens, False)
    blocks = tokens * -(-m.width // 1024)
    yield Launch("sum_experts", m.layers, blocks, 256, 4 * m.width * pairs, 512, 1)


def step(m: Model, tokens: int, context: int, kv_type: str) -> Iterator[Launch]:
    """All launches that decode a token of each of ``tokens`` sequences of ``context`` tokens."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    for k, n in ((m.width, m.layers + 1), (q, m.layers)):
        name, threads = cuda_kernels.tokenwise(k, acts=True)
        yield Launch(name, n, tokens, threads, 4 * k * tokens, 1024, 3)
    yield _product(m, (m.types, m.vd), (q + kv, kv), m.width, m.layers, tokens)
    yield _product(m, (m.types, m.types), (m.width, 0), q, m.layers, tokens)
    yield from feed_forward(m, tokens)
    yield _product(m, (m.head, m.head), (m.vocab, 0), m.width, 1, tokens)
    dims = attention.padded_head(m.head_dim)
    heads = (m.heads + m.kv_heads) * tokens
    yield Launch(
        attention.rope_kv_name(kv_type), m.layers, heads, dims, 4 * (q + kv) * tokens, 128, 2
    )
    splits = attention.n_splits(context, 1, 0)
    group = m.heads // m.kv_heads
    blocks = tokens * -(-group // 16) * m.kv_heads * splits
    size = tokens * context * 2 * attention.kv_part_bytes(kv_type, m.kv_heads, m.head_dim) // 32
    # Of K a warp has four pieces of 16 bytes a lane under way, and four more.
    name = attention.name(m.head_dim, kv_type, (1, 1), splits > 1)
    yield Launch(name, m.layers, blocks, 128, size, 2048)
    if splits > 1:
        parts = 4 * attention.part_floats(splits, tokens, m.heads, m.head_dim)
        yield Launch(
            attention.merge_name(m.head_dim), m.layers, m.heads * tokens, dims, parts, 128, 1
        )
    yield from choice(m, tokens)[0]


def choice(m: Model, tokens: int) -> tuple[list[Launch], list[Launch]]:
    """What chooses from logits: the best ids of a greedy step, the largest logits of others."""
    chunks = [f(m.vocab) for f in (cuda_kernels.argmax_chunks, cuda_kernels.topk_chunks)]
    size, left = 4 * m.vocab * tokens, 8 * cuda_kernels.TOP * chunks[1] * tokens
    return [
        Launch("argmax_part", 1, chunks[0] * tokens, 256, size, 512, 1),
        Launch("argmax", 1, tokens, 256, 8 * chunks[0] * tokens, 256, 1),
    ], [
        Launch("topk_part", 1, chunks[1] * tokens, 256, size, 2048, 1),
        Launch("topk", 1, tokens, 256, left, 8192, 1),
    ]


def compile_all(arch: int, names: list[str]) -> dict[str, Resources]:
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda n: Resources.of(cuda_kernels.compiled(n, arch)), names)
        return dict(zip(names, found, strict=True))


@dataclass(frozen=True)
class Prediction:
    """A greedy step of decoding; times in microseconds, ``share`` of a plain copy's rate."""

    card: str
    model: str
    kv_type: str
    context: int
    tokens: int
    launches: int
    megabytes: float
    microseconds: float
    share: float
    waits: float  # the part of the time that is starts and latencies
    largest: float  # more of it where the largest logits are wanted instead of the best ids


def predict(
    name: str,
    card: Card,
    model: str,
    takes: dict[str, Resources],
    tokens: int,
    context: int,
    kv: str,
) -> Prediction:
    total = moved = waits = 0.0
    launches = 0
    for x in step(MODELS[model], tokens, context, kv):
        total += x.n * seconds(card, x, occupancy(card, takes[x.kernel], x.threads))
        moved += 0 if x.passes else x.n * x.bytes
        waits += x.n * waiting(x)
        launches += x.n
    best, largest = (
        sum(seconds(card, x, occupancy(card, takes[x.kernel], x.threads)) for x in chosen)
        for chosen in choice(MODELS[model], tokens)
    )
    largest += 2 * ROUNDS * ROUND - best
    return Prediction(
        name, model, kv, context, tokens, launches, round(moved / 1e6, 1), round(total * 1e6, 1),
        round(moved / (card.dram * PLAIN) / total, 3), round(waits / total, 3),
        round(largest * 1e6, 1),
    )  # fmt: skip


def print_resources(
    name: str, card: Card, threads: dict[str, int], takes: dict[str, Resources]
) -> None:
    rate = card.dram / 1e9
    print(f"\n{name}: sm_{card.arch}, {card.sms} multiprocessors, {rate:.0f} GB/s")
    print(f"  {'kernel':28} regs spill shared threads  blocks warps per SM")
    for kernel, x in takes.items():
        n, t = occupancy(card, x, threads[kernel]), threads[kernel]
        print(
            f"  {kernel:28} {x.registers:4} {x.spilled:5} {x.shared:6} {t:7} {n:7} {n * t // 32:5}"
        )


def print_prediction(p: Prediction) -> None:
    rate = p.tokens / p.microseconds * 1e6
    print(
        f"  {p.model:14} {p.kv_type:5} {p.context:7} {p.tokens:6} {p.launches:8} {p.megabytes:8.1f}"
        f" {p.microseconds:8.0f} {rate:9.0f} {p.share:6.0%} {p.waits:5.0%} {p.largest:8.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cards", nargs="+", choices=CARDS, default=list(CARDS)[1:])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kv", nargs="+", choices=attention.KV_CODES, default=["f16", "q8_0"])
    parser.add_argument("--every", action="store_true", help="compile all there is")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bad = matrix(ARCHITECTURES, everything(), args.json)[1] if args.every else []
    out: list[Prediction] = []
    cases = [(t, c, kv) for kv in args.kv for c in (64, 4096) for t in (1, 8, 16)]
    models = [MODELS[m] for m in args.models]
    threads = {x.kernel: x.threads for m in models for c in cases for x in step(m, *c)}
    threads |= {x.kernel: x.threads for x in choice(models[0], 1)[1]}
    for name in args.cards:
        card = CARDS[name]
        takes = compile_all(card.arch, sorted(threads))
        print_resources(name, card, threads, takes)
        print(f"  {'model':14} kv    context tokens launches       MB       us", end="")
        print("  tokens/s  share waits  largest")
        for model in args.models:
            for case in cases:
                out.append(predict(name, card, model, takes, *case))
                print_prediction(out[-1])
    if args.json:
        write(args.json, {**load(args.json), "predictions": [asdict(p) for p in out]})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
