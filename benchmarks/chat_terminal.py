"""``edgerun chat`` as a user's terminal sees it: start, typing, and the end, through a pty.

    python benchmarks/chat_terminal.py [--rounds N] [--model NAME|FILE]

- start: from the process's start to the composer on the screen; the model loads behind it.
- typing: from a key to its letter on the screen, one key every 40 ms: while the model loads, while
  nothing happens, and while an answer is written.
- end: from Ctrl-D to the end of the process, in the middle of an answer.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import time

#: In the composer, behind the cursor's cell; and letters that nothing else on the screen has.
_COMPOSER = b"sk anything"
_LETTERS = "ŁŒŘŠŤŮŰŹŻŽƁƆƇƉƊƑƓƔƗƘƝƠƤƩƬƮƱƲƳƵ"
_SIZE = (30, 100)
_STEP = 0.04


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, argv: list[str]) -> None:
        self.began = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
        self.seen = b""

    def until(self, text: bytes, seconds: float = 30.0) -> float:
        """Read until ``text`` comes; the time when it did."""
        end = time.perf_counter() + seconds
        while text not in self.seen:
            if not select.select([self.fd], [], [], max(end - time.perf_counter(), 0))[0]:
                raise SystemExit(f"{text.decode()!r} never came; the last was {self.seen[-300:]!r}")
            self.seen = (self.seen + os.read(self.fd, 65536))[-200_000:]
        return time.perf_counter()

    def drain(self, seconds: float) -> None:
        """Read for a while, as a terminal does."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                self.seen = (self.seen + os.read(self.fd, 65536))[-200_000:]

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def typed(self, letters: str) -> list[float]:
        """Seconds from each key to its letter."""
        out = []
        for letter in letters:
            self.seen = b""
            began = time.perf_counter()
            self.send(letter)
            out.append(self.until(letter.encode()) - began)
            self.drain(max(_STEP - out[-1], 0))
        return out

    def leave(self) -> float:
        """Seconds from Ctrl-U, Ctrl-D to the end of the process."""
        began = time.perf_counter()
        self.send("\x15")
        self.send("\x04")
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.perf_counter() - began > 20:
                os.kill(self.pid, signal.SIGKILL)
            if select.select([self.fd], [], [], 0.01)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    continue
        os.close(self.fd)
        return time.perf_counter() - began


def one_round(argv: list[str]) -> dict[str, list[float]]:
    t = Terminal(argv)
    start = t.until(_COMPOSER) - t.began
    loading = t.typed(_LETTERS)
    t.send("\x15")
    t.drain(3.0)  # the model is there
    idle = t.typed(_LETTERS)
    t.send("\x15Count from one to two hundred in words.\r")
    t.until(b"writing")
    writing = t.typed(_LETTERS)
    return {
        "start": [start],
        "key, loading": loading,
        "key, idle": idle,
        "key, writing": writing,
        "end, writing": [t.leave()],
    }


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=None)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    argv = [sys.executable, "-m", "edgerun", "chat", "--no-save", "-n", "400"]
    argv += ["-m", args.model] if args.model else []
    every: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for name, values in one_round(argv).items():
            every.setdefault(name, []).extend(values)
    rows = {
        name: {
            "n": len(v),
            "median_ms": round(statistics.median(v) * 1000, 1),
            "p95_ms": round(percentile(v, 0.95) * 1000, 1),
            "worst_ms": round(max(v) * 1000, 1),
        }
        for name, v in every.items()
    }
    for name, row in rows.items():
        print(f"{name:14} " + "  ".join(f"{k} {x}" for k, x in row.items()))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
