"""``edgerun bench``: how fast a model runs on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from edgerun.cli.options import add_model_options, open_llm
from edgerun.errors import printable

if TYPE_CHECKING:
    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


_EPILOG = """\
examples:
  edgerun bench
  edgerun bench -m qwen3-0.6b -p 2048 -b 1,4,16 --json
"""


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "bench",
        help="how fast a model runs here",
        description="Prefill, decode and batch speed in tokens a second, without sampling; medians "
        "over the rounds.",
        epilog=_EPILOG,
    )
    p.add_argument(
        "-p", "--prompt", type=_count, default=512, metavar="N", help="tokens to prefill (512)"
    )
    p.add_argument("-n", "--decode", type=_count, default=128, metavar="N", help="to decode (128)")
    p.add_argument(
        "-b", "--batch", type=_counts, default=[1, 8], metavar="B,...", help="batch sizes (1,8)"
    )
    p.add_argument("--rounds", type=_count, default=3, metavar="N", help="counted rounds (3)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_options(p)


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(
            f"{printable(repr(text), 40)} is no number from 1 to 1000000"
        )
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    from edgerun.bench import measure, tokens_needed
    from edgerun.cli.show import to_json

    if args.ctx is None:
        args.ctx = tokens_needed(args.prompt, args.decode, args.batch)
    with open_llm(args) as llm:
        program, size = llm.model.program, llm.model.kv.page_size
        found = measure(program, args.prompt, args.decode, args.batch, args.rounds, _progress, size)
        facts = {"model": llm.name, "backend": llm.backend.name, **llm.backend.describe()}
    if args.json:
        print(to_json({**facts, "results": [vars(m) for m in found]}))
        return 0
    print(" · ".join(f"{k} {v}" for k, v in facts.items()))
    print(f"{'':<16}{'tokens/s':>10}{'least':>10}{'most':>10}")
    for m in found:
        print(f"{m.name:<16}{m.median:>10.1f}{m.least:>10.1f}{m.most:>10.1f}")
    return 0


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}\r", end="", file=sys.stderr, flush=True)
