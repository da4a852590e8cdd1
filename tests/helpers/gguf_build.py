"""GGUF bytes for tests: sound by default, every field overridable to be hostile.

::

    write(path, {"general.architecture": "llama", "n": u32(7)}, [tensor("w", np.ones((2, 4)))])
    scripted_model(path, ["Hello", " world", "!"])     # says exactly that, then ends
    random_model(path, seed=1)                         # a tiny llama with random F32 weights

The byte layout is written from the specification, apart from the reader under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"}
_FORMATS |= {U64: "Q", I64: "q", F64: "d"}
GGML_F32, GGML_F16, GGML_Q8_0 = 0, 1, 8


@dataclass(frozen=True)
class Value:
    """A metadata value with its type id; ``payload`` is its encoded bytes."""

    type: int
    payload: bytes


def string(s: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = s if isinstance(s, bytes) else s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, v: Any) -> Value:
    return Value(kind, string(v) if kind == STR else struct.pack("<" + _FORMATS[kind], v))


def u32(v: int) -> Value:
    return scalar(U32, v)


def f32(v: float) -> Value:
    return scalar(F32, v)


def array(kind: int, items: Sequence[Any], count: int | None = None) -> Value:
    """An array of ``kind``; ``count`` overrides the length it claims. Items of ARR are Values."""
    n = len(items) if count is None else count
    if kind == STR:
        body = b"".join(string(s) for s in items)
    elif kind == ARR:
        body = b"".join(v.payload for v in items)
    else:
        body = struct.pack(f"<{len(items)}{_FORMATS[kind]}", *items)
    return Value(ARR, struct.pack("<IQ", kind, n) + body)


def value(v: Any) -> Value:
    """The usual encoding of a Python value: int -> u32 (i32 if negative), float -> f32."""
    if isinstance(v, Value):
        return v
    if isinstance(v, bool):
        return scalar(BOOL, v)
    if isinstance(v, int):
        return scalar(U32 if v >= 0 else I32, v)
    if isinstance(v, float):
        return f32(v)
    if isinstance(v, (str, bytes)):
        return scalar(STR, v)
    first = v[0]
    if isinstance(first, (str, bytes)):
        return array(STR, v)
    return array(F32 if isinstance(first, float) else BOOL if isinstance(first, bool) else I32, v)


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. ``shape`` is numpy order; None fields are derived, set ones override."""

    name: str | bytes
    shape: tuple[int, ...]
    data: bytes
    type: int = GGML_F32
    n_dims: int | None = None
    offset: int | None = None


def tensor(name: str, values: Any, ggml_type: int = GGML_F32, **override: Any) -> Tensor:
    """A tensor of float values: stored as F32 or F16, or quantized by the gguf package."""
    a = np.asarray(values, np.float32)
    if ggml_type == GGML_F32:
        data = a.tobytes()
    elif ggml_type == GGML_F16:
        data = a.astype(np.float16).tobytes()
    else:
        import gguf

        data = gguf.quants.quantize(a, gguf.GGMLQuantizationType(ggml_type)).tobytes()
    return Tensor(name, a.shape, data, ggml_type, **override)


#: Types that the gguf package reads but does not write: the scale that makes random codes weights
#: of 0.05 or so, and the minimum's share of it that makes their mean nought.
K_QUANTS = {
    10: (6e-3, 1.5), 11: (1.1e-3, 0), 12: (1.5e-4, 7.5), 13: (7e-5, 15.5), 14: (3.5e-5, 0),
    23: (3.8e-5, 0),
}  # fmt: skip


