"""WordPiece: BERT's longest-match-first segmentation (arXiv:1609.08144, arXiv:1810.04805).

GGUF spells a word's first piece ``▁word`` and a later one plainly, where BERT has ``word`` and
``##word``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from edgerun.errors import GGUFError
from edgerun.text.tokenizer.base import Tokenizer
from edgerun.text.tokenizer.special import TokenType
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["WordPieceTokenizer"]

_NORMALIZER = "tokenizer.ggml.normalizer."


class WordPieceTokenizer(Tokenizer):
    """Words are normalized as the file says, split at punctuation and CJK, then cut into pieces.

    A word that cannot be cut completely is one unknown token. Decoding gives the normalized text.
    """

    space_prefix = True

    def __init__(self, vocab: Vocab, metadata: Mapping[str, Any]) -> None:
        super().__init__(vocab)
        lowercase = _flag(metadata, "lowercase", True)
        self._normalizer = BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=_flag(metadata, "strip_accents", lowercase),
            lowercase=lowercase,
        )
        self._pre = BertPreTokenizer()
        special = set(vocab.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN))
        self._pieces = {t: i for t, i in vocab.ids.items() if t and i not in special}
        # Bounding the match keeps a word of n characters at n steps rather than n squared.
        self._longest = max((len(t) for t in self._pieces), default=0)
        self._word = lru_cache(maxsize=1 << 14)(self._cut)

    def _encode_text(self, text: str, fresh: bool) -> list[int]:
        ids: list[int] = []
        for word, _ in self._pre.pre_tokenize_str(self._normalizer.normalize_str(text)):
            ids += self._word(word) if len(word) <= self._longest else self._cut(word)
        return ids

    def _cut(self, word: str) -> tuple[int, ...]:
        out: list[int] = []
        rest, pos = "▁" + word, 0
        while pos < len(rest):
            for end in range(min(len(rest), pos + self._longest), pos, -1):
                token = self._pieces.get(rest[pos:end])
                if token is not None:
                    out.append(token)
                    pos = end
                    break
            else:
                return () if self.vocab.unk_id is None else (self.vocab.unk_id,)
        return tuple(out)

    def _text_bytes(self, token_id: int) -> bytes:
        return self._raw(token_id).replace("▁".encode(), b" ")


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    v = metadata.get(_NORMALIZER + name, default)
    if not isinstance(v, (bool, np.bool_)):
        raise GGUFError(
            f"{_NORMALIZER}{name} must be true or false, not {type(v).__name__}: "
            "convert the model again"
        )
    return bool(v)
