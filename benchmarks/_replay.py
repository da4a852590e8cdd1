"""Recorded token streams through the product's drafter: what speculation would have gained."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.engine.drafting import NgramDrafter, Speculation, StepCosts

#: Measured step costs: a large model on a CPU, bound by memory; a small one; a GPU.
TABLES = {
    "cpu, large": {
        1: 1.0, 2: 1.01, 3: 1.02, 4: 1.03, 6: 1.1, 8: 1.18, 12: 1.45, 16: 2.0, 24: 2.6, 32: 3.3,
    },
    "cpu, small": {1: 1.0, 2: 1.1, 4: 1.25, 8: 1.6, 16: 2.6, 32: 4.6},
    "gpu": {1: 1.0, 8: 1.15, 16: 1.25, 32: 1.5},
}  # fmt: skip

#: Drafting and its bookkeeping in every step, as a part of the shortest step there is.
OVERHEAD = 20.0 / 3000.0
LONGEST = 31


@dataclass(frozen=True)
class Stream:
    workload: str
    prompt: list[int]
    output: list[int]


@dataclass
class Score:
    """Steps of one token that the outputs would take, and what they cost with drafts."""

    tokens: int = 0
    cost: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    @property
    def speedup(self) -> float:
        return self.tokens / self.cost

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def streams(folder: Path) -> Iterator[Stream]:
    """The usable streams of the recordings in ``folder``; their format is in its README."""
    for path in sorted(folder.glob("*.json")):
        entries: list[dict[str, Any]] = json.loads(path.read_text())
        for e in entries:
            if e["ok"]:
                yield Stream(e["workload"], e["prompt"], e["output"][: e["use"]])


def replay(stream: Stream, cost: StepCosts) -> Score:
    """The first token comes with the prompt; a drafted one is accepted if it was recorded."""
    speculation = Speculation(NgramDrafter, cost)
    drafter = speculation.drafter()
    out = stream.output
    drafter.extend(stream.prompt)
    drafter.extend(out[:1])
    score, i, last = Score(tokens=len(out) - 1), 1, len(out) - 1
    start = time.perf_counter()
    while i < len(out):
        draft = drafter.draft(LONGEST)
        [k] = speculation.widths([draft], 1) if draft.tokens else [0]
        n = 0
        while n < k and i + n < last and draft.tokens[n] == out[i + n]:
            n += 1
        drafter.extend(out[i : i + n + 1])
        score.cost += cost(1 + k) + OVERHEAD
        score.steps += 1
        score.drafted += k
        score.accepted += n
        i += n + 1
    score.seconds = time.perf_counter() - start
    return score


def replay_all(folder: Path) -> dict[str, dict[str, list[Score]]]:
    """Scores by cost table and workload."""
    results: dict[str, dict[str, list[Score]]] = {}
    recorded = list(streams(folder))
    for name, table in TABLES.items():
        cost = StepCosts(table, learn=False)
        by_workload: dict[str, list[Score]] = defaultdict(list)
        for stream in recorded:
            by_workload[stream.workload].append(replay(stream, cost))
        results[name] = dict(by_workload)
    return results


def mean(by_workload: dict[str, list[Score]]) -> float:
    """Geometric mean of the workloads' speedups."""
    return math.exp(
        sum(math.log(total(s).speedup) for s in by_workload.values()) / len(by_workload)
    )


def worst(by_workload: dict[str, list[Score]]) -> float:
    """The least speedup of any stream."""
    return min(s.speedup for scores in by_workload.values() for s in scores)


def total(scores: list[Score]) -> Score:
    out = Score()
    for s in scores:
        out.add(s)
    return out
