"""Unigram: sentencepiece's language-model segmentation (T5 and kin; arXiv:1804.10959)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgerun.errors import GGUFError
from edgerun.text.tokenizer import sp_model
from edgerun.text.tokenizer.spm import SentencePieceTokenizer
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["UnigramTokenizer"]

_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_SQUEEZE = "tokenizer.ggml.remove_extra_whitespaces"


class UnigramTokenizer(SentencePieceTokenizer):
    """The likeliest segmentation, after the model's own character normalization.

    That normalization may lose information, so decoding gives the normalized text.
    """

    def __init__(self, vocab: Vocab, metadata: Mapping[str, Any]) -> None:
        super().__init__(vocab)
        self.space_prefix = vocab.space_prefix
        self._sp = sp_model.build(
            vocab,
            sp_model.UNIGRAM,
            add_dummy_prefix=vocab.space_prefix,
            remove_extra_whitespaces=bool(metadata.get(_SQUEEZE, False)),
            charsmap=_charsmap(metadata),
        )

    def _encode_text(self, text: str, fresh: bool) -> list[int]:
        ids: list[int] = self._sp.encode(text)
        return ids


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    v = metadata.get(_CHARSMAP)
    if v is None:
        return b""
    if not isinstance(v, np.ndarray) or v.dtype.itemsize != 1:
        raise GGUFError(f"{_CHARSMAP} must be an array of bytes: convert the model again")
    return v.tobytes()
