"""Where tests find data that is not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"

#: Reference values, vocabularies, templates: beside the checkout, or where EDGERUN_SHARED says.
SHARED = Path(os.environ.get("EDGERUN_SHARED", ROOT.parent / "shared"))


def shared(*parts: str) -> Path:
    """A path under the shared data; skips the calling test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        import pytest  # not before it is needed: benchmarks/gpu.py does without

        pytest.skip(f"shared data not present: {Path(*parts)}")
    return path
