"""A GGUF model, in one file or several, mapped into memory."""

from __future__ import annotations

import mmap
import os
import re
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.errors import ClosedError, GGUFError, ModelNotFoundError, printable, why
from edgerun.gguf.metadata import Metadata
from edgerun.gguf.parse import Header, TensorInfo, parse
from edgerun.gguf.strings import StringArray

__all__ = ["GGUFFile", "TensorInfo", "shard_paths"]

U8 = npt.NDArray[np.uint8]

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFFile:
    """A model file: its metadata, and its tensors' bytes where they lie on disk.

    ``with GGUFFile.open(path) as f: f.rows("token_embd.weight")``. Opening any shard of a split
    model opens the whole set. Arrays handed out are read-only views of the mapped file; they stay
    valid after :meth:`close`, which only drops this object's own hold.

    Attributes:
        path: the path that was opened.
        paths: all files of the model, in shard order.
        version: GGUF version, 2 or 3.
        metadata: :class:`~edgerun.gguf.metadata.Metadata`, of the first shard.
        metadata_types: key -> :class:`~edgerun.gguf.metadata.MetaType`.
        tensors: name -> :class:`TensorInfo`, in file order.
        sizes: bytes of each file; ``size`` is their sum.
    """

    def __init__(self, path: Path, paths: list[Path], buffers: list[U8], headers: list[Header]):
        self.path = path
        self.paths = tuple(paths)
        self.version = headers[0].version
        self.metadata = Metadata(headers[0].values, headers[0].types, printable(path.name))
        self.metadata_types = self.metadata.types
        self.tensors: dict[str, TensorInfo] = {t.name: t for h in headers for t in h.tensors}
        self.sizes = tuple(len(b) for b in buffers)
        self.size = sum(self.sizes)
        self._buffers: list[U8] | None = buffers
        # The metadata's getters, within reach of whoever holds the file.
        self.get_int = self.metadata.get_int
        self.get_float = self.metadata.get_float
        self.get_str = self.metadata.get_str
        self.get_bool = self.metadata.get_bool
        self.get_int_array = self.metadata.get_int_array
        self.get_float_array = self.metadata.get_float_array
        self.get_str_array = self.metadata.get_str_array
        self.get_bool_array = self.metadata.get_bool_array
        self.get_per_layer = self.metadata.get_per_layer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map and check a model.

        Raises:
            ModelNotFoundError: there is no such file.
            GGUFError: not a sound GGUF file, or its shards are incomplete or disagree.
            UnsupportedModelError: a tensor has an unknown or removed type.
        """
        path = Path(path)
        buf = _map(path)
        header = parse(buf, printable(path.name))
        paths = shard_paths(path, header)
        if len(paths) == 1:
            return cls(path, paths, [buf], [header])
        buffers = [buf if p == path else _map(p) for p in paths]
        headers = [
            parse(b, printable(p.name), i)
            for i, (p, b) in enumerate(zip(paths, buffers, strict=True))
        ]
        _check_shards(paths, headers)
        return cls(path, paths, buffers, headers)

    @property
    def n_params(self) -> int:
        """Elements in all tensors."""
        return sum(t.n_elements for t in self.tensors.values())

    def data(self, name: str) -> U8:
        """A tensor's bytes: uint8 [nbytes], read-only, not copied.

        Raises:
            GGUFError: there is no such tensor.
            ClosedError: after :meth:`close`.
        """
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{printable(self.path.name)}: there is no tensor '{printable(name)}'")
        if self._buffers is None:
            raise ClosedError(f"{printable(self.path.name)} was closed")
        return self._buffers[info.shard][info.offset : info.offset + info.nbytes]

    def rows(self, name: str) -> U8:
        """A tensor's bytes by row: uint8 [n_rows, row_bytes]. Raises as :meth:`data`."""
        return self.data(name).reshape(self.tensors[name].n_rows, -1)

    def forget(self, data: U8) -> None:
        """Tell the system that ``data``, from :meth:`data` or :meth:`rows`, will not be read soon:
        its pages leave this process's memory, though not the system's file cache. Views stay
        valid; reading them again costs a page fault. Does nothing on Windows."""
        if self._buffers is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start, page = data.ctypes.data, mmap.PAGESIZE
        for buffer in self._buffers:
            at = start - buffer.ctypes.data
            if 0 <= at < len(buffer):
                first, end = -(-at // page) * page, (at + data.nbytes) // page * page
                if end > first:
                    _mapping(buffer).madvise(mmap.MADV_DONTNEED, first, end - first)

    def close(self) -> None:
        """Let go of the mapping; the system unmaps it when the last view is gone."""
        self._buffers = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({printable(self.path)!r}, {len(self.tensors)} tensors)"


def _map(path: Path) -> U8:
    """The file's bytes: uint8, read-only, backed by a mapping that lives as long as the array."""
    name = printable(path.name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block, a device never ends
            raise GGUFError(f"{printable(path)} is not a regular file")
        with path.open("rb") as f:
            if os.fstat(f.fileno()).st_size == 0:
                raise GGUFError(f"{name}: not a GGUF file: it is empty")
            mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"no such file: {printable(path)}") from None
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path, or a file just emptied
        raise GGUFError(f"cannot read {printable(path)}: {why(e)}") from e
    return np.frombuffer(mapping, np.uint8)


def _mapping(buffer: U8) -> mmap.mmap:
    owner: Any = buffer.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    assert isinstance(owner, mmap.mmap)
    return owner


def shard_paths(path: Path, header: Header) -> list[Path]:
    """The files of the model that ``path``, with this header, is a part of; in shard order.

    A split model's files are named ``NAME-00001-of-00003.gguf`` and on.

    Raises:
        GGUFError: the name and ``split.no``/``split.count`` disagree, or a file is missing.
    """
    name = printable(path.name)
    meta = Metadata(header.values, header.types, name)
    count = meta.get_int("split.count", 1)
    if count in (0, 1):
        return [path]
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        raise GGUFError(
            f"{name}: a part of a model in {count} files, whose names must end in "
            f"-00001-of-{count:05d}.gguf and so on: give the files their names back"
        )
    no = meta.get_int("split.no")
    if int(match["count"]) != count or int(match["no"]) != no + 1:
        raise GGUFError(
            f"{name}: its name says part {int(match['no'])} of {int(match['count'])}, "
            f"its metadata part {no + 1} of {count} (split.no {no}, split.count {count})"
        )
    paths = [
        path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)
    ]
    for p in paths:
        if not p.is_file():
            raise GGUFError(
                f"{name}: the model is split into {count} files and {printable(p.name)} is missing "
                f"from {printable(path.parent)}"
            )
    return paths


