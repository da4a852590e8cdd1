"""SPM: sentencepiece's byte-pair encoding (Llama 1 and 2, Mistral, Gemma 1 to 3, Phi-3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.text.tokenizer import sp_model
from edgerun.text.tokenizer.base import Tokenizer
from edgerun.text.tokenizer.special import TokenType
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["SentencePieceTokenizer", "SpmTokenizer"]


class SentencePieceTokenizer(Tokenizer):
    """Decoding shared by the sentencepiece families: ``▁`` is a space, ``<0xNN>`` a byte."""

    def _text_bytes(self, token_id: int) -> bytes:
        text = self.vocab.tokens[token_id]
        kind = self.vocab.types[token_id]
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind == TokenType.USER_DEFINED:
            return self._raw(token_id)
        return text.replace("▁", " ").encode("utf-8", "surrogateescape")


class SpmTokenizer(SentencePieceTokenizer):
    """Merges the pair of highest score first; unknown characters fall back to bytes."""

    def __init__(self, vocab: Vocab, metadata: Mapping[str, Any]) -> None:
        super().__init__(vocab)
        self.space_prefix = vocab.space_prefix
        self._sp = sp_model.build(vocab, sp_model.BPE)

    def _encode_text(self, text: str, fresh: bool) -> list[int]:
        ids: list[int] = self._sp.encode(" " + text if fresh and self.space_prefix else text)
        return ids
