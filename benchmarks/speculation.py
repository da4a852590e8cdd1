"""What speculation gains: the same answers with it on and off, timed in turns.

    python benchmarks/speculation.py                          on the two small models
    python benchmarks/speculation.py --model FILE --rounds 5
    python benchmarks/speculation.py --replay FOLDER          recorded streams, no model

Every pair of answers is compared token by token; one difference and the run fails. Speed is that of
decoding; a round times both, one right behind the other and every other round in the other order,
and ``speedup`` is the median of the rounds' own ratios: what a machine does besides comes and goes
more slowly than that. A quarter of the ratios lies below the first of the numbers behind it, and a
quarter above the second. Small
models fall into loops, which anything can draft, so an answer is cut where one begins. ``copied``
is the share of its tokens that continue two tokens as they were continued before: what a text
that is sampled freely does not repeat, nothing can draft. ``draft`` is the time a step spends on
drafts, on matching, learning and choosing a width.

``--draft MODEL`` lets a second model draft where the text has nothing to copy. The model itself
serves as a test (all it drafts is right, and nothing is gained): it must not cost more than trying.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _replay
from _machine import machine_facts

from edgerun import LLM, SamplingParams
from edgerun.engine.drafting.speculation import AccountedDrafter, Speculation

CODE = """\
class Basket:
    def __init__(self, owner, limit=10):
        self.owner = owner
        self.limit = limit
        self.entries = []

    def add(self, entry, amount=1):
        if len(self.entries) >= self.limit:
            raise ValueError("the basket is full")
        self.entries.append((entry, amount))
        return self

    def total(self, prices):
        result = 0
        for entry, amount in self.entries:
            result += prices[entry] * amount
        return result
"""
RECORDS = "\n".join(
    f'{{"id": {100 + i}, "name": "{name}", "address": {{"city": "{city}", "country": '
    f'"{country}"}}, "active": true, "roles": ["reader", "author"], "score": {score}}},'
    for i, (name, city, country, score) in enumerate(
        [
            ("Ann", "Oslo", "Norway", 71),
            ("Bob", "Rome", "Italy", 64),
            ("Cid", "Bern", "Switzerland", 88),
        ]
    )
)
REPORT = """\
The harbour bridge was closed on Monday after inspectors found cracks in two of its main cables. \
The city engineer said that the cracks were small but that the bridge would stay closed until \
both cables had been replaced. Ferry services will run every ten minutes between the old market \
and the north shore, and the fare will be the same as the bus fare. Shopkeepers on the north \
shore asked the council to keep the ferries running until midnight, because most of their \
customers come in the evening."""


@dataclass(frozen=True)
class Work:
    """A question for an instruction model, whose answer begins with ``opening``; and a text for a
    model that only continues texts."""

    name: str
    question: str
    text: str
    opening: str = ""


WORK = [
    Work(
        "rename",
        f"Write this class again with `entry` renamed to `item`, and nothing else changed."
        f"\n```python\n{CODE}```",
        f"The class before:\n```python\n{CODE}```\nThe class after renaming `Basket` to `Cart`:\n"
        f"```python\n{CODE.replace('Basket', 'Cart')[:110]}",
    ),
    Work(
        "records",
        "Write twenty records of people as JSON, one a line.",
        RECORDS + "\n",
        RECORDS + "\n",
    ),
    Work(
        "quotes",
        f"List the sentences of this report, each one quoted word for word.\n\n{REPORT}",
        f"Report:\n{REPORT}\n\nThe sentences of the report, quoted word for word:\n1. \"The",
    ),
    Work(
        "chat",
        "Tell me about a walk in the mountains in autumn.",
        "On the second day we walked up into the mountains. It was autumn, and",
    ),
]  # fmt: skip

SETTINGS = {
    "0": SamplingParams(temperature=0),
    "0.8": SamplingParams(temperature=0.8, seed=7),
}


@dataclass
class Result:
    model: str
    work: str
    temperature: str
    tokens: int
    off: float  # tokens a second
    on: float
    speedup: float
    low: float  # quartiles of the rounds' ratios
    high: float
    drafted: int
    accepted: int
    steps: int
    draft_us: float
    copied: float


class Clock:
    """Time spent in functions of a class while it is in use."""

    def __init__(self, *methods: tuple[type, str]) -> None:
        self.seconds, self.calls = 0.0, 0
        for owner, name in methods:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return f(*args)
            finally:
                self.seconds += time.perf_counter() - start
                self.calls += 1

        return timed


def loop_at(ids: list[int]) -> int:
    """Where ``ids`` begin to repeat themselves exactly for good, one period kept; else its end."""
    best = len(ids)
    for period in range(1, 81):
        run = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            if run >= max(2 * period, 24):
                best = min(best, i - run + 1)
                break
    return best


def copied(prompt: list[int], answer: Sequence[int]) -> float:
    """The share of an answer's tokens that stood behind the same two tokens before."""
    ids = [*prompt, *answer]
    seen = {tuple(ids[i : i + 3]) for i in range(len(prompt) - 2)}
    hits = 0
    for i in range(len(prompt), len(ids)):
        now = tuple(ids[i - 2 : i + 1])
        hits += now in seen
        seen.add(now)
    return hits / len(answer)


def prompt_of(llm: LLM, work: Work) -> list[int]:
    if llm.chat_template().is_fallback:
        return llm.tokenize(work.text)
    ids = llm.apply_template([{"role": "user", "content": work.question}])
    return ids + llm.tokenize(work.opening, add_bos=False)


