"""Tokenizers built from a GGUF file's metadata alone, one module per family.

:func:`load_tokenizer` is the way in. The library behind a family is imported only when a file of
that family is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.text.tokenizer.base import Tokenizer
from edgerun.text.tokenizer.special import FimTokens
from edgerun.text.tokenizer.vocab import FAMILIES, Vocab

__all__ = ["FimTokens", "Tokenizer", "Vocab", "load_tokenizer"]


def load_tokenizer(metadata: Mapping[str, Any], n_embd_rows: int | None = None) -> Tokenizer:
    """The tokenizer a file describes.

    Args:
        metadata: GGUF key -> Python value (string arrays ``list[str]`` with ``surrogateescape``,
            numeric arrays numpy).
        n_embd_rows: rows of ``token_embd.weight``, so that no id can fall outside it.

    Raises:
        GGUFError: a key is missing, of the wrong type or inconsistent; the message names it.
        UnsupportedModelError: a tokenizer model or ``tokenizer.ggml.pre`` edgerun does not have.
    """
    model = metadata.get("tokenizer.ggml.model")
    family = FAMILIES[model].name if isinstance(model, str) and model in FAMILIES else None
    if family == "bpe":
        from edgerun.text.tokenizer.bpe import BpeTokenizer, family_defaults, pretokenizer

        entry = pretokenizer(metadata)
        vocab = Vocab.from_metadata(metadata, n_embd_rows, family_defaults(entry))
        return BpeTokenizer(vocab, metadata, entry)
    vocab = Vocab.from_metadata(metadata, n_embd_rows)
    if family == "spm":
        from edgerun.text.tokenizer.spm import SpmTokenizer

        return SpmTokenizer(vocab, metadata)
    if family == "wordpiece":
        from edgerun.text.tokenizer.wordpiece import WordPieceTokenizer

        return WordPieceTokenizer(vocab, metadata)
    from edgerun.text.tokenizer.unigram import UnigramTokenizer

    return UnigramTokenizer(vocab, metadata)
