"""``edgerun bench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, one_line_error

from edgerun.backends.base import PAGE_SIZE, Batch, Program
from edgerun.bench import measure, tokens_needed


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=6)


class Counting(Program):
    """Counts tokens and rows; a step's pages must be its rows' own."""

    n_vocab = 50

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def run(self, batch: Batch):  # type: ignore[no-untyped-def]
        self.steps.append((batch.n_tokens, batch.n_rows))
        held = [p for row in batch.pages for p in row if p >= 0]
        assert len(held) == len(set(held))
        for past, row in zip(batch.n_past, batch.pages, strict=True):
            assert past < len([p for p in row if p >= 0]) * PAGE_SIZE
        assert (batch.tokens < self.n_vocab).all()


def test_measure_does_what_it_says() -> None:
    program = Counting()
    found = measure(program, 600, 5, [1, 3], rounds=1)
    assert [(m.name, m.tokens) for m in found] == [
        ("prefill 600", 600),
        ("decode 5", 5),
        ("3 sequences", 15),
    ]
    one_round = [(512, 1), (88, 1)] + [(1, 1)] * 5 + [(64, 1)] * 3 + [(3, 3)] * 5
    assert program.steps == one_round * 2
    assert all(m.least <= m.median <= m.most for m in found)


def test_tokens_needed_covers_all_sequences() -> None:
    assert tokens_needed(512, 128, [1, 8]) == 8 * 192
    assert tokens_needed(512, 100, [1]) == 612


def test_table(cli: CLI, model: Path) -> None:
    result = cli("bench", "-m", model, "-p", "40", "-n", "4", "-b", "1,2", "--rounds", "1")
    assert result.status == 0
    assert [line.split("  ")[0] for line in result.out.splitlines()[2:]] == [
        "prefill 40",
        "decode 4",
        "2 sequences",
    ]


def test_json(cli: CLI, model: Path) -> None:
    result = cli("bench", "-m", model, "-p", "8", "-n", "2", "-b", "2", "--rounds", "1", "--json")
    data = json.loads(result.out)
    assert data["backend"] == "cpu"
    assert [r["name"] for r in data["results"]] == ["prefill 8", "2 sequences"]
    assert all(r["median"] > 0 for r in data["results"])


@pytest.mark.parametrize(
    "option", [("-p", "0"), ("-b", "1,x"), ("-b", ""), ("-n", "-3"), ("-n", "9" * 5000)]
)
def test_bad_numbers(cli: CLI, option: tuple[str, str]) -> None:
    r = cli("bench", *option)
    assert r.status == 2
    assert "is no number from 1 to 1000000" in r.err


def test_missing_model(cli: CLI) -> None:
    assert "no-such" in one_line_error(cli("bench", "-m", "no-such-file.gguf"))
