"""Render the fixture conversations with transformers and keep what it says.

    pip install transformers jinja2
    python tests/dev/make_template_goldens.py path/to/templates

Writes tests/fixtures/templates/golden.json: for each template and conversation the SHA-256 of the
prompt, or the error. Call arguments are objects and null fields are absent, as transformers'
documentation asks.
"""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError, TemplateRuntimeError, UndefinedError
from transformers.utils import chat_template_utils as oracle

HERE = Path(__file__).resolve().parent.parent / "fixtures" / "templates"


def objects(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = copy.deepcopy(messages)
    for m in out:
        for call in m.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return [{k: v for k, v in m.items() if v is not None} for m in out]


def render(source: str, spec: dict[str, Any], case: dict[str, Any]) -> dict[str, str]:
    try:
        rendered = oracle.render_jinja_template(
            [objects(case["messages"])],
            tools=spec["tools"] if case.get("tools") else None,
            chat_template=source,
            add_generation_prompt=case.get("add_generation_prompt", True),
            bos_token=spec["bos_token"],
            eos_token=spec["eos_token"],
        )
    except (SecurityError, TemplateRuntimeError, UndefinedError) as e:
        return {"broken": f"{type(e).__name__}: {e}"}
    except TemplateError as e:
        return {"refusal": str(e)}
    except Exception as e:
        return {"broken": f"{type(e).__name__}: {e}"}
    while not isinstance(rendered, str):
        rendered = rendered[0]
    return {"sha256": hashlib.sha256(rendered.encode()).hexdigest()}


def main(folder: str) -> None:
    spec = json.loads((HERE / "conversations.json").read_text())
    now = dt.datetime.fromisoformat(spec["now"])

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now

    oracle.datetime = Clock
    golden = {
        path.stem: {
            name: render(path.read_text(), spec, case)
            for name, case in spec["conversations"].items()
        }
        for path in sorted(Path(folder).glob("*.jinja"))
    }
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
