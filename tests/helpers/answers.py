"""Answers for tests of APIs: made-up chunks, and tiny models that talk, think, call and fill in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from edgerun.chat import ToolCallDelta
from edgerun.core import Chunk, Completion, FinishReason, Timings, Usage
from edgerun.delivery import Collector
from edgerun.server.wire import Answering, Event, Translator
from helpers import gguf_build as gb

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
THINKING = "{# <think> </think> #}" + TEMPLATE
#: What the model "talk" says.
TALK = ["Hel", "lo", ",", " wor", "ld", "!\n", "Bye", "."]
THOUGHTS = ["Let me", " see", " 漢", "ha"]
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
#: How the model "call" calls a tool whose parameters are :data:`ADD`; of several tools the one that
#: comes first by its name's bytes. A grammar writes the rest of a call, byte by byte.
ARGUMENTS = {"a": 1}
FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
#: A tool as OpenAI's responses and as Anthropic's messages have it; an image as the latter do.
RESPONSES_ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": ADD,
    "strict": True,
}
MESSAGES_ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": ADD,
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def models(folder: Path) -> dict[str, Path]:
    """Files of tiny models by name; what each says does not depend on the prompt."""
    template = {"tokenizer.chat_template": TEMPLATE}
    thinking = {"tokenizer.chat_template": THINKING}
    said = {
        "talk": (TALK, template),
        "think": (["<think>\n", *THOUGHTS, "</think>", "\n\nIt is", " 42", "."], thinking),
    }
    out = {
        name: gb.scripted_model(folder / f"{name}.gguf", pieces, [" "], n_ctx=4096, extra=extra)
        for name, (pieces, extra) in said.items()
    }
    quoting = {gb.FIRST_BYTE_ID + ord(a): gb.FIRST_BYTE_ID + ord(b) for a, b in ('":', ':"')}
    out["json"] = gb.scripted_model(
        folder / "json.gguf", quoting, [" "], n_ctx=4096, extra=template
    )
    calling = {"tokenizer.chat_template": TEMPLATE.replace("assistant:", "assistant\n")}
    out["call"] = gb.scripted_model(
        folder / "call.gguf", _calls(), [" "], n_ctx=4096, extra=calling
    )
    return out


def _calls() -> dict[str | int, str | int]:
    """What follows what in the answers of "call": a text, the start of a call, its arguments."""
    follow: dict[str | int, str | int] = {gb.FIRST_BYTE_ID + ord("\n"): "I add"}
    follow |= {"I add": ".", ".": "<tool_call>"}
    for now, then in ('{"', '":', ":1", "1}", "}}"):
        follow[gb.FIRST_BYTE_ID + ord(now)] = gb.FIRST_BYTE_ID + ord(then)
    return follow


def coder(path: Path, said: list[str], n_ctx: int = 1024) -> Path:
    """A model with FIM marks. Its text ends with a mark, after which it would go on forever."""
    marks = [*FIM, "<|file_sep|>"]
    follow = dict(zip(["<|fim_middle|>", *said], [*said, "<|fim_prefix|>"], strict=True))
    follow |= {"<|fim_prefix|>": said[0], ")": said[0]}
    return gb.scripted_model(path, follow, [*marks, *said, " ", ")"], n_ctx=n_ctx)


class FakeLLM:
    """What answers ask of a model: a token a word."""

    n_ctx = 1000

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        return list(range(len(text.split())))

    def detokenize(self, ids: Iterable[int], *, special: bool = False) -> str:
        return " ".join(map(str, ids))


def answering(asked: Any, prompt_tokens: int = 7) -> Answering:
    llm: Any = FakeLLM()
    return Answering("0f" * 16, 1_700_000_000, "tiny", asked, llm, Usage(prompt_tokens))


def completion(chunks: Iterable[Chunk], logprobs: bool = False) -> Completion:
    """The chunks of one answer added up."""
    collector = Collector(logprobs)
    found = [done for c in chunks if (done := collector.add(c)) is not None]
    return found[0]


def events(translator: Translator, chunks: Iterable[Chunk]) -> list[Event]:
    """All events of an answer."""
    out = list(translator.start())
    for c in chunks:
        out += translator.chunk(c)
    return out + list(translator.end())


@st.composite
def chunk_lists(draw: st.DrawFn) -> list[Chunk]:
    """The chunks of an answer as a model may give it: thoughts, text and calls, in any pieces."""
    word = st.sampled_from(["a", "b ", "\n", "漢", '"', "\\", "x" * 50])
    out: list[Chunk] = []
    for kind in draw(st.sampled_from([(), ("r",), ("t",), ("r", "t"), ("t", "r", "t")])):
        for piece in draw(st.lists(word, min_size=1, max_size=4)):
            ids = (len(out),)
            thought = Chunk(reasoning=piece, token_ids=ids)
            out.append(thought if kind == "r" else Chunk(text=piece, token_ids=ids))
    n_calls = draw(st.integers(0, 2))
    for i in range(n_calls):
        name = draw(st.sampled_from(["add", "shell", "patch"]))
        given = {"input": draw(word), "n": i} if name != "patch" else {"input": draw(word)}
        text, at = json.dumps(given, ensure_ascii=draw(st.booleans())), 0
        first = ToolCallDelta(i, "", f"call_{i}", name)
        out.append(Chunk(tool_calls=(first,)))
        while at < len(text):
            n = draw(st.integers(1, 9))
            out.append(Chunk(tool_calls=(ToolCallDelta(i, text[at : at + n]),), token_ids=(at,)))
            at += n
    ends = [FinishReason.TOOL_CALLS] if n_calls else [FinishReason.STOP, FinishReason.LENGTH]
    reason = draw(st.sampled_from(ends))
    stop = "END" if reason is FinishReason.STOP and draw(st.booleans()) else None
    n_out = sum(len(c.token_ids) for c in out)
    usage, timings = Usage(7, n_out, draw(st.integers(0, 6))), Timings(0.1, 0.2, 0.3, 7, 3)
    last = Chunk(finish_reason=reason, usage=usage, timings=timings, stop_string=stop)
    return [*out, last]
