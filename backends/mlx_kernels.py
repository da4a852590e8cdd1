"""The Metal kernels as MLX launches them: which file holds a kernel's body, its inputs, outputs,
grid and threadgroup, for every shape.

``launch_*`` work out a launch without touching MLX; ``Launch.run`` makes it a node of MLX's graph.
Arrays are MLX's (in tests numpy's). A kernel's numbers do not depend on how many tokens it gets,
nor on what they are, except :func:`launch_gemm`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from edgerun.backends.base import Attention
from edgerun.errors import BackendError
from edgerun.gguf import GGMLType
from edgerun.native import data

__all__ = [
    "QUANTIZED",
    "SPLIT",
    "Launch",
    "Source",
    "attention",
    "launch_all_rows",
    "launch_attention",
    "launch_experts",
    "launch_gemm",
    "launch_linear",
    "launch_merge",
    "launch_rows",
    "n_splits",
]

Array: TypeAlias = Any  # mx.array or numpy's: what has a shape and a dtype
Size: TypeAlias = tuple[int, int, int]
Template: TypeAlias = tuple[tuple[str, str | int | bool], ...]

#: Types whose file blocks the kernels read.
QUANTIZED = frozenset(
    GGMLType[name]
    for name in (
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        *("IQ4_NL", "IQ4_XS", "MXFP4"),
    )
)
_FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
#: Tokens of a sequence whose attention is summed alone, in attention.h.
SPLIT = 256

_TOKENS = (1, 2, 4, 8, 12)  # that a simdgroup takes
_ROWS = 2  # of a matrix to a simdgroup
_SIMDGROUPS = 2  # to a threadgroup
_ENOUGH = 2048  # simdgroups that keep a GPU busy
_MOST_PARTS = 1 << 24  # floats that parts of attention may take
_PRELUDE = """#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;
"""


@dataclass(frozen=True)
class Source:
    """A kernel as ``mx.fast.metal_kernel`` takes it; MLX writes the function around the body."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    headers: tuple[str, ...]
    before: str = ""  # what the body expects to be defined
    file: str = ""  # the body's, if not the name's

    @property
    def header(self) -> str:
        return _PRELUDE + "".join(_text(h) for h in self.headers)

    @property
    def body(self) -> str:
        return self.before + _text(self.file or f"{self.name}.metal")


