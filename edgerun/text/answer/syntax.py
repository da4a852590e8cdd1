"""How each format of calls is written, for a grammar that forces it.

Parts of a call are text but ``%N``, the function's name, and ``%A``, its arguments.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["SYNTAXES", "Syntax", "Xml", "syntax_of"]


class Xml(NamedTuple):
    """Around a parameter: before its name, between name and value, after the value."""

    open: str
    mid: str
    close: str
    typed: bool = False  # ``mid`` holds %S: whether the value is a string


class Syntax(NamedTuple):
    """One format.

    Attributes:
        trigger: what a model that begins calls writes first; "" = nothing that text could not be.
        call: one call; with an ``xml`` or a ``notation``, ``%A`` are parameters in it, else JSON.
        begin, end: around the calls of one block; ``trigger`` is the start of begin + call.
        between: between calls of a block; None = a block has one call.
        again: between blocks; None = an answer has one.
        notation: "json", "xml", "python" (keywords) or "gemma".
        quote: what stands around strings in Gemma's notation.
    """

    trigger: str
    call: str
    begin: str = ""
    end: str = ""
    between: str | None = None
    again: str | None = None
    notation: str = "json"
    xml: Xml | None = None
    quote: str = ""


_JSON = '{"name": %N, "arguments": %A}'
_HERMES = Syntax("<tool_call>", f"<tool_call>\n{_JSON}\n</tool_call>", again="\n")


def _function(outer: str) -> Syntax:
    call = f"<{outer}>\n<function=%n>\n%A</function>\n</{outer}>"
    xml = Xml("<parameter=", ">\n", "\n</parameter>\n")
    return Syntax(f"<{outer}>", call, again="\n", notation="xml", xml=xml)


def _invoke(prefix: str, outer: str, typed: bool = False) -> Syntax:
    mid = '" string="%S">' if typed else '">'
    return Syntax(
        f"<{prefix}{outer}>",
        f'<{prefix}invoke name="%n">\n%A</{prefix}invoke>\n',
        begin=f"<{prefix}{outer}>\n",
        end=f"</{prefix}{outer}>",
        between="",
        notation="xml",
        xml=Xml(f'<{prefix}parameter name="', mid, f"</{prefix}parameter>\n", typed),
    )


def _arg_keys(newline: str) -> Syntax:
    return Syntax(
        "<tool_call>",
        f"<tool_call>%n{newline}%A</tool_call>",
        again=newline,
        notation="xml",
        xml=Xml("<arg_key>", f"</arg_key>{newline}<arg_value>", f"</arg_value>{newline}"),
    )


def syntax_of(name: str, source: str) -> Syntax | None:
    """How the format ``name`` is written by a model with the chat template ``source``."""
    if name == "mistral" and "[ARGS]" in source:
        name = "mistral_named"
    elif name == "deepseek" and "```json" in source:
        name = "deepseek_r1"
    elif name == "deepseek_dsml" and "tool_calls>" in source:
        name = "deepseek_dsml_v4"
    elif name == "glm" and not re.search(r"</arg_key>(\n|\\n)", source):
        name = "glm_tight"
    elif name == "tool_calls" and "<tool_calls>[" not in source:
        name = "tool_calls_lines"
    elif name == "llama3" and "<function=" in source:
        name = "function_json"
    return SYNTAXES.get(name)


#: Name of a format -> how it is written. Those of two ways are under the name with a suffix.
SYNTAXES: dict[str, Syntax] = {
    "hermes": _HERMES,
    "generic": _HERMES,
    "llama3": Syntax("", '{"name": %N, "parameters": %A}'),
    "function_json": Syntax("<function=", "<function=%n>%A</function>", again=""),
    "mistral": Syntax("[TOOL_CALLS]", _JSON, "[TOOL_CALLS][", "]", between=", "),
    "mistral_named": Syntax("[TOOL_CALLS]", "[TOOL_CALLS]%n[ARGS]%A", again=""),
    "nemotron": Syntax("<TOOLCALL>", _JSON, "<TOOLCALL>[", "]</TOOLCALL>", between=", "),
    "granite": Syntax("<|tool_call|>", _JSON, "<|tool_call|>[", "]", between=", "),
    "tool_calls": Syntax("<tool_calls>", _JSON, "<tool_calls>[", "]</tool_calls>", between=", "),
    "tool_calls_lines": Syntax(
        "<tool_calls>", f"{_JSON}\n", "<tool_calls>\n", "</tool_calls>", between=""
    ),
    "firefunction": Syntax(" functools[", _JSON, " functools[", "]", between=", "),
    "gigachat": Syntax("<|function_call|>", f"<|function_call|>{_JSON}"),
    "cohere": Syntax(
        "<|START_ACTION|>",
        '    {"tool_call_id": "%I", "tool_name": %N, "parameters": %A}',
        "<|START_ACTION|>[\n",
        "\n]<|END_ACTION|>",
        between=",\n",
    ),
    "command_r": Syntax(
        "Action:", '    {"tool_name": %N, "parameters": %A}', "Action:```json\n[\n", "\n]```", ",\n"
    ),
    "apertus": Syntax(
        "<|tools_prefix|>", "{%N: %A}", "<|tools_prefix|>[", "]<|tools_suffix|>", between=", "
    ),
    "functionary": Syntax("", "%n\n%A", again=">>>"),
    "deepseek": Syntax(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>%n<｜tool▁sep｜>%A<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        between="",
    ),
    "deepseek_r1": Syntax(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%n\n```json\n%A\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        between="\n",
    ),
    "kimi": Syntax(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.%n:%I<|tool_call_argument_begin|>%A<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        between="",
    ),
    "solar": Syntax(
        "<|tool_calls|>",
        "<|tool_call:begin|>%I<|tool_call:name|>%n<|tool_call:args|>%A<|tool_call:end|>",
        "<|tool_calls|>",
        between="",
    ),
    "qwen3_coder": _function("tool_call"),
    "seed": _function("seed:tool_call"),
    "minimax": _invoke("", "minimax:tool_call"),
    "deepseek_dsml": _invoke("｜DSML｜", "function_calls", typed=True),
    "deepseek_dsml_v4": _invoke("｜DSML｜", "tool_calls", typed=True),
    "minicpm": Syntax(
        "<function name=",
        '<function name="%n">%A</function>',
        again="\n",
        notation="xml",
        xml=Xml('<param name="', '">', "</param>"),
    ),
    "glm": _arg_keys("\n"),
    "glm_tight": _arg_keys(""),
    "hunyuan": Syntax(
        "<tool_calls:opensource>",
        "<tool_call:opensource>%n<tool_sep:opensource>\n%A</tool_call:opensource>\n",
        "<tool_calls:opensource>\n",
        "</tool_calls:opensource>",
        between="",
        notation="xml",
        xml=Xml(
            "<arg_key:opensource>",
            "</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        ),
    ),
    "lfm2": Syntax(
        "<|tool_call_start|>",
        "%n(%A)",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
        between=", ",
        notation="python",
    ),
    "tool_code": Syntax(
        "```tool_code", "%n(%A)", "```tool_code\n", "\n```", between="\n", notation="python"
    ),
    "gemma4": Syntax(
        "<|tool_call>",
        "<|tool_call>call:%n{%A}<tool_call|>",
        again="",
        notation="gemma",
        quote='<|"|>',
    ),
    "function_gemma": Syntax(
        "<start_function_call>",
        "<start_function_call>call:%n{%A}<end_function_call>",
        again="",
        notation="gemma",
        quote="<escape>",
    ),
    # The recipient first: what the model's own template writes in a history.
    "harmony": Syntax("", " to=functions.%n<|channel|>commentary json<|message|>%A"),
}
