"""``edgerun doctor``: what this machine can run, and why not the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgerun.errors import EdgerunError, printable

if TYPE_CHECKING:
    import argparse

    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


_ARM, _X86 = ("neon",), ("amx", "avx512vnni", "avxvnni", "avx2")


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "doctor",
        help="what this machine can run",
        description="Print the backends and instruction sets of this machine, and why others are "
        "not used.",
        epilog="example:\n  edgerun doctor --json\n",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from edgerun.amounts import size_text
    from edgerun.cli.show import to_json

    facts = examine()
    if args.json:
        print(to_json(facts))
        return 0
    print(f"edgerun {facts['version']} · Python {facts['python']} · {facts['platform']}")
    memory = facts["memory"]
    print(f"memory {size_text(memory['free'])} free of {size_text(memory['total'])}")
    print(f"architectures: {', '.join(facts['architectures'])}")
    for b in facts["backends"]:
        mark = "ok " if b["available"] else "no "
        detail = b.get("reason") or ", ".join(f"{k} {v}" for k, v in b["facts"].items())
        print(f"  {mark} {b['name']:<10} {printable(detail, 500)}")
        for name, why in b.get("isas_not_used", {}).items():
            print(f"      {'':<10} not {name}: {why}")
    print(f"models in {printable(facts['models'])}")
    return 0


def examine() -> dict[str, Any]:
    """Everything the command prints, JSON-ready."""
    import platform

    import psutil

    from edgerun import __version__, arch, catalog
    from edgerun.loading import BACKENDS

    vm = psutil.virtual_memory()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "memory": {"total": vm.total, "free": vm.available},
        "architectures": arch.supported(),
        "backends": [_examine_backend(name) for name in BACKENDS],
        "models": str(catalog.data_dir()),
    }


def _examine_backend(name: str) -> dict[str, Any]:
    from edgerun.loading import open_backend

    try:
        backend = open_backend(name)
    except EdgerunError as e:
        return {"name": name, "available": False, "reason": str(e)}
    facts = dict(backend.describe())
    backend.close()
    if name != "cpu":
        return {"name": name, "available": True, "facts": facts}
    from edgerun.backends.cpu_abi import isa_names

    usable = isa_names()
    facts["isas"] = " ".join(usable)
    missing = {isa: _why_not(isa) for isa in (*_X86, *_ARM) if isa not in usable}
    return {"name": name, "available": True, "facts": facts, "isas_not_used": missing}


def _why_not(isa: str) -> str:
    import platform

    machine = platform.machine().lower()
    arm = machine in ("aarch64", "arm64")
    if arm != (isa in _ARM):
        return f"for another kind of processor than {machine}"
    return "this processor or this build lacks it"
