"""Model families, one small file each: ``get("llama")`` finds the one a GGUF file names.

A new family is a new module here that defines ``ARCHITECTURE``; nothing else needs to change.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from edgerun.arch.base import Architecture, ModelConfig, TensorSpec
from edgerun.arch.loader import configure, match_tensors, raw_tensors
from edgerun.errors import UnsupportedModelError, printable

__all__ = [
    "Architecture",
    "ModelConfig",
    "TensorSpec",
    "configure",
    "get",
    "match_tensors",
    "raw_tensors",
    "supported",
]


@cache
def _registry() -> dict[str, Architecture]:
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    found = (getattr(m, "ARCHITECTURE", None) for m in modules)
    return {a.name: a for a in found if isinstance(a, Architecture)}


def supported() -> list[str]:
    """The values of ``general.architecture`` that run natively, sorted."""
    return sorted(_registry())


def get(name: str) -> Architecture:
    """The architecture called ``name``.

    Raises:
        UnsupportedModelError: there is none; names it and those there are.
    """
    arch = _registry().get(name)
    if arch is None:
        raise UnsupportedModelError(
            f"architecture '{printable(name)}' is not supported; "
            f"supported: {', '.join(supported())}"
        )
    return arch
