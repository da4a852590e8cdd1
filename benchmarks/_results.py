"""A run: how to measure, and the rows so far, on the screen and in a file."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _engines import EngineError, Peer, Worker, say
from _machine import machine_facts
from _report import Row, cells, from_json, line, markdown, titles, to_json

Section = Callable[[], Iterator[Row]]


@dataclass
class Setup:
    """How to measure; ``engines`` collects what each engine said of itself."""

    threads: int
    rounds: int
    peers: list[Peer]
    models: list[str]
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def met(self, running: Sequence[Worker]) -> None:
        for w in running:
            self.engines.setdefault(w.engine, w.facts)

    def only(self, engine: str) -> list[Peer]:
        """The peer of that name, if it takes part: others cannot do what the section asks."""
        return [p for p in self.peers if p.engine == engine]


class Results:
    """Rows so far, on the screen and in ``--json``'s file."""

    def __init__(self, setup: Setup, file: str | None) -> None:
        self._setup = setup
        self._file = file
        self._begin = time.monotonic()
        self._facts = machine_facts()
        self.rows: list[Row] = []
        self.errors: list[str] = []
        facts = {**self._facts, "threads": setup.threads}
        print(", ".join(f"{k} {v}" for k, v in facts.items()), flush=True)

    def run(self, sections: Iterable[tuple[str, Section]], tables: bool) -> int:
        """Measure section by section; what was found is kept when one fails, or at Ctrl-C.

        ``tables``: print all of it as Markdown at the end. Returns the exit status.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as at Ctrl-C
        try:
            for name, section in sections:
                say(f"{name}:")
                try:
                    for row in section():
                        self.add(row)
                except EngineError as e:  # the other sections may do
                    self.errors.append(f"{name}: {e}")
                    say(f"{name} left unfinished: {e}")
        except KeyboardInterrupt:
            self.errors.append("interrupted")
            say("interrupted")
        self.write()
        if tables:
            print("\n" + markdown(self.rows))
        return 1 if self.errors else 0

    def add(self, row: Row) -> None:
        engines = [p.engine for p in self._setup.peers]
        heads = titles(engines)
        if not self.rows or self.rows[-1].section != row.section:
            print(f"\n{row.section}\n{line(heads, heads)}")
        print(line(cells(row, engines), heads), flush=True)
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        if self._file is None:
            return
        data: dict[str, Any] = {
            "machine": self._facts,
            "threads": self._setup.threads,
            "rounds": self._setup.rounds,
            "minutes": round((time.monotonic() - self._begin) / 60, 1),
            "engines": self._setup.engines,
            "errors": self.errors,
            "rows": [to_json(r) for r in self.rows],
        }
        Path(self._file).write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def show(file: str) -> int:
    """Print an earlier run's tables."""
    data = json.loads(Path(file).read_text("utf-8"))
    print(markdown([from_json(r) for r in data["rows"]]))
    return 0
