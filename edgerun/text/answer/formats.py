"""Which format of calls a model writes: read off its chat template.

The markup is that of the models' own templates, https://huggingface.co; each entry says whose.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from edgerun.text.answer.call_format import CallFormat, Either, JsonCalls, NamedCalls
from edgerun.text.answer.gemma_calls import GemmaCalls
from edgerun.text.answer.python_calls import PythonCalls
from edgerun.text.answer.xml_calls import Tags, XmlCalls

__all__ = ["FORMATS", "HARMONY", "pick_format"]

#: The name of the format whose answers are read as a whole, see :mod:`.harmony`.
HARMONY = "harmony"


def _kimi_name(head: str) -> str:
    return re.sub(r":\d+\s*$", "", head).strip().removeprefix("functions.")


def _function(outer: str) -> Tags:
    """Qwen3-Coder's tags."""
    return Tags(
        outer=[f"<{outer}>"],
        closers=[f"</{outer}>"],
        call="<function=",
        name_end=[">"],
        param="<parameter=",
        key_end=">",
        value_end="</parameter>",
        call_end="</function>",
        newlines=True,
    )


def _invoke(prefix: str, outers: tuple[str, ...]) -> Tags:
    """Tags of invocations with the names in attributes."""
    return Tags(
        outer=[f"<{prefix}{o}>" for o in outers],
        closers=[f"</{prefix}{o}>" for o in outers],
        call=f"<{prefix}invoke name=",
        name_end=[">"],
        param=f"<{prefix}parameter name=",
        key_end=">",
        value_end=f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
    )


def _arg_keys(suffix: str, outer: tuple[str, ...] = ()) -> Tags:
    """GLM's tags."""
    key, value = f"arg_key{suffix}>", f"arg_value{suffix}>"
    name_end = ["\n", f"<{key}", f"</tool_call{suffix}>", f"<tool_sep{suffix}>"]
    return Tags(
        outer=[f"<{o}{suffix}>" for o in outer],
        closers=[f"</{o}{suffix}>" for o in outer],
        call=f"<tool_call{suffix}>",
        name_end=name_end if suffix else name_end[:3],
        param=f"<{key}",
        key_end=f"</{key}",
        value=f"<{value}",
        value_end=f"</{value}",
        call_end=f"</tool_call{suffix}>",
    )


_HERMES = JsonCalls("hermes", ["<tool_call>"], ["</tool_call>"])
_FUNCTION_JSON = NamedCalls(
    "function_json", opens=["<function="], seps=[">"], ends=["</function>", "</function"]
)
_MISTRAL = Either(
    "mistral",
    "[{",
    JsonCalls("mistral_list", ["[TOOL_CALLS]"]),
    NamedCalls(
        "mistral_named",
        opens=["[TOOL_CALLS]"],
        seps=["[ARGS]", "{"],
        clean=lambda head: head.split("[CALL_ID]")[0],
    ),
)

