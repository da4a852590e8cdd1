"""A kernel may refuse a process the tile registers: the next set computes, with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from helpers.packed import Packed, isas
from helpers.weights import gguf_rows

# A seccomp filter that fails arch_prctl(ARCH_REQ_XCOMP_PERM) with EPERM, as a sandbox may do.
_REFUSE = """
import ctypes, struct, sys
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
code = [
    (LOAD, 0, 0, 0),             # the system call's number
    (EQUAL, 0, 3, 158),          # arch_prctl
    (LOAD, 0, 0, 16),            # its first argument
    (EQUAL, 0, 1, 0x1023),       # ARCH_REQ_XCOMP_PERM
    (RETURN, 0, 0, 0x00050001),  # EPERM
    (RETURN, 0, 0, 0x7FFF0000),  # let it through
]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *c) for c in code))
class Filter(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
f = Filter(len(code), ctypes.addressof(program))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(f), 0, 0):
    sys.exit(77)  # no such filters here
"""
_COMPUTE = """
import numpy as np
from edgerun.backends.cpu_abi import isa_names
from helpers.packed import Packed
rows, x = np.load(sys.argv[1]), np.load(sys.argv[2])
print(*isa_names())
np.save(sys.argv[3], Packed(isa_names()[0], int(sys.argv[4]), rows, x.shape[1]).run(x))
"""
_FORCE = """
import os
os.environ["EDGERUN_ISA"] = "amx"
from edgerun.backends.cpu import CPUBackend
from edgerun.errors import EdgerunError
try:
    CPUBackend(1)
except EdgerunError as e:
    print(type(e).__name__, e)
"""


def refused(script: str, *args: str) -> list[str]:
    """The lines that a process prints to which the tile registers are refused."""
    done = subprocess.run(
        [sys.executable, "-c", _REFUSE + script, *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("seccomp filters cannot be installed here")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif("amx" not in isas(), reason="no tile registers here")
def test_without_the_tile_registers_the_next_set_gives_the_same_bits(tmp_path: object) -> None:
    rng = np.random.default_rng(5)
    rows = gguf_rows(T.Q4_K, 40, 512, rng)
    x = rng.standard_normal((40, 512), dtype=np.float32)
    files = [f"{tmp_path}/{name}.npy" for name in ("rows", "x", "out")]
    np.save(files[0], rows)
    np.save(files[1], x)
    (names,) = refused(_COMPUTE, *files, str(int(T.Q4_K)))
    assert names.split() == [name for name in isas() if name != "amx"]
    want = Packed("amx", T.Q4_K, rows, 512).run(x)
    assert (np.load(files[2]).view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.skipif("amx" not in isas(), reason="no tile registers here")
def test_asking_for_the_refused_set_says_what_there_is() -> None:
    (line,) = refused(_FORCE)
    assert line.startswith("BackendUnavailableError")
    assert "amx" in line
    assert "avx512vnni" in line
