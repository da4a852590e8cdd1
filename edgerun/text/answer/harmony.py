"""The harmony format of gpt-oss: an answer is a row of messages, each with a channel.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>``. The final channel is the
answer, commentary without a recipient is said to the user, too.
Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

from edgerun.text.answer.call_format import done
from edgerun.text.answer.json_text import json_value
from edgerun.text.answer.pieces import Out
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools

__all__ = ["HARMONY_TEXTS", "read_harmony"]

_START, _CHANNEL, _CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
_MESSAGE, _END, _CALL, _RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
#: All markup of the format; some of it may be control tokens.
HARMONY_TEXTS = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END)

_HEADS = Marks([_MESSAGE, _END])
_ENDS = Marks([_END, _START, _CALL, _RETURN])
_TO = re.compile(r"\bto=([^\s<]+)")
_KIND = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_HEAD = 512


def read_harmony(s: Source, out: Out, tools: Tools | None) -> Steps[None]:
    """Read a whole answer, from after ``<|start|>assistant`` on.

    Text that starts without a header is the answer as it stands.
    """
    first = True
    while True:
        s.hold()
        lead = yield from s.spaces()
        if first and not (yield from _header_comes(s)):
            s.release()
            out.text(lead)
            yield from s.until(_ENDS, out.text)
        else:
            try:
                yield from _message(s, out, tools)
            except Malformed:  # cut inside a header, or no call
                if out.begun:
                    return
                s.rewind()
                out.abandon()
                yield from _as_text(s, out)
        s.release()
        first = False
        out.turn()
        yield from s.spaces()
        if not (yield from s.peek()):
            return
        yield from s.literal(_START)
        yield from s.literal("assistant")


def _header_comes(s: Source) -> Steps[bool]:
    found = yield from s.ahead(_CHANNEL, _MESSAGE, "to=")
    return found


def _message(s: Source, out: Out, tools: Tools | None) -> Steps[None]:
    """One message from its header on.

    Raises:
        Malformed: its header does not end, or it is a call of no tool, or not of JSON.
    """
    head, mark = yield from s.before(_HEADS, _MAX_HEAD)
    if mark == _END:
        raise Malformed
    channel = _KIND.search(head)
    to = _TO.search(head)
    if to and tools is not None and (name := tools.known(to.group(1))) is not None:
        out.begin(name)
        yield from s.spaces()
        if (yield from s.ahead("{")):
            yield from json_value(s, out.arguments, "{")
        else:
            out.arguments("{}")
        yield from s.spaces()
        if (yield from s.literal(_END, _CALL)) is None and (yield from s.peek()):
            raise Malformed
        done(s, out)
        return
    if to and to.group(1).startswith("functions."):
        raise Malformed
    s.release()
    thinks = channel is not None and channel.group(1) == "analysis"
    yield from s.until(_ENDS, out.reasoning if thinks else out.text)


def _as_text(s: Source, out: Out) -> Steps[None]:
    yield from s.until(_END_ONLY, out.text)


_END_ONLY = Marks([_END, _CALL, _RETURN])
