"""Sampling: one :class:`Sampler` a request turns rows of logits into tokens."""

from __future__ import annotations

from edgerun.engine.sampling.sampler import Sampled, Sampler

__all__ = ["Sampled", "Sampler"]
