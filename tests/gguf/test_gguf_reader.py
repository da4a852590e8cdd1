from __future__ import annotations

import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.models import gemma3, smollm2
from helpers.paths import shared

from edgerun.errors import ClosedError, GGUFError, ModelNotFoundError
from edgerun.gguf import GGMLType, GGUFFile, ValueType, dequantize

SCALARS = {
    gb.U8: 255,
    gb.I8: -128,
    gb.U16: 65535,
    gb.I16: -32768,
    gb.U32: 2**32 - 1,
    gb.I32: -(2**31),
    gb.F32: 0.5,
    gb.BOOL: True,
    gb.STR: "héllo 漢\n",
    gb.U64: 2**64 - 1,
    gb.I64: -(2**63),
    gb.F64: 0.1,
}


def test_every_metadata_type(tmp_path: Path) -> None:
    meta = {f"s.{k}": gb.scalar(k, v) for k, v in SCALARS.items()}
    meta |= {f"a.{k}": gb.array(k, [v, v]) for k, v in SCALARS.items()}
    with GGUFFile.open(gb.write(tmp_path / "m.gguf", meta)) as f:
        for k, v in SCALARS.items():
            got, array = f.metadata[f"s.{k}"], f.metadata[f"a.{k}"]
            assert got == v
            assert type(got) is type(v)
            assert list(array) == [v, v]
            assert isinstance(array, list if k == gb.STR else np.ndarray)
            assert f.metadata_types[f"s.{k}"].kind == ValueType(k)
            assert f.metadata_types[f"a.{k}"].element == ValueType(k)
            assert f.metadata_types[f"a.{k}"].count == 2
        assert f.metadata["a.2"].dtype == np.uint16
        assert str(f.metadata_types["a.8"]) == "array[string, 2]"
        assert list(f.metadata) == list(meta)


def test_nested_and_empty_arrays(tmp_path: Path) -> None:
    inner = [gb.array(gb.I32, [1, 2]), gb.array(gb.STR, ["a", ""]), gb.array(gb.F32, [])]
    meta = {
        "nested": gb.array(gb.ARR, [gb.array(gb.ARR, inner), gb.array(gb.ARR, [])]),
        "none": gb.array(gb.STR, []),
    }
    with GGUFFile.open(gb.write(tmp_path / "m.gguf", meta)) as f:
        (ints, strings, floats), empty = f.metadata["nested"]
        assert ints.tolist() == [1, 2]
        assert strings == ["a", ""]
        assert len(floats) == 0
        assert empty == []
        assert f.metadata["none"] == []


def test_strings_that_are_not_utf8(tmp_path: Path) -> None:
    raw = b"\xff\xfe ok \xc3"
    path = gb.write(tmp_path / "m.gguf", [(b"key\xff", raw), ("a", gb.array(gb.STR, [raw]))])
    with GGUFFile.open(path) as f:
        for s in (f.metadata["key\udcff"], f.metadata["a"][0]):
            assert s.encode("utf-8", "surrogateescape") == raw


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors(tmp_path: Path, version: int, alignment: int) -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    b = np.linspace(-1, 1, 64, dtype=np.float32)
    path = gb.write(
        tmp_path / "m.gguf",
        {"general.alignment": gb.u32(alignment)},
        [gb.tensor("a", a), gb.tensor("b", b, gb.GGML_Q8_0), gb.tensor("c", 7.0)],
        version=version,
        alignment=alignment,
        pad_end=False,
    )
    with GGUFFile.open(path) as f:
        assert f.version == version
        assert f.path == path
        assert f.paths == (path,)
        assert f.size == path.stat().st_size
        assert f.n_params == 24 + 64 + 1
        assert list(f.tensors) == ["a", "b", "c"]
        info = f.tensors["a"]
        assert (info.shape, info.type, info.nbytes) == ((2, 3, 4), GGMLType.F32, 96)
        assert (info.n_rows, info.n_cols) == (6, 4)
        assert info.offset % alignment == 0
        assert f.rows("a").shape == (6, 16)
        np.testing.assert_array_equal(f.data("a").view(np.float32).reshape(2, 3, 4), a)
        assert f.rows("b").shape == (1, 68)
        np.testing.assert_allclose(dequantize(f.rows("b"), GGMLType.Q8_0)[0], b, atol=1 / 200)
        assert f.tensors["c"].shape == ()
        assert f.rows("c").view(np.float32).tolist() == [[7.0]]


def test_views_are_of_the_file_and_read_only(tmp_path: Path) -> None:
    f = GGUFFile.open(gb.write(tmp_path / "m.gguf", {}, [gb.tensor("w", [[1.0, 2.0]])]))
    view = f.data("w")
    assert not view.flags.owndata
    assert not view.flags.writeable
    with pytest.raises(GGUFError, match="no tensor 'x'"):
        f.data("x")
    f.close()
    f.close()
    with pytest.raises(ClosedError, match=r"m\.gguf"):
        f.data("w")
    assert view.view(np.float32).tolist() == [1.0, 2.0]  # a view outlives the file object


