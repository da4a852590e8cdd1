"""Cases in processes of their own: one that fails, crashes or hangs takes no other's results with
it, and what was found is on disk at once."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgerun.errors import OutOfMemoryError

__all__ = ["Case", "Row", "Run", "serve"]

Row = dict[str, Any]
#: A name, and what yields rows; one with ``ok`` false is a failure.
Case = tuple[str, Callable[[], Iterable[Row]]]

#: Exit status of a child whose device may be of no more use: the next case gets a new process.
_AGAIN = 3
#: Seconds without a word after which a child hangs: kernels that are compiled take the longest.
QUIET = 120.0
#: Cases of a part that may fail so badly before the rest of it is left.
_MOST_RESTARTS = 6


def _say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def serve(cases: Iterable[Case], start: int) -> int:
    """A child's work: the cases from ``start`` on, said line by line; its exit status."""
    for i, (name, act) in enumerate(cases):
        if i < start:
            continue
        _say(begun=i, name=name)
        try:
            for row in act():
                _say(row=row)
        except OutOfMemoryError as e:
            _say(skipped=f"{name}: {e}")
            return _AGAIN  # whatever it holds goes with the process
        except Exception as e:
            _say(failed=f"{name}: {type(e).__name__}: {e}", trace=traceback.format_exc())
            return _AGAIN
    return 0


def said(row: Row) -> str:
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())


class Run:
    """All results so far, in ``out`` and in a file, and the time that is left.

    Args:
        minutes: after so long nothing is begun, and what runs is ended.
        path: of the results, None = nowhere.
        command: starts a child, when the part's name and the first case's number are added.
    """

    def __init__(self, minutes: float, path: Path | None, command: Sequence[str]) -> None:
        self._begin = time.monotonic()
        self._end = self._begin + 60 * minutes
        self._path = path
        self._command = list(command)
        self.out: Row = {"failures": [], "skipped": []}

    def add(self, **facts: Any) -> None:
        self.out |= facts
        self._write()

    def fail(self, what: str, trace: str = "") -> None:
        print(f"  FAILED {what}\n{trace}".rstrip(), flush=True)
        self.out["failures"].append(what)
        if trace:
            self.out.setdefault("traces", []).append(trace)
        self._write()

    def skip(self, what: str) -> None:
        print(f"  skipped: {what}", flush=True)
        self.out["skipped"].append(what)
        self._write()

    def part(self, name: str) -> None:
        """Run the cases of a part to the end, or until time is up."""
        print(f"\n{name} ({time.monotonic() - self._begin:.0f} s)", flush=True)
        start: int | None = 0
        for _ in range(_MOST_RESTARTS + 1):
            if time.monotonic() >= self._end:
                return self.skip(f"the rest of {name}" if start else name)
            start = self._child(name, start or 0)
            if start is None:
                return None
        return self.skip(f"the rest of {name}: too many failures")

    def _child(self, part: str, start: int) -> int | None:
        """One process; which case comes next, None = no more."""
        child = _Child([*self._command, part, str(start)])
        case, at = part, -1
        try:
            for message in child.messages(self._end):
                if "begun" in message:
                    at, case = message["begun"], message["name"]
                elif "row" in message:
                    self._row(part, message["row"])
                elif "skipped" in message:
                    self.skip(f"{part}: {message['skipped']}")
                elif "failed" in message:
                    self.fail(f"{part}: {message['failed']}", message["trace"])
        finally:
            status = child.end()
        if status == 0:
            return None
        if time.monotonic() >= self._end:
            self.skip(f"the rest of {part}")
            return None
        if status != _AGAIN:
            why = f"said nothing for {QUIET:.0f} s" if child.hung else f"ended with {status}"
            self.fail(f"{part}: {case}: the process {why}", "\n".join(child.tail))
        return at + 1 if at >= start else None  # a process that begins nothing will not next time

    def _row(self, part: str, row: Row) -> None:
        self.out.setdefault(part, []).append(row)
        print(f"  {said(row)}", flush=True)
        if row.get("ok") is False:
            self.fail(f"{part}: {row['case']}: {row['bad']}")
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self.out["seconds"] = round(time.monotonic() - self._begin, 1)
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(self.out, indent=1) + "\n")
        os.replace(part, self._path)


class _Child:
    """A process and what it says: lines of JSON, others are shown and the last of them kept."""

    def __init__(self, command: Sequence[str]) -> None:
        self.hung = self._over = False
        self.tail: deque[str] = deque(maxlen=30)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def messages(self, end: float) -> Iterator[Row]:
        """Until it ends, hangs, or the clock shows ``end``."""
        while True:
            left = end - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, min(QUIET, left)))
            except queue.Empty:
                self.hung = left > QUIET
                return
            if line is None:
                self._over = True
                return
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                yield message
            elif line:
                self.tail.append(line)
                print(f"  | {line}", flush=True)

    def end(self) -> int:
        """Its exit status, after it was ended if need be."""
        try:
            return self._process.wait(30.0 if self._over else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
