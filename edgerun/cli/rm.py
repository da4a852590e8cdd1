"""``edgerun rm``: delete pulled models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "rm",
        help="delete pulled models",
        description="Delete pulled models, and what interrupted pulls left. Files that edgerun "
        "uses in place are never touched.",
        epilog="""example:
  edgerun rm qwen3-0.6b
""",
    )
    parser.add_argument("model", nargs="+", help="a name that `edgerun list` shows as pulled")


def run(args: argparse.Namespace) -> int:
    import sys

    from edgerun import catalog
    from edgerun.amounts import size_text
    from edgerun.errors import printable

    for name in args.model:
        freed = catalog.remove(name)
        print(f"removed {printable(name)}: {size_text(freed)} freed", file=sys.stderr)
    return 0
