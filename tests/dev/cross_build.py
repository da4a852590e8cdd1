"""Compile and link the CPU library for the other systems, with PyPI's zig, as their own builds do.

    pip install 'ziglang>=0.14,<0.17' cmake ninja
    python tests/dev/cross_build.py                      # Windows on x86-64, macOS on ARM
    python tests/dev/cross_build.py darwin/x86_64 --isas avx2

A build there uses the same CMake file and, where there is no compiler (on Windows always), the same
toolchain; so what does not compile or link there does not here. The library's exports are compared
with those that ``kernels_cpu/src`` declares. Nothing is run. Builds are kept in ``build/cross-*``:
minutes the first time. Ends with ``PASS`` or ``FAIL``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernels_cpu"))

import edgerun_build as build  # noqa: E402

#: What edgerun_build calls a system -> what CMake calls it, and what the library is called there.
SYSTEMS = {
    "win32": ("Windows", "libedgerun_cpu.dll"),
    "darwin": ("Darwin", "libedgerun_cpu.dylib"),
    "linux": ("Linux", "libedgerun_cpu.so"),
}


def make(system: str, machine: str, isas: str) -> Path:
    """The library for ``system`` and ``machine``.

    Raises:
        subprocess.CalledProcessError: it does not configure, compile or link.
    """
    import ziglang

    name, file = SYSTEMS[system]
    folder = ROOT / "build" / f"cross-{system}-{machine}"
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = folder / "zig.cmake"
    zig = str(Path(ziglang.__file__).with_name("zig"))
    text = build.toolchain_text(zig, build.zig_target(system, machine))
    target = f"set(CMAKE_SYSTEM_NAME {name})\nset(CMAKE_SYSTEM_PROCESSOR {machine})\n"
    toolchain.write_text(target + text, encoding="utf-8")
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT / "kernels_cpu"), "-B", str(folder)]
    options = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DEDGERUN_ISAS={isas}"]
    subprocess.run([*configure, *options], check=True)
    subprocess.run(["ninja", "-C", str(folder)], check=True)
    return folder / file


def declared() -> set[str]:
    """The functions that the library is to export."""
    text = "".join(p.read_text("utf-8") for p in (ROOT / "kernels_cpu" / "src").glob("*.cpp"))
    return set(re.findall(r"^ER_API [^\n(]*?\b(er_\w+)\(", text, flags=re.M))


def main() -> int:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("targets", nargs="*", default=["win32/amd64", "darwin/arm64"])
    ap.add_argument("--isas", default="all", help="instruction sets, separated by semicolons")
    args = ap.parse_args()
    good = True
    for target in args.targets:
        system, _, machine = target.partition("/")
        try:
            data = make(system, machine, args.isas).read_bytes()
        except (KeyError, OSError, subprocess.CalledProcessError) as e:
            print(f"{target}: {e}")
            good = False
            continue
        missing = [n for n in sorted(declared()) if n.encode() not in data]
        print(f"{target}: {len(data)} bytes, {len(declared()) - len(missing)} functions")
        if missing:
            print(f"{target}: not exported: {', '.join(missing)}")
        good &= not missing and bool(declared())
    print("PASS" if good else "FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
