"""What ops need to know beside tensors: ropes, attention, experts, what a layer keeps per token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Activation", "Attention", "ExpertWeights", "Experts", "KVLayer", "Rope", "layer_of"]

F32: TypeAlias = npt.NDArray[np.float32]

#: How a gated unit combines its two halves: ``act(gate) * up`` (arXiv:2002.05202). gelu is the tanh
#: approximation. swiglu_oai, gpt-oss's, is ``g * sigmoid(1.702 * g) * (u + 1)`` where g is gate cut
#: off above 7 and u is up cut off below -7 and above 7.
Activation: TypeAlias = Literal["silu", "gelu", "swiglu_oai"]


def layer_of(name: str) -> int | None:
    """The layer that a tensor of this name belongs to, None if to none."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding (arXiv:2104.09864) with every scaling rule already applied.

    Pair ``i`` of a head turns by ``position * inv_freq[i]``; the result is multiplied by ``mscale``
    (YaRN's attention factor). ``inv_freq`` is float32 ``[n_rot / 2]``; dimensions past ``n_rot``
    pass through. ``interleaved`` pairs (2i, 2i+1), else (i, i + n_rot/2).
    """

    inv_freq: F32
    interleaved: bool
    mscale: float = 1.0

    @property
    def n_rot(self) -> int:
        return 2 * len(self.inv_freq)


@dataclass(frozen=True)
class Attention:
    """Causal grouped-query attention: ``softcap * tanh(scale * q·k / softcap)``, softmax, ``·v``.

    Query head h reads KV head ``h // (n_heads // n_kv_heads)``. ``window`` w > 0: position i sees
    positions j with ``i - w < j <= i``. With sinks (arXiv:2309.17453, as gpt-oss learns them) head
    h's softmax has one more score, ``sinks[h]`` as it is, that stands for no token: it takes its
    part of the weight and adds nothing.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    softcap: float = 0.0
    window: int = 0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts (arXiv:1701.06538): ``n_used`` of ``n_experts`` gated units a token.

    The router's logits r [n_experts] choose the largest ``n_used``, of equals the lower index
    first; that order is the experts' rank. ``gating`` "softmax": a chosen expert weighs
    ``softmax(r)[e]``, divided by the sum over the chosen ones if ``normalize``. "chosen": the
    softmax is over the chosen logits alone. All weights are then multiplied by ``scale``. The
    result is the weighed sum of the experts' outputs, added from the first rank to the last, so
    that no other token has a say in its bits.
    """

    n_experts: int
    n_used: int
    n_ff: int
    act: Activation = "silu"
    gating: Literal["softmax", "chosen"] = "softmax"
    normalize: bool = False
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """One layer's. ``router`` is a matrix [n_experts, n_in]; ``gate`` and ``up`` were uploaded as
    [n_experts, n_ff, n_in], ``down`` as [n_experts, n_out, n_ff]. Biases are vectors, one
    expert's behind another's: [n_experts], [n_experts * n_ff], [n_experts * n_out]."""

    router: Any
    gate: Any
    up: Any
    down: Any
    router_bias: Any = None
    gate_bias: Any = None
    up_bias: Any = None
    down_bias: Any = None


@dataclass(frozen=True)
class KVLayer:
    """What one attention layer stores per token. ``window`` tells the pool what it may forget."""

    n_kv_heads: int
    head_dim: int
    window: int = 0

    def token_bytes(self, kv_type: str) -> int:
        """Bytes that K and V of one token take, padding left out: q8_0 keeps an int8 a value and an
        fp16 scale per 32 of a head's, q4r half a byte instead of the int8."""
        scales = 2 * -(-self.head_dim // 32)
        if kv_type == "q8_0":
            return 2 * self.n_kv_heads * (self.head_dim + scales)
        if kv_type == "q4r":
            return 2 * self.n_kv_heads * (-(-self.head_dim // 2) + scales)
        return 2 * self.n_kv_heads * self.head_dim * (4 if kv_type == "f32" else 2)
