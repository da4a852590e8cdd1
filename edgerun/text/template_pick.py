"""Which chat template a model file offers, and what stands in where it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from edgerun.errors import TemplateError
from edgerun.text.template import ChatTemplate

__all__ = ["CHATML", "PLAIN", "pick_template"]

_KEY = "tokenizer.chat_template"

#: The format most base models saw; used when the vocabulary has its two control tokens.
CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

#: The last resort, without any control token: a transcript.
PLAIN = """\
{%- for message in messages -%}
{{- message.role | capitalize + ': ' + message.content | trim + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""


def pick_template(
    metadata: Mapping[str, Any],
    *,
    has_token: Callable[[str], bool],
    tools: bool = False,
    bos_token: str = "",
    eos_token: str = "",
    clock: Callable[[], datetime] = datetime.now,
) -> ChatTemplate:
    """The chat template of a GGUF file.

    ``tokenizer.chat_template`` is the default; ``tokenizer.chat_template.NAME`` are variants, of
    which ``tool_use`` is taken when ``tools`` is true and the file has it. A file with variants
    only gives its ``default``, or else its first by name. A file with none gives :data:`CHATML`
    or :data:`PLAIN`, with ``is_fallback`` set: say so to the user, since the model may never have
    seen the format.

    Args:
        metadata: the file's keys.
        has_token: whether the vocabulary has a control token of this text.

    Raises:
        TemplateError: the key holds no text, or the template is malformed.
    """
    sources = {k[len(_KEY) + 1 :]: v for k, v in metadata.items() if k.startswith(_KEY + ".")}
    if _KEY in metadata:
        sources[""] = metadata[_KEY]
    sources = {k: v for k, v in sources.items() if v != ""}
    order = (["tool_use"] if tools else []) + ["", "default", *sorted(sources)]
    for name in order:
        if name in sources:
            key = f"{_KEY}.{name}" if name else _KEY
            source = sources[name]
            if not isinstance(source, str):
                raise TemplateError(f"{key} must be text, not {type(source).__name__}")
            fallback = False
            break
    else:
        chatml = has_token("<|im_start|>") and has_token("<|im_end|>")
        source, fallback = (CHATML if chatml else PLAIN), True
        key = "the fallback chat template " + ("ChatML" if chatml else "(plain transcript)")
    return ChatTemplate(
        source,
        bos_token=bos_token,
        eos_token=eos_token,
        name=key,
        clock=clock,
        is_fallback=fallback,
    )
