"""BPE: byte-level byte-pair encoding (GPT-2 and nearly all models since; arXiv:1508.07909).

``pretokenizers.json`` beside this file maps each ``tokenizer.ggml.pre`` name to the regular
expressions that cut a text into words, applied in order, each isolating its matches. The names and
flags are those of llama.cpp (https://github.com/ggml-org/llama.cpp, ``src/llama-vocab.cpp``); the
expressions are the models' own, from their ``tokenizer.json``. Four were rewritten to the same
splits in linear time, where the original scans the rest of a run again at every step.
"""

from __future__ import annotations

import gc
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from edgerun.errors import GGUFError, UnsupportedModelError, printable
from edgerun.text.tokenizer.base import Tokenizer
from edgerun.text.tokenizer.special import TokenType
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["BpeTokenizer", "family_defaults", "pretokenizer", "pretokenizer_names"]

_log = logging.getLogger(__name__)
_PRE = "tokenizer.ggml.pre"
_MERGES = "tokenizer.ggml.merges"


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("pretokenizers.json").read_text("utf-8")
    return {name: group for group in json.loads(text)["groups"] for name in group["names"]}


def pretokenizer_names() -> tuple[str, ...]:
    """Every ``tokenizer.ggml.pre`` edgerun has."""
    return tuple(_table())


def pretokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The table entry for a file: ``split`` (list of patterns) and its flags.

    A file without the key gets "default", with a warning, since its ids may then be wrong.

    Raises:
        GGUFError: the key is not a string.
        UnsupportedModelError: the name is unknown; another one would silently give wrong ids.
    """
    name = metadata.get(_PRE)
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        name = "gemma4"
    elif name is None:
        warnings.warn(
            f"the file does not say how it splits words ({_PRE} is missing): using 'default', "
            "which may give worse answers; convert the model again to be sure",
            stacklevel=3,
        )
        name = "default"
    elif not isinstance(name, str):
        raise GGUFError(f"{_PRE} must be a string, not {type(name).__name__}: convert again")
    if name not in _table():
        raise UnsupportedModelError(
            f"{_PRE} is {printable(repr(name))}, which edgerun does not have: update edgerun, or "
            "set the key to one of these if the model splits words that way: "
            f"{', '.join(sorted(_table()))}"
        )
    return _table()[name]


def family_defaults(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a pre-tokenizer implies for :meth:`Vocab.from_metadata`."""
    defaults: dict[str, Any] = {k: True for k in ("add_bos", "add_sep") if entry.get(k)}
    if entry.get("bos_null"):
        defaults["bos"] = None
    return defaults


class BpeTokenizer(Tokenizer):
    """Cuts words by regular expression, then merges pairs in the order of the merge list."""

    def __init__(self, vocab: Vocab, metadata: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        """``entry`` is the file's :func:`pretokenizer`."""
        super().__init__(vocab)
        # Gemma 4 and a few others spell text as SPM does, bytes only as a fallback.
        self._byte_level = not entry.get("escape_whitespaces", False)
        with _no_gc():
            model = self._model(metadata.get(_MERGES), bool(entry.get("ignore_merges", False)))
        self._hf = tokenizers.Tokenizer(model)
        steps: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in entry["split"]
        ]
        if self._byte_level:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._hf.pre_tokenizer = pre_tokenizers.Sequence(steps)

    def _encode_text(self, text: str, fresh: bool) -> list[int]:
        if not self._byte_level:
            text = text.replace(" ", "▁")
        # The batch call, unlike the single one, releases the interpreter lock.
        ids: list[int] = self._hf.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _text_bytes(self, token_id: int) -> bytes:
        text = self.vocab.tokens[token_id]
        kind = self.vocab.types[token_id]
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind == TokenType.USER_DEFINED:
            return self._raw(token_id)
        if not self._byte_level:
            return text.replace("▁", " ").encode("utf-8", "surrogateescape")
        table = _byte_of_char()
        try:
            return bytes([table[c] for c in text])
        except KeyError:  # a token outside the byte alphabet stands for itself
            return self._raw(token_id)

    def _model(self, lines: object, ignore_merges: bool) -> models.BPE:
        vocab = self._mergeable()
        if not isinstance(lines, list) or set(map(type, lines)) - {str}:
            raise GGUFError(f"{_MERGES} must be an array of strings: convert the model again")
        pairs = _pairs(lines)
        build = partial(
            models.BPE, vocab, byte_fallback=not self._byte_level, ignore_merges=ignore_merges
        )
        # The library panics on a merge that makes no token, but raises on one of what is none.
        if all(map(vocab.__contains__, map("".join, pairs))):
            try:
                return build(pairs)
            except Exception:  # it has no class of its own
                pass
        return build(_usable(pairs, vocab))

    def _mergeable(self) -> dict[str, int]:
        """The tokens text may become: not control, not markup, and valid Unicode."""
        v = self.vocab
        out = dict(v.ids)
        for i in (*v.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN), *v.markers):
            if out.get(v.tokens[i]) == i:
                del out[v.tokens[i]]
        try:
            "".join(v.tokens).encode()
        except UnicodeEncodeError:
            out = {t: i for t, i in out.items() if not any("\ud800" <= c <= "\udfff" for c in t)}
        return out


def _pairs(lines: list[str]) -> list[tuple[str, str]]:
    if set(map(str.count, lines, repeat(" "))) <= {1}:  # one split for all
        parts = " ".join(lines).split(" ")
        if all(parts):
            return list(zip(parts[::2], parts[1::2], strict=True))
    return [_pair(m, i) for i, m in enumerate(lines)]


def _usable(pairs: list[tuple[str, str]], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges whose parts and result are in ``vocab``; the library refuses any other."""
    known = vocab.__contains__
    kept = [(a, b) for a, b in pairs if known(a) and known(b) and known(a + b)]
    _log.warning(
        "%d of %d entries of %s make no token that text may become: ignored",
        len(pairs) - len(kept),
        len(pairs),
        _MERGES,
    )
    return kept


def _pair(merge: str, index: int) -> tuple[str, str]:
    # The left part has at least one character, which may itself be the space.
    at = merge.find(" ", 1)
    if at < 0 or at == len(merge) - 1:
        raise GGUFError(
            f"{_MERGES}[{index}] is {printable(repr(merge))}, not two parts with a space between: "
            "convert the model again"
        )
    return merge[:at], merge[at + 1 :]


@contextmanager
def _no_gc() -> Iterator[None]:
    """Half a million live tuples would make the collector walk them over and over."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@cache
def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + n): b for n, b in enumerate(rest)}
