"""What is left of the engine's speed behind HTTP, and how the endpoint bears clients.

    python benchmarks/server.py
    python benchmarks/server.py --peer llama_cpp --peer-python .peer/bin/python
    python benchmarks/server.py --json results.json --markdown

1, 8 and 32 clients stream answers of 128 tokens from SmolLM2, each asking again as soon as it is
answered, for a bounded time. ``of the engine``: the same load on ``LLM`` in one process, without
HTTP, in the same round; clients share the machine's cores with the server. Then 200 streams are
left after their first event: no page of K and V, no request may be left. The peer is
llama-cpp-python's own server. Speculation is off. Ctrl-C ends the run and keeps what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _engines import HERE, EngineError, Peer, say
from _models import path_of
from _report import Against, Row
from _results import Results, Section, Setup, show

COUNTS = (1, 8, 32)
TOKENS = 128
DROPPED = 200


def parse() -> argparse.Namespace:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--seconds", type=float, default=12.0, help="of each load; a third warms up")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--threads", type=int, help="default: edgerun's own")
    ap.add_argument("--peer", action="append", choices=["llama_cpp"], default=[])
    ap.add_argument("--peer-python", default=sys.executable, help="a Python with llama_cpp.server")
    ap.add_argument("--json", metavar="FILE", help="write rows, machine and engines")
    ap.add_argument("--markdown", action="store_true", help="print the results as a table, too")
    ap.add_argument("--from", dest="source", metavar="FILE", help="show an earlier --json instead")
    args = ap.parse_args()
    if args.rounds < 1 or args.seconds < 3 or (args.threads is not None and args.threads < 1):
        ap.error("--rounds and --threads are at least 1, --seconds is at least 3")
    return args


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Served:
    """A server in a process of its own."""

    def __init__(self, command: list[str], port: int, model: str) -> None:
        self.url, self.model = f"http://127.0.0.1:{port}", model
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + 120
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                last = self._log.read().strip().splitlines()[-1:] or ["no message"]
                self.close()
                raise EngineError(f"the server did not start: {last[0]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return bool(self.get("/v1/models"))
        return False

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            text: str = response.read().decode()
            return text

    def rss(self) -> int:
        """MB of memory of its own and shared."""
        import psutil

        return int(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def clients(*words: object) -> dict[str, Any]:
    """What ``_clients.py`` has to say."""
    done = subprocess.run(
        [sys.executable, str(HERE / "_clients.py"), *map(str, words)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if done.returncode:
        raise EngineError((done.stderr.strip().splitlines() or ["a client failed"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def serve(path: Path, threads: int) -> Served:
    port = free_port()
    command = [
        sys.executable, "-m", "edgerun", "serve", "-m", str(path), "--port", str(port), "-q",
        "--threads", str(threads), "--ctx", "2048", "--speculation", "off", "--kv-disk", "off",
    ]  # fmt: skip
    return Served(command, port, path.stem)


def serve_peer(peer: Peer, path: Path, threads: int) -> Served:
    port = free_port()
    command = [
        peer.python, "-m", "llama_cpp.server", "--model", str(path), "--port", str(port),
        "--n_threads", str(threads), "--n_ctx", "2048", "--interrupt_requests", "false",
        "--model_alias", "model",
    ]  # fmt: skip
    return Served(command, port, "model")


def load(setup: Setup, seconds: float) -> Iterator[Row]:
    path = path_of("smollm2")
    with contextlib.ExitStack() as stack:
        ours = serve(path, setup.threads)
        stack.callback(ours.close)
        theirs = {p.engine: serve_peer(p, path, setup.threads) for p in setup.peers}
        for served in theirs.values():
            stack.callback(served.close)
        clients("http", ours.url, ours.model, 8, TOKENS, 3)  # what it takes once it takes here
        for n in COUNTS:
            yield _row(setup, seconds, n, path, ours, theirs)
        yield _dropped(ours)


def _row(
    setup: Setup, seconds: float, n: int, path: Path, ours: Served, theirs: dict[str, Served]
) -> Row:
    http: list[dict[str, Any]] = []
    engine: list[dict[str, Any]] = []
    peers: dict[str, list[dict[str, Any]]] = {name: [] for name in theirs}
    for round_ in range(1, setup.rounds + 1):
        say(f"  {n} clients: round {round_} of {setup.rounds}")
        engine.append(clients("engine", path, setup.threads, n, TOKENS, seconds))
        http.append(clients("http", ours.url, ours.model, n, TOKENS, seconds))
        for name, served in theirs.items():
            peers[name].append(clients("http", served.url, served.model, n, TOKENS, seconds))
    row = Row("server", "smollm2", f"{n} clients", statistics.median(r["rate"] for r in http))
    firsts = sorted(1e3 * x for r in http for x in r["first"])
    gaps = sorted(1e3 * x for r in http for x in r["gaps"])
    row.more = {
        "of the engine": _ratio(http, engine)[0],
        "first ms p50": _at(firsts, 0.5),
        "first ms p95": _at(firsts, 0.95),
        "gap ms p50": _at(gaps, 0.5),
        "gap ms p99": _at(gaps, 0.99),
        "rss MB": ours.rss(),
    }
    for name, found in peers.items():
        value = statistics.median(r["rate"] for r in found)
        row.peers[name] = Against(value, *_ratio(http, found))
        row.more[f"{name} first ms p50"] = _at(
            sorted(1e3 * x for r in found for x in r["first"]), 0.5
        )
    return row


def _ratio(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Median, least and most of the rounds' ratios; of a load that answered nothing, 0."""
    ratios = [x["rate"] / y["rate"] if y["rate"] else 0.0 for x, y in zip(a, b, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))] if values else float("nan")


def _dropped(ours: Served) -> Row:
    say(f"  {DROPPED} streams left, twice")
    clients("drop", ours.url, ours.model, DROPPED)  # what it keeps once is no leak
    begun = ours.rss()
    clients("drop", ours.url, ours.model, DROPPED)
    left = {"edgerun_kv_pages_used": -1.0, "edgerun_running": -1.0, "edgerun_waiting": -1.0}
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for line in ours.get("/metrics").splitlines():
            name = line.split("{")[0].split(" ")[0]
            if name in left:
                left[name] = float(line.rsplit(" ", 1)[1])
        if not any(left.values()):
            break
        time.sleep(0.05)
    again = clients("http", ours.url, ours.model, 1, TOKENS, 3)
    row = Row(
        "server", "smollm2", f"{DROPPED} dropped", left["edgerun_kv_pages_used"], "pages left"
    )
    row.more = {
        "requests left": left["edgerun_running"] + left["edgerun_waiting"],
        "first ms after": 1e3 * statistics.median(again["first"]),
        "rss MB grown": ours.rss() - begun,
    }
    return row


def main() -> int:
    args = parse()
    if args.source:
        return show(args.source)
    from edgerun.backends.cpu import default_threads

    peers = [Peer(name, args.peer_python) for name in dict.fromkeys(args.peer)]
    setup = Setup(args.threads or default_threads(), args.rounds, peers, ["smollm2"])
    section: Section = lambda: load(setup, args.seconds)  # noqa: E731
    return Results(setup, args.json).run([("server", section)], args.markdown)


if __name__ == "__main__":
    sys.exit(main())
