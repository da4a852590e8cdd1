"""Files made to break a reader: a clear error, soon, and without much memory."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgerun.errors import GGUFError, ModelFileError, UnsupportedModelError
from edgerun.gguf import GGUFFile
from edgerun.gguf.describe import describe
from edgerun.gguf.types import REFUSED_TYPES

W = gb.tensor("blk.0.w", np.ones((4, 8)))
SOUND = gb.build({"general.architecture": "llama"}, [W])
HEAD = struct.pack("<4sI", b"GGUF", 3)


def kv(key: str, kind: int, payload: bytes) -> bytes:
    """A file that ends in the middle of its one metadata key."""
    return HEAD + struct.pack("<QQ", 0, 1) + gb.string(key) + struct.pack("<I", kind) + payload


def info(**override: object) -> bytes:
    """A file whose one tensor is ``W`` with some fields replaced."""
    fields = {"name": "blk.0.w", "shape": (4, 8), "data": W.data, "type": 0} | override
    return gb.build({}, [gb.Tensor(**fields)])  # type: ignore[arg-type]


def aligned(v: gb.Value) -> bytes:
    return gb.build({"general.alignment": v}, [W])


DEEP = struct.pack("<IQ", gb.ARR, 1) * 100_000

CASES: dict[str, tuple[bytes, str]] = {
    # counts and lengths that the bytes cannot hold
    "2^61 tensors": (gb.build({}, [W], n_tensors=1 << 61), rf"claims {1 << 61} tensors, but only"),
    "2^40 keys": (gb.build({"a": 1}, n_keys=1 << 40), rf"claims {1 << 40} metadata keys, but only"),
    "key of 2^63 bytes": (
        HEAD + struct.pack("<QQQ", 0, 1, 1 << 63) + bytes(64),
        rf"metadata key 1 of 1 needs {1 << 63} bytes",
    ),
    "string of 2^63 bytes": (
        kv("a.b", gb.STR, struct.pack("<Q", 1 << 63) + bytes(64)),
        rf"'a\.b' needs {1 << 63} bytes",
    ),
    "array of 2^60 strings": (
        kv("a.b", gb.ARR, struct.pack("<IQ", gb.STR, 1 << 60) + bytes(64)),
        rf"'a\.b' claims {1 << 60} strings",
    ),
    "array of 2^60 numbers": (
        kv("a.b", gb.ARR, struct.pack("<IQ", gb.F32, 1 << 60) + bytes(64)),
        rf"'a\.b' claims {1 << 60} values of 4 bytes",
    ),
    "array of 2^60 arrays": (
        kv("a.b", gb.ARR, struct.pack("<IQ", gb.ARR, 1 << 60) + bytes(64)),
        rf"'a\.b' claims {1 << 60} inner arrays",
    ),
    "string in an array of 2^63 bytes": (
        kv("a.b", gb.ARR, struct.pack("<IQQ", gb.STR, 1, 1 << 63) + bytes(64)),
        rf"'a\.b' holds a string of {1 << 63} bytes",
    ),
    "too many keys": (gb.build([("a", 1)], n_keys=70_000) + bytes(1 << 20), "at most 65536"),
    "too many tensors": (
        gb.build({}, [], n_tensors=200_000) + bytes(5 << 20),
        "claims 200000 tensors; edgerun reads at most 131072",
    ),
    # nesting and types
    "arrays 100 000 deep": (kv("a.b", gb.ARR, DEEP), r"'a\.b' holds arrays nested more than 8"),
    "array bomb": (
        kv("a.b", gb.ARR, struct.pack("<IQ", gb.ARR, 70_000) + bytes(12 * 70_000)),
        "too many arrays of arrays",
    ),
    "value type 13": (kv("a.b", 13, bytes(64)), r"'a\.b' has value type 13"),
    "element type 99": (
        kv("a.b", gb.ARR, struct.pack("<IQ", 99, 1) + bytes(64)),
        r"'a\.b' has value type 99",
    ),
    # alignment
    "alignment 0": (aligned(gb.u32(0)), r"'general\.alignment' is 0;"),
    "alignment 24": (aligned(gb.u32(24)), r"'general\.alignment' is 24;"),
    "alignment 2^31": (aligned(gb.u32(1 << 31)), rf"'general\.alignment' is {1 << 31};"),
    "alignment int32": (aligned(gb.scalar(gb.I32, 32)), "must be a uint32, not int32 32"),
    "alignment string": (aligned(gb.scalar(gb.STR, "32")), "must be a uint32, not string '32'"),
    "alignment array": (aligned(gb.array(gb.U32, [32])), "must be a uint32, not array"),
    # names twice
    "key twice": (gb.build([("a.b", 1), ("a.b", 1)]), r"metadata key 'a\.b' appears twice"),
    "tensor twice": (gb.build({}, [W, W]), r"tensor 'blk\.0\.w' appears twice"),
    # tensors
    "n_dims 2^32-1": (info(n_dims=0xFFFFFFFF), r"'blk\.0\.w' has 4294967295 dimensions"),
    "n_dims 5": (info(n_dims=5), r"'blk\.0\.w' has 5 dimensions"),
    "a zero dim": (info(shape=(4, 0)), r"'blk\.0\.w' has shape \[4, 0\]: no dimension may be 0"),
    "dims of 2^63": (
        info(shape=(1 << 63, 1 << 63, 8)),
        rf"'blk\.0\.w' needs {(1 << 126) * 32} bytes at .*, but the file has 128",
    ),
    "dims that overflow to few": (info(shape=(1 << 62, 4)), rf"needs {1 << 66} bytes"),
    "offset 2^63": (
        info(offset=1 << 63),
        r"'blk\.0\.w' needs 128 bytes at \d+, but the file has 0",
    ),
    "offset misaligned": (info(offset=4), r"'blk\.0\.w' has offset 4, .* multiple of 32"),
    "overlap": (
        gb.build({}, [W, gb.tensor("v", np.ones(8), offset=96)]),
        r"tensor 'v' at \d+ overlaps 'blk\.0\.w', which ends at",
    ),
    "same place": (gb.build({}, [W, gb.tensor("v", np.ones(8), offset=0)]), "overlaps"),
    "Q4_K with 128 columns": (
        info(shape=(4, 128), type=12),
        r"'blk\.0\.w' with shape \[4, 128\]: Q4_K \(type id 12\) stores blocks of 256",
    ),
    "Q8_0 with 33 columns": (info(shape=(33,), type=8), r"Q8_0 \(type id 8\) .* blocks of 32"),
    "a scalar in blocks": (info(shape=(), type=8), r"with shape \[\]: Q8_0"),
    # a file cut short
    "cut by one byte": (
        SOUND[:-1],
        rf"'blk\.0\.w' needs 128 bytes at {len(SOUND) - 128}, but the file has 127 of them",
    ),
    "cut to the data": (SOUND[:-128], "needs 128 bytes at .*, but the file has 0 of them"),
    "cut in a tensor's info": (SOUND[: SOUND.index(b"blk.0.w") + 9], r"'blk\.0\.w' needs 4 bytes"),
    "cut in the header": (SOUND[:20], "the header needs 8 bytes at 16"),
    "only the magic": (b"GGUF", "the header needs 4 bytes"),
    # not GGUF, or not this GGUF
    "empty": (b"", "not a GGUF file: it is empty"),
    "two bytes": (b"GG", "not a GGUF file"),
    "HTML": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "not a GGUF file: .*HTML page"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid", "not a GGUF file: .*LFS"),
    "zip": (b"PK\x03\x04" + bytes(60), "not a GGUF file: .*zip"),
    "GGJT": (b"tjgg" + bytes(60), "not a GGUF file: .*before GGUF"),
    "random": (b"\x1b]52;c;x\x07" + bytes(60), r"not a GGUF file: it begins with b'\\+x1b"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64), r"big-endian .*version 3"),
    "version 0": (gb.build({}, version=0), "GGUF version 0 is too old"),
    "version 1": (gb.build({}, version=1), "GGUF version 1 is too old"),
    "version 99": (gb.build({}, version=99), "GGUF version 99 is newer"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_clearly_soon_and_cheaply(tmp_path: Path, name: str) -> None:
    data, message = CASES[name]
    path = tmp_path / "evil\x1b[2J.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(GGUFError, match=message) as e:
            GGUFFile.open(path)
        assert time.perf_counter() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    text = str(e.value)
    assert "evil\\x1b[2J.gguf: " in text
    assert text.isprintable()
    assert len(text) < 400


@pytest.mark.parametrize("number", [*REFUSED_TYPES, 43, 1000, 2**32 - 1])
def test_removed_and_unknown_types(tmp_path: Path, number: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(info(shape=(4, 256), type=number))
    with pytest.raises(UnsupportedModelError, match=rf"'blk\.0\.w' has type id {number}: \w") as e:
        GGUFFile.open(path)
    assert REFUSED_TYPES.get(number, "does not know") in str(e.value)


def test_control_characters_stay_out_of_messages(tmp_path: Path) -> None:
    evil = "\x1b]52;c;aGk=\x07\x9b2J\u202e\n"
    for data in (
        gb.build([(evil, 1), (evil, 1)]),
        gb.build({}, [gb.tensor(evil, np.ones(8), offset=4)]),
        info(name=evil, type=99),
    ):
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        with pytest.raises(ModelFileError) as e:
            GGUFFile.open(path)
        assert str(e.value).isprintable()


def test_half_a_large_vocabulary(tmp_path: Path) -> None:
    data = gb.build({"tokenizer.ggml.tokens": [f"token {i}" for i in range(50_000)]})
    path = tmp_path / "m.gguf"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(GGUFError, match=r"'tokenizer\.ggml\.tokens' (claims|holds|ends)"):
        GGUFFile.open(path)


# -- random damage ------------------------------------------------------------------------------

FUZZED = gb.build(
    {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.block_count": 1,
        "f": 0.5,
        "b": True,
        "tokens": ["a", "bc", "漢"],
        "nested": gb.array(gb.ARR, [gb.array(gb.I32, [1, 2]), gb.array(gb.STR, ["x"])]),
        "split.count": 1,
    },
    [W, gb.tensor("q", np.ones((2, 32)), gb.GGML_Q8_0), gb.tensor("s", 1.0)],
)
EDGES = [0, 1, 2, 8, 9, 12, 0x7F, 0xFF, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, (1 << 64) - 1]
edit = st.tuples(
    st.integers(0, len(FUZZED) - 1),
    st.one_of(
        st.binary(min_size=1, max_size=4),
        st.sampled_from(EDGES).map(lambda n: struct.pack("<Q", n)),
        st.sampled_from(EDGES[:-3]).map(lambda n: struct.pack("<I", n)),
    ),
)


@given(edits=st.lists(edit, min_size=0, max_size=6), cut=st.integers(0, len(FUZZED)))
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damage_raises_only_typed_errors(
    tmp_path: Path, edits: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(FUZZED)
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    path = tmp_path / "m.gguf"
    path.write_bytes(data[: len(data) - cut // 4])  # mostly whole
    start = time.perf_counter()
    message = ""
    try:
        with GGUFFile.open(path) as f:
            json.loads(json.dumps(describe(f), allow_nan=False))
            for name, t in f.tensors.items():
                assert len(f.data(name)) == t.nbytes
                assert f.rows(name).shape[0] == t.n_rows
    except ModelFileError as e:
        message = str(e)
    assert message.isprintable()
    assert time.perf_counter() - start < 5
