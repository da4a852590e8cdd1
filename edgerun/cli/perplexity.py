"""``edgerun perplexity FILE``: how well a model predicts a text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgerun.cli.options import add_model_options, open_llm
from edgerun.errors import RequestError, printable, why

if TYPE_CHECKING:
    import argparse

    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "perplexity",
        help="how well a model predicts a text",
        description="Perplexity over a text file in chunks, the second half of each scored.",
        epilog="example:\n  edgerun perplexity -m gemma3-270m README.md --json\n",
    )
    p.add_argument("file", metavar="FILE", help="a UTF-8 text file")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_options(p)
    for group in p._action_groups:
        for action in group._group_actions:
            if action.dest == "ctx":
                action.default, action.help = 512, "tokens in a chunk (default: 512)"


def run(args: argparse.Namespace) -> int:
    from edgerun.cli.show import to_json
    from edgerun.perplexity import perplexity

    text = _read(args.file)
    with open_llm(args) as llm:
        tokenizer = llm.model.tokenizer
        ids = tokenizer.encode(text)
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        result = perplexity(llm.model.program, ids, args.ctx, bos, _progress)
    if args.json:
        facts = {"model": llm.name, "perplexity": result.value, "error": result.error}
        print(to_json({**facts, "tokens": result.n_scored, "chunks": result.n_chunks}))
    else:
        print(f"perplexity {result.value:.4f} ± {result.error:.4f} over {result.n_scored} tokens")
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()
    except (OSError, ValueError) as e:
        reason = why(e) if isinstance(e, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read {printable(path)}: {reason}", param="file") from e


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\r" if done < total else "\r\033[K"
        print(f"chunk {done} of {total}", end=end, file=sys.stderr, flush=True)
