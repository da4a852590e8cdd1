"""Sequences, pages, scheduling, sampling and the step loop."""

from edgerun.engine.draft_source import Draft, Drafter, Widths
from edgerun.engine.engine import Engine
from edgerun.engine.metrics import Metrics
from edgerun.engine.scheduler import Limits
from edgerun.engine.sequence import Sequence, Sink
from edgerun.engine.worker import Worker

__all__ = [
    "Draft",
    "Drafter",
    "Engine",
    "Limits",
    "Metrics",
    "Sequence",
    "Sink",
    "Widths",
    "Worker",
]
