"""The vocabulary a GGUF file carries, checked once so that nothing behind it needs to check again.

Keys are those of the GGUF specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); defaults per family are llama.cpp's.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import GGUFError, UnsupportedModelError, printable
from edgerun.text.tokenizer.special import FIM_TEXTS, FimTokens, TokenType, is_marker, retype

__all__ = ["FAMILIES", "Family", "Vocab"]


class Family(NamedTuple):
    """What a tokenizer model implies when the file does not say otherwise."""

    name: str
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    sep: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    space_prefix: bool = False
    needs_scores: bool = False


#: ``tokenizer.ggml.model`` -> its family.
FAMILIES: dict[str, Family] = {
    "llama": Family("spm", bos=1, eos=2, unk=0, add_bos=True, space_prefix=True, needs_scores=True),
    "gpt2": Family("bpe", bos=11, eos=11),
    "gemma4": Family("bpe", bos=2, eos=1, unk=3, add_bos=True),
    "bert": Family("wordpiece", bos=101, unk=100, sep=102, add_bos=True, add_sep=True),
    "t5": Family("unigram", eos=1, unk=2, add_eos=True, needs_scores=True),
}

_KEY = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_FIX = "download the file again, or convert the model again"

#: FIM role -> its keys, the older spelling last.
_FIM_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repo": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}


class Vocab(NamedTuple):
    """Tokens and their roles. Built by :meth:`from_metadata`, which does all checking.

    Attributes:
        model: ``tokenizer.ggml.model``; ``family`` is what it implies.
        name, architecture: ``general.name`` and ``general.architecture``; "" if absent.
        tokens: ``n_vocab`` texts as the file spells them; bytes that are not UTF-8 are lone
            surrogates (``surrogateescape``).
        ids: text -> id; of equal texts the last one.
        types: one :class:`~edgerun.text.tokenizer.special.TokenType` per token, corrected by text.
        scores: float32 ``(n_vocab,)``, or None where the file has none.
        bos_id, eos_id, unk_id, sep_id: None where the model has no such token.
        eog_ids: every token that ends a generation.
        fim: fill-in-the-middle ids, or None unless prefix, suffix and middle all exist.
        markers: user-defined tokens that are template markup: never read from plain text.
        add_bos, add_eos, add_sep: what the model expects around a text.
        space_prefix: a space goes before each stretch of text.
        chat_templates: template name -> Jinja source; the unnamed one is "default".
    """

    model: str
    family: Family
    name: str
    architecture: str
    tokens: list[str]
    ids: dict[str, int]
    types: bytes
    scores: NDArray[np.float32] | None
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    sep_id: int | None
    eog_ids: frozenset[int]
    fim: FimTokens | None
    markers: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_sep: bool
    space_prefix: bool
    chat_templates: dict[str, str]

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Ids of these types, ascending."""
        a = np.frombuffer(self.types, np.uint8)
        ids: list[int] = np.flatnonzero(np.isin(a, types)).tolist()
        return ids

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        n_embd_rows: int | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Vocab:
        """Read and check the tokenizer keys.

        Args:
            metadata: GGUF key -> Python value; string arrays as ``list[str]``, numeric ones as
                numpy arrays.
            n_embd_rows: rows of the token embedding; a larger vocabulary is refused.
            defaults: family defaults to replace, e.g. what ``tokenizer.ggml.pre`` implies.

        Raises:
            GGUFError: a key is missing, of the wrong type, or inconsistent.
            UnsupportedModelError: the tokenizer model is not one of :data:`FAMILIES`.
        """
        r = _Reader(metadata)
        model, family = r.model()
        if defaults:
            family = family._replace(**defaults)
        tokens = r.tokens(n_embd_rows)
        ids = dict(zip(tokens, range(len(tokens)), strict=True))
        types, typed = r.types(tokens)
        scores = r.scores(len(tokens), family)
        special = r.special_ids(len(tokens))
        fim = r.fim(ids, special)

        eog = {special[k] for k in ("eos", "eot", "eom") if k in special}
        retype(types, ids, eog, fim)

        roles = _roles(family, special, types, typed)
        if (eos := roles["eos"]) is not None:
            eog.add(eos)
        templates = r.templates()
        user = np.flatnonzero(np.frombuffer(types, np.uint8) == TokenType.USER_DEFINED).tolist()
        markers = frozenset(i for i in user if is_marker(tokens[i], templates.values()))
        return cls(
            model=model,
            family=family,
            name=str(metadata.get("general.name", "")),
            architecture=str(metadata.get("general.architecture", "")),
            tokens=tokens,
            ids=ids,
            types=bytes(types),
            scores=scores,
            bos_id=roles["bos"],
            eos_id=eos,
            unk_id=roles["unk"],
            sep_id=roles["sep"],
            eog_ids=frozenset(eog),
            fim=FimTokens(**fim) if {"prefix", "suffix", "middle"} <= fim.keys() else None,
            markers=markers,
            add_bos=r.flag("add_bos_token", family.add_bos),
            add_eos=r.flag("add_eos_token", family.add_eos),
            add_sep=r.flag("add_sep_token", family.add_sep),
            space_prefix=r.flag("add_space_prefix", family.space_prefix),
            chat_templates=templates,
        )


