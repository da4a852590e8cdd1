"""Names of CUDA kernels as a backend launches them, for what compiles them without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from edgerun.backends import cuda_attention, cuda_experts, cuda_kernels, cuda_weights
from edgerun.backends.cuda_lowered import Choice

#: Consumer cards from the RTX 20 to the RTX 50 series, and the data-centre ones between.
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
HEADS = (64, 80, 96, 128, 256)
#: Types of Q and K, and of V, where they differ: of Q2_K, Q3_K_M, Q4_K_M, Q5_K_M, IQ4_XS files, and
#: of those whose rows are no multiple of 256.
PAIRS = ((10, 11), (10, 12), (11, 13), (12, 14), (13, 14), (23, 13), (6, 8), (8, 6))
_PLAIN = ("argmax", "argmax_part", "copy_page", "glu", "rotate_heads", "topk", "topk_part")
_EXPERTS = ("route", "place", "sum_experts")
#: Threads that a kernel is launched with at most, by its name's start; others have 256.
_THREADS = {"rope_kv": 1024, "tokenwise": 1024, "route": 1024, "attention_merge": 512}


def most_threads(name: str) -> int:
    """Of a block of this kernel: so many share a multiprocessor's registers."""
    return next((t for start, t in _THREADS.items() if name.startswith(start)), 256)


def attention(head_dim: int, kv_type: str) -> list[str]:
    """Decoding in one launch, split, and a prompt's chunk."""
    tile = cuda_attention.tile_shape(head_dim, 10**6)
    ways = [((1, 1), False), ((1, 1), True), (tile, False)]
    return [cuda_attention.name(head_dim, kv_type, *way) for way in ways]


def products(ggml_type: int) -> list[str]:
    """All that is launched for matrices of a type."""
    tokens = (1, 9) if ggml_type in cuda_weights.FLOAT_TYPES else (1, 9, 17, 64)
    found = [cuda_weights.matmul(ggml_type, ggml_type, 8, 0, 1024, n).name for n in tokens]
    found.append(cuda_weights.repack(ggml_type, 64, 1024).name)
    found.append(cuda_weights.unpack_rows(ggml_type, 1024, 1).name)
    return list(dict.fromkeys(found))


def of_experts(ggml_type: int) -> list[str]:
    """All products with experts of a type, for few tokens, some, and many to an expert."""
    experts = Choice(4, 8)
    tokens = (1,) if ggml_type in cuda_weights.FLOAT_TYPES else (1, 9, 60, 512)
    found = [cuda_experts.product(ggml_type, 8, 1024, n, experts).shape.name for n in tokens]
    return list(dict.fromkeys(found))


def everything() -> list[str]:
    """Every instance that some model needs; of pairs of types, those that files hold."""
    return list(dict.fromkeys(_everything()))


def _everything() -> Iterator[str]:
    yield from _PLAIN
    yield from _EXPERTS
    yield from (f"tokenwise<{acts}>" for acts in (0, 1))
    for kv_type in cuda_attention.KV_CODES:
        yield cuda_attention.rope_kv_name(kv_type)
        for head_dim in HEADS:
            yield from attention(head_dim, kv_type)
    for kv_type in ("f16", "q8_0"):
        yield from attention(cuda_attention.MAX_HEAD_DIM, kv_type)
    yield from (cuda_attention.merge_name(d) for d in (*HEADS, cuda_attention.MAX_HEAD_DIM))
    for ggml_type in cuda_weights.LINEAR_TYPES:
        yield from products(ggml_type)
        yield from of_experts(ggml_type)
    for a, b in PAIRS:
        yield from (cuda_weights.matmul(a, b, 8, 8, 1024, n).name for n in (1, 9, 64))


def some(arch: int) -> list[str]:
    """A choice that takes seconds: types take turns from one architecture to the next, and between
    the oldest and the newest, kernels take turns as well."""
    turn = ARCHITECTURES.index(arch)
    types = cuda_weights.QUANTIZED_TYPES
    kv = list(cuda_attention.KV_CODES)[turn % 3]
    head_dim = (128, 64, 256, 96)[turn % 4]
    decode, split, prompt = attention(head_dim, kv)
    few = [n for n in products(types[turn]) if not n.startswith("qgemm")]
    many = [n for n in products(types[(turn + 7) % len(types)]) if n.startswith("qgemm")]
    floats = products(cuda_weights.FLOAT_TYPES[turn % 3])
    experts = of_experts(types[(turn + 4) % len(types)])
    float_experts = of_experts(cuda_weights.FLOAT_TYPES[(turn + 1) % 3])
    chosen = [
        few[turn % 2],
        *few[2:],
        prompt,
        *floats,
        experts[turn % len(experts)],
        *float_experts,
        *_EXPERTS,
        many[turn % len(many)],
        split if turn % 2 else decode,
    ]
    if arch not in (75, 120):  # the oldest has ways of its own, the newest stands for the others
        chosen = chosen[turn % 3 :: 3]
    plain = (f"tokenwise<{turn % 2}>", cuda_attention.rope_kv_name(kv))
    return [*_PLAIN, *plain, cuda_attention.merge_name(head_dim), *chosen]


def files() -> set[str]:
    """Kernels of the table that no list above names."""
    return set(cuda_kernels.FILES) - {n.partition("<")[0] for n in everything()}
