"""Where drafts come from, and how many of them a step verifies."""

from __future__ import annotations

from edgerun.engine.drafting.costs import StepCosts
from edgerun.engine.drafting.forced import ForcedDrafter
from edgerun.engine.drafting.ngram import NgramDrafter
from edgerun.engine.drafting.widths import Account, Row, Share, share

__all__ = ["Account", "ForcedDrafter", "NgramDrafter", "Row", "Share", "StepCosts", "share"]
