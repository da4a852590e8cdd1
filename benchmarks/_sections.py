"""What ``cpu.py`` can measure: each section yields its rows as it finds them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import busy
from _engines import EngineError, Worker, interleave, say, workers
from _machine import read_rate
from _models import MODELS, cost_of, path_of, temporary
from _report import Against, Row, row_of
from _results import Setup

#: Bytes of one K or V value by KV type.
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}


def speed(setup: Setup) -> Iterator[Row]:
    """Prefill, decode, and 8 sequences at once."""
    for name in setup.models:
        path = path_of(name)
        with workers(setup.peers, path, setup.threads, 2048) as running:
            setup.met(running)
            yield from _prefill_decode("speed", name, path, setup, running)
            label = f"{MODELS[name][0]}, 8 sequences"
            timing = interleave(running, "batch 64 8", 8 * 64, setup.rounds, setup.threads, label)
            yield row_of("speed", name, "8 sequences", timing)


def _prefill_decode(
    section: str, name: str, path: Path, setup: Setup, running: Sequence[Worker]
) -> Iterator[Row]:
    cost, title = cost_of(path), MODELS[name][0]
    many = (setup.rounds, setup.threads)
    timing = interleave(running, "prefill 512", 512, *many, f"{title}, prefill")
    yield row_of(section, name, "prefill 512", timing, products=cost.products)
    before = ["prefill 512"]
    timing = interleave(running, "decode 128 512", 128, *many, f"{title}, decode", before)
    read = cost.read + (512 + 64) * cost.kv * _KV_BYTES["f16"]
    yield row_of(section, name, "decode 128", timing, bytes_read=read)


def isa(setup: Setup, name: str) -> Iterator[Row]:
    """SmolLM2 with an instruction set forced, the peers with what they like."""
    path = path_of("smollm2")
    env = {"EDGERUN_ISA": name}
    peers = setup.only("llama_cpp")
    with workers(peers, path, setup.threads, 2048, env=env) as running:
        setup.engines[f"edgerun, {name}"] = running[0].facts
        yield from _prefill_decode(f"isa {name}", "smollm2", path, setup, running)


def types(setup: Setup, names: Sequence[str], shape: str = "llama-1b") -> Iterator[Row]:
    """Decode in each type against the rate at which its bytes can be read."""
    for name in names:
        with temporary(shape, name) as path:
            cost = cost_of(path)
            read = cost.read + (64 + 12) * cost.kv * _KV_BYTES["f16"]
            with workers([], path, setup.threads, 512) as running:
                setup.met(running)
                timing = interleave(
                    running, "decode 24 64", 24, setup.rounds, setup.threads, name, ["prefill 64"]
                )
        yield row_of("types", f"{shape} {name}", "decode 24", timing, bytes_read=read)


def context(setup: Setup, n: int, name: str = "llama-1b") -> Iterator[Row]:
    """Decode behind ``n`` tokens that were prefilled, by type of the KV cache."""
    from edgerun.backends.cpu import CPUBackend

    path = path_of(name)
    cost = cost_of(path)
    for kv in ("f16", "q8_0"):
        if kv not in CPUBackend.kv_types:
            say(f"  no {kv} cache in this edgerun")
            continue
        peers = setup.only("llama_cpp")
        with workers(peers, path, setup.threads, n + 256, kv=kv) as running:
            setup.met(running)
            before = [f"prefill {n}"]
            label = f"context {n}, {kv}"
            timing = interleave(
                running, f"decode 16 {n}", 16, setup.rounds, setup.threads, label, before
            )
        read = cost.read + (n + 8) * cost.kv * _KV_BYTES[kv]
        yield row_of("context", name, f"decode 16 at {n}, {kv}", timing, bytes_read=read)


def beside_busy(setup: Setup) -> Iterator[Row]:
    """Decode while other processes spin, as a share of decode without them."""
    for name in [m for m in setup.models if m in ("smollm2", "llama-1b")]:
        with workers(setup.only("llama_cpp"), path_of(name), setup.threads, 1024) as running:
            setup.met(running)
            found, reads = busy.measure(running, setup.rounds, 128, setup.threads)
        ours = found[0]
        for load in busy.LOADS:
            speeds = ours.speeds[load]
            row = Row("busy", name, f"decode 128, {load} busy", statistics.median(speeds))
            row.read_gb_s = statistics.median(reads)
            row.more = {
                "of quiet": ours.of_quiet(load), "cores": statistics.median(ours.cores[load])
            }  # fmt: skip
            for worker, peer in zip(running[1:], found[1:], strict=True):
                ratios = [a / b for a, b in zip(speeds, peer.speeds[load], strict=True)]
                value = statistics.median(peer.speeds[load])
                middle = statistics.median(ratios)
                row.peers[worker.engine] = Against(value, middle, min(ratios), max(ratios))
                row.more[f"{worker.engine} of its own"] = peer.of_quiet(load)
            yield row


def start(setup: Setup) -> Iterator[Row]:
    """A short answer from process start to exit, and a larger model's load; files cached."""
    command = [sys.executable, "-m", "edgerun", "run", "-m", str(path_of("smollm2"))]
    command += ["-n", "16", "--temp", "0", "--ignore-eos", "--threads", str(setup.threads)]
    # As after an installation, which compiles all modules: the first round, not counted, does it.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    took = []
    for round_ in range(setup.rounds + 1):
        say(f"  run -n 16: round {round_}")
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, "Why is the sky blue?"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env,
            start_new_session=True,
        )  # fmt: skip
        took.append(time.perf_counter() - begin)
        if done.returncode or not done.stdout.strip():
            raise EngineError(f"edgerun run: {done.stderr.strip().splitlines()[-1:]}")
    yield Row("start", "smollm2", "run -n 16", statistics.median(took[1:]), "s")

    path = path_of("llama-1b")
    loads, peaks, reads = [], [], []
    for round_ in range(setup.rounds + 1):
        say(f"  load: round {round_}")
        reads.append(read_rate(setup.threads))
        worker = Worker(sys.executable, "edgerun", path, setup.threads)
        try:
            setup.met([worker])
            loads.append(worker.facts["load_s"])
            worker.seconds("prefill 64")
            peaks.append(int(worker.ask("memory")))
        finally:
            worker.close()
    size = cost_of(path).file
    row = Row("start", "llama-1b", "load", statistics.median(loads[1:]), "s")
    row.read_gb_s = statistics.median(reads[1:])
    row.more = {"GB/s of file": size / row.value / 1e9}
    yield row
    peak = statistics.median(peaks[1:])
    row = Row("start", "llama-1b", "peak memory", peak / size, "x file")
    row.more = {"bytes": peak, "of file": size}
    yield row
