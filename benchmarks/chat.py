"""What the terminal chat costs while an answer streams, on a real terminal of 160 x 50.

    python benchmarks/chat.py [--lines N] [--json FILE]

- chunk: processor time of one token, from its arrival to the screen, at the start of an answer and
  after N lines of Markdown. The goal is a ratio of 1.5 at most.
- stream: the share of one core at 100 tokens a second, after N lines. The goal is 10 % at most.
- resize: seconds until the screen shows N lines at another width.
- memory: what N lines add.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

COLUMNS, ROWS = 160, 50
TOKEN = 4  # characters
GOALS = {"chunk ratio": 1.5, "stream share of a core": 0.10}

BLOCK = """\
## Step {n}: what to do

The **first** thing is to look at `value_{n}`, which *may* be empty; see [the manual](https://a.b/c).
A second sentence goes on for a while so that it has to be folded once or twice on its way down.

- one item
- another, with `code`
  - nested, 日本語 and emoji 👍🏽
1. numbered
2. and **bold**

```python
def step_{n}(value: int) -> str:
    # nothing special
    return f"{{value:>{n}}}" if value else "none"
```

| name | value | more |
|------|------:|:----:|
| a    | {n}   | yes  |
| b    | 22    | no   |

> A quotation, of which
> there are two lines.

"""


def document(lines: int) -> str:
    """At least so many lines of what models write."""
    out: list[str] = []
    while sum(x.count("\n") for x in out) < lines:
        out.append(BLOCK.format(n=len(out) + 1))
    return "".join(out)


def rss() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


async def chunks(view: Any, text: str) -> float:
    """Median processor seconds of a token, until nothing is left to do."""
    costs = []
    for at in range(0, len(text), TOKEN):
        began = time.process_time()
        view.feed("a", text[at : at + TOKEN])
        await asyncio.sleep(0.06)
        costs.append(time.process_time() - began)
    return statistics.median(costs)


async def measure(lines: int) -> dict[str, float]:
    """All figures, in this process, whose terminal is the screen."""
    from textual.app import App, ComposeResult
    from textual.widgets import Static

    from edgerun.tui.conversation import Message
    from edgerun.tui.transcript import Transcript

    figures: dict[str, float] = {}
    text = document(lines)
    head, tail = text[:8000], BLOCK.format(n=7)[: 80 * TOKEN]

    class Bench(App[None]):
        CSS = "Transcript { height: 1fr } #below { height: 5; border-top: solid $primary }"

        def compose(self) -> ComposeResult:
            yield Transcript()
            yield Static("the composer\n\nthe status line", id="below")

        async def on_ready(self) -> None:
            self.run_worker(self.work())

        async def work(self) -> None:
            view = self.query_one(Transcript)
            view.add(Message("a", None, "assistant", head, state="streaming"))
            await asyncio.sleep(0.5)
            first = await chunks(view, tail)
            memory = rss()
            for at in range(len(head), len(text), 50 * TOKEN):
                view.feed("a", text[at : at + 50 * TOKEN])
                view.paint()
                await asyncio.sleep(0)
            await asyncio.sleep(0.5)
            figures["rows"] = view.virtual_size.height
            figures["memory MB"] = (rss() - memory) / 1e6
            figures["chunk ms at the start"] = 1e3 * first
            figures["chunk ms at the end"] = 1e3 * (last := await chunks(view, tail))
            figures["chunk ratio"] = last / first
            figures["stream share of a core"] = await share(view, text[: 600 * TOKEN])
            began = time.perf_counter()
            view.styles.width = COLUMNS // 2
            while view.virtual_size.width > COLUMNS // 2:
                await asyncio.sleep(0.001)
            figures["resize s"] = time.perf_counter() - began
            self.exit()

    await Bench().run_async()
    return figures


async def share(view: Any, text: str) -> float:
    """Of one core, at 100 tokens a second."""
    began, cpu = time.perf_counter(), time.process_time()
    for i, at in enumerate(range(0, len(text), TOKEN), 1):
        view.feed("a", text[at : at + TOKEN])
        await asyncio.sleep(max(began + i * 0.01 - time.perf_counter(), 0))
    return (time.process_time() - cpu) / (time.perf_counter() - began)


def on_terminal(arguments: list[str]) -> dict[str, float]:
    """This program with ``arguments`` on a terminal of its own; the figures that it writes."""
    import fcntl
    import pty
    import termios

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        pid, terminal = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            command = [sys.executable, __file__, *arguments, "--here", str(out)]
            os.execv(sys.executable, command)
        try:
            while os.read(terminal, 1 << 16):
                pass
        except OSError:
            pass  # the other side is gone
        os.close(terminal)
        os.waitpid(pid, 0)
        figures: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return figures


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--lines", type=int, default=5000, help="of the answer (default 5000)")
    ap.add_argument("--json", metavar="FILE", help="write the figures to this file")
    ap.add_argument("--here", metavar="FILE", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.here:
        figures = asyncio.run(measure(args.lines))
        Path(args.here).write_text(json.dumps(figures), encoding="utf-8")
        return 0
    figures = on_terminal(["--lines", str(args.lines)])
    missed = [name for name, most in GOALS.items() if figures[name] > most]
    for name, value in figures.items():
        goal = f"  goal <= {GOALS[name]}" if name in GOALS else ""
        print(f"{name:<24}{value:>10.3f}{goal}{'  MISSED' if name in missed else ''}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
