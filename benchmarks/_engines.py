"""Engines in processes of their own, and the loop that times them in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import dot_rate, read_rate

HERE = Path(__file__).parent


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def own_group() -> dict[str, Any]:
    """For ``Popen``: Ctrl-C is for this process alone, so what was measured is kept. Not a session
    of its own, since Linux shares cores between sessions before it does between processes."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    if sys.version_info >= (3, 11):
        return {"process_group": 0}
    return {"preexec_fn": os.setpgrp}


class EngineError(Exception):
    """An engine's process ended early or answered with an error."""


class Worker:
    """An engine's process, running ``script``; ``env`` is added to this one's environment.

    Attributes: ``engine``, its name; ``facts``, what it said of itself once loaded.
    """

    def __init__(
        self, python: str, engine: str, path: Path, threads: int, n_ctx: int | None = None,
        kv: str | None = None, env: Mapping[str, str] | None = None,
        script: str = "_worker.py", disk: str | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        what = {"engine": engine, "path": str(path), "threads": threads, "n_ctx": n_ctx}
        what |= {"kv": kv, "disk": disk}
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, str(HERE / script), json.dumps(what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=self._log,
            env={**os.environ, **(env or {})},
            **own_group(),
        )
        self.facts: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["no message"]
            self.close()
            raise EngineError(f"{self.engine} ended early: {last[0]}")
        return json.loads(line)

    def ask(self, command: str) -> Any:
        """The answer to ``command``; a number is seconds, ``None`` that it cannot."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def seconds(self, command: str) -> float:
        return float(self.ask(command))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class Peer:
    """An engine to compare with, and a Python that has it."""

    engine: str
    python: str


@contextmanager
def workers(
    peers: Sequence[Peer], path: Path, threads: int, n_ctx: int | None, *,
    kv: str | None = None, env: Mapping[str, str] | None = None, script: str = "_worker.py",
) -> Iterator[list[Worker]]:  # fmt: skip
    """edgerun first, to which ``env`` applies, then the peers that take the file; all closed at
    the end."""
    with ExitStack() as stack:
        out = []
        for peer in [Peer("edgerun", sys.executable), *peers]:
            say(f"  loading {path.name} with {peer.engine}")
            try:
                ours = env if peer.engine == "edgerun" else None
                worker = Worker(peer.python, peer.engine, path, threads, n_ctx, kv, ours, script)
            except EngineError as e:
                if peer.engine == "edgerun":
                    raise
                say(f"  left out: {e}")
                continue
            out.append(worker)
            stack.callback(worker.close)
        yield out


@dataclass
class Timing:
    """One case: tokens a second by engine and round, and the limits measured before each round."""

    speeds: dict[str, list[float]] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    dots: list[float] = field(default_factory=list)

    def median(self, engine: str) -> float | None:
        return statistics.median(self.speeds[engine]) if self.speeds.get(engine) else None

    def ratios(self, engine: str) -> list[float]:
        """edgerun's speed by ``engine``'s, round by round."""
        pairs = zip(self.speeds.get("edgerun", []), self.speeds.get(engine, []), strict=False)
        return [a / b for a, b in pairs]


def interleave(
    running: Sequence[Worker], command: str, tokens: int, rounds: int, threads: int, label: str,
    before: Sequence[str] = (),
) -> Timing:  # fmt: skip
    """Each round: the machine's limits, then ``command``, which counts ``tokens``, with each engine
    in turn. One more round goes first and warms up. ``before``: commands done once, untimed. An
    engine that cannot do a command is left out."""
    timing = Timing()
    for worker in running:
        for c in before:
            say(f"  {label}: {c} with {worker.engine}")
            worker.ask(c)
    for round_ in range(rounds + 1):
        say(f"  {label}: round {round_} of {rounds}" if round_ else f"  {label}: warming up")
        read, dot = read_rate(threads), dot_rate(threads)
        for worker in running:
            took = worker.ask(command)
            if round_ and took is not None:
                timing.speeds.setdefault(worker.engine, []).append(tokens / took)
        if round_:
            timing.reads.append(read)
            timing.dots.extend([dot] if dot else [])
    return timing
