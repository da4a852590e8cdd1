"""Rows of results, and how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from _engines import Timing

#: (section, model or None for any, case) -> (what is compared, at least or at most, the bound).
GOALS: dict[tuple[str, str | None, str], tuple[str, str, float]] = {
    ("speed", "smollm2", "prefill 512"): ("llama_cpp", ">=", 8.0),
    ("speed", "smollm2", "decode 128"): ("llama_cpp", ">=", 2.0),
    ("speed", "gemma3", "prefill 512"): ("llama_cpp", ">=", 3.6),
    ("speed", "gemma3", "decode 128"): ("llama_cpp", ">=", 1.85),
    ("speed", "llama-1b", "prefill 512"): ("llama_cpp", ">=", 2.5),
    ("speed", "llama-1b", "decode 128"): ("llama_cpp", ">=", 1.05),
    ("speed", "llama-1b", "8 sequences"): ("llama_cpp", ">=", 5.0),
    ("types", None, "decode 24"): ("limit", ">=", 0.9),
    ("context", "llama-1b", "decode 16 at 8192, f16"): ("llama_cpp", ">=", 1.3),
    ("busy", None, "decode 128, 1 busy"): ("of quiet", ">=", 0.70),
    ("busy", None, "decode 128, 2 busy"): ("of quiet", ">=", 0.48),
    ("start", "smollm2", "run -n 16"): ("value", "<=", 0.9),
    ("start", "llama-1b", "load"): ("value", "<=", 1.0),
    ("start", "llama-1b", "peak memory"): ("value", "<=", 1.2),
    ("isa avx2", "smollm2", "prefill 512"): ("llama_cpp", ">=", 2.0),
    ("isa avx2", "smollm2", "decode 128"): ("llama_cpp", ">=", 1.0),
    ("concurrent", "llama-1b", "8 at once"): ("of one alone", ">=", 5.0),
    ("first token", None, "4096 warm"): ("of cold", "<=", 0.05),
    ("first token", None, "4096 restarted"): ("of cold", "<=", 0.15),
    ("gap", None, "4096 arriving"): ("of the target", "<=", 2.0),
    ("server", "smollm2", "1 clients"): ("of the engine", ">=", 0.9),
    ("server", "smollm2", "8 clients"): ("of the engine", ">=", 0.9),
    ("server", "smollm2", "32 clients"): ("of the engine", ">=", 0.9),
    ("server", "smollm2", "200 dropped"): ("value", "<=", 0),
}


@dataclass
class Against:
    """An engine's median in a row's unit; edgerun's speed by it, the median over the rounds of
    their own ratios and its range."""

    value: float
    ratio: float
    least: float
    most: float


@dataclass
class Row:
    """One measured figure.

    Attributes:
        value: edgerun's median, in ``unit``.
        limit: its share of what the machine's ``limit_of`` allows, 0 to 1.
        read_gb_s, int8_g_s: that machine, medians of the same rounds: GB/s read, 1e9 int8 products
            a second.
        more: further facts of the case by name.
    """

    section: str
    model: str
    case: str
    value: float
    unit: str = "t/s"
    peers: dict[str, Against] = field(default_factory=dict)
    limit: float | None = None
    limit_of: str = ""
    read_gb_s: float | None = None
    int8_g_s: float | None = None
    more: dict[str, float] = field(default_factory=dict)

    def goal(self) -> tuple[str, bool | None]:
        """The goal in words ("" if there is none) and whether it is met (None: not compared)."""
        goal = GOALS.get((self.section, self.model, self.case)) or GOALS.get(
            (self.section, None, self.case)
        )
        if goal is None:
            return "", None
        what, sense, bound = goal
        got: float | None
        if what in ("value", "limit"):
            got = getattr(self, what)
        elif what in self.more:
            got = self.more[what]
        else:
            got = self.peers[what].ratio if what in self.peers else None
        words = f"{sense} {bound:g}" + {"value": "", "limit": " of limit"}.get(what, f" {what}")
        if got is None:
            return words, None
        return words, got >= bound if sense == ">=" else got <= bound


def row_of(
    section: str, model: str, case: str, timing: Timing, *,
    bytes_read: float | None = None, products: int | None = None,
) -> Row:  # fmt: skip
    """A row of tokens a second. ``bytes_read`` or ``products``: what a token takes of the machine,
    for the share of its limit."""
    value = timing.median("edgerun")
    assert value is not None
    row = Row(section, model, case, value, read_gb_s=statistics.median(timing.reads))
    row.int8_g_s = statistics.median(timing.dots) if timing.dots else None
    ours = timing.speeds["edgerun"]
    if bytes_read is not None:
        pairs = zip(ours, timing.reads, strict=True)
        row.limit = statistics.median(s * bytes_read / 1e9 / r for s, r in pairs)
        row.limit_of = "read"
        row.more = {"bytes a token": bytes_read, "GB/s": value * bytes_read / 1e9}
    elif products is not None and timing.dots:
        pairs = zip(ours, timing.dots, strict=True)
        row.limit = statistics.median(s * products / 1e9 / d for s, d in pairs)
        row.limit_of = "int8"
    for engine in timing.speeds:
        ratios = timing.ratios(engine)
        median = timing.median(engine)
        if engine != "edgerun" and median is not None:
            row.peers[engine] = Against(median, statistics.median(ratios), min(ratios), max(ratios))
    return row


def to_json(row: Row) -> dict[str, Any]:
    goal, met = row.goal()
    return {**asdict(row), "goal": goal, "met": met}


def from_json(data: dict[str, Any]) -> Row:
    peers = {name: Against(**p) for name, p in data["peers"].items()}
    fields = {k: v for k, v in data.items() if k not in ("goal", "met", "peers")}
    return Row(**fields, peers=peers)


def cells(row: Row, engines: Sequence[str]) -> list[str]:
    goal, met = row.goal()
    out = [row.model, row.case, f"{row.value:.{_digits(row.value)}f} {row.unit}"]
    for engine in engines:
        p = row.peers.get(engine)
        out.append(f"{p.value:.{_digits(p.value)}f}" if p else "")
        out.append(f"{p.ratio:.2f} ({p.least:.2f}-{p.most:.2f})" if p else "")
    out.append(f"{row.limit:.0%} of {row.limit_of}" if row.limit is not None else "")
    out.append(f"{row.read_gb_s:.1f}" if row.read_gb_s else "")
    out.append(f"{row.int8_g_s:.0f}" if row.int8_g_s else "")
    out.append(", ".join(f"{k} {_short(v)}" for k, v in row.more.items()))
    out.append(f"{goal} {'?' if met is None else 'met' if met else 'MISSED'}" if goal else "")
    return out


def _digits(value: float) -> int:
    return 0 if value >= 1000 else 1 if value >= 10 else 2


def _short(value: float) -> str:
    return f"{value / 1e6:.1f}M" if value >= 1e6 else f"{value:.{_digits(value)}f}"


def titles(engines: Sequence[str]) -> list[str]:
    peers = [t for e in engines for t in (e, f"ratio to {e}")]
    tail = ["of the limit", "read GB/s", "int8 G/s", "more", "goal"]
    return ["model", "case", "edgerun", *peers, *tail]


_WIDTHS = {"model": 10, "case": 23, "edgerun": 11, "more": 33, "goal": 24}


def line(values: Sequence[str], heads: Sequence[str]) -> str:
    """One line of the table on a terminal."""
    pairs = zip(values, heads, strict=True)
    return "  ".join(v.ljust(_WIDTHS.get(h, len(h))) for v, h in pairs).rstrip()


def markdown(rows: Sequence[Row]) -> str:
    """All rows as tables, one a section, without columns that are empty throughout."""
    out = []
    for section in dict.fromkeys(r.section for r in rows):
        mine = [r for r in rows if r.section == section]
        engines = list(dict.fromkeys(e for r in mine for e in r.peers))
        table = [titles(engines), *(cells(r, engines) for r in mine)]
        used = [i for i in range(len(table[0])) if any(line[i] for line in table[1:])]
        lines = ["| " + " | ".join(r[i] for i in used) + " |" for r in table]
        out += [f"### {section}", "", lines[0], "|" + "---|" * len(used), *lines[1:], ""]
    return "\n".join(out)