def k_quants(name: str, rows: int, cols: int, ggml_type: int, rng: np.random.Generator) -> Tensor:
    """A tensor of one of :data:`K_QUANTS` with random codes."""
    import gguf

    from helpers.weights import HALVES

    kind = gguf.GGMLQuantizationType(ggml_type)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, cols // values, size), dtype=np.uint8)
    scale, minimum = K_QUANTS[ggml_type]
    d = scale * rng.uniform(0.5, 1.5, (rows, cols // values, 1))
    for at, factor in zip(HALVES[kind], (1, minimum), strict=False):
        blocks[..., at : at + 2] = (factor * d).astype(np.float16).view(np.uint8)
    return Tensor(name, (rows, cols), blocks.tobytes(), ggml_type)


def build(
    metadata: Mapping[str, Any] | Iterable[tuple[str | bytes, Any]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    alignment: int = 32,
    pad_end: bool = True,
) -> bytes:
    """The bytes of a GGUF file.

    Pass pairs instead of a mapping to repeat a key. ``alignment`` places the data; write
    ``general.alignment`` too where it is not 32. ``pad_end`` pads the last tensor as well.
    """
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(pairs) if n_keys is None else n_keys,
    )
    for key, v in pairs:
        v = value(v)
        head += string(key) + struct.pack("<I", v.type) + v.payload
    data = b""
    for i, t in enumerate(tensors):
        n_dims = len(t.shape) if t.n_dims is None else t.n_dims
        offset = len(data) if t.offset is None else t.offset
        head += string(t.name) + struct.pack("<I", n_dims)
        head += struct.pack(f"<{len(t.shape)}Q", *t.shape[::-1])
        head += struct.pack("<IQ", t.type, offset)
        data += t.data
        if pad_end or i + 1 < len(tensors):
            data += bytes(-len(data) % alignment)
    if tensors:
        head += bytes(-len(head) % alignment)
    return head + data


def write(path: Path | str, *args: Any, **kwargs: Any) -> Path:
    """:func:`build` into a file."""
    path = Path(path)
    path.write_bytes(build(*args, **kwargs))
    return path


# -- tiny models ------------------------------------------------------------------------------

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
UNK_ID, BOS_ID, EOS_ID, FIRST_BYTE_ID = 0, 1, 2, 3
FIRST_PIECE_ID = FIRST_BYTE_ID + 256


def spm_vocab(pieces: Sequence[str] = (), pad_to: int = 1) -> dict[str, Any]:
    """SentencePiece metadata: ids 0-2 are <unk> <s> </s>, 3-258 the byte tokens, then ``pieces``.

    Pieces are as shown to a reader: a leading space is stored as U+2581. Filler control tokens
    make the size a multiple of ``pad_to``. Earlier pieces score higher.
    """
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    tokens += [p.replace(" ", "\u2581") for p in pieces]
    types += [NORMAL] * len(pieces)
    fill = -len(tokens) % pad_to
    tokens += [f"<unused{i}>" for i in range(fill)]
    types += [CONTROL] * fill
    scores = [0.0] * FIRST_PIECE_ID + [-1.0 - i for i in range(len(tokens) - FIRST_PIECE_ID)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": array(STR, tokens),
        "tokenizer.ggml.scores": array(F32, scores),
        "tokenizer.ggml.token_type": array(I32, types),
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.unknown_token_id": UNK_ID,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }


def _llama_metadata(
    arch: str, n_embd: int, n_layer: int, n_head: int, n_kv: int, n_ff: int, n_ctx: int
) -> dict[str, Any]:
    return {
        "general.architecture": arch,
        "general.name": "test model",
        "general.file_type": 0,
        f"{arch}.context_length": n_ctx,
        f"{arch}.embedding_length": n_embd,
        f"{arch}.block_count": n_layer,
        f"{arch}.feed_forward_length": n_ff,
        f"{arch}.attention.head_count": n_head,
        f"{arch}.attention.head_count_kv": n_kv,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.rope.dimension_count": n_embd // n_head,
    }


def scripted_model(
    path: Path | str,
    next_token: Mapping[str | int, str | int] | Sequence[str],
    vocab: Sequence[str] = (),
    *,
    n_ctx: int = 512,
    extra: Mapping[str, Any] | None = None,
    spoil: Mapping[str, float] | None = None,
) -> Path:
    """A llama model in which every token has one certain successor, whatever came before.

    ``next_token`` is a list of distinct pieces, said in that order and then ``</s>``; or a mapping
    piece (or id) -> piece (or id). The prompt's last token starts it: a list starts after any
    token that is not in it. Everything without a successor is followed by ``</s>``. ``vocab`` adds
    pieces; ``extra`` adds or replaces metadata (a chat template, say); ``spoil`` fills tensors, by
    name, with one number.

    Embeddings are one-hot, attention and feed-forward write nothing, and the output row of the
    successor is 4 where its predecessor is hot: the winning logit is 4 sqrt(n_vocab), the others 0.
    """
    if isinstance(next_token, Mapping):
        mentioned = [p for kv in next_token.items() for p in kv if isinstance(p, str)]
    else:
        mentioned = list(next_token)
        if len(set(mentioned)) != len(mentioned):
            raise ValueError("the pieces of a script must be distinct")
    pieces = list(
        dict.fromkeys(p for p in [*mentioned, *vocab] if p not in ("<s>", "</s>", "<unk>"))
    )
    ids = {p: FIRST_PIECE_ID + i for i, p in enumerate(pieces)}
    ids |= {"<unk>": UNK_ID, "<s>": BOS_ID, "</s>": EOS_ID}
    meta = spm_vocab(pieces, pad_to=32)
    n = FIRST_PIECE_ID + len(pieces)
    n += -n % 32

    if isinstance(next_token, Mapping):
        follow = {
            (k if isinstance(k, int) else ids[k]): (v if isinstance(v, int) else ids[v])
            for k, v in next_token.items()
        }
        successor = [follow.get(i, EOS_ID) for i in range(n)]
    else:
        said = [ids[p] for p in next_token]
        chain = dict(zip(said, [*said[1:], EOS_ID], strict=True))
        successor = [chain.get(i, said[0]) for i in range(n)]
    output = np.zeros((n, n), np.float32)
    output[successor, np.arange(n)] = 4

    n_head, n_ff = n // 32, 32
    ones, square = np.ones(n), np.zeros((n, n))
    weights = {
        "token_embd.weight": np.eye(n),
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": square,
        "blk.0.attn_k.weight": np.zeros((32, n)),
        "blk.0.attn_v.weight": np.zeros((32, n)),
        "blk.0.attn_output.weight": square,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": np.zeros((n_ff, n)),
        "blk.0.ffn_up.weight": np.zeros((n_ff, n)),
        "blk.0.ffn_down.weight": np.zeros((n, n_ff)),
        "output_norm.weight": ones,
        "output.weight": output,
    }
    for name, number in (spoil or {}).items():
        weights[name] = np.full_like(weights[name], number)
    meta = _llama_metadata("llama", n, 1, n_head, 1, n_ff, n_ctx) | meta | dict(extra or {})
    return write(path, meta, [tensor(k, v) for k, v in weights.items()])


def random_model(
    path: Path | str,
    arch: str = "llama",
    *,
    seed: int = 0,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_kv: int = 2,
    n_ff: int = 128,
    n_ctx: int = 512,
    ggml_type: int = GGML_F32,
    types: Mapping[str, int] | None = None,
    std: float = 0.3,
    tied: bool = False,
    pieces: Sequence[str] = tuple(" etaoinshrdlu"),
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Sequence[Tensor] = (),
) -> Path:
    """A small model of llama's shape with random weights, whose output does depend on attention.

    ``arch`` names the metadata prefix; an architecture with more tensors or keys takes them through
    ``extra_tensors`` and ``extra``. ``ggml_type`` is the type of the matrices (norms stay F32),
    ``types`` of those it names.
    The vocabulary is :func:`spm_vocab` of ``pieces``, padded to a multiple of 32; ``tied`` leaves
    ``output.weight`` out. Same arguments, same bytes.
    """
    rng = np.random.default_rng(seed)
    meta = spm_vocab(pieces, pad_to=32)
    n_vocab = FIRST_PIECE_ID + len(pieces)
    n_vocab += -n_vocab % 32
    kv = n_embd // n_head * n_kv

    def matrix(name: str, rows: int, cols: int) -> Tensor:
        kind = (types or {}).get(name, ggml_type)
        values = rng.normal(0, std, (rows, cols))
        if kind in K_QUANTS:
            return k_quants(name, rows, cols, kind, rng)
        return tensor(name, values, kind)

    def norm(name: str) -> Tensor:
        return tensor(name, rng.uniform(0.5, 1.5, n_embd))

    tensors = [matrix("token_embd.weight", n_vocab, n_embd)]
    for i in range(n_layer):
        p = f"blk.{i}."
        tensors += [
            norm(p + "attn_norm.weight"),
            matrix(p + "attn_q.weight", n_embd, n_embd),
            matrix(p + "attn_k.weight", kv, n_embd),
            matrix(p + "attn_v.weight", kv, n_embd),
            matrix(p + "attn_output.weight", n_embd, n_embd),
            norm(p + "ffn_norm.weight"),
            matrix(p + "ffn_gate.weight", n_ff, n_embd),
            matrix(p + "ffn_up.weight", n_ff, n_embd),
            matrix(p + "ffn_down.weight", n_embd, n_ff),
        ]
    tensors.append(norm("output_norm.weight"))
    if not tied:
        tensors.append(matrix("output.weight", n_vocab, n_embd))
    meta = _llama_metadata(arch, n_embd, n_layer, n_head, n_kv, n_ff, n_ctx) | meta
    return write(path, meta | dict(extra or {}), [*tensors, *extra_tensors])
