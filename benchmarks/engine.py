"""What the engine makes of several requests, long prompts and restarts, on real requests.

    python benchmarks/engine.py --peer llama_cpp
    python benchmarks/engine.py --first --gap --only smollm2
    python benchmarks/engine.py --peer llama_cpp --json results.json --markdown
    python benchmarks/engine.py --from results.json

``concurrent``: tokens a second while 1 to 16 requests run at once, each with a reader of its own,
without speculation; the peer decodes as many in one batch, in turns with edgerun. ``first token``:
of a long prompt nobody knows, of the same prompt again, and once more after a restart, when it
comes from disk. ``gap``: the time between two tokens of a running answer while a long prompt
arrives. Figures are medians over the rounds, ratios those of the rounds' own. Ctrl-C ends the run
and keeps what it has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _engines import Peer, Worker, say, workers
from _machine import read_rate
from _models import MODELS, path_of
from _report import Against, Row
from _results import Results, Section, Setup, show

COUNTS = (1, 2, 4, 8, 16)
TOKENS = 64  # that each of several requests is answered with
TARGET = 100.0  # ms from one token to the next, ``LLM``'s default
SCRIPT = "_requests.py"


def parse() -> argparse.Namespace:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = ap.add_argument_group("sections; all of them if none is named")
    what.add_argument("--concurrent", action="store_true", help="1 to 16 requests at once")
    what.add_argument("--first", action="store_true", help="first token: cold, warm, restarted")
    what.add_argument("--gap", action="store_true", help="a stream while a long prompt arrives")
    ap.add_argument("--prompt", type=int, default=4096, help="tokens of the long prompt")
    ap.add_argument("--peer", action="append", choices=["llama_cpp"], default=[])
    ap.add_argument("--peer-python", default=sys.executable, help="a Python with llama_cpp")
    ap.add_argument("--only", action="append", choices=list(MODELS), help="a model; repeatable")
    ap.add_argument("--threads", type=int, help="default: edgerun's own")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument(
        "--json", metavar="FILE", help="write rows, machine and engines; kept up to date"
    )
    ap.add_argument(
        "--markdown", action="store_true", help="print the results as tables at the end"
    )
    ap.add_argument("--from", dest="source", metavar="FILE", help="show an earlier --json instead")
    args = ap.parse_args()
    if args.rounds < 1 or args.prompt < 1024 or (args.threads is not None and args.threads < 1):
        ap.error("--rounds and --threads are at least 1, --prompt is at least 1024")
    if not (args.concurrent or args.first or args.gap):
        args.concurrent = args.first = args.gap = True
    return args


def concurrent(setup: Setup) -> Iterator[Row]:
    """Requests at once; one is the measure of the others."""
    for name in setup.models:
        with workers(setup.peers, path_of(name), setup.threads, 4096, script=SCRIPT) as running:
            setup.met(running)
            found, reads = _together(running, setup, MODELS[name][0])
        ours = found["edgerun"]
        for n in COUNTS:
            row = Row("concurrent", name, f"{n} at once", _median(ours[n], "running"))
            row.read_gb_s = statistics.median(reads)
            alone = [a["running"] / b["running"] for a, b in zip(ours[n], ours[1], strict=True)]
            row.more = {
                "of one alone": statistics.median(alone),
                "with prompts": _median(ours[n], "whole"),
            }
            for engine, theirs in found.items():
                if engine == "edgerun":
                    continue
                pairs = zip(ours[n], theirs[n], strict=True)
                ratios = [a["running"] / b["running"] for a, b in pairs]
                value = _median(theirs[n], "running")
                row.peers[engine] = Against(
                    value, statistics.median(ratios), min(ratios), max(ratios)
                )
                row.more[f"{engine} with prompts"] = _median(theirs[n], "whole")
            yield row


def _together(
    running: list[Worker], setup: Setup, label: str
) -> tuple[dict[str, dict[int, list[dict[str, float]]]], list[float]]:
    """Answers by engine, requests at once and round; and the read rate of each round. One more
    round goes first, with fewer tokens, and warms up."""
    found: dict[str, dict[int, list[dict[str, float]]]] = {
        w.engine: {n: [] for n in COUNTS} for w in running
    }
    reads = []
    for round_ in range(setup.rounds + 1):
        say(f"  {label}: round {round_} of {setup.rounds}" if round_ else f"  {label}: warming up")
        read = read_rate(setup.threads)
        for n in COUNTS:
            for w in running:
                answer = w.ask(f"together {n} {TOKENS if round_ else 8}")
                if round_:
                    found[w.engine][n].append(answer)
        if round_:
            reads.append(read)
    return found, reads


def _median(answers: list[dict[str, float]], key: str) -> float:
    return statistics.median(a[key] for a in answers)


def first_token(setup: Setup, n: int) -> Iterator[Row]:
    """A process that computes a prompt and sees it again; another that finds it on disk."""
    for name in setup.models:
        found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": [], "restarted": []}
        for round_ in range(1, setup.rounds + 1):
            say(f"  {MODELS[name][0]}, first token: round {round_} of {setup.rounds}")
            with tempfile.TemporaryDirectory(prefix="edgerun-bench-") as home:
                env = {"EDGERUN_HOME": home}
                worker = _start(setup, name, n, env)
                try:
                    worker.ask("together 1 8")
                    for case in ("cold", "warm"):
                        found[case].append(worker.ask(f"first {n} {round_}"))
                    worker.ask("close")
                finally:
                    worker.close()
                _forget(Path(home))
                worker = _start(setup, name, n, env)
                try:
                    found["restarted"].append(worker.ask(f"first {n} {round_}"))
                finally:
                    worker.close()
        for case, answers in found.items():
            row = Row("first token", name, f"{n} {case}", 1e3 * _median(answers, "seconds"), "ms")
            pairs = zip(answers, found["cold"], strict=True)
            if case != "cold":
                row.more["of cold"] = statistics.median(
                    a["seconds"] / b["seconds"] for a, b in pairs
                )
            row.more["cached"] = _median(answers, "cached")
            yield row


def _start(setup: Setup, name: str, n: int, env: dict[str, str]) -> Worker:
    worker = Worker(
        sys.executable, "edgerun", path_of(name), setup.threads, 2 * n,
        env=env, script=SCRIPT, disk="2G",
    )  # fmt: skip
    setup.met([worker])
    return worker


def _forget(folder: Path) -> None:
    """Have the files below ``folder`` read from the disk next time, where the system can be
    asked."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.rglob("*.kv"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # what is not written yet would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def gap(setup: Setup, n: int) -> Iterator[Row]:
    """The longest gap of a running answer; the median of the rounds'."""
    for name in setup.models:
        with workers([], path_of(name), setup.threads, 2 * n, script=SCRIPT) as (worker,):
            setup.met([worker])
            answers: list[dict[str, Any]] = []
            for round_ in range(setup.rounds + 1):
                say(f"  {MODELS[name][0]}, gap: round {round_} of {setup.rounds}")
                answer = worker.ask(f"gap {n if round_ else 1024}")
                answers.extend([answer] if round_ else [])
        most = [1e3 * max(a["gaps"]) for a in answers]
        value = statistics.median(most)
        row = Row("gap", name, f"{n} arriving", value, "ms")
        gaps = sorted(1e3 * g for a in answers for g in a["gaps"])
        row.more = {
            "of the target": value / TARGET,
            "median": statistics.median(gaps),
            "p99": gaps[int(0.99 * (len(gaps) - 1))],
            "worst": max(most),
            "alone": 1e3 * statistics.median(g for a in answers for g in a["alone"]),
            "s for the prompt": statistics.median(a["seconds"] for a in answers),
        }
        yield row


def chosen(args: argparse.Namespace, setup: Setup) -> Iterator[tuple[str, Section]]:
    if args.concurrent:
        yield "concurrent", lambda: concurrent(setup)
    if args.first:
        yield "first token", lambda: first_token(setup, args.prompt)
    if args.gap:
        yield "gap", lambda: gap(setup, args.prompt)


def main() -> int:
    args = parse()
    if args.source:
        return show(args.source)
    from edgerun.backends.cpu import default_threads

    peers = [Peer(name, args.peer_python) for name in dict.fromkeys(args.peer)]
    setup = Setup(args.threads or default_threads(), args.rounds, peers, args.only or list(MODELS))
    return Results(setup, args.json).run(chosen(args, setup), args.markdown)


if __name__ == "__main__":
    sys.exit(main())
