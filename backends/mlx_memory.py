"""What a step takes beside weights and pages: a GPU that runs out of memory ends the process, so a
step that might is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.backends.base import Attention
from edgerun.backends.mlx_experts import TILE
from edgerun.backends.mlx_mode import Mode
from edgerun.backends.mlx_weights import Floats, Packed
from edgerun.backends.recorder import Node

__all__ = ["StepMemory"]

#: Head sizes for which MLX's attention on a GPU keeps no scores in memory.
_FUSED = (64, 80, 128)
#: Activations of the widest kind that are alive at once: a gated unit's two halves, what they are
#: made of, what is made of them.
_ALIVE = 4


@dataclass(frozen=True)
class StepMemory:
    """What a forward pass is made of, as far as its memory depends on it.

    Attributes:
        width: of the widest activation, over all experts of a token.
        result: of what is computed for an output.
        unpacked: most bytes of weights that a step of many tokens unpacks, two matrices at once.
        attentions: of its layers.
        fused: whether scores of some head sizes are not kept.
    """

    width: int
    result: int
    unpacked: int
    attentions: tuple[Attention, ...]
    fused: bool

    @classmethod
    def of(cls, nodes: Sequence[Node], mode: Mode) -> StepMemory:
        """Of a recorded pass, whose last node is its result."""
        value = 2 if mode.narrow else 4
        width = unpacked = 0
        attentions = []
        for n in nodes[:-1]:
            width = max(width, n.width)
            if n.kind == "attention":
                attentions.append(n.data["spec"])
            if n.kind == "moe":
                spec, w = n.data["spec"], n.data["weights"]
                width = max(width, spec.n_used * max(spec.n_ff, n.width))
                matrices = [x.matrix for x in (w.gate, w.up, w.down)]
                if not mode.kernels:
                    unpacked = max(unpacked, 3 * TILE)
            else:
                matrices = [n.data.get("weight")]
            for m in matrices:
                if isinstance(m, Packed) or (n.kind == "moe" and isinstance(m, Floats)):
                    unpacked = max(unpacked, 2 * value * m.n_out * m.n_in)
        return cls(width, nodes[-1].width, unpacked, tuple(dict.fromkeys(attentions)), mode.metal)

    def of_step(self, rows: Sequence[tuple[int, int]], n_outputs: int) -> int:
        """Bytes that a step takes at most, of rows of ``(tokens before it, new tokens)``."""
        n = sum(new for _, new in rows)
        activations = 4 * _ALIVE * n * self.width + 2 * 4 * n_outputs * self.result
        attention = max((self._attention(spec, rows) for spec in self.attentions), default=0)
        return activations + attention + self.unpacked

    def _attention(self, spec: Attention, rows: Sequence[tuple[int, int]]) -> int:
        gathered = scores = 0
        for past, new in rows:
            seen = min(past, spec.window) + new if spec.window else past + new
            gathered += 2 * 6 * seen * spec.n_kv_heads * spec.head_dim  # as stored, and in float32
            kept = not self.fused or spec.softcap > 0 or spec.head_dim not in _FUSED
            scores = max(scores, (1 + kept * 3 * 4 * spec.n_heads) * new * seen)
        return gathered + scores
