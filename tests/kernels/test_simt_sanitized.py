"""The sanitizers see through the SIMT engine: faults whose numbers may well come out right."""

from __future__ import annotations

import functools
import re

import pytest
from helpers import simt

#: Sanitizer, kernel of planted.cu, blocks, threads, dynamic shared bytes, what the report says;
#: a sound kernel has no report.
FAULTS = (
    ("asan", "past_shared", 1, 32, 0, "(global-buffer-overflow|out of bounds)"),
    ("asan", "past_dynamic", 1, 32, 128, "use-after-poison"),
    ("asan", "past_global", 1, 64, 0, "heap-buffer-overflow"),
    ("asan", "past_local", 1, 1, 0, "(stack-buffer-overflow|out of bounds)"),
    ("asan", "misaligned_plain", 1, 1, 0, "misaligned address"),
    ("asan", "dynamic", 1, 32, 128, ""),
    ("tsan", "no_barrier", 1, 64, 0, "data race"),
    ("tsan", "race", 1, 2, 0, "data race"),
    ("tsan", "reverse", 1, 64, 0, ""),
    ("tsan", "copy_waits", 1, 32, 0, ""),
)
_CODE = """
import sys
import numpy as np
from helpers import simt
m = simt.build(simt.ENGINE / "planted.cu", sanitizer={san!r}, optimize="-O0")
for kernel, blocks, threads, shared in {runs!r}:
    print("== " + kernel, file=sys.stderr, flush=True)
    x = np.full(128 if kernel == "copy_waits" else 64, 4, np.float32)
    try:
        m.launch(kernel, blocks, threads, x, shared=shared)
    except simt.SimtError:
        pass
print("== end", file=sys.stderr, flush=True)
"""


@functools.cache
def reports(san: str) -> dict[str, str]:
    """What one process wrote while each kernel ran."""
    runs = [f[1:5] for f in FAULTS if f[0] == san]
    done = simt.sanitized(san, _CODE.format(san=san, runs=runs))
    assert "== end" in done.stderr, done.stderr[-3000:]
    parts = re.split(r"^== (\w+)\n", done.stderr, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(
    ("san", "kernel", "says"), [(f[0], f[1], f[5]) for f in FAULTS], ids=[f[1] for f in FAULTS]
)
def test_faults_are_reported_and_sound_kernels_are_not(san: str, kernel: str, says: str) -> None:
    report = reports(san)[kernel]
    if says:
        assert re.search(says, report), report[-2000:]
    else:
        assert not report.strip(), report[-2000:]
