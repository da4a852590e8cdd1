"""What a constraint costs a step, and what the tokens it forces gain.

    python benchmarks/structured.py [MODEL ...] [--tokens N]

For each model and constraint: the text as it is chosen under it, once without and once with
speculation. "mask" is the time to find the allowed tokens, "sampler" what choosing among them costs
more or less than choosing freely, both of a step's time; the aim is under 5 %.
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

from edgerun import LLM, Completion, Constraint, SamplingParams
from edgerun.engine.sampling import Sampler
from edgerun.structured.grammars import Grammars
from edgerun.structured.vocabulary import open_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "year_of_birth": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "nationality": {"enum": ["British", "French", "German", "Italian", "other"]},
        "occupations": {
            "type": "array",
            "items": {"type": "string", "maxLength": 30},
            "maxItems": 3,
        },
        "biography": {"type": "string", "maxLength": 300},
    },
    "required": ["full_name", "year_of_birth", "nationality", "occupations", "biography"],
    "additionalProperties": False,
}
CASES = {
    "schema": Constraint("json_schema", PERSON),
    "any object": Constraint("json_object"),
    "regex": Constraint("regex", r"[A-Z][^\n]{80,400}"),
    "gbnf list": Constraint("gbnf", 'root ::= ("- " [^\\r\\n]{5,60} "\\n"){3,9}'),
}
PROMPT = "Tell me about Ada Lovelace, as JSON or as a list:\n"


def masks(llm: LLM, constraint: Constraint, text: Completion) -> list[float]:
    """Microseconds to find what may come next and to go on, along a text."""
    [m] = llm._grammars.matchers(constraint)
    times = []
    for i in text.token_ids:
        start = time.perf_counter()
        m.mask()
        m.accept(i)
        times.append((time.perf_counter() - start) * 1e6)
    return times


def choosing(
    llm: LLM, constraint: Constraint | None, text: Completion, temperature: float
) -> float:
    """Median microseconds a token takes in the sampler, mask included."""
    n = llm.model.tokenizer.n_vocab
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 3, n).astype(np.float32) for _ in range(4)]
    params = SamplingParams(temperature=temperature)
    matcher = llm._grammars.matchers(constraint)[0] if constraint else None
    sampler = Sampler(params, n, seed=1, constraint=matcher)
    times = []
    for k, i in enumerate(text.token_ids):
        row = rows[k % 4]
        best = int(row.argmax()) if temperature <= 0 else None
        start = time.perf_counter()
        sampler.sample(row, best)
        sampler.accept(i)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("models", nargs="*", default=["smollm2-135m", "gemma-3-270m"])
    ap.add_argument("--tokens", type=int, default=150)
    args = ap.parse_args()
    print(", ".join(f"{k} {v}" for k, v in machine_facts().items()))
    for name in args.models:
        with LLM(name, n_ctx=1024) as llm:
            measure(llm, args.tokens)


def measure(llm: LLM, n: int) -> None:
    start = time.perf_counter()
    open_tokenizer(llm.model.tokenizer)
    print(f"\n{llm.name}: {llm.model.tokenizer.n_vocab} tokens, trie in ", end="")
    print(f"{time.perf_counter() - start:.2f} s")
    print(
        f"{'constraint':<12}{'T':>4}{'compile ms':>11}{'mask us':>9}{'worst':>7}{'sampler us':>11}"
        f"{'free':>6}{'step ms':>9}{'share':>7}{'steps/token':>12}{'t/s off':>9}{'t/s on':>8}"
    )
    for (name, c), t in ((case, t) for case in CASES.items() for t in (0.0, 0.8)):
        start = time.perf_counter()
        Grammars.matchers(llm._grammars, c)
        compiled = (time.perf_counter() - start) * 1e3
        speculation, llm._speculation = llm._speculation, None
        options = {"temperature": t, "seed": 1, "max_tokens": n, "constraint": c}
        off = llm.generate(PROMPT, **options)
        llm._speculation = speculation
        before = llm.metrics()
        on = llm.generate(PROMPT, **options)
        after = llm.metrics()
        assert on.token_ids == off.token_ids
        steps = (after.steps - before.steps) / max(1, len(on.token_ids))
        times = masks(llm, c, off)
        sampler, free = (choosing(llm, x, off, t) for x in (c, None))
        step = 1e3 / max(1e-9, off.timings.decode_per_second)
        print(
            f"{name:<12}{t:>4}{compiled:>11.1f}{statistics.mean(times):>9.0f}{max(times):>7.0f}"
            f"{sampler:>11.0f}{free:>6.0f}{step:>9.2f}{(sampler - free) / step / 10:>6.1f}%"
            f"{steps:>12.2f}{off.timings.decode_per_second:>9.1f}{on.timings.decode_per_second:>8.1f}"
        )


if __name__ == "__main__":
    main()
