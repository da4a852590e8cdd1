"""CPU speed, edgerun beside a peer, interleaved in one run.

    python benchmarks/cpu.py --peer llama_cpp
    python benchmarks/cpu.py --only smollm2 --rounds 5 --json results.json

Each engine runs in its own process and waits while the other is timed. Medians over the rounds;
``ratio`` is the median of the rounds' own ratios, which holds up when the machine's speed drifts.
``read`` is the memory read rate measured in the same rounds: decode at batch 1 can reach at most
``read / bytes of the weights``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _machine import machine_facts, read_rate

HERE = Path(__file__).parent


def _catalogue(name: str) -> Callable[[], Path]:
    def path() -> Path:
        from edgerun.catalog import resolve

        return resolve(name).path

    return path


def _synthetic(shape: str, quant: str) -> Callable[[], Path]:
    def path() -> Path:
        file = Path(tempfile.gettempdir()) / f"edgerun-{shape}-{quant}.gguf"
        if not file.exists():
            print(f"writing {file} ...", file=sys.stderr)
            part = file.with_suffix(".part")
            command = [
                sys.executable,
                HERE / "synth_gguf.py",
                part,
                "--shape",
                shape,
                "--quant",
                quant,
            ]
            subprocess.run(command, check=True)
            part.rename(file)
        return file

    return path


MODELS = {
    "smollm2": ("SmolLM2-135M Q4_1", _catalogue("smollm2-135m")),
    "gemma3": ("Gemma 3 270M Q4_K_M", _catalogue("gemma3-270m")),
    "llama-1b": ("llama-1b shape Q4_K_M", _synthetic("llama-1b", "Q4_K_M")),
}

#: name -> (tokens counted, commands; the last one is timed)
CASES: dict[str, tuple[int, tuple[str, ...]]] = {
    "prefill 512": (512, ("prefill 512",)),
    "decode 128": (128, ("prefill 512", "decode 128 512")),
    "8 sequences": (8 * 64, ("batch 64 8",)),
}


class Worker:
    """An engine's process."""

    def __init__(self, python: str, engine: str, path: Path, threads: int, n_ctx: int) -> None:
        command = [python, str(HERE / "_worker.py"), engine, str(path), str(threads), str(n_ctx)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL,
        )
        self.facts: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self._process.args))} ended early")  # type: ignore[arg-type]
        return json.loads(line)

    def seconds(self, command: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Row:
    model: str
    case: str
    ours: float
    peer: float | None
    ratio: float | None
    spread: tuple[float, float]
    read_gb_s: float


def measure(title: str, path: Path, args: argparse.Namespace) -> list[Row]:
    workers = [Worker(sys.executable, "edgerun", path, args.threads, args.ctx)]
    if args.peer:
        workers.append(Worker(args.peer_python, args.peer, path, args.threads, args.ctx))
    rows = []
    try:
        for case, (tokens, commands) in CASES.items():
            speeds: list[list[float]] = [[] for _ in workers]
            reads = []
            for round_ in range(args.rounds + 1):
                reads.append(read_rate(args.threads))
                for worker, out in zip(workers, speeds, strict=True):
                    elapsed = [worker.seconds(c) for c in commands][-1]
                    if round_:  # the first round warms up
                        out.append(tokens / elapsed)
            ratios = [a / b for a, b in zip(speeds[0], speeds[1], strict=True)] if args.peer else []
            rows.append(
                Row(
                    title,
                    case,
                    statistics.median(speeds[0]),
                    statistics.median(speeds[1]) if args.peer else None,
                    statistics.median(ratios) if ratios else None,
                    (min(ratios), max(ratios)) if ratios else (0.0, 0.0),
                    statistics.median(reads),
                )
            )
            print_row(rows[-1])
    finally:
        for worker in workers:
            worker.close()
    return rows


def print_header(peer: str | None) -> None:
    print(f"{'model':<24}{'case':<14}{'edgerun t/s':>12}", end="")
    print(f"{peer + ' t/s':>16}{'ratio':>8}  min-max" if peer else "", f"{'read GB/s':>12}")


def print_row(r: Row) -> None:
    print(f"{r.model:<24}{r.case:<14}{r.ours:>12.1f}", end="")
    if r.ratio is not None and r.peer is not None:
        print(f"{r.peer:>16.1f}{r.ratio:>8.2f}  {r.spread[0]:.2f}-{r.spread[1]:.2f}", end="")
    print(f"{r.read_gb_s:>12.1f}", flush=True)


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--peer", choices=["llama_cpp"], help="engine to compare with")
    ap.add_argument("--peer-python", default=sys.executable, help="a Python that has the peer")
    ap.add_argument("--only", action="append", choices=list(MODELS), help="repeatable")
    ap.add_argument("--threads", type=int, default=None)
    ap.add_argument("--ctx", type=int, default=2048)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--json", metavar="FILE", help="also write the rows and the machine's facts")
    args = ap.parse_args()
    if args.threads is None:
        from edgerun.backends.cpu import default_threads

        args.threads = default_threads()
    facts = machine_facts()
    print(", ".join(f"{k} {v}" for k, v in facts.items()), f"threads {args.threads}", sep=", ")
    print_header(args.peer)
    rows: list[Row] = []
    for name in args.only or MODELS:
        title, path = MODELS[name]
        rows += measure(title, path(), args)
    if args.json:
        data = {"machine": facts, "threads": args.threads, "rows": [vars(r) for r in rows]}
        Path(args.json).write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
