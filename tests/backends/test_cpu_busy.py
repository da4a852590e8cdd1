"""The CPU backend with more threads than cores, and other programs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.paths import FIXTURES
from helpers.runner import Runner

from edgerun.backends.cpu import CPUBackend


@pytest.fixture
def busy() -> Iterator[None]:
    """As many spinning processes as cores, three at most."""
    n = min(3, os.cpu_count() or 1)
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(n)]
    yield
    for p in processes:
        p.kill()
        p.wait()


# gemma2: sums stored by the next phase's prologue and a soft-cap; qwen2: biases; phi3: one fused
# matrix; head norms in qwen3; experts and sinks in gpt-oss.
@pytest.mark.parametrize("name", ["gemma2", "qwen2", "phi3", "qwen3", "gpt_oss"])
@pytest.mark.parametrize("threads", [2, 5])
def test_late_threads_do_not_touch_the_bits(busy: None, name: str, threads: int) -> None:
    ids = np.random.default_rng(11).integers(0, 200, 120).tolist()
    found = {}
    for n in (1, threads):
        backend = CPUBackend(threads=n)
        runner = Runner(FIXTURES / "arch" / f"{name}.gguf", backend, n_ctx=256, n_pages=16)
        for chunk in (1, 5, 16) if n > 1 else (50,):
            found[n, chunk] = runner.logits(ids, chunk=chunk).view(np.uint32)
        backend.close()
    alone = found.pop((1, 50))
    for key, bits in found.items():
        np.testing.assert_array_equal(alone, bits, err_msg=str(key))


def test_long_and_short_batches_take_turns(busy: None) -> None:
    """Each long batch moves what late threads of the short ones before it may still read."""
    ids = np.random.default_rng(12).integers(0, 200, 230).tolist()
    backend = CPUBackend(threads=3)
    runner = Runner(FIXTURES / "arch" / "llama.gguf", backend, n_ctx=1024, n_pages=64)
    expected = runner.logits(ids, chunk=512).view(np.uint32)
    sequence = runner.begin()
    at, size, parts = 0, 17, []
    while at < len(ids):  # 17 tokens, 1, 1, 18, 1, 1, ...: buffers grow each time
        for n in (size, 1, 1):
            part = ids[at : at + n]
            if part:
                parts.append(runner.step([(sequence, part, range(len(part)))]))
            at += len(part)
        size += 1
    np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), expected)
    backend.close()