#: name -> format
FORMATS: dict[str, CallFormat] = {
    f.name: f
    for f in (
        # Hermes, Qwen 2.5 and 3, Granite 4, MiMo, Bielik, Reka
        _HERMES,
        # What edgerun asks for where a template has no place for tools; small models forget tags.
        JsonCalls("generic", ["<tool_call>"], ["</tool_call>"], bare=["{", "[", "```json", "```"]),
        # Llama 3.1 to 3.3; functionary 3.1
        Either(
            "llama3",
            "{[",
            JsonCalls("llama3_json", ["<|python_tag|>"], bare=["{"]),
            _FUNCTION_JSON,
        ),
        _MISTRAL,
        JsonCalls("nemotron", ["<TOOLCALL>"], ["</TOOLCALL>"]),
        # Granite 3.3; Phi-4-mini
        JsonCalls("granite", ["<|tool_call|>"], ["<|/tool_call|>"], bare=["<tool_call>"]),
        # Apriel; MiniMax-M1
        JsonCalls("tool_calls", ["<tool_calls>"], ["</tool_calls>"]),
        JsonCalls("firefunction", ["functools"]),
        JsonCalls("gigachat", ["<|function_call|>", "function call<|role_sep|>"]),
        # Command R7B and later; the older Command R
        JsonCalls("cohere", ["<|START_ACTION|>"], ["<|END_ACTION|>"]),
        JsonCalls("command_r", ["Action:"]),
        JsonCalls("apertus", ["<|tools_prefix|>"], ["<|tools_suffix|>"], keyed=True),
        NamedCalls(
            "functionary",  # 3.2
            opens=[">>>"],
            seps=["\n"],
            bare=True,
        ),
        NamedCalls(
            "deepseek",  # R1, V3, V3.1
            outer=["<｜tool▁calls▁begin｜>"],
            opens=["<｜tool▁call▁begin｜>"],
            seps=["<｜tool▁sep｜>"],
            ends=["<｜tool▁call▁end｜>"],
            closers=["<｜tool▁calls▁end｜>"],
        ),
        NamedCalls(
            "kimi",
            outer=["<|tool_calls_section_begin|>"],
            opens=["<|tool_call_begin|>"],
            seps=["<|tool_call_argument_begin|>"],
            ends=["<|tool_call_end|>"],
            closers=["<|tool_calls_section_end|>"],
            clean=_kimi_name,
        ),
        NamedCalls(
            "solar",
            outer=["<|tool_calls|>"],
            opens=["<|tool_call:begin|>"],
            seps=["<|tool_call:args|>"],
            ends=["<|tool_call:end|>"],
            clean=lambda head: head.split("<|tool_call:name|>")[-1],
        ),
        # Qwen3-Coder and 3.5, Nemotron 3, Step 3.5
        Either("qwen3_coder", "{[", _HERMES, XmlCalls("qwen3_xml", _function("tool_call"))),
        XmlCalls("seed", _function("seed:tool_call")),
        XmlCalls("minimax", _invoke("", ("minimax:tool_call",))),
        XmlCalls("deepseek_dsml", _invoke("｜DSML｜", ("function_calls", "tool_calls"))),
        XmlCalls(
            "minicpm",
            Tags(
                outer=[],
                closers=[],
                call="<function name=",
                name_end=[">"],
                param="<param name=",
                key_end=">",
                value_end="</param>",
                call_end="</function>",
            ),
        ),
        # GLM 4.5 and later, Ling, Spark, Laguna; Hunyuan 3 has a suffix
        XmlCalls("glm", _arg_keys("")),
        XmlCalls("hunyuan", _arg_keys(":opensource", ("tool_calls",))),
        PythonCalls("lfm2", ["<|tool_call_start|>"], ["<|tool_call_end|>"]),
        PythonCalls("tool_code", ["```tool_code"], ["```"]),
        GemmaCalls("gemma4", "<|tool_call>", '<|"|>', "<tool_call|>"),
        GemmaCalls("function_gemma", "<start_function_call>", "<escape>", "<end_function_call>"),
    )
}


class _Sign(NamedTuple):
    """``text`` in a template says that the model writes ``name``."""

    text: str
    name: str


#: The first that holds decides.
_SIGNS = (
    _Sign("<|channel|>", HARMONY),
    _Sign("<｜tool▁calls▁begin｜>", "deepseek"),
    _Sign("｜DSML｜", "deepseek_dsml"),
    _Sign("<|tool_call_begin|>", "kimi"),
    _Sign("<|tool_call:begin|>", "solar"),
    _Sign("[TOOL_CALLS]", "mistral"),
    _Sign("<|tool_call>", "gemma4"),
    _Sign("<start_function_call>", "function_gemma"),
    _Sign("```tool_code", "tool_code"),
    _Sign("<|START_ACTION|>", "cohere"),
    _Sign("Action:", "command_r"),
    _Sign("<|tool_list_start|>", "lfm2"),
    _Sign("<|tool_call_start|>", "lfm2"),
    _Sign("<seed:tool_call>", "seed"),
    _Sign("<minimax:tool_call>", "minimax"),
    _Sign("<arg_key{}>", "hunyuan"),  # the template fills in its suffix
    _Sign("<arg_key>", "glm"),
    _Sign("<TOOLCALL>", "nemotron"),
    _Sign("<tool_calls>", "tool_calls"),
    _Sign("<|tool_call|>", "granite"),
    _Sign("<|tools_prefix|>", "apertus"),
    _Sign("functools[", "firefunction"),
    _Sign("<|function_call|>", "gigachat"),
    _Sign("<|role_sep|>", "gigachat"),
    _Sign(">>>", "functionary"),
    _Sign("<function name=", "minicpm"),
    _Sign("<function=", "llama3"),
    _Sign("<|python_tag|>", "llama3"),
    _Sign('{"name": function name, "parameters":', "llama3"),
    _Sign("<tool_call>", "hermes"),
)


def pick_format(source: str, *, offers_tools: bool, has_token: Callable[[str], bool]) -> str:
    """The name of the format that a model with the chat template ``source`` writes.

    Args:
        offers_tools: whether the template has a place for tools; else the generic prompt asks
            for its own format.
        has_token: whether the vocabulary has a token spelled so.
    """
    if not offers_tools:
        return HARMONY if "<|channel|>" in source else "generic"
    # Qwen3-Coder shows both tags, the older template of functionary only the second.
    if "<tool_call>" in source and "<function=" in source:
        return "qwen3_coder"
    for sign in _SIGNS:
        if sign.text in source:
            return sign.name
    return "lfm2" if has_token("<|tool_call_start|>") else "generic"