@functools.cache
def _text(file: str) -> str:
    return data("kernels_metal", file).read_text(encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with all that MLX asks for. ``template`` values that name a dtype are strings; the
    grid counts threads."""

    source: Source
    arrays: tuple[Array, ...]
    template: Template
    grid: Size
    threadgroup: Size
    shape: tuple[int, ...]  # of the output
    dtype: str

    def run(self) -> Array:
        """The output as a node of MLX's graph."""
        import mlx.core as mx

        template = [
            (name, getattr(mx, value) if isinstance(value, str) else value)
            for name, value in self.template
        ]
        (out,) = metal_kernel(self.source)(
            inputs=list(self.arrays),
            template=template,
            grid=self.grid,
            threadgroup=self.threadgroup,
            output_shapes=[self.shape],
            output_dtypes=[getattr(mx, self.dtype)],
        )
        return out


@functools.cache
def metal_kernel(source: Source) -> Any:
    """MLX's object for a kernel."""
    import mlx.core as mx

    return mx.fast.metal_kernel(
        name=source.name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=source.body,
        header=source.header,
    )


_LINEAR = Source("gemv", ("w", "x"), ("y",), ("lanes.h", "blocks.h", "gemv.h"))
_LINEAR_FLOAT = Source("gemv_float", ("w", "x"), ("y",), ("lanes.h", "gemv_float.h"))
_EXPERTS = Source("gemv_experts", ("w", "x", "ids"), ("y",), _LINEAR.headers)
_EXPERTS_FLOAT = Source("gemv_float_experts", ("w", "x", "ids"), ("y",), _LINEAR_FLOAT.headers)
_GEMM = Source("gemm", ("w", "x"), ("y",), ("lanes.h", "blocks.h", "gemm.h"))
_ROWS_BY_ID = Source("rows", ("w", "ids"), ("out",), ("blocks.h", "rows.h"))
_ALL_ROWS = Source("all_rows", ("w",), ("out",), ("blocks.h", "rows.h"))
_INPUTS = ("pages", "row", "place", "factors")
_ATTENTION = Source(
    "attention",
    ("q", "k", "v", *_INPUTS),
    ("out",),
    ("lanes.h", "attention.h"),
    before="const auto keys = stored<D>(k), values = stored<D>(v);\n",
)
_ATTENTION_Q8 = Source(
    "attention_q8",
    ("q", "k", "v", "k_scale", "v_scale", *_INPUTS),
    ("out",),
    ("lanes.h", "attention.h"),
    before="const auto keys = stored<D>(k, k_scale), values = stored<D>(v, v_scale);\n",
    file="attention.metal",
)
_MERGE = Source(
    "attention_merge", ("parts", "place", "factors"), ("out",), ("lanes.h", "attention.h")
)


def launch_linear(w: Array, type_: GGMLType, x: Array) -> Launch:
    """``x @ w.T`` for file rows ``w``, uint8 [n, bytes of a row], or floats [n, k] of a float type,
    and ``x`` [tokens, k].

    Returns [tokens, n] of ``x``'s dtype: float32 sums whose order depends on ``k`` alone.

    Raises:
        BackendError: no kernel reads this type, or the rows do not have ``k`` values.
    """
    n, (tokens, k) = w.shape[0], x.shape
    together = next((t for t in _TOKENS if t >= tokens), _TOKENS[-1])
    template = (*_stored(w, type_, k), ("ROWS", _ROWS), ("TOKENS", together), ("T", _dtype(x)))
    source = _LINEAR_FLOAT if type_ in _FLOATS else _LINEAR
    grid, group = _simdgroups(n, -(-tokens // together))
    return Launch(source, (w, x), template, grid, group, (tokens, n), _dtype(x))


def launch_experts(w: Array, type_: GGMLType, x: Array, ids: Array, n_experts: int) -> Launch:
    """:func:`launch_linear` with one expert of many.

    Args:
        w: the rows of ``n_experts`` matrices, one behind another.
        x: [pairs / shared, k]; consecutive pairs may share one.
        ids: int32 [pairs], the expert of each.

    Returns [pairs, n] of ``x``'s dtype, with the bits of :func:`launch_linear`.

    Raises:
        BackendError: no kernel reads this type, or the rows do not have ``k`` values.
    """
    n, pairs, k = w.shape[0] // n_experts, ids.shape[0], x.shape[1]
    template = (
        *(*_stored(w, type_, k), ("EXPERTS", n_experts), ("SHARED", pairs // x.shape[0])),
        *(("ROWS", _ROWS), ("T", _dtype(x))),
    )
    source = _EXPERTS_FLOAT if type_ in _FLOATS else _EXPERTS
    grid, group = _simdgroups(n, pairs)
    return Launch(source, (w, x, ids), template, grid, group, (pairs, n), _dtype(x))


def launch_gemm(w: Array, type_: GGMLType, x: Array) -> Launch:
    """:func:`launch_linear` for a prompt's tokens by the GPU's matrix units: other bits, and for
    float16 ``x`` weights rounded to that. Only types of :data:`QUANTIZED`.

    Raises:
        BackendError: no kernel reads this type, or the rows do not have ``k`` values.
    """
    n, (tokens, k) = w.shape[0], x.shape
    _check(w, type_, k)
    half = _dtype(x) == "float16"
    rows = 64 if half else 32
    template = (
        *(("TYPE", int(type_)), ("ROWS", rows)),
        *(("T", _dtype(x)), ("S", "float16" if half else "float32")),
    )
    grid = (-(-n // rows) * 128, -(-tokens // 32), 1)
    return Launch(_GEMM, (w, x), template, grid, (128, 1, 1), (tokens, n), _dtype(x))


def launch_rows(w: Array, type_: GGMLType, k: int, ids: Array, dtype: str) -> Launch:
    """Rows ``ids`` int32 [m] of file rows ``w`` as floats [m, k]: NaN for a row that is not there.

    Raises:
        BackendError: no kernel reads this type.
    """
    _check(w, type_, k)
    m = ids.shape[0]
    template = (("TYPE", int(type_)), ("K", k), ("T", dtype))
    grid, group = _shares(k, m)
    return Launch(_ROWS_BY_ID, (w, ids), template, grid, group, (m, k), dtype)


def launch_all_rows(w: Array, type_: GGMLType, k: int, dtype: str) -> Launch:
    """File rows ``w`` as floats [n, k].

    Raises:
        BackendError: no kernel reads this type.
    """
    _check(w, type_, k)
    n = w.shape[0]
    template = (("TYPE", int(type_)), ("K", k), ("T", dtype))
    grid, group = _shares(k, n)
    return Launch(_ALL_ROWS, (w,), template, grid, group, (n, k), dtype)


def n_splits(n_past: int, n_new: int, window: int) -> int:
    """The most splits that one of a row's new tokens sees."""

    def of(place: int) -> int:
        first = max(0, place - window + 1) if window else 0
        return place // SPLIT - first // SPLIT + 1

    last = n_past + n_new - 1
    if not window:
        return of(last)
    return max(of(place) for place in range(n_past, min(n_past + SPLIT, last + 1)))


def launch_attention(
    q: Array,
    kv: Sequence[Array],
    table: tuple[Array, Array, Array],
    spec: Attention,
    factors: Array,
    splits: int = 1,
) -> Launch:
    """Attention of queries over pages.

    Args:
        q: [tokens, n_heads, head_dim].
        kv: K and V [n_pages, PAGE_SIZE, n_kv_heads, head_dim], floats; or int8, with their scales
            float16 [n_pages, PAGE_SIZE, n_kv_heads, ceil(head_dim / 32)] behind. They hold the
            tokens' own K and V.
        table: int32: page ids [rows, max_pages], and of each token its row there and its place in
            the sequence [tokens].
        factors: float32 [2 or 2 + n_heads], the scale and the soft-cap of ``spec``, and sinks.
        splits: 1, or as many as :func:`n_splits` says for some row: parts that :func:`launch_merge`
            puts together to what 1 gives, by more of the GPU.

    Returns [tokens, n_heads, head_dim] of ``q``'s dtype, or float32
    [tokens, n_heads, splits, head_dim + 2].

    Raises:
        BackendError: no kernel has this head size.
    """
    tokens, n_heads, d = q.shape
    if d % 4:
        raise BackendError(f"Metal attention needs heads of a multiple of 4 values, not {d}")
    parts = splits > 1
    out = "float32" if parts else _dtype(q)
    template = (
        *(("D", d), ("WINDOW", spec.window), ("SOFTCAP", spec.softcap > 0), ("PARTS", parts)),
        *(("SINKS", factors.shape[0] > 2), ("T", _dtype(q)), ("OUT", out)),
    )
    return Launch(
        _ATTENTION if len(kv) == 2 else _ATTENTION_Q8,
        (q, *kv, *table, factors),
        template,
        (32 * splits, n_heads, tokens),
        (32, _heads_together(spec), 1),
        (tokens, n_heads, splits, d + 2) if parts else (tokens, n_heads, d),
        out,
    )


def launch_merge(parts: Array, place: Array, factors: Array, spec: Attention, dtype: str) -> Launch:
    """The parts of :func:`launch_attention` as [tokens, n_heads, head_dim]."""
    tokens, n_heads, _, d = parts.shape
    sinks = factors.shape[0] > 2
    template = (("D", d - 2), ("WINDOW", spec.window), ("SINKS", sinks), ("T", dtype))
    grid, group = (32, n_heads, tokens), (32, _heads_together(spec), 1)
    arrays, shape = (parts, place, factors), (tokens, n_heads, d - 2)
    return Launch(_MERGE, arrays, template, grid, group, shape, dtype)


def attention(
    q: Array,
    kv: Sequence[Array],
    table: tuple[Array, Array, Array],
    spec: Attention,
    factors: Array,
    splits: int,
) -> Array:
    """:func:`launch_attention` and, where the GPU would be idle without parts, what puts them
    together: the same bits either way."""
    tokens, n_heads, d = q.shape
    if splits == 1 or tokens * n_heads >= _ENOUGH or tokens * n_heads * splits * d > _MOST_PARTS:
        return launch_attention(q, kv, table, spec, factors).run()
    parts = launch_attention(q, kv, table, spec, factors, splits).run()
    return launch_merge(parts, table[2], factors, spec, _dtype(q)).run()


def _heads_together(spec: Attention) -> int:
    """Heads of one threadgroup: they read the same K and V at about the same time."""
    group = spec.n_heads // spec.n_kv_heads
    return max(n for n in range(1, 9) if group % n == 0)


def _simdgroups(rows: int, steps: int) -> tuple[Size, Size]:
    groups = -(-rows // (_ROWS * _SIMDGROUPS))
    return (groups * 32 * _SIMDGROUPS, steps, 1), (32 * _SIMDGROUPS, 1, 1)


def _stored(w: Array, type_: GGMLType, k: int) -> Template:
    """The template of how ``w`` is stored, whose rows have ``k`` values."""
    if type_ not in _FLOATS:
        _check(w, type_, k)
        return (("TYPE", int(type_)),)
    if w.shape[1] != k:
        raise BackendError(f"rows of {w.shape[1]} {GGMLType(type_).name} values are not {k}")
    if k < 8:  # MLX gives smaller arrays another address space
        raise BackendError(f"Metal products need rows of 8 values or more, not {k}")
    return (("W", _dtype(w)),)


def _shares(k: int, rows: int) -> tuple[Size, Size]:
    return (k // 16, rows, 1), (min(k // 16, 64), 1, 1)


def _check(w: Array, type_: GGMLType, k: int) -> None:
    if type_ not in QUANTIZED:
        raise BackendError(f"no Metal kernel reads {GGMLType(type_).name}")
    size = GGMLType(type_)
    if k % size.block_size or w.shape[1] != k // size.block_size * size.type_size:
        raise BackendError(
            f"rows of {w.shape[1]} bytes are not {k} values of {size.name}, which come in blocks "
            f"of {size.block_size} values and {size.type_size} bytes"
        )


def _dtype(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]
