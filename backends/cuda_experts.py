"""Products with experts: the columns they may take, what each launch works on, where a choice lies.

A pair of a token and one of its experts is a column of the products; ``kernels_cuda/experts.cuh``
says in which order. Who has which expert the device alone knows, so launches are cut for the most
columns there can be, and blocks that have none end at once. Plain integers: nothing here needs a
device.
"""

from __future__ import annotations

from typing import NamedTuple

from edgerun.backends import cuda_weights
from edgerun.backends.cuda_lowered import Choice

__all__ = [
    "MOST_EXPERTS", "MOST_USED", "TILE", "ChoiceBlock", "Product", "most_items", "n_columns",
    "n_words", "product", "route_block",
]  # fmt: skip

#: What a warp chooses from, and how many it keeps: experts.cu's.
MOST_EXPERTS, MOST_USED = 1024, 32
#: Tokens in a word, columns in a tile.
WORD, TILE = 32, 8
#: Most tokens of a step whose products read each tile of weights once.
_FEW_TOKENS = 16
#: Most tokens an expert has on average where such a product is still the quicker one, and from
#: which on blocks take 64 of them. Reckoned, not measured yet: of 16 rows by 256 k, the inner loops
#: of 16, 32 and 64 columns are 999, 1825 and 3079 instructions (Q4_K, sm_89; other types alike),
#: weighed by how many items a Poisson distribution of tokens makes. Below 20 a product of 32
#: columns is up to 1.8 times the work, and the weights come from DRAM no faster either way. On
#: sm_120 64 columns gain nothing on 32, and lose up to a fifth between 48 and 96.
FEW_COLUMNS, MANY_COLUMNS = 20, 48
#: A type whose kernel for two column tiles would not fit its registers: Q5_1.
_SINGLE = {7}


def most_items(n: int, experts: Choice, columns: int) -> int:
    """Groups of up to so many ``columns`` of one expert that ``n`` tokens can make."""
    pairs = n * experts.n_used
    chosen = min(pairs, experts.n_experts)
    evenly = (pairs + (columns - 1) * chosen) // columns
    return min(chosen * -(-n // columns), evenly)


def n_columns(n: int, experts: Choice) -> int:
    """Columns of ``n`` tokens at most, in whole tiles."""
    return TILE * most_items(n, experts, TILE)


class ChoiceBlock:
    """Where the parts of a choice of ``n`` tokens lie, in bytes from its start."""

    def __init__(self, n: int, experts: Choice) -> None:
        pairs, columns = n * experts.n_used, n_columns(n, experts)
        words = -(-n // WORD)
        parts = {
            "expert": pairs, "share": pairs, "column": pairs, "mask": words * experts.n_experts,
            "token": columns, "live": columns, "items0": columns // 2, "items1": columns // 2,
        }  # fmt: skip
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        for name, n_ints in parts.items():
            self.offsets[name] = self.nbytes
            self.nbytes += -(-4 * n_ints // 16) * 16


class Product(NamedTuple):
    """A kernel, its launch, and the column tiles that one of its items has at most."""

    shape: cuda_weights.Geometry
    tiles: int


def product(
    ggml_type: int, tiles: int, k: int, n: int, experts: Choice, most: int = 8
) -> Product:  # fmt: skip
    """The product of ``n`` tokens' columns with experts of ``tiles`` row tiles each. Arguments,
    int32 but for the addresses:

    - quantized: ``w, act, items, bias, bias_up, y, tiles, ceil(k/64), rows, ld, epilogue``
    - floats: ``w, x, items, bias, bias_up, y, tiles, k, ldx, rows, ld, epilogue``

    Biases (``rows`` floats an expert) may be null; ``bias_up`` is the second of a gated unit.
    ``most``: column tiles that an item may have, as another product does with the same items.
    Whichever kernel it is, the bits are the same.
    """
    warps, shared = cuda_weights.split(k)
    average = n * experts.n_used / experts.n_experts
    if ggml_type in cuda_weights.FLOAT_TYPES:
        wide, file, rows = 1, "fmm", 2 * shared
        block = (32, warps, shared)
        name = f"fmm_experts<{ggml_type}>"
    elif n <= _FEW_TOKENS or average <= FEW_COLUMNS:
        wide = min(most, 1 if n <= TILE or ggml_type in _SINGLE else 2)
        file, rows = "qmm", shared
        block = (32, warps, shared)
        name = f"qmm_experts<{ggml_type},{wide}>"
    else:
        narrow = average < MANY_COLUMNS or ggml_type in cuda_weights.NARROW_TYPES
        wide = min(most, 4 if narrow else 8)
        file, rows = "qgemm", cuda_weights.GEMM_WARPS
        block = (32, cuda_weights.GEMM_WARPS, 1)
        name = f"qgemm_experts<{ggml_type},{wide}>"
    grid = (-(-tiles // rows), most_items(n, experts, TILE * wide))
    return Product(cuda_weights.Geometry(f"{file}.cu", name, grid, block), wide)


def route_block(n: int) -> tuple[int, int, int]:
    """Threads of the kernel that chooses: a warp a token, and enough to place what is chosen."""
    return 32, min(WORD, max(4, n)), 1


def n_words(n: int) -> int:
    """Words of 32 tokens."""
    return -(-n // WORD)
