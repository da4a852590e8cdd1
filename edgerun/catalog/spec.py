"""What the catalogue says of a model: ``models.toml`` read, checked and merged."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.catalog.split import parts
from edgerun.errors import ModelFileError, printable, why
from edgerun.folders import config_dir, data_dir
from edgerun.native import data

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


@dataclass(frozen=True)
class ModelSpec:
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
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise ModelFileError(f"{path} is not valid TOML: {printable(e)}") from e
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ModelFileError(f"{path}: {printable(name)!r} must be a table, e.g. [my-model]")
    return tables


def _spec(name: str, table: Mapping[str, Any], path: Path) -> ModelSpec:
    where = f"{path}: [{printable(name)}]"

    def bad(field: str, wanted: str) -> ModelFileError:
        return ModelFileError(f"{where}: {field} must be {wanted}, not {printable(table[field])!r}")

    def text(field: str) -> str:
        value = table.get(field, "")
        if not isinstance(value, str):
            raise bad(field, "a string")
        return value

    def positive(field: str) -> int | None:
        value = table.get(field)
        if value is not None and (type(value) is not int or value <= 0):
            raise bad(field, "a positive whole number")
        return value

    if unknown := set(table) - _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise ModelFileError(f"{where}: unknown field {printable(min(unknown))!r}; known: {known}")
    sources = _sources(table.get("source"), where, path.parent)
    file = text("file") or re.split(r"[/\\+]", sources[0])[-1]
    sha256 = text("sha256").lower() or None
    if sha256 and not _SHA256.fullmatch(sha256):
        raise bad("sha256", "64 hexadecimal digits")
    if any(len(parts(s)) != len(parts(file)) for s in sources):
        raise ModelFileError(
            f"{where}: file and source must both be split into the same number of files, or neither"
        )
    if sha256 and len(parts(file)) > 1:
        raise bad("sha256", "left out: each file of a split model is checked by its own")
    size = positive("size")
    size_gb = table.get("size_gb")
    if size_gb is not None and (type(size_gb) not in (int, float) or not 0 < size_gb < 1e6):
        raise bad("size_gb", "a positive number of 10^9 bytes")
    kv = table.get("kv")
    if kv is not None and not (
        isinstance(kv, list) and len(kv) == 3 and all(type(v) is int and v > 0 for v in kv)
    ):
        raise bad("kv", "[layers, key/value heads, head size]")
    return ModelSpec(
        name=check_name(name, f"{path}: model name"),
        sources=sources,
        file=check_file(file, where),
        sha256=sha256,
        size=size if size is not None else int(size_gb * 1e9) if size_gb is not None else None,
        exact_size=size is not None,
        context=positive("context"),
        kv=(kv[0], kv[1], kv[2]) if kv else None,
        arch=text("arch"),
        license=text("license"),
        notes=text("notes"),
    )


def _sources(value: object, where: str, folder: Path) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not (isinstance(values, list) and values and all(isinstance(v, str) and v for v in values)):
        raise ModelFileError(f"{where}: source must be a string or a list of strings")
    # A relative path means: beside the file that names it.
    return tuple(
        v if re.match(r"(pypi|hf):|https?://", v) else str(folder / Path(v).expanduser())
        for v in values
    )
