"""A process that was forked: it has the model's memory but none of its threads, and must say so
instead of waiting for them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import gguf_build as gb

from edgerun import LLM, SamplingParams
from edgerun.errors import ClosedError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=200)
HELLO = [{"role": "user", "content": "x"}]
RAISED, RETURNED, OTHER = 3, 4, 5


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3)
    with LLM(path, backend="cpu", threads=2) as model:
        yield model


def forked(call: Callable[[], object]) -> int:
    """How ``call`` ends in a child process: one of the words above, or minus a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of what is tested here
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            call()
        except ClosedError as e:
            os._exit(RAISED if "forked" in str(e) else OTHER)
        except BaseException:
            os._exit(OTHER)
        os._exit(RETURNED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.generate("x", ENDLESS),
        lambda m: m.chat(HELLO, max_tokens=1),
        lambda m: next(m.stream("x", ENDLESS)),
        lambda m: m.embed("x"),
    ],
)
def test_calls_in_a_forked_process_raise(llm: LLM, call: Callable[[LLM], object]) -> None:
    assert forked(lambda: call(llm)) == RAISED
    assert llm.generate("x", ENDLESS, max_tokens=3).usage.completion_tokens == 3


def test_a_stream_goes_on_in_its_own_process(llm: LLM) -> None:
    stream = llm.stream("x", ENDLESS)
    ids = list(next(stream).token_ids)
    assert forked(lambda: list(stream)) == RAISED
    for chunk in stream:
        ids += chunk.token_ids
    assert ids == list(llm.generate("x", ENDLESS).token_ids)


def test_closing_in_a_forked_process_ends_nothing(llm: LLM) -> None:
    stream = llm.stream("x", ENDLESS)
    # With the lock held, as at any moment of the engine's thread.
    with llm._worker._wake:
        assert forked(llm.close) == RETURNED
    assert sum(len(c.token_ids) for c in stream) == 200
    assert llm.generate("x", ENDLESS, max_tokens=3).usage.completion_tokens == 3


def test_what_needs_no_thread_works_in_a_forked_process(llm: LLM) -> None:
    assert forked(lambda: llm.detokenize(llm.tokenize("x"))) == RETURNED
    assert forked(llm.metrics) == RETURNED