def test_strings_decode_after_close(tmp_path: Path) -> None:
    with GGUFFile.open(gb.write(tmp_path / "m.gguf", {"a": gb.array(gb.STR, ["x", "y"])})) as f:
        pass
    assert f.metadata["a"] == ["x", "y"]


def test_a_file_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    rng = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(4096)
    w.add_rope_freq_base(1e6)
    w.add_token_list(["a", "b"])
    w.add_custom_alignment(64)
    dense = rng.normal(size=(5, 256)).astype(np.float32)
    q = gguf.quants.quantize(dense, gguf.GGMLQuantizationType.Q5_1)
    w.add_tensor("dense", dense)
    w.add_tensor("half", dense.astype(np.float16))
    w.add_tensor("q", q, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with GGUFFile.open(path) as f:
        assert f.get_str("general.architecture") == "llama"
        assert f.get_int("llama.context_length") == 4096
        assert f.get_float("llama.rope.freq_base") == 1e6
        assert f.get_str_array("tokenizer.ggml.tokens") == ["a", "b"]
        assert {n: (t.shape, t.type) for n, t in f.tensors.items()} == {
            "dense": ((5, 256), GGMLType.F32),
            "half": ((5, 256), GGMLType.F16),
            "q": ((5, 256), GGMLType.Q5_1),
        }
        np.testing.assert_array_equal(f.rows("dense").view(np.float32), dense)
        np.testing.assert_array_equal(f.rows("q"), q)


def test_a_real_vocabulary_as_the_package_reads_it() -> None:
    path = shared("vocabs", "ggml-vocab-bert-bge.gguf")
    fields = {k: v for k, v in gguf.GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    with GGUFFile.open(path) as f:
        assert list(f.metadata) == list(fields)
        for key, field in fields.items():
            value = f.metadata[key]
            expected = field.contents()
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, key


def test_a_real_model() -> None:
    path = smollm2()
    with GGUFFile.open(path) as f:
        assert f.n_params == 134_515_008
        assert f.size == path.stat().st_size
        # The tensors fill the file: each begins where the one before ends, the last at its end.
        infos = sorted(f.tensors.values(), key=lambda t: t.offset)
        ends = [t.offset + t.nbytes for t in infos]
        assert all(-32 < e - t.offset <= 0 for e, t in zip(ends, infos[1:], strict=False))
        assert f.size - ends[-1] < 32
        assert f.tensors["token_embd.weight"].shape == (49152, 576)
        assert f.tensors["blk.0.attn_k.weight"].shape == (192, 576)


@pytest.mark.parametrize("n", range(15))
def test_vocab_only_files(n: int) -> None:
    path = sorted(shared("vocabs").glob("*.gguf"))[n]
    with GGUFFile.open(path) as f:
        assert not f.tensors
        tokens = f.get_str_array("tokenizer.ggml.tokens")
        assert len(tokens) == f.metadata_types["tokenizer.ggml.tokens"].count > 1000
        assert len(set(tokens)) > 0.99 * len(tokens)


def test_a_vocabulary_of_262144_opens_in_150_ms() -> None:
    path = gemma3()
    times = []
    for _ in range(5):
        start = time.process_time()  # others may be busy on this machine
        with GGUFFile.open(path) as f:
            assert f.metadata_types["tokenizer.ggml.tokens"].count == 262144
        times.append(time.process_time() - start)
    assert min(times) < 0.15, times
    assert f.get_str_array("tokenizer.ggml.tokens")[:3] == ["<pad>", "<eos>", "<bos>"]


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no such file: .*gone\.gguf"):
        GGUFFile.open(tmp_path / "gone.gguf")
    with pytest.raises(GGUFError, match="not a regular file"):
        GGUFFile.open(tmp_path)
    with pytest.raises(GGUFError, match="null byte"):
        GGUFFile.open("a\0b")
    odd = tmp_path / "モデル dir\u3000x"
    odd.mkdir()
    with GGUFFile.open(str(gb.write(odd / "m m.gguf", {"a": 1}))) as f:
        assert f.get_int("a") == 1


def file_pages() -> int:
    """Bytes of mapped files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("RssFile")) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_forgotten_pages_leave_memory_and_can_be_read_again(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 1 << 20)).astype(np.float32)
    tensors = [gb.tensor(f"t{i}", v) for i, v in enumerate(values)]
    with GGUFFile.open(gb.write(tmp_path / "m.gguf", {"a": 1}, tensors)) as f:
        views = [f.rows(f"t{i}") for i in range(3)]
        assert [v.view(np.float32).tobytes() for v in views] == [v.tobytes() for v in values]
        full = file_pages()
        f.forget(views[1])
        f.forget(views[2][:, : 1 << 21])
        assert full - file_pages() == pytest.approx(6 << 20, abs=1 << 18)
        f.forget(values.view(np.uint8))  # not of this file
        f.forget(views[0][:, :10])  # no whole page
        assert [v.view(np.float32).tobytes() for v in views] == [v.tobytes() for v in values]
    f.forget(views[0])  # closed
    assert views[0].view(np.float32).tobytes() == values[0].tobytes()
