"""Small vocabularies as metadata mappings, and the shared reference vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.paths import SHARED

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Typed = tuple[str, int]

_SEPARATOR = "\n__ggml_vocab_test__\n"


def vocab_files() -> list[Path]:
    """The vocabulary files with vectors beside them; empty where the shared data is absent."""
    return sorted(SHARED.glob("vocabs/*.gguf"))


def vectors(gguf: Path) -> list[tuple[str, list[int]]]:
    """``(text, ids)`` of llama.cpp's tests for this vocabulary, without BOS."""
    raw = Path(f"{gguf}.inp").read_bytes().decode()
    lines = Path(f"{gguf}.out").read_text().splitlines()
    texts = raw.split(_SEPARATOR)
    if len(texts) == len(lines) + 1 and not texts[-1]:
        texts.pop()
    assert len(texts) == len(lines) > 40
    return [(t, [int(x) for x in ids.split()]) for t, ids in zip(texts, lines, strict=True)]


def metadata(model: str, tokens: Sequence[Typed], **keys: Any) -> dict[str, Any]:
    """Tokenizer keys for ``tokens``; further keys go under ``tokenizer.ggml.``."""
    m: dict[str, Any] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [t for t, _ in tokens],
        "tokenizer.ggml.token_type": np.array([y for _, y in tokens], np.int32),
    }
    return m | {f"tokenizer.ggml.{k}": v for k, v in keys.items()}


BYTES: list[Typed] = [(f"<0x{b:02X}>", BYTE) for b in range(256)]


def spm(words: Sequence[str] = (), extra: Sequence[Typed] = (), **keys: Any) -> dict[str, Any]:
    """Llama-2-like: unknown, BOS, EOS, bytes, every character of ``words``, the words, extra.

    The pieces between a character and a word are its prefixes; longer pieces score higher.
    """
    pieces: dict[str, int] = {"▁": 1}
    for w in ("▁" + w for w in words):
        pieces |= dict.fromkeys(w, 1) | {w[:n]: n for n in range(1, len(w) + 1)}
    head: list[Typed] = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), *BYTES]
    tokens = [*head, *((p, NORMAL) for p in pieces), *extra]
    scores = [0.0] * len(head) + [float(n) for n in pieces.values()] + [0.0] * len(extra)
    return metadata("llama", tokens, scores=np.array(scores, np.float32)) | {
        f"tokenizer.ggml.{k}": v for k, v in keys.items()
    }


def alphabet() -> list[str]:
    """GPT-2's 256 characters, byte 0 first (from its published ``encoder.py`` rule)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(shifted)) for b in range(256)]


def bpe(
    merges: Sequence[str] = (), extra: Sequence[Typed] = (), pre: str | None = "gpt-2", **keys: Any
) -> dict[str, Any]:
    """GPT-2-like: token id = byte for the first 256, then the merges' results, then extra."""
    tokens: list[Typed] = [(c, NORMAL) for c in alphabet()]
    tokens += [(m.replace(" ", ""), NORMAL) for m in merges]
    m = metadata("gpt2", [*tokens, *extra], merges=list(merges), **keys)
    return m if pre is None else m | {"tokenizer.ggml.pre": pre}
