"""Whole files, good and bad, through the front door: what a reader alone cannot show."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers import models
from helpers.cli import CLI, EDGERUN, environment, one_line_error

from edgerun import LLM, SamplingParams
from edgerun.backends.base import Memory
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import GGUFError, ModelFileError, RequestError
from edgerun.gguf import GGUFFile
from edgerun.native import lib_path

T = "tokenizer.ggml."
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=6)
PIECES = ("Hel", "lo", "!")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "sound.gguf", seed=3)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


def parts_of(path: Path, n_tokens: int | None = None) -> tuple[dict[str, Any], list[gb.Tensor]]:
    """Metadata (arrays of ``n_tokens``) and tensors of a file, to write again with a change."""
    with GGUFFile.open(path) as f:
        meta: dict[str, Any] = {}
        for key, kind in f.metadata_types.items():
            value = f.metadata[key]
            if kind.element is not None:
                kinds = {"f": gb.F32, "i": gb.I32}
                value = gb.array(
                    kinds[value.dtype.kind] if isinstance(value, np.ndarray) else gb.STR,
                    list(value)[:n_tokens],
                )
            meta[key] = value
        tensors = [
            gb.Tensor(name=n, shape=t.shape, data=bytes(f.data(n)), type=int(t.type))
            for n, t in f.tensors.items()
        ]
    return meta, tensors


# -- bad files -----------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "tokens are numbers": ({T + "tokens": gb.array(gb.I32, range(288))}, T + "tokens"),
    "scores too short": ({T + "scores": gb.array(gb.F32, [0.0] * 3)}, T + "scores has 3"),
    "an end past the vocabulary": ({T + "eos_token_id": 10**6}, "1000000, .* of 288 tokens"),
    "more tokens than rows": (
        {T + "tokens": gb.array(gb.STR, [f"t{i}" for i in range(289)])},
        "names 289 tokens, .* only 288 rows",
    ),
    "no heads": ({"llama.attention.head_count": 0}, "head_count' is 0"),
    "uneven heads": ({"llama.attention.head_count_kv": 3}, "must be a multiple of"),
    "layers that are not there": ({"llama.block_count": 3}, r"'blk\.2\.\w+\.weight' is missing"),
    "an epsilon that is no number": (
        {"llama.attention.layer_norm_rms_epsilon": math.nan},
        "epsilon' is nan",
    ),
    "an unknown split into words": (
        {T + "model": "gpt2", T + "pre": "nonsense", T + "merges": gb.array(gb.STR, ["a b"])},
        r"tokenizer\.ggml\.pre is 'nonsense'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_ends_in_one_line(cli: CLI, sound: Path, tmp_path: Path, name: str) -> None:
    change, says = BAD[name]
    meta, tensors = parts_of(sound)
    path = gb.write(tmp_path / "bad.gguf", meta | change, tensors)
    before = set(threading.enumerate())
    with pytest.raises(ModelFileError, match=says):
        LLM(path, backend="cpu")
    assert set(threading.enumerate()) <= before  # one of an earlier test's may just end
    one_line_error(cli("run", "-m", path, "hi"))


def test_a_file_written_again_is_sound(sound: Path, tmp_path: Path) -> None:
    """The test above changes one thing only."""
    path = gb.write(tmp_path / "again.gguf", *parts_of(sound))
    with LLM(path, backend="cpu") as again, LLM(sound, backend="cpu") as first:
        assert again.generate("tea", GREEDY).token_ids == first.generate("tea", GREEDY).token_ids


@pytest.mark.parametrize("keep", [-1, 0.5])
def test_a_file_cut_short_never_becomes_ready(sound: Path, tmp_path: Path, keep: float) -> None:
    data = sound.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * keep) if keep > 0 else len(data) - 1])
    with pytest.raises(GGUFError, match=r"cut\.gguf: tensor '\S+' needs \d+ bytes .* has \d+"):
        LLM(path)


def test_rows_past_the_vocabulary_are_padding(sound: Path, tmp_path: Path) -> None:
    n = 270  # of 288 rows
    meta, tensors = parts_of(sound, n)
    # Rows past the names are the likeliest by far.
    for i, t in enumerate(tensors):
        if t.name == "output.weight":
            w = np.frombuffer(t.data, np.float32).reshape(t.shape).copy()
            w[n:] *= 50
            tensors[i] = dataclasses.replace(t, data=w.tobytes())
    path = gb.write(tmp_path / "padded.gguf", meta, tensors)
    with LLM(path, backend="cpu") as llm:
        for prompt in ([n], [287], [288]):
            with pytest.raises(RequestError, match=f"0 to {n - 1}"):
                llm.generate(prompt)
        with pytest.raises(RequestError, match="logit_bias"):
            llm.generate("x", logit_bias={n: 1.0})
        hot = dataclasses.replace(GREEDY, temperature=2.0, max_tokens=30, seed=1, logprobs=5)
        for params in (GREEDY, hot):
            out = llm.generate("tea", params)
            assert max(out.token_ids) < n
            assert all(t.token_id < n for p in out.logprobs or () for t in p.top)


def test_a_name_with_control_characters(cli: CLI, tmp_path: Path) -> None:
    path = gb.scripted_model(
        tmp_path / "evil\x1b]52;c;eA==\x07\x9b2J.gguf",
        PIECES,
        vocab=[" "],
        extra={"general.name": "\x1b[2J"},
    )
    r = cli("run", "-m", path, "--json", "--raw", "--temp", "0", "x")
    assert r.out[:-1].isprintable()
    assert json.loads(r.out)["model"] == path.stem
    r = cli("chat", "-m", path, "--temp", "0", stdin="hi\n")
    assert r.status == 0
    assert "evil\\x1b" in r.err
    assert r.err.replace("\n", "").isprintable()


def test_the_context_is_as_long_as_the_kv_type_in_use_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gb.random_model(tmp_path / "long.gguf", n_ctx=100_000)
    free = path.stat().st_size + 4_000_000
    monkeypatch.setattr(ReferenceBackend, "memory", lambda self: Memory(total=free, free=free))
    n_ctx: dict[str | None, int] = {}
    for kv in (None, "f32", "f16", "q8_0"):
        with LLM(path, backend="reference", kv_type=kv) as llm:
            n_ctx[kv] = llm.n_ctx
    assert n_ctx[None] == n_ctx["f32"] == n_ctx["f16"] // 2  # its own default is f32
    assert n_ctx["f16"] * 1.5 < n_ctx["q8_0"] < n_ctx["f16"] * 2


# -- split files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("opened", [1, 2, 3])
def test_a_split_model_answers_as_the_whole_one(
    sound: Path, tmp_path: Path, opened: int, backend: str
) -> None:
    meta, tensors = parts_of(sound)
    total = gb.scalar(gb.I32, len(tensors))
    for i in range(3):
        split = {"split.no": i, "split.count": 3, "split.tensors.count": total}
        path = tmp_path / f"a model-{i + 1:05d}-of-00003.gguf"
        gb.write(path, (meta if i == 0 else {}) | split, tensors[i::3])
    with LLM(sound, backend=backend) as whole:
        want = whole.generate("the rain", GREEDY, logprobs=3)
    with LLM(tmp_path / f"a model-{opened:05d}-of-00003.gguf", backend=backend) as llm:
        got = llm.generate("the rain", GREEDY, logprobs=3)
    assert (got.token_ids, got.logprobs) == (want.token_ids, want.logprobs)


# -- odd settings and odd places -----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_setting_at_its_extreme(sound: Path, backend: str) -> None:
    with LLM(sound, backend=backend) as llm:
        want = llm.generate("tea", GREEDY).token_ids
        every = dict.fromkeys(range(llm.model.tokenizer.n_vocab), -100.0)
        edge = dataclasses.replace(GREEDY, top_p=0.0, top_k=0, min_p=1.0, logit_bias=every)
        out = llm.generate("tea", edge, logprobs=2)
        assert out.token_ids == want
        assert all(math.isfinite(p.logprob) for p in out.logprobs or ())
        assert len(llm.generate("tea", edge, temperature=1.0).token_ids) == len(want)


@pytest.mark.parametrize("folder", ["with space", "漢字", "a\u3000b"])
def test_home_temp_and_library_lie_anywhere(tmp_path: Path, folder: str) -> None:
    odd = tmp_path / folder
    odd.mkdir()
    gb.scripted_model(odd / "my model.gguf", PIECES, vocab=[" "])
    (odd / "models.toml").write_text('[mine]\nsource = "my model.gguf"\n', "utf-8")
    library = Path(shutil.copy(lib_path(), odd / "native lib.so"))
    env = environment(EDGERUN_HOME=str(odd), EDGERUN_CPU_LIB=str(library))
    env |= dict.fromkeys(("TMPDIR", "TEMP", "TMP", "HOME"), str(odd))
    run = [*EDGERUN, "run", "-m", "mine", "--backend", "cpu", "--raw", "--temp", "0", "-q", "Go"]
    done = subprocess.run(
        run, capture_output=True, cwd=odd, env=env, timeout=60, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "Hello!", "")


# -- one client's huge prompt is not another's pause ---------------------------------------------

HUGE = ("a" * 131072, "_" * 50000, " " * 200000, "漢" * 30000)


@pytest.mark.parametrize("model", [models.smollm2, models.gemma3], ids=["smollm2", "gemma3"])
def test_a_huge_word_does_not_hold_up_a_stream(model: Callable[[], Path]) -> None:
    with LLM(model(), backend="cpu", n_ctx=2048) as llm:
        lengths: list[int] = []
        encoding = threading.Event()
        encoded = threading.Event()

        def other() -> None:
            encoding.set()
            try:
                lengths.extend(len(llm.tokenize(text)) for text in HUGE)
            finally:
                encoded.set()

        client = threading.Thread(target=other)
        gaps: list[float] = []
        stream = llm.stream("Once upon a time", temperature=0, ignore_eos=True)
        next(stream)  # the prompt is through
        client.start()
        last = time.perf_counter()
        for _ in stream:
            now = time.perf_counter()
            if encoding.is_set():
                gaps.append(now - last)
            last = now
            if encoded.is_set():
                break
        stream.close()
        client.join(60)
    assert len(lengths) == len(HUGE)
    assert all(lengths)
    assert gaps
    assert max(gaps) < 1.0
