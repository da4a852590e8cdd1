"""Set before anything imports numpy."""

from __future__ import annotations

import os

# Two BLAS threads that wait for each other on a busy machine take ten times the CPU of one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests that want pages on disk say so: all others compute what they check.
os.environ["EDGERUN_KV_DISK"] = "off"