def _roles(
    family: Family, special: Mapping[str, int], types: bytearray, typed: bool
) -> dict[str, int | None]:
    """The ids of bos, eos, unk and sep: the file's own ``special`` ones, or else the family's.

    Args:
        types: of all tokens; that of eos becomes CONTROL.
        typed: the file gave them.
    """

    def default(name: str, i: int | None) -> int | None:
        # A default is a guess: it must fall in range and on a token that is not plain text.
        if name in special or i is None or i >= len(types):
            return special.get(name)
        ok = types[i] in (TokenType.CONTROL, TokenType.UNKNOWN)
        return i if ok or (not typed and family.name != "bpe") else None

    bos = special.get("cls") if "bos" not in special else None
    bos = bos if bos is not None else default("bos", family.bos)
    eos = default("eos", family.eos)
    if eos is not None:
        types[eos] = TokenType.CONTROL
    return {
        "bos": bos,
        "eos": eos,
        "unk": default("unk", family.unk),
        "sep": default("sep", family.sep),
    }


class _Reader:
    """One checked value per method; ``m`` is the metadata."""

    def __init__(self, m: Mapping[str, Any]) -> None:
        self.m = m

    def model(self) -> tuple[str, Family]:
        name = self.m.get(_KEY + "model")
        if not isinstance(name, str):
            raise GGUFError(
                f"{_KEY}model must name the tokenizer, not {printable(repr(name))}: "
                "the file carries no vocabulary edgerun can use"
            )
        if name not in FAMILIES:
            raise UnsupportedModelError(
                f"{_KEY}model is {printable(repr(name))}, which edgerun does not have; "
                f"it has {', '.join(FAMILIES)}: use a model with one of these"
            )
        return name, FAMILIES[name]

    def tokens(self, n_embd_rows: int | None) -> list[str]:
        tokens = self.m.get(_KEY + "tokens")
        if not _is_strings(tokens):
            raise GGUFError(
                f"{_KEY}tokens must be an array of strings, not {_kind(tokens)}: {_FIX}"
            )
        assert isinstance(tokens, list)
        if not tokens:
            raise GGUFError(f"{_KEY}tokens is empty: {_FIX}")
        if n_embd_rows is not None and len(tokens) > n_embd_rows:
            raise GGUFError(
                f"the vocabulary has {len(tokens)} tokens ({_KEY}tokens) but the token embedding "
                f"only {n_embd_rows} rows: {_FIX}"
            )
        return tokens

    def _numbers(self, key: str, kinds: str, what: str, n: int) -> NDArray[Any] | None:
        v = self.m.get(_KEY + key)
        if v is None:
            return None
        a = np.asarray(v) if isinstance(v, (np.ndarray, list)) else None
        if a is None or a.ndim != 1 or a.dtype.kind not in kinds:
            raise GGUFError(f"{_KEY}{key} must be an array of {what}, not {_kind(v)}: {_FIX}")
        if n >= 0 and len(a) != n:
            raise GGUFError(f"{_KEY}{key} has {len(a)} entries for {n} tokens: {_FIX}")
        return a

    def types(self, tokens: list[str]) -> tuple[bytearray, bool]:
        a = self._numbers("token_type", "iu", "integers", len(tokens))
        if a is None:
            return bytearray([TokenType.NORMAL]) * len(tokens), False
        # An id the specification does not know, and 0 (undefined), is plain text.
        known = (a >= TokenType.NORMAL) & (a <= TokenType.BYTE)
        types = np.where(known, a, TokenType.NORMAL).astype(np.uint8)
        for i in np.flatnonzero(types == TokenType.BYTE).tolist():
            if not _BYTE.fullmatch(tokens[i]):
                raise GGUFError(
                    f"token {i} is typed as a byte but reads {printable(repr(tokens[i]))}, "
                    f"not <0x00> to <0xFF> ({_KEY}token_type): {_FIX}"
                )
        return bytearray(types.tobytes()), True

    def scores(self, n: int, family: Family) -> NDArray[np.float32] | None:
        a = self._numbers("scores", "f", "floats", n)
        if a is None:
            if family.needs_scores:
                raise GGUFError(f"{_KEY}scores is missing, and this tokenizer needs it: {_FIX}")
            return None
        if np.isnan(a).any():
            i = int(np.flatnonzero(np.isnan(a))[0])
            raise GGUFError(f"{_KEY}scores[{i}] is not a number: {_FIX}")
        return a.astype(np.float32)

    def special_ids(self, n: int) -> dict[str, int]:
        """Every ``*_token_id`` key present, by the name before that suffix."""
        out: dict[str, int] = {}
        for key in self.m:
            if not (key.startswith(_KEY) and key.endswith("_token_id")):
                continue
            v = self.m[key]
            try:
                i = operator.index(v)
            except TypeError:
                i = None
            if i is None or isinstance(v, (bool, np.bool_)):
                raise GGUFError(f"{printable(key)} must be a token id, not {_kind(v)}: {_FIX}")
            if not 0 <= i < n:
                raise GGUFError(
                    f"{printable(key)} is {i}, outside the vocabulary of {n} tokens: {_FIX}"
                )
            out[key[len(_KEY) : -len("_token_id")]] = i
        # The misspelling is the GGUF specification's.
        for alias, name in (("unknown", "unk"), ("seperator", "sep"), ("separator", "sep")):
            if alias in out:
                out[name] = out.pop(alias)
        return out

    def fim(self, ids: Mapping[str, int], special: Mapping[str, int]) -> dict[str, int]:
        out: dict[str, int] = {}
        for role, keys in _FIM_KEYS.items():
            names = [k[: -len("_token_id")] for k in keys]
            named = [special[k] for k in names if k in special]
            found = named + [ids[t] for t in FIM_TEXTS[role] if t in ids]
            if found:
                out[role] = found[0]
        return out

    def flag(self, key: str, default: bool) -> bool:
        v = self.m.get(_KEY + key)
        if v is None:
            return default
        if not isinstance(v, (bool, np.bool_)):
            raise GGUFError(f"{_KEY}{key} must be true or false, not {_kind(v)}: {_FIX}")
        return bool(v)

    def templates(self) -> dict[str, str]:
        out: dict[str, str] = {}
        base = "tokenizer.chat_template"
        for key in self.m:
            if key == base or key.startswith(base + "."):
                v = self.m[key]
                if not isinstance(v, str):
                    raise GGUFError(f"{printable(key)} must be a string, not {_kind(v)}: {_FIX}")
                out["default" if key == base else key[len(base) + 1 :]] = v
        return out


def _is_strings(v: object) -> bool:
    # By the set of types: a quarter of a million isinstance calls would be felt at load.
    return isinstance(v, list) and set(map(type, v)) <= {str}


def _kind(v: object) -> str:
    if v is None:
        return "missing"
    if isinstance(v, np.ndarray):
        return f"an array of {v.dtype}"
    if isinstance(v, list):
        return "an array of " + ("strings" if _is_strings(v) else "mixed values")
    return printable(f"{type(v).__name__} {v!r}", 60)
