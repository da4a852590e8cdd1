"""edgerun: run language models on the machine you own."""

from __future__ import annotations

from pathlib import Path as _Path

__version__ = "0.1.0"

_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "backends").is_dir():
    # A source tree: edgerun.backends is <root>/backends and data files lie in <root>.
    __path__.append(str(_root))
