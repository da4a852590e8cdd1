"""One GGUF file's header: metadata and tensor infos, out of bytes that may be hostile.

Every length is checked against the bytes left before anything is read or allocated, and counts
are bounded, so time and memory stay proportional to what the file really holds.

Source: the GGUF specification (docs/gguf.md of ggml-org/ggml), versions 2 and 3.
"""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from edgerun.errors import GGUFError, UnsupportedModelError, printable
from edgerun.gguf.metadata import MetaType, ValueType
from edgerun.gguf.strings import StringArray, walk
from edgerun.gguf.types import REFUSED_TYPES, GGMLType, row_bytes

__all__ = ["Header", "TensorInfo", "parse"]

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = 65535
MAX_STRING_BYTES = 1 << 26
MAX_STRINGS = 1 << 22  # in all arrays of a file; Gemma 4 has 0.8 million
MAX_INNER_ARRAYS = 1 << 16
MAX_DEPTH = 8
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 1024
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16

_SCALARS: dict[int, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
_U32 = _SCALARS[ValueType.UINT32]
_U64 = _SCALARS[ValueType.UINT64]

# What people save as .gguf by mistake, by how it begins.
_NOT_GGUF: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "it is an HTML page; the download link needs a login or is wrong"),
    (b"<html", "it is an HTML page; the download link needs a login or is wrong"),
    (b"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself (git lfs pull)"),
    (b"pk\x03\x04", "it is a zip or PyTorch archive; convert the model to GGUF"),
    (b"{", "it is JSON"),
    (b"tjgg", "it is in llama.cpp's format before GGUF; convert it to GGUF"),
    (b"lmgg", "it is in llama.cpp's format before GGUF; convert it to GGUF"),
    (b"fmgg", "it is in llama.cpp's format before GGUF; convert it to GGUF"),
    (b"fugg", "it is byte-swapped; convert it to little-endian"),
)


class TensorInfo(NamedTuple):
    """Where a tensor lies.

    Attributes:
        name: as stored.
        shape: numpy order, rows first; the last entry is the number of columns. ``()`` = scalar.
        type: element type.
        offset: of its first byte in its file.
        nbytes: its size.
        shard: index into :attr:`GGUFFile.paths`.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    nbytes: int
    shard: int = 0

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_cols(self) -> int:
        """Length of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])


class Header(NamedTuple):
    """What :func:`parse` read. ``values`` may hold undecoded string arrays."""

    version: int
    values: dict[str, Any]
    types: dict[str, MetaType]
    tensors: list[TensorInfo]


def parse(buf: npt.NDArray[np.uint8], where: str, shard: int = 0) -> Header:
    """Read the header of the file whose bytes are ``buf``.

    ``where`` names the file in messages; ``shard`` is stored in each TensorInfo.

    Raises:
        GGUFError: the bytes are not a sound GGUF file.
        UnsupportedModelError: a tensor has an unknown or removed type.
    """
    return _Parser(buf, where).header(shard)


