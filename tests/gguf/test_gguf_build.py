"""The test builders, judged by the gguf package's reader and by plain arithmetic."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers import gguf_build as gb

from edgerun.gguf import GGMLType, GGUFFile, dequantize


def test_the_package_reads_what_is_built(tmp_path: Path) -> None:
    meta = {"general.architecture": "llama", "n": 7, "f": 0.5, "b": True, "a": ["x", "yz"]}
    w = np.arange(64, dtype=np.float32).reshape(2, 32)
    path = gb.write(tmp_path / "m.gguf", meta, [gb.tensor("w", w), gb.tensor("q", w, 8)])
    r = gguf.GGUFReader(path)
    assert {k: r.fields[k].contents() for k in meta} == meta
    assert [(t.name, t.shape.tolist()) for t in r.tensors] == [("w", [32, 2]), ("q", [32, 2])]
    np.testing.assert_array_equal(r.tensors[0].data, w)


def successor(f: GGUFFile, i: int) -> int:
    """What the model's arithmetic says follows token i: attention and FFN add nothing."""
    w = {n: dequantize(f.rows(n), t.type).reshape(t.shape) for n, t in f.tensors.items()}
    assert not w["blk.0.attn_output.weight"].any()
    assert not w["blk.0.ffn_down.weight"].any()
    x = w["token_embd.weight"][i]
    x = x / np.sqrt((x * x).mean() + 1e-5) * w["output_norm.weight"]
    logits = w["output.weight"] @ x
    best = int(logits.argmax())
    assert logits[best] > np.partition(logits, -2)[-2] + 30
    return best


def test_a_script_is_said_in_order(tmp_path: Path) -> None:
    script = ["Hello", " big", " world", "!"]
    with GGUFFile.open(gb.scripted_model(tmp_path / "s.gguf", script, vocab=["hey"])) as f:
        tokens = f.get_str_array("tokenizer.ggml.tokens")
        assert len(tokens) % 32 == 0
        assert f.tensors["token_embd.weight"].shape == (len(tokens), len(tokens))
        i, said = tokens.index("hey"), []
        while (i := successor(f, i)) != gb.EOS_ID:
            said.append(tokens[i].replace("\u2581", " "))
        assert said == script


def test_a_script_as_a_mapping(tmp_path: Path) -> None:
    path = gb.scripted_model(tmp_path / "s.gguf", {"a": "b", "b": "a", gb.BOS_ID: "a"})
    with GGUFFile.open(path) as f:
        tokens = f.get_str_array("tokenizer.ggml.tokens")
        a, b = tokens.index("a"), tokens.index("b")
        assert (successor(f, a), successor(f, b), successor(f, gb.BOS_ID)) == (b, a, a)
        assert successor(f, gb.FIRST_BYTE_ID) == gb.EOS_ID
    with pytest.raises(ValueError, match="distinct"):
        gb.scripted_model(tmp_path / "s.gguf", ["a", "a"])


def test_random_models(tmp_path: Path) -> None:
    a = gb.random_model(tmp_path / "a.gguf", seed=1).read_bytes()
    assert gb.random_model(tmp_path / "b.gguf", seed=1).read_bytes() == a
    assert gb.random_model(tmp_path / "c.gguf", seed=2).read_bytes() != a
    path = gb.random_model(
        tmp_path / "d.gguf",
        "qwen2",
        n_layer=1,
        ggml_type=gb.GGML_Q8_0,
        tied=True,
        extra={"tokenizer.chat_template": "x"},
        extra_tensors=[gb.tensor("blk.0.attn_q.bias", np.zeros(64))],
    )
    with GGUFFile.open(path) as f:
        assert f.get_int("qwen2.block_count") == 1
        assert f.get_str("tokenizer.chat_template") == "x"
        assert f.tensors["blk.0.attn_k.weight"].shape == (32, 64)
        assert f.tensors["blk.0.attn_k.weight"].type == GGMLType.Q8_0
        assert f.tensors["blk.0.attn_norm.weight"].type == GGMLType.F32
        assert "output.weight" not in f.tensors
        n = len(f.get_str_array("tokenizer.ggml.tokens"))
        assert n == len(f.get_float_array("tokenizer.ggml.scores"))
        assert n == len(f.get_int_array("tokenizer.ggml.token_type"))
        assert n == f.tensors["token_embd.weight"].n_rows
