"""Fill in the middle: the text before and after a hole, as the tokens a code model knows it by.

Marks are put in by id; what callers write stays text, whatever it spells. The one exception is a
prompt that a client has itself written in the model's format (:func:`raw_prompt`).

Most families read ``<prefix>before<suffix>after<middle>`` (arXiv:2207.14255); Seed-Coder and
Codestral want what comes after the hole first, the latter without a mark for the middle. Other
files of a project go before it as Qwen2.5-Coder has it (arXiv:2409.12186).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgerun.errors import RequestError
from edgerun.text.tokenizer import Tokenizer
from edgerun.text.tokenizer.special import FIM_FILE_TEXTS, TokenType

__all__ = ["Extra", "FimMarks", "FimPrompt", "fim_marks", "fim_prompt", "raw_prompt"]

_SUFFIX_FIRST = ("<[fim-prefix]>",)
_MISTRAL = ("[PREFIX]", "[SUFFIX]")


@dataclass(frozen=True)
class FimMarks:
    """Token ids. ``suffix_first``: what comes after the hole is read first."""

    prefix: int
    suffix: int
    middle: int | None
    repo: int | None = None
    separator: int | None = None
    suffix_first: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """All of them. A model that writes one has left the hole it was filling."""
        found = (self.prefix, self.suffix, self.middle, self.repo, self.separator)
        return tuple(i for i in found if i is not None)


@dataclass(frozen=True)
class Extra:
    """Another file of the project, or a part of one."""

    text: str
    filename: str = ""


@dataclass(frozen=True)
class FimPrompt:
    """``ids`` to continue with what belongs into the hole, until one of ``stop_ids`` comes.

    ``cut``: not everything found room.
    """

    ids: list[int]
    stop_ids: tuple[int, ...]
    cut: bool = False


def fim_marks(tokenizer: Tokenizer) -> FimMarks | None:
    """The model's marks; None if it has none."""
    vocab = tokenizer.vocab

    def control(texts: Iterable[str]) -> list[int]:
        found = (vocab.ids[t] for t in texts if t in vocab.ids)
        return [i for i in found if vocab.types[i] == TokenType.CONTROL]

    # Mistral's vocabularies all have these; only these models learned what they mean.
    if "codestral" in vocab.name.lower() and len(found := control(_MISTRAL)) == 2:
        return FimMarks(found[0], found[1], middle=None, suffix_first=True)
    fim = tokenizer.fim
    if fim is None:
        return None
    repo = [fim.repo] if fim.repo is not None else control(FIM_FILE_TEXTS["repo"])
    separator = fim.separator
    separators = [separator] if separator is not None else control(FIM_FILE_TEXTS["separator"])
    return FimMarks(
        fim.prefix,
        fim.suffix,
        fim.middle,
        repo=next(iter(repo), None),
        separator=next(iter(separators), None),
        suffix_first=vocab.tokens[fim.prefix] in _SUFFIX_FIRST,
    )


def fim_prompt(
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    extra: Sequence[Extra] = (),
    *,
    room: int | None = None,
    param: str = "suffix",
) -> FimPrompt:
    """The prompt for what belongs between ``prefix`` and ``suffix``.

    Args:
        extra: other files, the least useful first.
        room: most tokens. What does not fit is left out: first of ``extra`` from its start, then
            of the suffix what is past a quarter of the room, then the start of the prefix.
        param: the field of the caller's request that asks for this; the error names it.

    Raises:
        RequestError: the model has no marks for this.
    """
    marks = fim_marks(tokenizer)
    if marks is None:
        raise RequestError(
            "this model cannot fill in a middle: its vocabulary has no FIM tokens. "
            "Use a code model that has (Qwen2.5-Coder, StarCoder2, ...), or send the prompt alone",
            param=param,
            code="fim_not_supported",
        )
    before = tokenizer.encode(prefix, add_bos=False)
    after = tokenizer.encode(suffix, add_bos=False)
    start = tokenizer.encode("")  # the start token, if the model wants one
    files = _files(tokenizer, marks, extra)
    header, name = _header(tokenizer, marks)
    cut = False
    if room is not None:
        fixed = len(start) + 3
        left = max(room - fixed, 1)
        n_after = min(len(after), max(left // 4, left - len(before)))
        n_before = min(len(before), left - n_after)
        cut = n_after < len(after) or n_before < len(before)
        before, after = before[len(before) - n_before :], after[:n_after]
        left -= n_before + n_after + len(header) + len(name)
        while files and sum(map(len, files)) > left:
            del files[0]
            cut = True
    head = [*start, *header, *(i for f in files for i in f), *name] if files else start
    first, second = [marks.prefix, *before], [marks.suffix, *after]
    if marks.suffix_first:
        first, second = second, first
    middle = [] if marks.middle is None else [marks.middle]
    return FimPrompt([*head, *first, *second, *middle], marks.ids, cut)


def raw_prompt(tokenizer: Tokenizer, text: str) -> FimPrompt | None:
    """``text`` as a prompt that its writer has put into the model's own FIM format; None if it is
    not: it has to spell the marks of prefix, suffix and (where the model has one) middle.

    These marks, and those of repository and file, are then read as such; all else in it stays
    text. They carry no authority over anybody: a prompt is its caller's as a whole, who could as
    well send token ids. Only what the caller puts into it (a file that spells marks) can confuse
    it; ``suffix`` is the safe way.
    """
    marks = fim_marks(tokenizer)
    if marks is None:
        return None
    spelled: dict[str, int] = {}
    patterns: list[str] = []
    for i in marks.ids:
        token = tokenizer.vocab.tokens[i]
        # "▁<PRE>" is typed as "<PRE>", mostly with the space it stands for.
        text_of = token.removeprefix("▁")
        spelled[text_of] = i
        patterns.append((" ?" if text_of != token else "") + re.escape(text_of))
    parts = re.split(f"({'|'.join(patterns)})", text)
    found = {spelled[p.lstrip(" ")] for p in parts[1::2]}
    if not {i for i in (marks.prefix, marks.suffix, marks.middle) if i is not None} <= found:
        return None
    ids = tokenizer.encode("")
    for n, part in enumerate(parts):
        if n % 2:
            ids.append(spelled[part.lstrip(" ")])
        elif part:
            ids += tokenizer.encode(part, add_bos=False)
    return FimPrompt(ids, marks.ids)


def _header(tokenizer: Tokenizer, marks: FimMarks) -> tuple[list[int], list[int]]:
    """What goes before other files, and before the one that has the hole."""
    repo: list[int] = []
    name: list[int] = []
    if marks.repo is not None:
        repo = [marks.repo, *tokenizer.encode("project\n", add_bos=False)]
    if marks.separator is not None:
        name = [marks.separator, *tokenizer.encode("filename\n", add_bos=False)]
    return repo, name


def _files(tokenizer: Tokenizer, marks: FimMarks, extra: Sequence[Extra]) -> list[list[int]]:
    """The tokens of each other file."""
    files: list[list[int]] = []
    for e in extra:
        body = e.text if e.text.endswith("\n") else e.text + "\n"
        if marks.separator is None:
            files.append(tokenizer.encode(body + "\n", add_bos=False))
        else:
            ids = tokenizer.encode(f"{e.filename or 'file'}\n{body}", add_bos=False)
            files.append([marks.separator, *ids])
    return files
