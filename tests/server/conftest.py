"""Tiny models behind one endpoint, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.http import Endpoint

PIECES = ["Hel", "lo", ", ", "wor", "ld", "! ", "Say", " \n", "lollo", "llo w"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``scripted`` says PIECES and ends, ``random`` anything, ``small`` has a context of 64,
    ``broken`` computes no numbers."""
    folder = tmp_path_factory.mktemp("models")
    broken = {"output_norm.weight": float("nan")}
    return {
        "scripted": gb.scripted_model(folder / "scripted.gguf", PIECES, vocab=[" "]),
        "random": gb.random_model(folder / "random.gguf", seed=3, n_ctx=8192),
        "small": gb.random_model(folder / "small.gguf", seed=4, n_ctx=64),
        "broken": gb.scripted_model(folder / "broken.gguf", ["a", "b"], spoil=broken),
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Endpoint]:
    with Endpoint(models) as endpoint:
        yield endpoint
