"""Checks the NEON kernels on an x86-64 machine: cross-compiled, run under qemu-user, and compared
bit for bit with the AVX2 kernels. See docs/neon.md.

    python tests/dev/neon_check.py --python "qemu-aarch64 -L ROOT ROOT/usr/bin/python3" --site SITE

Compared are all weight types over the shapes and column counts of the kernel tests, rows decoded
from tiles, and logits of every architecture's fixture with every KV type, in chunks of two sizes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "kernels_cpu"), str(ROOT)]

#: All but the one that starts another Python, which not every emulator lets it.
_TESTS = "tests/kernels --deselect " + (
    "tests/kernels/test_linear_float.py::test_no_kernel_before_its_codebook"
)


def write_inputs(path: Path) -> None:
    """File rows and activations of every kernel case, made once: numpy's random normals may differ
    between machines in their last bit."""
    import numpy as np
    from helpers.weights import gguf_rows
    from kernels import cases, cases_float, test_linear_float

    arrays: dict[str, Any] = {}
    for table, columns, rows_of in (
        (cases.LINEAR, cases.COLUMNS, gguf_rows),
        (cases_float.LINEAR_FLOAT, cases_float.COLUMNS, test_linear_float.file_rows),
    ):
        for _, t, n, k in table:
            rng = np.random.default_rng([int(t), n, k])
            name = f"linear {t.name} {n}x{k}"
            arrays[f"{name}|rows"] = rows_of(t, n, k, rng)
            x = rng.standard_normal((max(columns), k), dtype=np.float32)
            x[::2, 32:64] *= np.float32(20)  # blocks that get a second digit
            arrays[f"{name}|x"] = x
            arrays[f"{name}|meta"] = np.array([int(t), k, *columns])
    np.savez(path, **arrays)


def digest(isa: str, inputs: Path) -> Iterator[tuple[str, str]]:
    """Each case's name and the hash of what ``isa`` computes."""
    import numpy as np
    from helpers.packed import Packed, isas

    if isa not in isas():
        raise SystemExit(f"{isa} is not among this library's and machine's: {' '.join(isas())}")
    arrays = np.load(inputs)
    for key in [k for k in arrays.files if k.endswith("|rows")]:
        name = key.removesuffix("|rows")
        t, k, *columns = arrays[f"{name}|meta"].tolist()
        rows, x = arrays[key], arrays[f"{name}|x"]
        packed = Packed(isa, t, rows, k)
        outputs = [packed.run(x[:m]) for m in columns]
        yield name, _hash(*outputs, packed.rows(list(range(len(rows)))))
    yield from _digest_programs(isa)


def _digest_programs(isa: str) -> Iterator[tuple[str, str]]:
    import numpy as np
    from helpers.runner import Runner

    from edgerun.backends.cpu import CPUBackend

    files = sorted((ROOT / "tests" / "fixtures" / "arch").glob("*.gguf"))
    given = [os.environ.get(f"EDGERUN_TEST_{m}") for m in ("SMOLLM2", "GEMMA3")]
    files += [Path(p) for p in given if p]
    for file in files:
        for kv_type in CPUBackend.kv_types:
            backend = CPUBackend(threads=2, isa=isa)
            try:
                runner = Runner(file, backend, n_ctx=256, n_pages=16, kv_type=kv_type)
                vocab = runner.program.n_vocab
                ids = np.random.default_rng(5).integers(0, vocab, 100).tolist()
                parts = [runner.logits(ids, start=60, chunk=chunk) for chunk in (7, 128)]
            finally:
                backend.close()
            yield f"program {file.stem} {kv_type}", _hash(*parts)


def _hash(*arrays: Any) -> str:
    import numpy as np

    h = hashlib.sha256()
    for a in arrays:  # which NaN an operation gives is no part of the contract
        h.update(np.where(np.isnan(a), np.float32(np.nan), a).astype("<f4").tobytes())
    return h.hexdigest()[:16]


def build(folder: Path, zig: bool) -> Path:
    """The library for aarch64 Linux, by the project's own CMake file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
    if zig:
        import ziglang
        from edgerun_build import toolchain_text

        program = Path(ziglang.__file__).with_name("zig")
        text += toolchain_text(str(program), "aarch64-linux-gnu.2.28")
    else:
        text += "set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)\n"
        text += "set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)\n"
    toolchain = folder / "toolchain.cmake"
    if not toolchain.exists() or toolchain.read_text() != text:
        toolchain.write_text(text)
        (folder / "CMakeCache.txt").unlink(missing_ok=True)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    source = str(ROOT / "kernels_cpu")
    options = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Release"]
    quiet = subprocess.DEVNULL
    subprocess.run(
        ["cmake", "-S", source, "-B", str(folder), *generator, *options], check=True, stdout=quiet
    )
    subprocess.run(["cmake", "--build", str(folder)], check=True, stdout=quiet)
    return folder / "libedgerun_cpu.so"


def collect(python: list[str], isa: str, inputs: Path, env: dict[str, str]) -> dict[str, str]:
    """Another process's :func:`digest`."""
    print(f"{isa} with {python[0]} ...", file=sys.stderr, flush=True)
    command = [*python, str(Path(__file__).resolve()), "--digest", isa, str(inputs)]
    done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{isa}: exit status {done.returncode}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def compare(here: dict[str, str], there: dict[str, str]) -> int:
    """Says which cases differ; returns how many."""
    differ = [n for n in here | there if here.get(n) != there.get(n)]
    for name in differ:
        print(f"DIFFERS {name}")
    print(f"{len(here) - len(differ)} of {len(here)} cases agree bit for bit", flush=True)
    return len(differ)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--python", help="the command of an aarch64 Python")
    ap.add_argument("--site", default="", help="the folder with its numpy and gguf")
    ap.add_argument("--zig", action="store_true", help="compile with ziglang, not g++")
    ap.add_argument("--library", help="an aarch64 build, instead of compiling one")
    ap.add_argument(
        "--tests",
        nargs="?",
        const="tests/kernels",
        help="run these tests there too (tests/kernels)",
    )
    ap.add_argument("--digest", nargs=2, metavar=("ISA", "INPUTS"), help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.digest:
        print(json.dumps(dict(digest(args.digest[0], Path(args.digest[1])))))
        return 0
    if not args.python:
        ap.error("--python is needed: docs/neon.md says where it comes from")
    folder = ROOT / "build" / ("neon-zig" if args.zig else "neon")
    library = Path(args.library) if args.library else build(folder, args.zig)
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), args.site]), "EDGERUN_CPU_LIB": str(library)}
    python = shlex.split(args.python)
    with tempfile.TemporaryDirectory(prefix="edgerun-neon-") as tmp:
        inputs = Path(tmp, "inputs.npz")
        write_inputs(inputs)
        here = collect([sys.executable], "avx2", inputs, {})
        there = collect(python, "neon", inputs, env)
    failed = compare(here, there)
    if args.tests and not failed:
        command = [
            *python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *shlex.split(args.tests),
        ]
        failed = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}).returncode
    print("FAIL" if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
