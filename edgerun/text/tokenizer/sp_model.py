"""A sentencepiece model rebuilt from GGUF metadata, so that the original library encodes.

The message layout is that of ``sentencepiece_model.proto``
(https://github.com/google/sentencepiece). Fields used: ModelProto pieces=1, trainer_spec=2,
normalizer_spec=3; SentencePiece piece=1, score=2, type=3; TrainerSpec model_type=3, vocab_size=4,
byte_fallback=35; NormalizerSpec name=1, precompiled_charsmap=2, add_dummy_prefix=3,
remove_extra_whitespaces=4, escape_whitespaces=5.
"""

from __future__ import annotations

import numpy as np
import sentencepiece

from edgerun.errors import GGUFError, printable
from edgerun.text.tokenizer.special import TokenType
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["BPE", "UNIGRAM", "build"]

UNIGRAM, BPE = 1, 2
_N_BYTES = 256
_MAX_PIECE = 7999  # sentencepiece's own limit, in bytes


def build(
    vocab: Vocab,
    model_type: int,
    *,
    add_dummy_prefix: bool = False,
    remove_extra_whitespaces: bool = False,
    charsmap: bytes = b"",
) -> sentencepiece.SentencePieceProcessor:
    """The processor for this vocabulary; its ids are the vocabulary's.

    Raises:
        GGUFError: sentencepiece refuses the vocabulary.
    """
    types, byte_fallback = _piece_types(vocab)
    head = _varint_field(3, model_type) + _varint_field(4, len(vocab.tokens))
    trainer = head + (_varint_field(35, 1) if byte_fallback else b"")
    normalizer = (
        _bytes_field(1, b"identity")
        + (_bytes_field(2, charsmap) if charsmap else b"")
        + _varint_field(3, int(add_dummy_prefix))
        + _varint_field(4, int(remove_extra_whitespaces))
        + _varint_field(5, 1)
    )
    # Its log would print pieces of a hostile file to the terminal as they are; 2 leaves errors.
    sentencepiece.set_min_log_level(2)
    proto = _pieces(vocab, types) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=proto)
    except (RuntimeError, ValueError) as e:
        raise GGUFError(
            f"the vocabulary cannot be used (tokenizer.ggml.tokens): {printable(e)}"
        ) from e


def _piece_types(vocab: Vocab) -> tuple[bytes, bool]:
    """sentencepiece's type per token: exactly one unknown, bytes only if all 256 are there.

    Its numbers equal GGUF's. Template markers become control, which is never matched in text.
    """
    t = np.frombuffer(vocab.types, np.uint8).copy()
    t[t == TokenType.UNKNOWN] = TokenType.UNUSED
    t[list(vocab.markers)] = TokenType.CONTROL
    byte_fallback = int((t == TokenType.BYTE).sum()) == _N_BYTES
    if not byte_fallback:
        t[t == TokenType.BYTE] = TokenType.UNUSED
    t[0 if vocab.unk_id is None else vocab.unk_id] = TokenType.UNKNOWN
    return t.tobytes(), byte_fallback


def _pieces(vocab: Vocab, types: bytes) -> bytes:
    """The ``pieces`` field: one message per token."""
    assert vocab.scores is not None
    texts = _texts(vocab)
    raw = vocab.scores.astype("<f4").tobytes()
    scores = [raw[i : i + 4] for i in range(0, len(raw), 4)]
    # A quarter of a million plain pieces in one pass; the few typed ones are patched after it.
    heads = {n: _head(n) for n in set(map(len, texts))}
    out = [heads[len(b)] + b + b"\x15" + s for b, s in zip(texts, scores, strict=True)]
    for i in np.flatnonzero(np.frombuffer(types, np.uint8) != TokenType.NORMAL).tolist():
        message = _bytes_field(1, texts[i]) + b"\x15" + scores[i] + b"\x18%c" % types[i]
        out[i] = _bytes_field(1, message)
    return b"".join(out)


def _head(n: int) -> bytes:
    """The bytes before the text of a plain piece of ``n`` bytes; 5 bytes of score follow it."""
    inner = b"\x0a" + _varint(n)
    return b"\x0a" + _varint(len(inner) + n + 5) + inner


def _texts(vocab: Vocab) -> list[bytes]:
    joined = "\0".join(vocab.tokens).encode("utf-8", "surrogateescape").split(b"\0")
    if len(joined) == len(vocab.tokens):
        texts = joined
    else:  # a token holds a NUL itself
        texts = [t.encode("utf-8", "surrogateescape") for t in vocab.tokens]
    longest = max(map(len, texts))
    if len(vocab.ids) < len(texts) or "" in vocab.ids or longest > _MAX_PIECE:
        # sentencepiece refuses such pieces; give them names that no text can contain.
        for i, text in enumerate(vocab.tokens):
            if not text or vocab.ids[text] != i or len(texts[i]) > _MAX_PIECE:
                texts[i] = b"\xff%d" % i
    return texts


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)
