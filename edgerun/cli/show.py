"""``edgerun show FILE|MODEL``: what a model file holds, and what of it fits in memory here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from edgerun.amounts import size_text
from edgerun.errors import EdgerunError, printable

if TYPE_CHECKING:
    import argparse

    from rich.console import Console
    from rich.table import Table

    from edgerun.cli import Subparsers
    from edgerun.gguf import GGUFFile

__all__ = ["add_parser", "run"]


_EPILOG = """\
examples:
  edgerun show ./model.gguf --tensors
  edgerun show smollm2-135m --json
"""


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "show",
        help="what a model file holds, and what fits in memory",
        description="Print what a GGUF file holds: sizes, settings, tokenizer, tensor types; "
        "and how much context fits beside it in this machine's free memory.",
        epilog=_EPILOG,
    )
    p.add_argument(
        "model", metavar="FILE|MODEL", help="a GGUF file, any one of a set, or a pulled model"
    )
    p.add_argument("--tensors", action="store_true", help="list every tensor too")
    p.add_argument("--metadata", action="store_true", help="list every metadata key too")
    p.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    from edgerun import catalog
    from edgerun.gguf import GGUFFile
    from edgerun.gguf.describe import describe

    try:
        # Looking at a model is no reason to fetch gigabytes of it.
        with GGUFFile.open(catalog.resolve(args.model, pull=False).path) as file:
            info = describe(file)
            info["fallback"] = _fallback(file)
            info["memory"] = _memory(file)
    except EdgerunError as e:
        if args.json:  # whoever parses stdout gets JSON then, too
            print(to_json({"error": {"code": e.code, "message": str(e)}}))
        raise
    if args.json:
        print(to_json(info))
    else:
        _print(info, tensors=args.tensors, metadata=args.metadata)
    return 0


def _fallback(file: GGUFFile) -> dict[str, Any] | None:
    """Why llama.cpp has to run it, and whether it is here; None if edgerun runs it."""
    from edgerun.backends.llama_cpp_library import INSTALL, installed
    from edgerun.loading import why_fallback

    try:
        reason = why_fallback(file)
    except EdgerunError:  # nobody runs it
        return None
    if reason is None:
        return None
    return {
        "backend": "llama_cpp",
        "reason": reason,
        "available": installed(),
        "install": None if installed() else INSTALL,
    }


def _memory(file: GGUFFile) -> dict[str, Any]:
    """What fits, or why that is not known: any file may be looked at, not only usable ones."""
    from edgerun.loading import open_backend
    from edgerun.placing import what_fits

    try:
        backend = open_backend("auto", threads=1)
        try:
            found = what_fits(file, backend)
        finally:
            backend.close()
    except EdgerunError as e:
        return {"error": {"code": e.code, "message": str(e)}}
    return {
        "backend": backend.name,
        "total": found.room.total,
        "free": found.room.free,
        "weights": found.room.weights,
        "margin": found.room.margin,
        "gpu_layers": found.gpu_layers,
        "layers": found.n_layers,
        "kv": [f.to_dict() for f in found.fits],
    }


def to_json(value: Any) -> str:
    """One line of ASCII JSON, in which no control character stands raw."""
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def _console() -> type[Console]:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Quiet


def _print(info: dict[str, Any], *, tensors: bool, metadata: bool) -> None:
    # In a pipe or a file a line stays whole: somebody may look for a path in it.
    width = None if sys.stdout.isatty() else 10_000
    console = _console()(highlight=False, markup=False, emoji=False, width=width)
    parts = [("File", _general(info)), ("Hyperparameters", info["hyperparameters"])]
    parts.append(("Tokenizer", info["tokenizer"]))
    if metadata:
        parts.append(("Metadata", {k: _value(v) for k, v in info["metadata"].items()}))
    for title, rows in parts:
        if rows:
            table = _table(title, "", "")
            for key, value in rows.items():
                table.add_row(printable(key), printable(_words(value)))
            console.print(table, "")
    if info["types"]:
        table = _table("Tensor types", "type", "tensors", "parameters", "size", right=3)
        for name, t in info["types"].items():
            table.add_row(name, str(t["tensors"]), f"{t['params']:,}", size_text(t["bytes"]))
        console.print(table)
    _print_memory(console, info["memory"])
    if tensors and info["tensors"]:
        table = _table("Tensors", "name", "type", "shape", "size", right=2)
        for t in info["tensors"]:
            shape = " × ".join(map(str, t["shape"])) or "scalar"
            table.add_row(printable(t["name"]), t["type"], shape, size_text(t["nbytes"]))
        console.print(table)


def _print_memory(console: Console, memory: dict[str, Any]) -> None:
    if "error" in memory:
        console.print(f"What fits in memory: {printable(memory['error']['message'])}", "")
        return
    title = (
        f"What fits in memory: {size_text(memory['free'])} of {size_text(memory['total'])} are "
        f"free, the weights take {size_text(memory['weights'])}"
    )
    if memory["gpu_layers"] is not None:
        title += f"; {memory['gpu_layers']} of {memory['layers']} layers fit on the GPU"
    table = _table(title, "keys and values as", "a token", "context", "takes", "at most", right=4)
    for f in memory["kv"]:
        cells = [size_text(f["token_bytes"]), f"{f['n_ctx']:,}", size_text(f["kv_bytes"])]
        if not f["n_ctx"]:
            cells[1:] = ["does not fit", ""]
        table.add_row(f["kv_type"], *cells, f"{f['n_ctx_most']:,}")
    console.print(table)


def _table(title: str, *columns: str, right: int = 0) -> Table:
    from rich import box
    from rich.table import Table

    header = any(columns)
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD if header else None,
        show_header=header,
        padding=(0, 1),
    )
    for i, name in enumerate(columns):
        justify = "right" if i >= len(columns) - right else "left"
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def _general(info: dict[str, Any]) -> dict[str, Any]:
    rows = {
        "name": info["name"],
        "architecture": info["architecture"],
        "file type": info["file_type"],
        "parameters": f"{info['n_params']:,}" if info["n_params"] else None,
        "bits per weight": info["bits_per_weight"],
        "size": size_text(info["size"]),
        "tensors": info["n_tensors"],
        "GGUF version": info["version"],
        "runs on": _runs_on(info["fallback"]),
        "path": info["path"] if len(info["files"]) == 1 else None,
    }
    for i, f in enumerate(info["files"] if len(info["files"]) > 1 else []):
        rows[f"file {i + 1}"] = f["path"]
    return {k: v for k, v in rows.items() if v is not None}


def _runs_on(fallback: dict[str, Any] | None) -> str | None:
    if fallback is None:
        return None
    what = "a fallback, llama.cpp"
    return what if fallback["available"] else f"{what}, which is not here: {fallback['install']}"


def _value(entry: dict[str, Any]) -> str:
    if "value" in entry:
        return _words(entry["value"])
    return f"{entry['type']}: {', '.join(map(str, entry['first']))}, …"


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    # Files hold single precision: 1e-05, and not 9.999999747378752e-06.
    return f"{value:.7g}" if isinstance(value, float) else str(value)
