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
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _sections as sections
from _engines import Peer
from _models import MODELS, TYPES
from _results import Results, Section, Setup, show


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


def chosen(args: argparse.Namespace, setup: Setup) -> Iterator[tuple[str, Section]]:
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


def main() -> int:
    args = parse()
    if args.source:
        return show(args.source)
    from edgerun.backends.cpu import default_threads

    pythons = {"llama_cpp": args.peer_python, "openvino": args.openvino_python}
    peers = [Peer(name, pythons[name]) for name in dict.fromkeys(args.peer)]
    threads = args.threads or default_threads()
    setup = Setup(threads, args.rounds, peers, args.only or list(MODELS))
    return Results(setup, args.json).run(chosen(args, setup), args.markdown)


if __name__ == "__main__":
    sys.exit(main())
