"""Real vocabularies: llama.cpp's vectors, round trips, and inputs that hang other tokenizers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from helpers import models
from helpers.paths import shared
from helpers.tok import vectors, vocab_files

from edgerun.gguf import GGUFFile
from edgerun.text.detok import StreamDetokenizer
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

FILES: list[Path | None] = [*vocab_files()] or [None]
HUGE = {
    "letters": "a" * 131072,
    "underscores": "_" * 50000,
    "spaces": " " * 200000,
    "spaces then a word": " " * 200000 + "x",
    "ideographs": "漢" * 30000,
    "newlines": "\n" * 50000,
    "digits": "7" * 100000,
    "punctuation": "!" * 100000,
}


@pytest.fixture(scope="module", params=FILES, ids=lambda p: p and p.stem[11:])
def vocab(request: pytest.FixtureRequest) -> tuple[Path, Tokenizer]:
    if request.param is None:
        shared("vocabs")
    return request.param, load_tokenizer(GGUFFile.open(request.param).metadata)


def test_ids_are_llama_cpps(vocab: tuple[Path, Tokenizer]) -> None:
    path, tok = vocab
    for text, ids in vectors(path):
        assert tok.encode(text, add_bos=False) == ids, text


def test_decoding_inverts_encoding(vocab: tuple[Path, Tokenizer]) -> None:
    path, tok = vocab
    if tok.vocab.model == "bert":
        pytest.skip("BERT lower-cases and drops whitespace: its text cannot come back")
    more = [
        "<|im_end|>",
        "👩‍👩‍👧 é \U0001f1eb",
        "  two\r\n\tlines  ",
        "x" * 700,
        "\0",
        "</s>a</s> b",
    ]
    for text in [t for t, _ in vectors(path)] + more:
        ids = tok.encode(text, add_bos=False)
        assert tok.decode(ids) == text
        stream = StreamDetokenizer(tok)
        assert "".join(map(stream.push, ids)) + stream.flush() == text


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE.keys())
def test_huge_words_take_linear_time(vocab: tuple[Path, Tokenizer], text: str) -> None:
    _, tok = vocab
    start = time.process_time()
    ids = tok.encode(text, add_bos=False)
    assert time.process_time() - start < 3.0  # quadratic time would be minutes
    if tok.vocab.model != "bert":
        assert tok.decode(ids) == text


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_golden_prompts(name: str) -> None:
    path, golden = {
        "smollm2": (models.smollm2, "smollm2-135m-q4_1.json"),
        "gemma3": (models.gemma3, "gemma3-270m-q4_k_m.json"),
    }[name]
    prompts = json.loads(shared("golden", golden).read_text())["prompts"]
    tok = load_tokenizer(GGUFFile.open(path()).metadata)
    assert len(prompts) == 8
    for p in prompts:
        ids = tok.encode(p["prompt"])
        assert ids == p["ids"]
        assert (ids[0] == tok.bos_id) is (name == "gemma3")
        text = ids[1:] if name == "gemma3" else ids
        assert tok.decode(text) == p["prompt"]


@pytest.mark.parametrize(("name", "limit"), [("smollm2", 0.5), ("gemma3", 1.5)])
def test_loading_is_fast(name: str, limit: float) -> None:
    metadata = GGUFFile.open(models.smollm2() if name == "smollm2" else models.gemma3()).metadata
    load_tokenizer(metadata)  # imports, and decoding of the file's strings
    start = time.process_time()
    load_tokenizer(metadata)
    assert time.process_time() - start < limit


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_long_encode_lets_other_threads_run(name: str) -> None:
    path = models.smollm2() if name == "smollm2" else models.gemma3()
    tok = load_tokenizer(GGUFFile.open(path).metadata)
    text = "The quick brown fox, 1234 times. " * 8000
    gaps = [0.0]
    done = threading.Event()

    def ticks() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    other = threading.Thread(target=ticks)
    other.start()
    start = time.perf_counter()
    tok.encode(text)
    took = time.perf_counter() - start
    done.set()
    other.join()
    # Holding the lock would make one gap of nearly the whole time.
    assert max(gaps) < max(0.5 * took, 0.1)
