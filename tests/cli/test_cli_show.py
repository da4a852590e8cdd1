from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.models import smollm2

from edgerun import LLM
from edgerun.cli import main
from edgerun.cli.show import to_json
from edgerun.gguf import GGUFFile
from edgerun.gguf.describe import describe

EVIL = "\x1b]52;c;aGk=\x07\x9b2J\u202e\x7f[bold]:smile:\r\nx"


def show(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    status = main(["show", *map(str, args)])
    out, err = capsys.readouterr()
    return status, out, err


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def strict(text: str) -> Any:
    """Parse as a strict reader does, and check that nothing raw is in it."""
    assert text.endswith("\n")
    assert text[:-1].isascii()
    assert text[:-1].isprintable()
    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates
    return value


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    meta = [
        ("general.architecture", EVIL),
        ("general.name", EVIL),
        (EVIL, EVIL),
        (f"{EVIL}.x", gb.array(gb.STR, [EVIL] * 100)),
        (b"bad \xff utf8", b"\xff\xfe"),
        ("nan", math.nan),
        ("floats", gb.array(gb.F32, [math.inf, -math.inf, math.nan])),
        ("many", gb.array(gb.F32, [math.nan] * 100)),
        ("nested", gb.array(gb.ARR, [gb.array(gb.F32, [math.nan] * n) for n in (1, 100)])),
        ("tokenizer.ggml.model", EVIL),
        ("tokenizer.ggml.tokens", 7),
        ("tokenizer.ggml.bos_token_id", EVIL),
    ]
    return gb.write(tmp_path / "evil.gguf", meta, [gb.tensor(EVIL, np.ones((2, 3)))])


def test_json_of_a_hostile_file(evil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = show(capsys, evil, "--json")
    assert (status, err) == (0, "")
    info = strict(out)
    assert info["name"] == EVIL
    assert info["metadata"][EVIL] == {"type": "string", "value": EVIL}
    assert info["metadata"]["bad \ufffd utf8"]["value"] == "\ufffd\ufffd"
    assert info["metadata"]["nan"]["value"] == "NaN"
    assert info["metadata"]["floats"]["value"] == ["Infinity", "-Infinity", "NaN"]
    assert info["metadata"]["many"] == {
        "type": "array[float32, 100]",
        "count": 100,
        "first": ["NaN"] * 8,
    }
    assert info["metadata"]["nested"]["value"] == [["NaN"], "array of 100"]
    assert info["hyperparameters"] == {"x": "array[string, 100]"}
    assert info["tokenizer"]["n_tokens"] == 7
    assert info["tensors"][0]["name"] == EVIL


def test_tables_of_a_hostile_file(evil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = show(capsys, evil, "--tensors", "--metadata")
    assert (status, err) == (0, "")
    assert out.replace("\n", "").isprintable()
    assert "[bold]:smile:" in out.replace("\n", "").replace(" ", "")  # as text, not as markup


def test_a_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    path = smollm2()
    status, out, _ = show(capsys, path, "--json")
    assert status == 0
    info = strict(out)
    assert info["architecture"] == "llama"
    assert info["file_type"] == "Q4_1"
    assert info["n_params"] == 134_515_008
    assert info["n_tensors"] == len(info["tensors"]) == 272
    assert info["size"] == path.stat().st_size == info["files"][0]["size"]
    assert info["hyperparameters"]["embedding_length"] == 576
    assert info["hyperparameters"]["attention.head_count_kv"] == 3
    assert info["tokenizer"] == {
        "model": "gpt2",
        "pre": "smollm",
        "n_tokens": 49152,
        "n_merges": 48900,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "has_chat_template": True,
    }
    assert {k: v["tensors"] for k, v in info["types"].items()} == {
        "Q4_1": 210,
        "Q8_0": 1,
        "F32": 61,
    }
    assert sum(t["nbytes"] for t in info["tensors"]) == sum(
        t["bytes"] for t in info["types"].values()
    )
    assert info["metadata"]["tokenizer.ggml.tokens"]["count"] == 49152
    assert len(info["metadata"]["tokenizer.ggml.tokens"]["first"]) == 8

    status, out, _ = show(capsys, path, "--tensors")
    assert status == 0
    for text in ("llama", "Q4_1", "134,515,008", "embedding_length", "blk.29.ffn_down.weight"):
        assert text in out


def test_files_without_much_in_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for meta in ({}, {"general.architecture": 7}, {"general.file_type": "x"}):
        path = gb.write(tmp_path / "m.gguf", meta)
        status, out, _ = show(capsys, path, "--json")
        assert status == 0
        assert strict(out)["n_tensors"] == 0
        assert show(capsys, path, "--tensors", "--metadata")[0] == 0


def test_all_files_of_a_split_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(2):
        meta = {"split.no": i, "split.count": 2, "split.tensors.count": 2}
        data = [gb.tensor(f"t{i}", [1.0])]
        path = gb.write(tmp_path / f"m-{i + 1:05d}-of-00002.gguf", meta, data)
    info = strict(show(capsys, path, "--json")[1])
    assert [Path(f["path"]).name for f in info["files"]] == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    assert [t["file"] for t in info["tensors"]] == [0, 1]
    assert "file 2" in show(capsys, path)[1]


def test_a_pipe_gets_whole_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("a" * 100) / "m.gguf"
    path.parent.mkdir()
    gb.random_model(path, extra={"llama.attention.layer_norm_rms_epsilon": 1e-5})
    assert main(["show", str(path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["path", str(path)] in lines
    assert ["attention.layer_norm_rms_epsilon", "1e-05"] in lines


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad\x1b.gguf"
    bad.write_bytes(b"<html>")
    status, out, err = show(capsys, bad)
    assert (status, out) == (1, "")
    assert err == "error: bad\\x1b.gguf: not a GGUF file: it is an HTML page; " + (
        "the download link needs a login or is wrong\n"
    )
    status, out, err = show(capsys, bad, "--json")
    assert status == 1
    assert strict(out)["error"]["code"] == "gguf_error"
    assert "HTML" in strict(out)["error"]["message"]
    status, out, err = show(capsys, tmp_path / "gone.gguf", "--json")
    assert strict(out)["error"]["code"] == "model_not_found"


def test_describe_of_a_per_layer_key(tmp_path: Path) -> None:
    meta = {"general.architecture": "x", "x.head_count_kv": gb.array(gb.I32, [1, 2])}
    with GGUFFile.open(gb.write(tmp_path / "m.gguf", meta)) as f:
        info = describe(f)
    assert info["hyperparameters"] == {"head_count_kv": [1, 2]}
    assert json.loads(to_json(info)) == info


def test_what_fits_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = gb.random_model(tmp_path / "m.gguf", n_layer=2, n_head=4, n_kv=2, n_embd=64, n_ctx=512)
    memory = strict(show(capsys, path, "--json")[1])["memory"]
    assert memory["weights"] == path.stat().st_size
    assert 0 < memory["free"] <= memory["total"]
    assert 0 < memory["margin"] <= memory["total"] // 4
    found = {f["kv_type"]: f for f in memory["kv"]}
    values = 2 * 2 * 2 * 16  # K and V, layers, heads, head_dim
    assert found["f16"]["token_bytes"] == 2 * values
    assert found["f32"]["token_bytes"] == 4 * values
    assert found["f16"]["n_ctx"] == 512
    assert found["f16"]["kv_bytes"] == 4 * 512 * 2 * values  # four contexts
    assert found["f16"]["n_ctx_most"] > found["f32"]["n_ctx_most"] > 512
    with LLM(path, threads=1) as llm:  # and that is what it is loaded with
        assert llm.n_ctx == 512
        assert llm.model.kv.n_pages * 32 * 2 * values == found["f16"]["kv_bytes"]
    status, out, _ = show(capsys, path)
    assert status == 0
    assert "What fits in memory" in out
    assert "f16" in out


def test_an_unknown_architecture_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gb.write(tmp_path / "m.gguf", {"general.architecture": "mamba\x1b9"})
    memory = strict(show(capsys, path, "--json")[1])["memory"]
    assert memory["error"]["code"] == "unsupported_model"
    status, out, err = show(capsys, path)
    assert (status, err) == (0, "")
    assert "What fits in memory: " in out
    assert "\x1b" not in out
