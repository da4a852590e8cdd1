"""Builds the CPU library with sanitizers and runs the tests of its kernels, threads and programs
with it. See docs/sanitizers.md.

    python tests/dev/sanitize.py address --isas amx avx2
    python tests/dev/sanitize.py thread

``address`` is ASan with UBSan: the first finding ends the run. ``thread`` is TSan: all findings are
collected, and those that kernels_cpu/src/relay.h allows are told apart from races.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = {"address": "address,undefined", "thread": "thread"}
_ISAS = {"address": ["amx", "avx2"], "thread": ["avx2"]}
_RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}
#: All instruction sets of a build take part in these.
_TESTS = {
    "address": [
        "tests/kernels/test_linear.py",
        "tests/kernels/test_linear_float.py",
        "tests/backends/test_cpu.py",
        "tests/backends/test_cpu_attention.py",
        "tests/backends/test_cpu_moe.py",
        "tests/backends/test_cpu_load.py",
        "tests/engine/test_sampling_native.py",
        "tests/engine/test_drafting_ngram.py",
        "tests/test_llm_many.py",
        "tests/test_llm_speculation.py",
    ],
    "thread": [
        "tests/backends/test_cpu.py",
        "tests/backends/test_cpu_moe.py",
        "tests/backends/test_cpu_threads.py",
        "tests/test_llm_many.py",
        "tests/test_llm_speculation.py",
    ],
}


def build(kind: str, isas: list[str], folder: Path) -> Path:
    """The library, made with ``-fsanitize``; only what has changed is compiled again."""
    configure = ["cmake", "-S", str(ROOT / "kernels_cpu"), "-B", str(folder)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    options = [f"-DEDGERUN_SANITIZE={_FLAGS[kind]}", f"-DEDGERUN_ISAS={';'.join(isas)}"]
    subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", str(folder), "--parallel", jobs], check=True)
    return folder / "libedgerun_cpu.so"


def environment(kind: str, library: Path, reports: Path) -> dict[str, str]:
    """Python itself is not instrumented, so the sanitizer has to be there before it."""
    compiler = os.environ.get("CXX", "c++")
    runtime = subprocess.run(
        [*compiler.split(), f"-print-file-name={_RUNTIME[kind]}"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    if not os.path.isabs(runtime):
        sys.exit(f"{compiler} has no {_RUNTIME[kind]}: set CXX to a g++ that has")
    return {
        **os.environ,
        "EDGERUN_CPU_LIB": str(library),
        "LD_PRELOAD": runtime,
        "PYTHONMALLOC": "malloc",  # so that ASan sees where each object ends
        "OPENBLAS_NUM_THREADS": "1",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"exitcode=0 report_signal_unsafe=0 history_size=7 log_path={reports}",
    }


def races(report: str) -> Counter[str]:
    """What TSan says about the library, one line a kind; without what relay.h allows: a late thread
    goes on reading what others commit meanwhile, and commits nothing."""
    found: Counter[str] = Counter()
    for block in report.split("=================="):
        title = re.search(r"WARNING: ThreadSanitizer: (.+?) \(pid", block)
        if title is None or "libedgerun_cpu" not in block:
            continue
        if title[1] == "data race" and _late(block):
            continue
        at = re.search(r"SUMMARY: ThreadSanitizer: (.+)", block)
        found[at[1] if at else title[1]] += 1
    return found


def _late(block: str) -> bool:
    """Whether one side reads in compute_chunk and the other writes in commit_chunk."""
    sides = re.findall(
        r"^  (?:Previous )?(\w+) of size .*?\n((?:    #.*\n)+)", block, re.MULTILINE | re.IGNORECASE
    )
    kinds = [
        (what.lower(), "commit" if "commit_chunk" in at else "compute" * ("compute_chunk" in at))
        for what, at in sides
    ]
    return sorted(kinds) == [("read", "compute"), ("write", "commit")]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=_FLAGS)
    parser.add_argument("--isas", nargs="*", help="beside the baseline; default: two that differ")
    parser.add_argument("--build", type=Path, help="folder (default: build/sanitize-KIND)")
    parser.add_argument("--tests", nargs="+", help="instead of the usual ones")
    args = parser.parse_args()
    kind: str = args.kind
    folder: Path = (args.build or ROOT / "build" / f"sanitize-{kind}").resolve()
    library = build(kind, _ISAS[kind] if args.isas is None else args.isas, folder)
    for old in folder.glob("report.*"):
        old.unlink()
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=600"]
    run += ["-k", "not real_model and not no_logits"]  # minutes each, and nothing of their own
    status = subprocess.run(
        [*run, *(args.tests or _TESTS[kind])],
        cwd=ROOT, env=environment(kind, library, folder / "report"),
    ).returncode  # fmt: skip
    found: Counter[str] = Counter()
    reports = [p.read_text(errors="replace") for p in folder.glob("report.*")]
    for text in reports:
        found += races(text)
    for what, n in found.most_common():
        print(f"{n} x {what}")
    if kind == "thread":
        total = sum(text.count("WARNING: ThreadSanitizer") for text in reports)
        print(f"{total} reports, {sum(found.values())} of them races; see {folder}/report.*")
    print("FAIL" if status or found else "PASS")
    return int(bool(status or found))


if __name__ == "__main__":
    sys.exit(main())
