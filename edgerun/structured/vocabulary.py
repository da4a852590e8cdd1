"""A model's tokens as llguidance wants them, and as a grammar names them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from edgerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["lark_free", "lark_text", "open_tokenizer", "special_ids"]


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that grammar text never matches: control tokens and template markup."""
    control = {i for i in range(tokenizer.n_vocab) if tokenizer.is_control(i)}
    return frozenset(control | tokenizer.vocab.markers | tokenizer.eog_ids)


def lark_text(tokenizer: Tokenizer, text: str) -> str:
    """A Lark expression for exactly ``text``, special tokens in it as such."""
    tokens = tokenizer.vocab.tokens
    found = {tokens[i]: i for i in special_ids(tokenizer) if tokens[i] and tokens[i] in text}
    if not found:
        return json.dumps(text, ensure_ascii=False)
    longest_first = sorted(found, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return " ".join(
        f"<[{found[p]}]>" if p in found else json.dumps(p, ensure_ascii=False) for p in parts if p
    )


def lark_free(tokenizer: Tokenizer, name: str, without: Collection[int] = ()) -> str:
    """Lark rules for any text, under ``name`` (lower case) and its upper-case form.

    Args:
        name: of the rule.
        without: special tokens that end it, such as a tool call's first.
    """
    shown = special_ids(tokenizer) - tokenizer.eog_ids - frozenset(without)
    shown = frozenset(i for i in shown if not tokenizer.is_control(i))
    text = name.upper()
    more = f" (<[{','.join(map(str, sorted(shown)))}]> {text}?)*" if shown else ""
    return f"{name}: {text}?{more}\n{text}: /(.|\\n)+/\n"


def open_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """Build the token trie: 0.2 s for 50 000 tokens, 1.5 s for 260 000."""
    from llguidance import LLTokenizer

    return LLTokenizer(
        _Tokens(tokenizer),  # type: ignore[arg-type]  # it asks for the attributes alone
        eos_token=sorted(tokenizer.eog_ids) or None,
        slices=LLTokenizer.json_slices(),
    )


class _Tokens:
    """What llguidance reads of a tokenizer wrapper."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = special_ids(tokenizer)
        self.special_token_ids = sorted(special)
        # A token without bytes is none that a text can hold.
        self.tokens = [
            tokenizer.token_bytes(i, special=i in special) for i in range(tokenizer.n_vocab)
        ]
        eog = tokenizer.eog_ids
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id in eog else min(eog, default=None)
        self.bos_token_id = tokenizer.bos_id
        self._encode = tokenizer.encode_more

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
