"""Decode speed while other processes want the cores: as a share of the speed without them.

    python benchmarks/busy.py --threads 2
    python benchmarks/busy.py -m model.gguf --library old.so --library new.so --rounds 10

Beside the engine run 0, 1 and 2 processes that only spin. Each round measures every load and every
library in turn, so a drift of the machine's speed touches all alike; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _engines import Worker, say
from _machine import machine_facts, read_rate

LOADS = (0, 1, 2)


@contextmanager
def spinning(n: int) -> Iterator[None]:
    """``n`` processes that take whatever core they get."""
    spin = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    busy = [
        subprocess.Popen(spin, stdout=subprocess.PIPE, start_new_session=True) for _ in range(n)
    ]
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


def measure(
    workers: Sequence[Worker], rounds: int, tokens: int, threads: int
) -> tuple[list[dict[int, list[float]]], list[float]]:
    """Tokens a second by worker and load, and GB/s read with no load, by round."""
    speeds: list[dict[int, list[float]]] = [{load: [] for load in LOADS} for _ in workers]
    reads = []
    for w in workers:
        w.seconds("prefill 64")
        w.seconds("decode 8 64")
    for round_ in range(rounds):
        say(f"  busy: round {round_ + 1} of {rounds}")
        reads.append(read_rate(threads))
        for load in LOADS:
            with spinning(load):
                for w, found in zip(workers, speeds, strict=True):
                    found[load].append(tokens / w.seconds(f"decode {tokens} 64"))
    return speeds, reads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2-135m", help="a path or a catalogue name")
    parser.add_argument("--library", action="append", help="a build of the CPU library; repeatable")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128, help="timed at a time")
    args = parser.parse_args()
    from edgerun.catalog import resolve

    path = Path(args.model) if Path(args.model).exists() else resolve(args.model).path
    libraries = args.library or [None]
    workers = [open_worker(path, args.threads, x) for x in libraries]
    print(machine_facts(), f"threads {args.threads}", path.name)
    try:
        speeds, reads = measure(workers, args.rounds, args.tokens, args.threads)
    finally:
        for w in workers:
            w.close()
    print(f"read {statistics.median(reads):.1f} GB/s")
    print(f"{'library':40} {'busy':>4} {'t/s':>8} {'of quiet':>9}")
    for library, found in zip(libraries, speeds, strict=True):
        quiet = statistics.median(found[0])
        for load in LOADS:
            speed = statistics.median(found[load])
            name = library or "installed"
            print(f"{name[-40:]:40} {load:4} {speed:8.1f} {speed / quiet:9.2f}")


if __name__ == "__main__":
    main()
