"""Facts of the published models that tiny fixtures cannot show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun import arch
from edgerun.arch.base import ModelConfig, Params, Source
from edgerun.errors import GGUFError
from edgerun.gguf import Metadata

# From the models' published config.json.
GEMMA2_2B = {"block_count": 26, "embedding_length": 2304, "head_count": 8, "key_length": 256}
GEMMA2_27B = {"block_count": 46, "embedding_length": 4608, "head_count": 32, "key_length": 128}
GEMMA3_1B = {"block_count": 26, "embedding_length": 1152, "head_count": 4, "key_length": 256}
GEMMA3_27B = {"block_count": 62, "embedding_length": 5376, "head_count": 32, "key_length": 128}


def configure(name: str, shape: dict[str, int], n_ctx: int = 8192, **changes: Any) -> ModelConfig:
    meta: dict[str, Any] = {
        f"{name}.{'attention.' if k in ('head_count', 'key_length') else ''}{k}": v
        for k, v in shape.items()
    }
    meta[f"{name}.context_length"] = n_ctx
    meta[f"{name}.feed_forward_length"] = 64
    meta[f"{name}.attention.layer_norm_rms_epsilon"] = 1e-6
    meta.update({f"{name}.{k.replace('__', '.')}": v for k, v in changes.items()})
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (16, shape["embedding_length"])}
    shapes.update({f"blk.{i}.x": (1,) for i in range(shape["block_count"])})
    source = Source(Metadata(meta), shapes, lambda n: np.ones(1, np.float32))
    return arch.get(name).configure(Params(name, source))


@pytest.mark.parametrize(
    ("name", "shape", "query_pre_attn_scalar"),
    [
        ("gemma2", GEMMA2_2B, 256),
        ("gemma2", GEMMA2_27B, 144),
        ("gemma3", GEMMA3_1B, 256),
        ("gemma3", GEMMA3_27B, 168),
    ],
)
def test_gemma_query_scale(name: str, shape: dict[str, int], query_pre_attn_scalar: int) -> None:
    config = configure(name, shape)
    (scale,) = {a.scale for a in config.attention}
    assert scale == pytest.approx(query_pre_attn_scalar**-0.5)


def test_gemma2_defaults() -> None:
    c = configure("gemma2", GEMMA2_2B)
    assert [a.window for a in c.attention[:4]] == [4096, 0, 4096, 0]
    assert (c.attention[0].softcap, c.final_softcap) == (50.0, 30.0)
    assert c.embed_scale == 48.0
    assert configure("gemma2", GEMMA2_2B, attn_logit_softcapping=0.0).attention[0].softcap == 0.0


def test_gemma3_turns_local_and_global_layers_apart() -> None:
    c = configure("gemma3", GEMMA3_1B, rope__freq_base=1e6, attention__sliding_window=512)
    assert [i for i, a in enumerate(c.attention) if a.window == 0] == [5, 11, 17, 23]
    assert c.ropes[0] is c.ropes[4]
    assert c.ropes[5] is c.ropes[11]
    np.testing.assert_allclose(c.ropes[4].inv_freq[-1], 10000 ** -(254 / 256), rtol=1e-6)
    np.testing.assert_allclose(c.ropes[5].inv_freq[-1], 1e6 ** -(254 / 256), rtol=1e-6)


def test_window_pattern_of_the_file() -> None:
    shape = {**GEMMA3_1B, "block_count": 4}
    by_period = configure("gemma3", shape, attention__sliding_window_pattern=2)
    assert [a.window for a in by_period.attention] == [1024, 0, 1024, 0]
    flags = np.array([True, True, False, True])
    by_flags = configure("gemma3", shape, attention__sliding_window_pattern=flags)
    assert [a.window for a in by_flags.attention] == [1024, 1024, 0, 1024]
    with pytest.raises(GGUFError, match="has 3 flags for 4 layers"):
        configure("gemma3", shape, attention__sliding_window_pattern=flags[:3])
    with pytest.raises(GGUFError, match="sliding_window_pattern' is 0"):
        configure("gemma3", shape, attention__sliding_window_pattern=0)


def test_mistral_nemo_heads_are_narrower_than_its_width() -> None:
    shape = {"block_count": 2, "embedding_length": 5120, "head_count": 32, "key_length": 128}
    c = configure("llama", shape)
    specs = arch.get("llama").tensors(c)
    assert specs["blk.0.attn_q"].shape == (4096, 5120)
    assert specs["blk.0.attn_output"].shape == (5120, 4096)


def test_phi4_mini_turns_three_quarters_of_a_head() -> None:
    shape = {"block_count": 2, "embedding_length": 3072, "head_count": 24}
    c = configure("phi3", shape, attention__head_count_kv=8, rope__dimension_count=96)
    assert (c.head_dim, c.ropes[0].n_rot) == (128, 96)
    specs = arch.get("phi3").tensors(c)
    assert specs["blk.0.attn_v"].shape == (3072 + 2 * 1024, 3072)
    assert specs["blk.0.attn_v"].rows == (4096, 5120)
    assert specs["blk.0.attn_v"].used_shape == (1024, 3072)
