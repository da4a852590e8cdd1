"""One engine in a process of its own, told over stdin what to time: ``prefill N``,
``decode N PAST``, ``batch N SEQUENCES``. Answers seconds, one JSON value a line. Runs with any
Python that has the engine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class Engine(Protocol):
    facts: dict[str, Any]

    def prefill(self, n: int) -> float: ...

    def decode(self, n: int, past: int) -> float: ...

    def batch(self, n: int, sequences: int) -> float: ...


def _ids(n: int, vocab: int) -> list[int]:
    """A fixed, dull walk over the vocabulary: speed does not depend on the tokens."""
    return [(17 + 7919 * i) % min(vocab, 30000) for i in range(n)]


class Edgerun:
    """The engine's own program, without sampling or text: what the peer is timed on too."""

    def __init__(self, path: str, threads: int, n_ctx: int) -> None:
        from edgerun import LLM, bench

        self._bench = bench
        start = time.perf_counter()
        self._llm = LLM(path, n_ctx=n_ctx, threads=threads)
        self._program = self._llm.model.program
        self.facts = {"load_s": time.perf_counter() - start, **self._llm.backend.describe()}

    def prefill(self, n: int) -> float:
        return self._bench.prefill(self._program, n)

    def decode(self, n: int, past: int) -> float:
        return self._bench.decode(self._program, n, past)

    def batch(self, n: int, sequences: int) -> float:
        return self._bench.batch(self._program, n, sequences)


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level calls."""

    def __init__(self, path: str, threads: int, n_ctx: int) -> None:
        import llama_cpp as c

        self._c = c
        start = time.perf_counter()
        c.llama_backend_init()
        self._model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n_ctx, 512, 512, 8
        p.n_threads = p.n_threads_batch = threads
        if hasattr(p, "kv_unified"):
            p.kv_unified = True
        self._ctx = c.llama_init_from_model(self._model, p)
        self._vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self._batch = c.llama_batch_init(512, 0, 1)
        self.facts = {"load_s": time.perf_counter() - start, "llama_cpp_python": c.__version__}

    def _run(self, rows: list[tuple[list[int], int, int]]) -> None:
        b, i = self._batch, 0
        for tokens, past, seq in rows:
            for j, t in enumerate(tokens):
                b.token[i], b.pos[i], b.n_seq_id[i] = t, past + j, 1
                b.seq_id[i][0] = seq
                b.logits[i] = j == len(tokens) - 1
                i += 1
        b.n_tokens = i
        if self._c.llama_decode(self._ctx, b):
            raise RuntimeError("llama_decode failed")
        self._c.llama_synchronize(self._ctx)

    def _forget(self, past: int, seq: int = -1) -> None:
        memory = self._c.llama_get_memory(self._ctx)
        self._c.llama_memory_seq_rm(memory, seq, past, -1)

    def prefill(self, n: int) -> float:
        self._forget(0)
        ids = _ids(n, self._vocab)
        start = time.perf_counter()
        for at in range(0, n, 512):
            self._run([(ids[at : at + 512], at, 0)])
        return time.perf_counter() - start

    def decode(self, n: int, past: int) -> float:
        self._forget(past, 0)  # the prefill before this call left `past` tokens
        start = time.perf_counter()
        for i in range(n):
            self._run([([11 + i], past + i, 0)])
        return time.perf_counter() - start

    def batch(self, n: int, sequences: int) -> float:
        self._forget(0)
        for s in range(sequences):
            self._run([(_ids(64, self._vocab), 0, s)])
        start = time.perf_counter()
        for i in range(n):
            self._run([([11 + i], 64 + i, s) for s in range(sequences)])
        elapsed = time.perf_counter() - start
        self._forget(0)
        return elapsed


ENGINES: dict[str, Callable[[str, int, int], Engine]] = {"edgerun": Edgerun, "llama_cpp": LlamaCpp}


def main() -> None:
    name, path, threads, n_ctx = sys.argv[1:]
    engine = ENGINES[name](path, int(threads), int(n_ctx))
    print(json.dumps(engine.facts), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        print(json.dumps(getattr(engine, what)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
