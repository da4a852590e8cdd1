"""The places a model comes from, and the common ground of their fetchers.

A fetcher turns a source string into the bytes of ``job.target`` and may leave half-done work in
``job.work``, from which the next try goes on. It returns the digest that the place itself
publishes for the file, or ``None``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgerun.amounts import size_text
from edgerun.catalog.spec import ModelSpec
from edgerun.catalog.split import is_whole
from edgerun.errors import ChecksumError, DownloadError, printable

__all__ = ["Job", "Progress", "fetch", "find_in_place", "is_source"]

#: Called with the bytes that are here and the bytes there will be (``None`` = unknown).
Progress = Callable[[int, "int | None"], None]

_SPARE = 64 << 20  # leave the disk a little room


@dataclass
class Job:
    """One pull under way: what is fetched, and the files it may use."""

    spec: ModelSpec
    target: Path  # the partial file
    work: Path  # a folder for everything else that is half done
    progress: Progress | None = None

    def report(self, done: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def check_size(self, total: int) -> None:
        """Raises ChecksumError if a source of ``total`` bytes cannot be the catalogue's file."""
        if self.spec.exact_size and total != self.spec.size:
            raise ChecksumError(
                f"{self.spec.name}: the source holds {total} bytes but the catalogue says "
                f"{self.spec.size}: the published file has changed"
            )

    def check_space(self, need: int | None) -> None:
        """Raises DownloadError unless ``need`` more bytes fit on the disk."""
        free = shutil.disk_usage(self.target.parent).free
        if need is not None and need + _SPARE > free:
            raise DownloadError(
                f"{self.spec.name} needs {size_text(need)} more in {self.target.parent} but "
                f"{size_text(free)} are free: make room or set EDGERUN_HOME to another disk"
            )


def is_source(text: str) -> bool:
    """Whether ``text`` names a place to fetch from, rather than a model or a local file."""
    return text.startswith(("pypi:", "hf:", "https://", "http://"))


def fetch(source: str, job: Job) -> str | None:
    """Bring ``source`` to ``job.target``; returns the sha256 its publisher states, if any.

    Raises:
        DownloadError: it cannot be had, or not now; ChecksumError: it is not the right file.
    """
    if source.startswith("pypi:"):
        from edgerun.catalog import pypi

        return pypi.fetch(source, job)
    if source.startswith("hf:"):
        from edgerun.catalog import hub

        return hub.fetch(source, job)
    if source.startswith(("https://", "http://")):
        from edgerun.catalog import web

        return web.fetch(source, job)
    raise DownloadError(f"{job.spec.name}: no such file: {printable(source)}")


def find_in_place(spec: ModelSpec) -> Path | None:
    """A copy of the model that something else put on this machine: it is used where it lies."""
    for source in spec.sources:
        path: Path | None
        if source.startswith("pypi:"):
            from edgerun.catalog import pypi

            path = pypi.find_installed(source, spec.file)
        elif source.startswith("hf:"):
            from edgerun.catalog import hub

            path = hub.find_cached(source)
        else:
            path = None if is_source(source) else Path(source)
        if path is not None and is_whole(path, spec.known_size):
            return path
    return None