def _check_shards(paths: list[Path], headers: list[Header]) -> None:
    """Refuse shards that are not parts of one model."""
    first = headers[0].values
    seen: dict[str, int] = {}
    for i, (path, header) in enumerate(zip(paths, headers, strict=True)):
        name = printable(path.name)
        if len(shard_paths(path, header)) != len(paths):
            raise GGUFError(
                f"{name}: is not marked as part of a split model (split.count), but "
                f"{printable(paths[0].name)} says it is"
            )
        for key, value in header.values.items():
            if key == "split.no" or key == "general.alignment" or key not in first:
                continue
            if not _same(value, first[key]):
                raise GGUFError(
                    f"{name}: metadata key '{printable(key)}' differs from that of "
                    f"{printable(paths[0].name)}: they are not parts of one model"
                )
        for tensor in header.tensors:
            if tensor.name in seen:
                raise GGUFError(
                    f"{name}: tensor '{printable(tensor.name)}' is also in "
                    f"{printable(paths[seen[tensor.name]].name)}"
                )
            seen[tensor.name] = i
    total = Metadata(first, headers[0].types, printable(paths[0].name)).get_int(
        "split.tensors.count", len(seen)
    )
    if total != len(seen):
        raise GGUFError(
            f"{printable(paths[0].name)}: split.tensors.count is {total}, but the "
            f"{len(paths)} files hold {len(seen)} tensors"
        )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, StringArray):
        a = a.decode()
    if isinstance(b, StringArray):
        b = b.decode()
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and (a == b or (a != a and b != b))