def measure(
    off: LLM, on: LLM, work: Work, temperature: str, rounds: int, most: int, clock: Clock
) -> Result:
    """Time one answer ``rounds`` times on each.

    Raises:
        SystemExit: the answers differ.
    """
    prompt, params = prompt_of(off, work), SETTINGS[temperature]
    first = off.generate(prompt, params, max_tokens=most)
    n = max(loop_at(list(first.token_ids)), 32)
    want = first.token_ids[:n]
    on.generate(prompt, params, max_tokens=n)
    speeds: list[tuple[float, float]] = []
    before = _drafts(on)
    clock.seconds = 0.0
    for round_ in range(rounds):
        pair = {}
        for llm in (off, on) if round_ % 2 else (on, off):
            got = llm.generate(prompt, params, max_tokens=n)
            if got.token_ids != want:
                at = next(
                    (
                        i
                        for i, (a, b) in enumerate(zip(got.token_ids, want, strict=False))
                        if a != b
                    ),
                    min(len(got.token_ids), len(want)),
                )
                raise SystemExit(f"{work.name}, temperature {temperature}: token {at} differs")
            pair[llm] = got.timings.decode_per_second
        speeds.append((pair[off], pair[on]))
    after = _drafts(on)
    drafted, accepted = (a - b for a, b in zip(after, before, strict=True))
    steps = rounds * (len(want) - 1) - accepted
    ratios = [b / a for a, b in speeds]
    low, speedup, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    return Result(
        on.name, work.name, temperature, len(want),
        statistics.median(s for s, _ in speeds), statistics.median(s for _, s in speeds),
        speedup, low, high,
        drafted // rounds, accepted // rounds, steps // rounds,
        1e6 * clock.seconds / max(steps, 1), copied(prompt, want),
    )  # fmt: skip


def _drafts(llm: LLM) -> tuple[int, int]:
    counts = llm.metrics().drafts.values()
    return sum(c.drafted for c in counts), sum(c.accepted for c in counts)


def run_models(args: argparse.Namespace) -> list[Result]:
    clock = Clock(
        (AccountedDrafter, "draft"), (AccountedDrafter, "extend"), (Speculation, "widths")
    )
    print(
        f"{'model':<16}{'work':<9}{'temp':>5}{'tokens':>8}{'off t/s':>9}{'on t/s':>9}"
        f"{'speedup':>9}{'quartiles':>12}{'copied':>8}{'accepted':>10}{'t/step':>8}{'draft':>8}"
    )
    results = []
    for model in args.model:
        options: dict[str, Any] = {"threads": args.threads, "n_ctx": 2048, "kv_disk": "off"}
        with (
            LLM(model, speculation="off", **options) as off,
            LLM(model, speculation="ngram", draft=args.draft, **options) as on,
        ):
            for work in [w for w in WORK if args.work is None or w.name in args.work]:
                for temperature in SETTINGS:
                    r = measure(off, on, work, temperature, args.rounds, args.tokens, clock)
                    results.append(r)
                    print(
                        f"{r.model[:15]:<16}{r.work:<9}{r.temperature:>5}{r.tokens:>8}{r.off:>9.1f}"
                        f"{r.on:>9.1f}{r.speedup:>8.2f}x{r.low:>7.2f}{r.high:>5.2f}{r.copied:>8.0%}"
                        f"{r.accepted:>5}/{r.drafted:<4}{(r.tokens - 1) / r.steps:>8.2f}"
                        f"{r.draft_us:>6.0f}us",
                        flush=True,
                    )
    return results


def run_replay(folder: Path) -> dict[str, Any]:
    """Print every workload's speedup on each cost table."""
    results = _replay.replay_all(folder)
    print(f"{'workload':<20}" + "".join(f"{name + ' (least)':>22}" for name in results))
    for workload in sorted(next(iter(results.values()))):
        cells = ""
        for scores in results.values():
            least = min(s.speedup for s in scores[workload])
            cells += f"{_replay.total(scores[workload]).speedup:>14.2f} ({least:.2f})"
        print(f"{workload:<20}{cells}")
    out = {}
    for name, by_workload in results.items():
        t = _replay.total([s for scores in by_workload.values() for s in scores])
        out[name] = {
            "mean": _replay.mean(by_workload),
            "worst": _replay.worst(by_workload),
            "acceptance": t.accepted / t.drafted,
            "us_per_step": 1e6 * t.seconds / t.steps,
        }
        print(f"{name}: " + ", ".join(f"{k} {v:.3f}" for k, v in out[name].items()))
    return out


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--model", action="append", help="a name or a file; repeatable")
    ap.add_argument("--draft", help="a small model that drafts too")
    ap.add_argument("--work", action="append", choices=[w.name for w in WORK], help="repeatable")
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--tokens", type=int, default=192, help="most tokens of an answer")
    ap.add_argument("--threads", type=int)
    ap.add_argument("--replay", type=Path, metavar="FOLDER", help="recorded streams instead")
    ap.add_argument("--json", type=Path, help="write the results here")
    args = ap.parse_args()
    args.model = args.model or ["smollm2-135m", "gemma3-270m"]
    print(", ".join(f"{k} {v}" for k, v in machine_facts().items()))
    if args.replay is not None:
        results: Any = run_replay(args.replay)
    else:
        results = [asdict(r) for r in run_models(args)]
    if args.json is not None:
        args.json.write_text(json.dumps({**machine_facts(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
