"""llama-cpp-python, if it is installed: found, checked for age, and made to log where we log."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from edgerun.amounts import size_text
from edgerun.errors import BackendUnavailableError, OutOfMemoryError, printable

__all__ = [
    "INSTALL",
    "Slots",
    "complaint",
    "forget_complaints",
    "installed",
    "library",
    "plan_slots",
    "token_bytes",
]

#: What to say where the package is missing.
INSTALL = "pip install 'edgerun[llama-cpp]'"

log = logging.getLogger(__name__)

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_CONTINUED = 5  # GGML_LOG_LEVEL_CONT
_NAMES = ("llama_memory_seq_cp", "llama_memory_seq_rm", "llama_model_is_diffusion")

_complaints: deque[str] = deque(maxlen=8)
_level = threading.local()


def installed() -> bool:
    """Whether the package is there; it may still fail to load."""
    return importlib.util.find_spec("llama_cpp") is not None


@cache
def library() -> Any:
    """The module ``llama_cpp``, its log silenced: errors are kept for :func:`complaint`.

    Raises:
        BackendUnavailableError: not installed, broken or too old; says what to do.
    """
    if not installed():
        raise BackendUnavailableError(f"llama-cpp-python is not installed: {INSTALL}")
    try:
        module = importlib.import_module("llama_cpp")
    except Exception as e:  # a library that does not load raises whatever it likes
        raise BackendUnavailableError(
            f"llama-cpp-python does not load ({printable(e)}): install it anew"
        ) from e
    fields = {name for name, *_ in module.llama_context_params._fields_}
    if not all(hasattr(module, n) for n in _NAMES) or "kv_unified" not in fields:
        raise BackendUnavailableError(
            f"llama-cpp-python {module.__version__} is too old: {INSTALL} --upgrade"
        )
    module.llama_log_set(_callback(module), ctypes.c_void_p(0))
    module.llama_backend_init()
    return module


@cache  # the library keeps no reference of its own
def _callback(module: Any) -> Any:
    def take(level: int, text: bytes, user_data: Any) -> None:
        if level == _CONTINUED:
            level = getattr(_level, "last", 0)
        _level.last = level
        line = text.decode("utf-8", "replace").strip()
        if line and level == _ERROR:
            _complaints.append(line)
        if line:
            log.debug("%s", line)

    return module.llama_log_callback(take)


def forget_complaints() -> None:
    """Before a call whose errors are wanted."""
    _complaints.clear()


def complaint() -> str:
    """Why the last call failed, in the library's words, the cause first."""
    lines = [line.split(": ", 1)[-1] if line[:6] == "llama_" else line for line in _complaints]
    return printable("; ".join(lines[:2]) or "it does not say why")


# -- memory ---------------------------------------------------------------------------------------

_KV_SHARE = 0.5  # of the memory left after the weights, at most, for K and V
_CONTEXT = 8192  # tokens, where nobody asks: the library fills its whole cache at once
_SEQUENCES = (4, 16)  # at once: as many as memory allows, and where contexts are short
_TOKENS = 32768  # over all sequences, above the lower of these


@dataclass(frozen=True)
class Slots:
    """``n`` sequences at once, of ``n_ctx`` tokens each."""

    n: int
    n_ctx: int


def plan_slots(
    n_ctx: int | None, n_ctx_train: int, token_bytes: int, free: int, weight_bytes: int
) -> Slots:
    """Slots for the context asked for; without one the trained context, up to 8192 tokens, as far
    as memory reaches.

    Args:
        token_bytes: what K and V of a token take.
        free: bytes of memory, of which the weights take ``weight_bytes``.

    Raises:
        OutOfMemoryError: not even one fits.
    """
    least, most = _SEQUENCES
    fits = max(0, int((free - weight_bytes) * _KV_SHARE)) // max(token_bytes, 1)
    need = min(512, n_ctx_train) if n_ctx is None else n_ctx
    if fits < need:
        raise OutOfMemoryError(
            f"the weights take {size_text(weight_bytes)} and {need} tokens of context "
            f"{size_text(need * token_bytes)}, but only {size_text(free)} are free: close "
            "other programs, lower n_ctx, or choose a smaller model"
        )
    if n_ctx is None:
        n_ctx = min(n_ctx_train, _CONTEXT, max(fits // least, need))
    return Slots(max(1, min(fits // n_ctx, max(least, min(most, _TOKENS // n_ctx)))), n_ctx)


def token_bytes(metadata: Mapping[str, Any], kv_type: str) -> int:
    """Bytes that K and V of a token take at most, as far as the metadata tell: layers that keep
    a state instead, or compress, take less."""
    arch = metadata.get("general.architecture", "")

    def number(key: str, default: int) -> int:
        value = metadata.get(f"{arch}.{key}", default)
        return max(0, int(max(value) if hasattr(value, "__len__") else value))

    layers = number("block_count", 1)
    width, heads = number("embedding_length", 1), max(1, number("attention.head_count", 1))
    each = metadata.get(f"{arch}.attention.head_count_kv", heads)
    kv_heads = int(sum(each)) if hasattr(each, "__len__") else int(each) * layers
    head = max(1, width // heads)
    values = number("attention.key_length", head) + number("attention.value_length", head)
    size = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}[kv_type]
    return max(1, round(kv_heads * values * size))
