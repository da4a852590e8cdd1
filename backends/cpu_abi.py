"""ctypes mirror of ``kernels_cpu/src/program.h`` and ``capi_program.cpp``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache

from edgerun.errors import BackendUnavailableError
from edgerun.native import lib

ABI_VERSION = 6
MAX_OUTS = 4

OP_EMBED, OP_TOKENWISE, OP_LINEAR, OP_ROPE_KV, OP_ATTENTION, OP_GATHER = range(6)
OP_MOE_UP, OP_MOE_DOWN, OP_MOE_SUM = range(6, 9)
EPI_NONE, EPI_RESIDUAL, EPI_GLU, EPI_SOFTCAP = range(4)
GLU = {"silu": 1, "gelu": 2, "swiglu_oai": 3}
GATING = {"softmax": 0, "chosen": 1}
KV_TYPES = {"f16": 0, "f32": 1, "q8_0": 2, "q4r": 3}
#: The longest head that q4r rotates.
MAX_ROTATED = 1024


class Prologue(ctypes.Structure):
    _fields_ = [
        ("a", c_int32), ("b", c_int32), ("sum", c_int32), ("width", c_int32),
        ("norm_b", c_void_p), ("norm_n", c_void_p),
        ("group_b", c_int32), ("group_n", c_int32),
        ("eps_b", c_float), ("eps_n", c_float), ("scale", c_float), ("pad", c_int32),
    ]  # fmt: skip


class LinearOut(ctypes.Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("out", c_int32), ("pad", c_int32)]


class Instr(ctypes.Structure):
    _fields_ = [
        ("op", c_int32), ("gathered", c_int32), ("pre", Prologue), ("outs", LinearOut * MAX_OUTS),
        ("n_outs", c_int32), ("epilogue", c_int32), ("glu", c_int32), ("residual", c_int32),
        ("softcap", c_float), ("out", c_int32),
        ("q", c_int32), ("k", c_int32), ("v", c_int32), ("layer", c_int32),
        ("n_heads", c_int32), ("n_kv", c_int32), ("head_dim", c_int32), ("window", c_int32),
        ("scale", c_float), ("rope", c_int32), ("n_rot", c_int32), ("interleaved", c_int32),
        ("q_norm", c_void_p), ("k_norm", c_void_p), ("eps_q", c_float), ("eps_k", c_float),
        ("sinks", c_void_p),
        ("router", c_int32), ("n_experts", c_int32), ("n_used", c_int32), ("n_rows", c_int32),
        ("gating", c_int32), ("normalize", c_int32), ("moe", c_int32), ("share_scale", c_float),
    ]  # fmt: skip


class PackPart(ctypes.Structure):
    _fields_ = [
        ("weight", c_void_p), ("src", c_void_p),
        ("row_bytes", c_int64), ("row", c_int64), ("n_rows", c_int64),
    ]  # fmt: skip


class RopeTable(ctypes.Structure):
    _fields_ = [("cs", c_void_p), ("n_pos", c_int32), ("n_rot", c_int32)]


class BatchView(ctypes.Structure):
    _fields_ = [
        ("tokens", c_void_p), ("positions", c_void_p), ("row_start", c_void_p),
        ("n_past", c_void_p), ("pages", c_void_p), ("outputs", c_void_p),
        ("n_tokens", c_int32), ("n_rows", c_int32), ("n_outputs", c_int32), ("max_pages", c_int32),
        ("want_best", c_int32), ("want_top", c_int32),
    ]  # fmt: skip


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "er_abi_version": (c_int, []),
    "er_sizeof": (c_int, [c_int]),
    "er_isa": (c_void_p, [c_char_p]),
    "er_isa_name": (c_char_p, [c_void_p]),
    "er_isa_names": (c_int, [c_char_p, c_int]),
    "er_isa_has_type": (c_int, [c_void_p, c_int]),
    "er_pool_new": (c_void_p, [c_int]),
    "er_pool_free": (None, [c_void_p]),
    "er_weight_new": (c_void_p, [c_void_p, c_int, c_int64, c_int64, POINTER(c_int)]),
    "er_weight_free": (None, [c_void_p]),
    "er_weight_bytes": (c_size_t, [c_void_p]),
    "er_weight_tile_rows": (c_int, [c_void_p]),
    "er_type_tile_rows": (c_int, [c_void_p, c_int]),
    "er_weights_place": (c_void_p, [POINTER(c_void_p), c_int]),
    "er_block_free": (None, [c_void_p]),
    "er_weights_pack": (c_int, [c_void_p, POINTER(PackPart), c_int]),
    "er_kv_new": (c_void_p, [c_int, c_int, POINTER(c_int32), POINTER(c_int32), c_int]),
    "er_kv_free": (None, [c_void_p]),
    "er_kv_page_bytes": (c_size_t, [c_void_p]),
    "er_kv_page": (c_void_p, [c_void_p, c_int]),
    "er_program_new": (
        c_void_p,
        [c_void_p, c_void_p, POINTER(Instr), c_int, POINTER(c_int32), c_int, c_void_p, c_int],
    ),
    "er_program_free": (None, [c_void_p]),
    "er_program_run": (c_char_p, [c_void_p, POINTER(BatchView), POINTER(RopeTable), c_int]),
    "er_program_logits": (c_void_p, [c_void_p]),
    "er_program_best": (c_void_p, [c_void_p]),
    "er_program_top": (c_void_p, [c_void_p]),
    "er_program_logits_stride": (c_int64, [c_void_p]),
}

_QUICK = ("er_program_logits", "er_program_best", "er_program_top", "er_program_logits_stride")


@lru_cache(maxsize=1)
def native() -> ctypes.CDLL:
    """The CPU library with its signatures declared and its layout checked.

    Raises:
        BackendUnavailableError: the library is missing, or belongs to another version of edgerun.
    """
    so = lib()
    try:
        for name, (restype, argtypes) in _SIGNATURES.items():
            fn = getattr(so, name)
            fn.restype, fn.argtypes = restype, argtypes
        # These keep the interpreter's lock: a look takes less than getting that back may.
        quick = ctypes.PyDLL(so._name, handle=so._handle)
        for name in _QUICK:
            fn = getattr(quick, name)
            fn.restype, fn.argtypes = _SIGNATURES[name]
            setattr(so, name, fn)
    except AttributeError as e:
        raise BackendUnavailableError(f"the CPU library lacks {e}: reinstall edgerun") from None
    mirrors = (Instr, BatchView, RopeTable, Prologue, LinearOut)
    sizes_agree = all(so.er_sizeof(i) == ctypes.sizeof(s) for i, s in enumerate(mirrors))
    if so.er_abi_version() != ABI_VERSION or not sizes_agree:
        raise BackendUnavailableError(
            f"the CPU library speaks version {so.er_abi_version()} of the interface, "
            f"edgerun speaks {ABI_VERSION}: reinstall edgerun"
        )
    return so


def isa_names() -> list[str]:
    """Instruction sets this build holds and this machine runs, best first."""
    buffer = ctypes.create_string_buffer(256)
    native().er_isa_names(buffer, len(buffer))
    return buffer.value.decode().split()
