"""edgerun: run language models on the machine you own."""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"

_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "backends").is_dir():
    # A source tree: edgerun.backends is <root>/backends and data files lie in <root>.
    __path__.append(str(_root))

_API = {
    "LLM": "edgerun.llm",
    "Chunk": "edgerun.core",
    "Completion": "edgerun.core",
    "Constraint": "edgerun.core",
    "FinishReason": "edgerun.core",
    "SamplingParams": "edgerun.core",
    "TokenLogprob": "edgerun.core",
    "Usage": "edgerun.core",
    "Timings": "edgerun.core",
    "errors": "edgerun.errors",
}

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Constraint",
    "FinishReason",
    "SamplingParams",
    "Timings",
    "TokenLogprob",
    "Usage",
    "__version__",
    "errors",
]

if _TYPE_CHECKING:
    from edgerun import errors
    from edgerun.core import (
        Chunk,
        Completion,
        Constraint,
        FinishReason,
        SamplingParams,
        Timings,
        TokenLogprob,
        Usage,
    )
    from edgerun.llm import LLM


def __getattr__(name: str) -> object:
    # Imported on first use: the command line starts several times faster without numpy.
    import importlib

    if name not in _API:
        raise AttributeError(f"module 'edgerun' has no attribute {name!r}")
    module = importlib.import_module(_API[name])
    return module if name == "errors" else getattr(module, name)
