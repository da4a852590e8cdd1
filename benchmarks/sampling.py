"""What choosing a token costs at a 262 144 vocabulary, in microseconds.

    python benchmarks/sampling.py [--vocab N] [--rounds N]

A step of Gemma 3 270M takes several milliseconds on a CPU; the default chain should be under 3 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _machine import machine_facts

from edgerun import SamplingParams
from edgerun.engine.sampling import Sampler

CASES = {
    "default chain": SamplingParams(),
    "greedy": SamplingParams(temperature=0),
    "temperature only": SamplingParams(top_k=0, top_p=1, min_p=0),
    "top_p only": SamplingParams(top_k=0, min_p=0),
    "min_p only": SamplingParams(top_k=0, top_p=1),
    "penalties": SamplingParams(repeat_penalty=1.1, presence_penalty=0.5),
    "mirostat 2": SamplingParams(mirostat=2),
    "default, logprobs 5": SamplingParams(logprobs=5),
}


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--vocab", type=int, default=262144)
    ap.add_argument("--rounds", type=int, default=300)
    args = ap.parse_args()
    print(", ".join(f"{k} {v}" for k, v in machine_facts().items()))
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 2.5, args.vocab).astype(np.float32) for _ in range(4)]
    for row in rows:  # a model's logits: a few tokens stand out
        row[rng.integers(0, args.vocab, 50)] += rng.uniform(5, 15, 50).astype(np.float32)
    print(f"{'chain':<22}{'median us':>10}{'least us':>10}")
    for name, params in CASES.items():
        sampler = Sampler(params, args.vocab, seed=1, prompt_ids=list(range(50)))
        times = []
        for i in range(args.rounds):
            start = time.perf_counter()
            token = sampler.sample(rows[i % len(rows)]).token_id
            times.append((time.perf_counter() - start) * 1e6)
            sampler.accept(token)
        print(f"{name:<22}{statistics.median(times):>10.0f}{min(times):>10.0f}")


if __name__ == "__main__":
    main()
