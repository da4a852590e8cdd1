"""What LLM refuses: parameters, prompts, messages, options; always by name, in one line."""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb

from edgerun import LLM, SamplingParams
from edgerun.catalog import store
from edgerun.cli import main
from edgerun.errors import (
    EdgerunError,
    ModelNotFoundError,
    RequestError,
    TemplateError,
    UnsupportedModelError,
)

SHORT = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(path, backend=request.param, threads=1) as model:
        yield model


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("seed", 2**64 + 1),
        ("stop", 7),
        ("stop", ["a", None]),
        ("stop", "x" * 100_000),
        ("samplers", ["banana"]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {10**6: 1.0}),
        ("logit_bias", {3: "x"}),
        ("logit_bias", None),
        ("logit_bias", [(3, 1.0)]),
        ("ignore_eos", "yes"),
        ("ignore_eos", None),
        ("stop", None),
        ("logprobs", -1),
        ("mirostat", 3),
        ("nonsense", 1),
    ],
)
def test_bad_parameters_are_named(llm: LLM, param: str, value: object) -> None:
    with pytest.raises(RequestError) as e:
        llm.generate("x", **{param: value})
    assert e.value.param == param
    assert param.removesuffix("s") in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "prompt", [[-1], [10**6], [2**32 + 1], [1.5], [True], ["1"], [None], [[1]], None, 7, b"abc"]
)
def test_bad_prompts_are_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError) as e:
        llm.generate(prompt)
    assert e.value.param == "prompt"
    with pytest.raises(RequestError):
        llm.detokenize(prompt)


@pytest.mark.parametrize(
    ("call", "param"),
    [
        (lambda m: m.generate("x", 5), "params"),
        (lambda m: m.generate("x", {"max_tokens": 1}, n=1), "params"),
        (lambda m: m.chat([{"role": "user", "content": "x"}], options=5), "options"),
        (lambda m: m.embed(7), "input"),
        (lambda m: m.embed(None), "input"),
        (lambda m: m.embed(b"x"), "input"),
        (lambda m: m.tokenize(b"x"), "text"),
        (lambda m: m.tokenize(None), "text"),
    ],
)
def test_values_of_another_type_are_named(
    llm: LLM, call: Callable[[LLM], object], param: str
) -> None:
    with pytest.raises(RequestError) as e:
        call(llm)
    assert e.value.param == param


@pytest.mark.parametrize("model", [5, b"x", [], True])
def test_a_model_is_a_name_or_a_path(path: Path, model: Any) -> None:
    with pytest.raises(RequestError, match="name or a path") as e:
        LLM(model)
    assert e.value.param == "model"
    with pytest.raises(RequestError, match="name or a path"):
        LLM(path, draft=model)


def test_numpy_ids_are_ids(llm: LLM) -> None:
    want = llm.generate([1, 5, 9], SHORT)
    for ids in (np.array([1, 5, 9]), (1, 5, 9), list(np.array([1, 5, 9], np.uint16))):
        assert llm.generate(ids, SHORT).token_ids == want.token_ids  # type: ignore[arg-type]


def test_text_that_is_no_unicode_is_still_text(llm: LLM) -> None:
    assert llm.generate("a\ud800\x00b", SHORT).usage.completion_tokens == 4


@pytest.mark.parametrize("messages", [[], "hi", [7], [{"role": "banana", "content": "x"}], None])
def test_bad_messages_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError):
        llm.chat(messages)


def test_a_templates_refusal_is_quoted(tmp_path: Path) -> None:
    extra = {"tokenizer.chat_template": "{{ raise_exception('no tea') }}"}
    with (
        LLM(gb.random_model(tmp_path / "m.gguf", extra=extra), backend="cpu") as llm,
        pytest.raises(TemplateError, match="no tea"),
    ):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_ctx": 0}, RequestError, "n_ctx"),
        ({"n_ctx": 2**50}, EdgerunError, "GB"),
        ({"n_ctx": 1.5}, RequestError, "n_ctx"),
        ({"threads": 0}, RequestError, "threads"),
        ({"threads": -1}, RequestError, "threads"),
        ({"max_batch": 0}, RequestError, "max_batch"),
        ({"backend": "abacus"}, RequestError, "auto, .*cpu, reference"),
        ({"backend": 7}, RequestError, "backend"),
        ({"kv_type": "q1"}, RequestError, "'q1' is not one of this backend's: f16"),
        ({"kv_type": "q1", "backend": "reference"}, RequestError, "'q1'"),
        ({"kv_type": "q8_0:force"}, RequestError, "'q8_0:force'"),
        ({"kv_type": "q4r"}, RequestError, "below 2 billion .*use --kv q8_0, or q4r:force"),
    ],
)
def test_bad_options(path: Path, options: Any, error: type[Exception], words: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(error, match=words) as e:
        LLM(path, **options)
    assert "\n" not in str(e.value)
    assert set(threading.enumerate()) <= before


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf"):
        LLM(tmp_path / "nothing.gguf")


def test_a_model_that_cannot_run_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    monkeypatch.setattr(store, "fetch", lambda *args: pytest.fail("it was fetched"))
    monkeypatch.setattr("edgerun.backends.llama_cpp_library.installed", lambda: False)
    entries = '[later]\nsource = "hf:a/b/later.gguf"\narch = "mamba9"\n'
    (tmp_path / "models.toml").write_text(entries, "utf-8")
    with pytest.raises(UnsupportedModelError, match="'mamba9' is not supported"):
        LLM("later")
    assert main(["show", "later"]) == 1  # it is not here, and show fetches nothing
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["run", "-m", "later", "hi"]) == 1
    capsys.readouterr()
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    waiting = {line.split()[0] for line in lines if "NEEDS A FALLBACK, LLAMA.CPP: pip" in line}
    assert waiting >= {"later"}
    assert "smollm2-135m" not in waiting
    assert main(["list", "--json"]) == 0
    runs = {e["name"]: e["runs"] for e in json.loads(capsys.readouterr().out)}
    assert {name for name, ok in runs.items() if not ok} == waiting
    monkeypatch.setattr("edgerun.backends.llama_cpp_library.installed", lambda: True)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if "FALLBACK: RUNS ON LLAMA.CPP" in line} == waiting
    assert main(["list", "--json"]) == 0
    runs_on = {e["name"]: e["runs_on"] for e in json.loads(capsys.readouterr().out)}
    assert {name for name, what in runs_on.items() if what == "llama_cpp"} == waiting
    assert runs_on["smollm2-135m"] == "edgerun"
