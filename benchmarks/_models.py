"""The files that are measured, and what a token of theirs costs at least."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _engines import HERE, say

#: name -> (title, catalogue name or synthetic shape and type)
MODELS = {
    "smollm2": ("SmolLM2-135M Q4_1", "smollm2-135m"),
    "gemma3": ("Gemma 3 270M Q4_K_M", "gemma3-270m"),
    "llama-1b": ("llama-1b shape Q4_K_M", ("llama-1b", "Q4_K_M")),
    "experts": ("1.7B shape, 8 of 64 experts, Q4_K_M", ("qwen3moe-1b", "Q4_K_M")),
}

#: Every type that has kernels of its own but Q4_K, which Q4_K_M stands for.
TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
    "MXFP4", "F16", "BF16",
)  # fmt: skip


def path_of(name: str) -> Path:
    """The file of ``MODELS[name]``, pulled or written if it is not here."""
    source = MODELS[name][1]
    if isinstance(source, tuple):
        shape, quant = source
        path = Path(tempfile.gettempdir()) / f"edgerun-{shape}-{quant}.gguf"
        if not path.exists():
            synthesize(path, shape, quant)
        return path
    from edgerun.catalog import resolve

    return resolve(source).path


def synthesize(path: Path, shape: str, quant: str) -> None:
    """Write a file of random weights, whole or not at all."""
    say(f"  writing {path}")
    part = path.with_suffix(".part")
    script = [sys.executable, str(HERE / "synth_gguf.py")]
    try:
        subprocess.run(
            [*script, str(part), "--shape", shape, "--quant", quant],
            check=True,
            start_new_session=True,
        )
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def temporary(shape: str, quant: str) -> Iterator[Path]:
    """A synthetic file that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgerun-bench-") as folder:
        path = Path(folder, f"{shape}-{quant}.gguf")
        synthesize(path, shape, quant)
        yield path


@dataclass(frozen=True)
class Cost:
    """What one token takes.

    Attributes:
        read: bytes of weights that are read to generate it.
        kv: values of K and V that are kept of it, over all layers.
        products: weights it is multiplied with in a prefill, where the output head has no part.
        file: bytes of the file.
    """

    read: int
    kv: int
    products: int
    file: int


def cost_of(path: Path) -> Cost:
    """Counted over the file's matrices, of experts over those that a token has; rows of an
    embedding that is no output head are nothing."""
    from edgerun.gguf import GGUFFile

    with GGUFFile.open(path) as file:
        prefix = file.get_str("general.architecture")
        part = 1.0
        if n_experts := file.metadata.get_int(f"{prefix}.expert_count", 0):
            part = file.metadata.get_int(f"{prefix}.expert_used_count") / n_experts
        experts = [t for t in file.tensors.values() if len(t.shape) == 3]
        matrices = {n: t for n, t in file.tensors.items() if len(t.shape) == 2}
        head = matrices.get("output.weight") or matrices["token_embd.weight"]
        layers = [t for n, t in matrices.items() if n not in ("output.weight", "token_embd.weight")]
        kv = [t.n_rows for t in layers if t.name.endswith(("attn_k.weight", "attn_v.weight"))]
        return Cost(
            read=sum(t.nbytes for t in layers)
            + head.nbytes
            + int(part * sum(t.nbytes for t in experts)),
            kv=sum(kv),
            products=sum(t.n_elements for t in layers)
            + int(part * sum(t.n_elements for t in experts)),
            file=file.size,
        )
