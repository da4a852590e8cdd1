"""CPU speed, edgerun beside its peers, interleaved in one run.

    python benchmarks/cpu.py --peer llama_cpp
    python benchmarks/cpu.py --only smollm2 --peer openvino --openvino-python ov/bin/python
    python benchmarks/cpu.py --all --peer llama_cpp --json results.json --markdown
    python benchmarks/cpu.py --from results.json

Each engine runs in its own process and waits while another is timed. Figures are medians over the
rounds; a ratio is the median of the rounds' own ratios, which holds up when the machine's speed
drifts. Before each round the machine's limits are measured on as many threads: the rate at which
memory is read, which bounds decode at batch 1, and that of int8 products, which bounds prefill.
Ctrl-C ends the run and keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _sections as sections
from _engines import EngineError, Peer, say
from _machine import machine_facts
from _models import MODELS, TYPES
from _report import Row, cells, from_json, line, markdown, titles, to_json

Section = Callable[[], Iterator[Row]]


def parse() -> argparse.Namespace:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = ap.add_argument_group("sections; --speed if none is named")
    what.add_argument("--speed", action="store_true", help="prefill, decode, 8 sequences")
    what.add_argument(
        "--types", nargs="?", const=",".join(TYPES), metavar="TYPE,...",
        help="decode the llama-1b shape in each type",
    )  # fmt: skip
    what.add_argument(
        "--context", nargs="?", const=8192, type=int, metavar="N", help="decode behind N tokens"
    )
    what.add_argument("--busy", action="store_true", help="decode beside busy processes")
    what.add_argument("--start", action="store_true", help="process start, load time and memory")
    what.add_argument("--isa", nargs="?", const="avx2", metavar="ISA", help="SmolLM2 on another")
    what.add_argument("--all", action="store_true", help="all of these")
    ap.add_argument("--peer", action="append", choices=["llama_cpp", "openvino"], default=[])
    ap.add_argument("--peer-python", default=sys.executable, help="a Python with llama_cpp")
    ap.add_argument("--openvino-python", default=sys.executable, help="one with openvino_genai")
    ap.add_argument("--only", action="append", choices=list(MODELS), help="a model; repeatable")
    ap.add_argument("--threads", type=int, help="default: edgerun's own")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument(
        "--json", metavar="FILE", help="write rows, machine and engines; kept up to date"
    )
    ap.add_argument(
        "--markdown", action="store_true", help="print the results as tables at the end"
    )
    ap.add_argument("--from", dest="source", metavar="FILE", help="show an earlier --json instead")
    args = ap.parse_args()
    if args.rounds < 1 or (args.threads is not None and args.threads < 1):
        ap.error("--rounds and --threads are at least 1")
    if args.types and (unknown := set(args.types.split(",")) - set(TYPES) - {"Q4_K"}):
        ap.error(f"--types: {', '.join(sorted(unknown))} not among {', '.join(TYPES)}, Q4_K")
    if args.all:
        args.speed = args.busy = args.start = True
        args.types = args.types or ",".join(TYPES)
        args.context, args.isa = args.context or 8192, args.isa or "avx2"
    return args


def chosen(args: argparse.Namespace, setup: sections.Setup) -> Iterator[tuple[str, Section]]:
    other = args.types or args.context or args.busy or args.start or args.isa
    if args.speed or not other:
        yield "speed", lambda: sections.speed(setup)
    if args.isa:
        yield f"isa {args.isa}", lambda: sections.isa(setup, args.isa)
    if args.types:
        yield "types", lambda: sections.types(setup, args.types.split(","))
    if args.context:
        yield "context", lambda: sections.context(setup, args.context)
    if args.busy:
        yield "busy", lambda: sections.beside_busy(setup)
    if args.start:
        yield "start", lambda: sections.start(setup)


class Results:
    """Rows so far, on the screen and in ``--json``'s file."""

    def __init__(self, setup: sections.Setup, file: str | None) -> None:
        self._setup = setup
        self._file = file
        self._begin = time.monotonic()
        self._facts = machine_facts()
        self.rows: list[Row] = []
        self.errors: list[str] = []
        facts = {**self._facts, "threads": setup.threads}
        print(", ".join(f"{k} {v}" for k, v in facts.items()), flush=True)

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


def main() -> int:
    args = parse()
    if args.source:
        data = json.loads(Path(args.source).read_text("utf-8"))
        print(markdown([from_json(r) for r in data["rows"]]))
        return 0
    from edgerun.backends.cpu import default_threads

    pythons = {"llama_cpp": args.peer_python, "openvino": args.openvino_python}
    peers = [Peer(name, pythons[name]) for name in dict.fromkeys(args.peer)]
    threads = args.threads or default_threads()
    setup = sections.Setup(threads, args.rounds, peers, args.only or list(MODELS))
    results = Results(setup, args.json)
    try:
        for name, section in chosen(args, setup):
            say(f"{name}:")
            try:
                for row in section():
                    results.add(row)
            except EngineError as e:  # the other sections may do
                results.errors.append(f"{name}: {e}")
                say(f"{name} left unfinished: {e}")
    except KeyboardInterrupt:
        results.errors.append("interrupted")
        say("interrupted")
    results.write()
    if args.markdown:
        print("\n" + markdown(results.rows))
    return 1 if results.errors else 0


if __name__ == "__main__":
    sys.exit(main())
