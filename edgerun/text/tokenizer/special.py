"""Which tokens are more than text: end-of-generation marks, FIM marks, template markers.

GGUF files often type these wrongly (a chat marker as plain text, an end mark as user-defined), and
``eos_token_id`` names one end mark where the model uses several. What a token means is therefore
read from its text, as llama.cpp does; the tables of texts are facts taken from its vocabulary
loader (https://github.com/ggml-org/llama.cpp, ``src/llama-vocab.cpp``).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = [
    "EOG_TEXTS",
    "FIM_FILE_TEXTS",
    "FIM_TEXTS",
    "FimTokens",
    "TokenType",
    "is_marker",
    "retype",
]


class TokenType(enum.IntEnum):
    """``tokenizer.ggml.token_type`` (GGUF specification)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class FimTokens(NamedTuple):
    """Token ids for fill-in-the-middle; the last three exist in some vocabularies only."""

    prefix: int
    suffix: int
    middle: int
    pad: int | None = None
    repo: int | None = None
    separator: int | None = None


#: Texts that end a generation wherever a vocabulary has them.
EOG_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "▁<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|END_OF_TURN_TOKEN|>",
)

#: FIM role -> the texts that play it, in order of preference.
FIM_TEXTS: dict[str, tuple[str, ...]] = {
    "prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<[fim-prefix]>",
    ),
    "suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<[fim-suffix]>",
    ),
    "middle": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
        "<[fim-middle]>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repo": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "separator": ("<|file_sep|>",),
}

#: Marks between files that the tables of llama.cpp lack: nothing a text may spell, either.
FIM_FILE_TEXTS: dict[str, tuple[str, ...]] = {
    "repo": ("<repo_name>",),
    "separator": ("<file_sep>", "<|file_separator|>"),
}

#: The harmony format's marks must show in the output, where its parser reads them.
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

_BARS = re.compile(r"<[|｜]|[|｜]>")
_BRACKETS = re.compile(r"[<>\[\]{}|｜]")


def is_marker(text: str, templates: Iterable[str]) -> bool:
    """Whether a user-defined token is markup that only a template may write.

    True for ``<|…|>`` shapes and for bracketed tokens that one of the model's own chat templates
    spells out (``<tool_call>``, ``<think>``). Runs of spaces and HTML tags are plain text.
    """
    if _BARS.search(text):
        return True
    return bool(_BRACKETS.search(text)) and any(text in t for t in templates)


def retype(types: bytearray, ids: Mapping[str, int], eog: set[int], fim: Mapping[str, int]) -> None:
    """Correct ``types`` in place and complete ``eog`` from the texts of the vocabulary.

    Args:
        types: one :class:`TokenType` per token.
        ids: token text -> id.
        eog: ids known to end a generation from the metadata; those found by text are added.
        fim: FIM role -> id; pad, repo and separator also end a generation, as a model that
            writes one has left the hole it was filling.
    """
    eog.update(ids[t] for t in EOG_TEXTS if t in ids)
    eog.update(fim[role] for role in ("pad", "repo", "separator") if role in fim)
    # "</s>" is also HTML (Gemma has it as such): it counts only where the file types it as control.
    end = ids.get("</s>")
    if end is not None and types[end] == TokenType.CONTROL:
        eog.add(end)

    marks = [t for table in (FIM_TEXTS, FIM_FILE_TEXTS) for texts in table.values() for t in texts]
    for i in (*eog, *fim.values(), *(ids[t] for t in marks if t in ids)):
        types[i] = TokenType.CONTROL
    for text in _HARMONY:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    # Harmony's <|end|> closes a message of several, not the turn.
    if all(t in ids for t in ("<|return|>", "<|call|>", "<|end|>")):
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
        eog.discard(ids["<|end|>"])
    if end is not None and any(t in ids for t in ("<|tool_response>", "<|plamo:eos|>")):
        types[end] = TokenType.NORMAL
        eog.discard(end)
