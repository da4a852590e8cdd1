"""What ``edgerun run`` imports from the command line to a model's answer: each takes part of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.cli import environment
from helpers.gguf_build import random_model

#: Of edgerun: what tools, constraints and other devices alone need.
OWN = """
edgerun.backends.reference edgerun.backends.split edgerun.bench edgerun.calling edgerun.catalog.hub
edgerun.catalog.pypi edgerun.catalog.web edgerun.embedding edgerun.engine.embedding edgerun.server
edgerun.structured.gbnf edgerun.structured.grammars edgerun.structured.schema
edgerun.structured.vocabulary edgerun.text.answer.formats edgerun.text.answer.grammar
edgerun.text.answer.syntax edgerun.text.answer.xml_calls edgerun.tui
"""
#: Of others.
OTHERS = """
asyncio concurrent.futures difflib email fastapi html http.client httpx huggingface_hub jsonschema
llguidance numpy.random psutil pydantic rich sqlite3 statistics textual tomli tomllib typer
urllib.request
"""

SCRIPT = f"""
import json, os, sys
from edgerun.cli import main
status = main(sys.argv[1:])
seen = {{"status": status, "found": sorted(set({(OWN + OTHERS).split()!r}) & set(sys.modules))}}
print(json.dumps(seen), file=sys.stderr)
"""


def test_a_short_answer_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    model = str(random_model(tmp_path / "m.gguf", seed=1))
    args = [
        "run",
        "-m",
        model,
        "--backend",
        "cpu",
        "-q",
        "-n",
        "2",
        "--temp",
        "0",
        "--ignore-eos",
        "Hi",
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
        env=environment(EDGERUN_HOME=str(tmp_path)),
    )  # fmt: skip
    assert json.loads(done.stderr.splitlines()[-1]) == {"status": 0, "found": []}


def test_blas_threads_sleep_in_the_program_alone(tmp_path: Path) -> None:
    """Numpy's would spin beside a start; a program that imports edgerun has its own settings."""
    ask = "print(__import__('os').environ.get('OPENBLAS_THREAD_TIMEOUT'))"
    env = environment(EDGERUN_HOME=str(tmp_path))
    env.pop("OPENBLAS_THREAD_TIMEOUT", None)

    def told(first: str, **more: str) -> str:
        code = f"import atexit, os\natexit.register(lambda: {ask})\n{first}"
        run = [sys.executable, "-c", code, "list"]
        out = subprocess.run(run, capture_output=True, text=True, env={**env, **more}, check=True)
        return out.stdout.splitlines()[-1]

    assert told("from edgerun.cli import main; main()") == "4"
    assert told("from edgerun.cli import main; main()", OPENBLAS_THREAD_TIMEOUT="9") == "9"
    assert told("from edgerun.cli import main; main(['list'])") == "None"
