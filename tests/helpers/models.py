"""The two real models the tests use, pulled through the catalogue once and cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _model(name: str, env: str) -> Path:
    given = os.environ.get(env)
    if given:
        return Path(given)
    from edgerun.catalog import resolve
    from edgerun.errors import EdgerunError

    try:
        return resolve(name).path
    except EdgerunError as e:  # offline machine: the rest of the suite still runs
        pytest.skip(f"{name} cannot be had here: {e}")


def smollm2() -> Path:
    return _model("smollm2-135m", "EDGERUN_TEST_SMOLLM2")


def gemma3() -> Path:
    return _model("gemma3-270m", "EDGERUN_TEST_GEMMA3")
