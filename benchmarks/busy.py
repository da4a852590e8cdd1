"""Decode speed while other processes want the cores: as a share of the speed without them.

    python benchmarks/busy.py --threads 2
    python benchmarks/busy.py -m model.gguf --library old.so --library new.so --rounds 10

Beside the engine run 0, 1 and 2 processes that only spin. Each round measures every load and every
library in turn, and compares with its own quiet turn, so a drift of the machine's speed touches all
alike; medians over the rounds.

What the scheduler leaves to the engine bounds what it can keep, so the cores it got are shown too.
On two cores a fair share beside one and two processes is 1.5 and 1.0 of them. Between sessions
Linux shares by session first (``sched_autogroup``), as it does between the groups that desktops
and services put programs into: with ``--apart`` it is 1.33 and 0.67.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _engines import Worker, own_group, say
from _machine import machine_facts, read_rate

LOADS = (0, 1, 2)


@contextmanager
def spinning(n: int, apart: bool = False) -> Iterator[None]:
    """``n`` processes that take whatever core they get; ``apart``: each in its own session."""
    spin = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    how: dict[str, Any] = {"start_new_session": True} if apart else own_group()
    busy = [subprocess.Popen(spin, stdout=subprocess.PIPE, **how) for _ in range(n)]
    try:
        for p in busy:
            assert p.stdout is not None
            p.stdout.readline()
        yield
    finally:
        for p in busy:
            p.kill()
            p.wait()


def open_worker(path: Path, threads: int, library: str | None) -> Worker:
    env = {"EDGERUN_CPU_LIB": str(Path(library).resolve())} if library else None
    return Worker(sys.executable, "edgerun", path, threads, 1024, env=env)


@dataclass
class Found:
    """One engine: by load, in the order of the rounds, tokens a second and the cores it had."""

    speeds: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in LOADS})
    cores: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in LOADS})

    def of_quiet(self, load: int) -> float:
        pairs = zip(self.speeds[load], self.speeds[0], strict=True)
        return statistics.median(busy / quiet for busy, quiet in pairs)


def measure(
    workers: Sequence[Worker], rounds: int, tokens: int, threads: int, apart: bool = False
) -> tuple[list[Found], list[float]]:
    """What each worker did, and GB/s read with no load, by round."""
    found = [Found() for _ in workers]
    reads = []
    for w in workers:
        w.seconds("prefill 64")
        w.seconds("decode 8 64")
    for round_ in range(rounds):
        say(f"  busy: round {round_ + 1} of {rounds}")
        reads.append(read_rate(threads))
        for load in LOADS:
            with spinning(load, apart):
                for w, f in zip(workers, found, strict=True):
                    before = w.seconds("cpu")
                    took = w.seconds(f"decode {tokens} 64")
                    f.speeds[load].append(tokens / took)
                    f.cores[load].append((w.seconds("cpu") - before) / took)
    return found, reads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="a path or a catalogue name")
    parser.add_argument("--library", action="append", help="a build of the CPU library; repeatable")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128, help="timed at a time")
    parser.add_argument("--apart", action="store_true", help="busy processes in their own sessions")
    args = parser.parse_args()
    from edgerun.catalog import resolve

    path = Path(args.model) if Path(args.model).exists() else resolve(args.model).path
    libraries = args.library or [None]
    workers = [open_worker(path, args.threads, x) for x in libraries]
    print(machine_facts(), f"threads {args.threads}", path.name)
    try:
        found, reads = measure(workers, args.rounds, args.tokens, args.threads, args.apart)
    finally:
        for w in workers:
            w.close()
    print(f"read {statistics.median(reads):.1f} GB/s")
    print(f"{'library':40} {'busy':>4} {'t/s':>8} {'of quiet':>9} {'cores':>6}")
    for library, f in zip(libraries, found, strict=True):
        for load in LOADS:
            speed, cores = statistics.median(f.speeds[load]), statistics.median(f.cores[load])
            name = (library or "installed")[-40:]
            print(f"{name:40} {load:4} {speed:8.1f} {f.of_quiet(load):9.2f} {cores:6.2f}")


if __name__ == "__main__":
    main()
