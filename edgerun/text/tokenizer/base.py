"""What every tokenizer can do, whatever its family."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from edgerun.errors import RequestError
from edgerun.text.tokenizer.special import FimTokens, TokenType
from edgerun.text.tokenizer.splitter import SpecialSplitter
from edgerun.text.tokenizer.vocab import Vocab

__all__ = ["Tokenizer"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNTEXT = (TokenType.CONTROL, TokenType.UNKNOWN)


class Tokenizer(ABC):
    """Text to token ids and back, built from a GGUF file's metadata alone.

    Plain text never yields a control token, nor a user-defined one that is template markup; only
    text marked as trusted (a rendered template) does. Safe to share between threads; the
    long-running parts release the interpreter lock.

    Attributes:
        vocab: the checked vocabulary.
        n_vocab: number of tokens; ids are ``0 .. n_vocab - 1``.
        bos_id, eos_id: None where the model has no such token.
        eog_ids: every token that ends a generation, whatever ``eos_id`` says.
        add_bos, add_eos: whether the model expects them around a text.
        fim: fill-in-the-middle ids, or None.
        chat_templates: template name -> Jinja source; ``chat_template`` is the unnamed one.
        space_prefix: whether text that starts, or follows a special token, decodes with one
            leading space too many, because encoding added it.
    """

    space_prefix: bool = False

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.n_vocab = len(vocab.tokens)
        self.bos_id: int | None = vocab.bos_id
        self.eos_id: int | None = vocab.eos_id
        self.eog_ids: frozenset[int] = vocab.eog_ids
        self.add_bos: bool = vocab.add_bos and vocab.bos_id is not None
        self.add_eos: bool = vocab.add_eos or vocab.add_sep
        self.fim: FimTokens | None = vocab.fim
        self.chat_templates: dict[str, str] = vocab.chat_templates
        self.chat_template: str | None = vocab.chat_templates.get("default")
        self._bytes: list[bytes | None] = [None] * self.n_vocab
        self._splitter = self._make_splitter()

    # -- encoding -----------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        add_eos: bool = False,
        parse_special: bool = False,
    ) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_bos: put the BOS token first if the model expects one (``self.add_bos``).
            add_eos: put the EOS (BERT: SEP) token last if the model expects one; for embeddings.
            parse_special: ``text`` is trusted: control tokens spelled in it are recognised. Never
                set it for text a user or a tool wrote.
        """
        return self.encode_segments([(text, parse_special)], add_bos=add_bos, add_eos=add_eos)

    def encode_more(self, text: str) -> list[int]:
        """Token ids of plain text that goes on from other text: nothing is put before it."""
        return self._encode_text(text, False)

    def encode_segments(
        self,
        segments: Sequence[tuple[str, bool]],
        add_bos: bool = True,
        add_eos: bool = False,
    ) -> list[int]:
        """Token ids of the concatenated segments, each ``(text, trusted)``.

        Control tokens are recognised only where they lie wholly in trusted text; apart from that
        the result is that of encoding the concatenation, so a message that spells no special
        token gets the ids the model was trained on, across segment borders too.
        """
        text = "".join(s for s, _ in segments)
        if _SURROGATE.search(text):
            text = _SURROGATE.sub("\ufffd", text)
        spans: list[tuple[int, int]] = []
        pos = 0
        for s, trusted in segments:
            end = pos + len(s)
            if trusted and spans and spans[-1][1] == pos:
                spans[-1] = (spans[-1][0], end)
            elif trusted and s:
                spans.append((pos, end))
            pos = end
        ids = self._encode(text, spans)
        # A template that writes the BOS token itself must not get a second one.
        if add_bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if add_eos:
            ids.extend(self._closing())
        return ids

    def _encode(self, text: str, trusted: Sequence[tuple[int, int]]) -> list[int]:
        ids: list[int] = []
        fresh = True
        for part in self._splitter.split(text, trusted):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_text(part, fresh)
            fresh = isinstance(part, int)
        return ids

    @abstractmethod
    def _encode_text(self, text: str, fresh: bool) -> list[int]:
        """Ids of a stretch of plain text; ``fresh`` if it starts or follows a special token."""

    def _closing(self) -> list[int]:
        v = self.vocab
        ends = (v.eos_id if v.add_eos else None, v.sep_id if v.add_sep else None)
        return [i for i in ends if i is not None]

    def _make_splitter(self) -> SpecialSplitter:
        v = self.vocab
        special = v.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        special = [i for i in special if v.tokens[i]]
        user = [i for i in special if v.types[i] == TokenType.USER_DEFINED and i not in v.markers]
        lstrip: frozenset[int] = frozenset()
        rstrip: frozenset[int] = frozenset()
        # Two models were trained with whitespace around their tokens eaten, which no key records.
        name = v.name.lower()
        if "phi-3" in name or "phi3" in name:
            kept = ("<unk>", "<s>", "<|endoftext|>")
            rstrip = frozenset(i for i in special if v.tokens[i] not in kept)
        if v.architecture.startswith("nomic-bert-moe"):
            lstrip = frozenset(i for i in special if v.tokens[i] == "<mask>")
        return SpecialSplitter(
            {v.tokens[i]: i for i in user},
            {v.tokens[i]: i for i in special},
            lstrip=lstrip,
            rstrip=rstrip,
        )

    # -- decoding -----------------------------------------------------------------------------

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it (``Ġthe``, ``▁the``, ``<|im_end|>``)."""
        return self.vocab.tokens[self._check(token_id)]

    def has_control(self, text: str) -> bool:
        """Whether the vocabulary has a control token spelled ``text``."""
        ids = self.encode(text, add_bos=False, parse_special=True)
        return len(ids) == 1 and self.is_control(ids[0])

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes the token adds to the text; may be part of a character.

        Control and unknown tokens add none unless ``special``, which shows their text.
        """
        self._check(token_id)
        if self.vocab.types[token_id] in _UNTEXT:
            return self._raw(token_id) if special else b""
        b = self._bytes[token_id]
        if b is None:
            b = self._bytes[token_id] = self._text_bytes(token_id)
        return b

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        ``special`` shows control tokens too. The inverse of :meth:`encode` without BOS.
        """
        out: list[bytes] = []
        fresh = self.space_prefix
        for i in ids:
            b = self.token_bytes(i, special=special)
            if fresh and b.startswith(b" ") and not self.starts_text(i):
                b = b[1:]
            fresh = self.space_prefix and self.starts_text(i)
            out.append(b)
        return b"".join(out).decode("utf-8", "replace")

    def starts_text(self, token_id: int) -> bool:
        """Whether text after this token is encoded as if at the start (see ``space_prefix``)."""
        return self.vocab.types[token_id] in (*_UNTEXT, TokenType.USER_DEFINED)

    @abstractmethod
    def _text_bytes(self, token_id: int) -> bytes:
        """The bytes of a token that is neither control nor unknown."""

    def _raw(self, token_id: int) -> bytes:
        return self.vocab.tokens[token_id].encode("utf-8", "surrogateescape")

    # -- roles --------------------------------------------------------------------------------

    def is_control(self, token_id: int) -> bool:
        """Whether the token is a control (or unknown) token: never text."""
        return self.vocab.types[self._check(token_id)] in _UNTEXT

    def _check(self, token_id: int) -> int:
        if not 0 <= token_id < self.n_vocab:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary: ids are 0 to {self.n_vocab - 1}",
                param="token_ids",
            )
        return token_id
