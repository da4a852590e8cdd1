"""Where drafts come from, and how many of them a step verifies."""

from __future__ import annotations

from edgerun.engine.drafting.costs import StepCosts
from edgerun.engine.drafting.forced import ForcedDrafter
from edgerun.engine.drafting.model import BestDrafter, DraftModel, ModelDrafter
from edgerun.engine.drafting.ngram import NgramDrafter
from edgerun.engine.drafting.speculation import Speculation
from edgerun.engine.drafting.widths import share

__all__ = [
    "BestDrafter",
    "DraftModel",
    "ForcedDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "Speculation",
    "StepCosts",
    "share",
]