class _Parser:
    def __init__(self, buf: npt.NDArray[np.uint8], where: str) -> None:
        self.buf = buf
        self.view = buf.data
        self.end = len(buf)
        self.pos = 0
        self.where = where
        self.doing = "the header"
        self.strings_left = MAX_STRINGS
        self.arrays_left = MAX_INNER_ARRAYS

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"{self.where}: {self.doing} {message}")

    def take(self, n: int) -> int:
        """Position of the next ``n`` bytes, which are now consumed."""
        pos = self.pos
        if n > self.end - pos:
            self.fail(
                f"needs {n} bytes at {pos}, but the file ends at {self.end}: it is cut short "
                "or damaged; download it again"
            )
        self.pos = pos + n
        return pos

    def scalar(self, s: struct.Struct) -> Any:
        return s.unpack_from(self.view, self.take(s.size))[0]

    def string(self, limit: int) -> str:
        length = self.scalar(_U64)
        if length > limit and length <= self.end - self.pos:
            self.fail(f"has a string of {length} bytes; at most {limit} are allowed")
        pos = self.take(length)
        return str(self.view[pos : pos + length], "utf-8", "surrogateescape")

    # -- the parts, in file order ---------------------------------------------------------

    def header(self, shard: int) -> Header:
        version, n_tensors, n_keys = self.preamble()
        values: dict[str, Any] = {}
        types: dict[str, MetaType] = {}
        for i in range(n_keys):
            self.doing = f"metadata key {i + 1} of {n_keys}"
            key = self.string(MAX_KEY_BYTES)
            self.doing = f"metadata key '{printable(key)}'"
            if key in values:
                self.fail("appears twice")
            types[key], values[key] = self.value()
        alignment = self.alignment(values, types)
        raw = self.tensor_infos(n_tensors)
        data = -(-self.pos // alignment) * alignment
        return Header(version, values, types, self.place(raw, data, alignment, shard))

    def preamble(self) -> tuple[int, int, int]:
        """Magic, version and counts."""
        head = bytes(self.view[:64])
        if head[:4] != b"GGUF":
            lowered = head.lstrip().lower()
            hint = next((h for start, h in _NOT_GGUF if lowered.startswith(start)), None)
            begin = printable(repr(head[:8]))
            raise GGUFError(
                f"{self.where}: not a GGUF file: "
                + (hint or f"it begins with {begin}, not b'GGUF'")
            )
        self.pos = 4
        version = self.scalar(_U32)
        if version & 0xFFFF == 0 and version:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            raise GGUFError(
                f"{self.where}: a big-endian GGUF file (version {swapped}); edgerun reads "
                "little-endian ones: convert it with gguf_convert_endian of the gguf package"
            )
        if version not in (2, 3):
            old = "too old: convert the model again" if version < 2 else "newer than edgerun knows"
            raise GGUFError(f"{self.where}: GGUF version {version} is {old}; 2 and 3 are read")
        n_tensors, n_keys = self.scalar(_U64), self.scalar(_U64)
        # The least an entry takes: 8 + 1 + 4 bytes for a key, 8 + 4 + 4 + 8 for a tensor.
        for what, n, least, limit in (
            ("metadata keys", n_keys, 13, MAX_KEYS),
            ("tensors", n_tensors, 24, MAX_TENSORS),
        ):
            left = self.end - self.pos
            if n > left // least:
                self.fail(f"claims {n} {what}, but only {left} bytes follow: the file is damaged")
            if n > limit:
                self.fail(f"claims {n} {what}; edgerun reads at most {limit}")
        return version, n_tensors, n_keys

    def value(self) -> tuple[MetaType, Any]:
        kind = self.value_type()
        if kind is ValueType.STRING:
            return MetaType(kind), self.string(MAX_STRING_BYTES)
        if kind is not ValueType.ARRAY:
            return MetaType(kind), self.scalar(_SCALARS[kind])
        return self.array(1)

    def value_type(self) -> ValueType:
        number = self.scalar(_U32)
        try:
            return ValueType(number)
        except ValueError:
            self.fail(f"has value type {number}; types 0 to 12 exist")

    def array(self, depth: int) -> tuple[MetaType, Any]:
        if depth > MAX_DEPTH:
            self.fail(f"holds arrays nested more than {MAX_DEPTH} deep")
        element = self.value_type()
        count = self.scalar(_U64)
        left = self.end - self.pos
        meta = MetaType(ValueType.ARRAY, element, count)
        if element is ValueType.STRING:
            if count > self.strings_left and count <= left // 8:
                self.fail(f"holds {count} strings; edgerun reads at most {MAX_STRINGS} a file")
            starts, self.pos = walk(self.buf, self.pos, count, self.fail)
            self.strings_left -= count
            strings = StringArray(self.buf, starts, self.pos)
            return meta, strings if depth == 1 else strings.decode()
        if element is ValueType.ARRAY:
            if count > left // 12:
                self.fail(f"claims {count} inner arrays, but only {left} bytes are left")
            self.arrays_left -= count
            if self.arrays_left < 0:
                self.fail(f"holds too many arrays of arrays; at most {MAX_INNER_ARRAYS} a file")
            return meta, [self.array(depth + 1)[1] for _ in range(count)]
        s = _SCALARS[element]
        if count > left // s.size:
            self.fail(
                f"claims {count} values of {s.size} bytes, but only {left} bytes are left: "
                "the file is cut short or damaged"
            )
        pos = self.take(count * s.size)
        dtype = np.uint8 if element is ValueType.BOOL else np.dtype(s.format)
        array = np.frombuffer(self.view, dtype, count, pos)
        return meta, array != 0 if element is ValueType.BOOL else array

    def alignment(self, values: dict[str, Any], types: dict[str, MetaType]) -> int:
        key = "general.alignment"
        if key not in values:
            return 32
        self.doing = f"metadata key '{key}'"
        if types[key].kind is not ValueType.UINT32:
            self.fail(f"must be a uint32, not {types[key]} {printable(repr(values[key]), 60)}")
        value: int = values[key]
        if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            self.fail(f"is {value}; it must be a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def tensor_infos(self, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """name -> (shape, type id, offset in the data section)."""
        infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for i in range(count):
            self.doing = f"tensor {i + 1} of {count}"
            name = self.string(MAX_NAME_BYTES)
            self.doing = f"tensor '{printable(name)}'"
            if name in infos:
                self.fail("appears twice")
            n_dims = self.scalar(_U32)
            if n_dims > MAX_DIMS:
                self.fail(f"has {n_dims} dimensions; at most {MAX_DIMS} are allowed")
            dims = tuple(self.scalar(_U64) for _ in range(n_dims))
            if 0 in dims:
                self.fail(f"has shape {list(dims[::-1])}: no dimension may be 0")
            type_id = self.scalar(_U32)
            infos[name] = (dims[::-1], type_id, self.scalar(_U64))
        return infos

    def place(
        self,
        infos: dict[str, tuple[tuple[int, ...], int, int]],
        data: int,
        alignment: int,
        shard: int,
    ) -> list[TensorInfo]:
        """Check each tensor against its type, the file's end and its neighbours."""
        tensors = []
        for name, (shape, type_id, offset) in infos.items():
            self.doing = f"tensor '{printable(name)}'"
            type_ = self.tensor_type(type_id)
            try:
                row = row_bytes(type_, shape[-1] if shape else 1)
            except GGUFError as e:
                self.fail(f"with shape {list(shape)}: {e}")
            nbytes = math.prod(shape[:-1]) * row
            if offset % alignment:
                self.fail(f"has offset {offset}, which is not a multiple of {alignment}")
            left = max(0, self.end - data - offset)
            if nbytes > left:
                self.fail(
                    f"needs {nbytes} bytes at {data + offset}, but the file has {left} of them "
                    f"(it ends at {self.end}): it is cut short or damaged; download it again"
                )
            tensors.append(TensorInfo(name, shape, type_, data + offset, nbytes, shard))
        order = sorted(tensors, key=lambda t: t.offset)
        for a, b in itertools.pairwise(order):
            if a.offset + a.nbytes > b.offset:
                self.doing = f"tensor '{printable(b.name)}'"
                self.fail(
                    f"at {b.offset} overlaps '{printable(a.name)}', which ends at "
                    f"{a.offset + a.nbytes}"
                )
        return tensors

    def tensor_type(self, number: int) -> GGMLType:
        reason = REFUSED_TYPES.get(number)
        if reason is None:
            try:
                return GGMLType(number)
            except ValueError:
                reason = "which edgerun does not know; a newer edgerun may"
        raise UnsupportedModelError(f"{self.where}: {self.doing} has type id {number}: {reason}")
