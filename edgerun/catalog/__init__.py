"""Models by name: what exists, where it is on this machine, and how it gets here."""

from __future__ import annotations

from edgerun.catalog.spec import DEFAULT_MODEL, ModelSpec, config_dir, data_dir, load_catalog
from edgerun.catalog.store import Entry, Progress, Resolved, list_models, pull, remove, resolve
from edgerun.errors import NotPulledError

__all__ = [
    "DEFAULT_MODEL",
    "Entry",
    "ModelSpec",
    "NotPulledError",
    "Progress",
    "Resolved",
    "config_dir",
    "data_dir",
    "list_models",
    "load_catalog",
    "pull",
    "remove",
    "resolve",
]
