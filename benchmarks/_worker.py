"""One engine in a process of its own, told over stdin what to time: ``prefill N``,
``decode N PAST`` (PAST tokens having been prefilled before it), ``batch N SEQUENCES``; ``memory``
asks for the most memory it has had, ``cpu`` for the CPU time it took so far. Answers seconds or
bytes, or null for what it cannot do, one JSON value a line. Runs with any Python that has the
engine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Engine(Protocol):
    facts: dict[str, Any]

    def prefill(self, n: int) -> float: ...

    def decode(self, n: int, past: int) -> float: ...

    def batch(self, n: int, sequences: int) -> float | None: ...


def _ids(n: int, vocab: int, start: int = 17) -> list[int]:
    """A fixed, dull walk over the vocabulary: speed does not depend on the tokens."""
    return [(start + 7919 * i) % min(vocab, 30000) for i in range(n)]


class Edgerun:
    """The engine's own program, without sampling or text: what the peers are timed on too."""

    def __init__(self, path: str, threads: int, n_ctx: int | None, kv: str | None) -> None:
        start = time.perf_counter()
        from edgerun import LLM

        imported = time.perf_counter()
        self._llm = LLM(path, n_ctx=n_ctx, threads=threads, kv_type=kv, kv_disk="off")
        self.facts = {"load_s": time.perf_counter() - imported, "import_s": imported - start}
        self.facts |= self._llm.backend.describe()
        from edgerun import bench

        self._bench = bench
        self._program = self._llm.model.program

    def prefill(self, n: int) -> float:
        return self._bench.prefill(self._program, n)

    def decode(self, n: int, past: int) -> float:
        return self._bench.decode(self._program, n, past)

    def batch(self, n: int, sequences: int) -> float:
        return self._bench.batch(self._program, n, sequences)


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level calls."""

    def __init__(self, path: str, threads: int, n_ctx: int | None, kv: str | None) -> None:
        import llama_cpp as c

        self._c = c
        start = time.perf_counter()
        c.llama_backend_init()
        self._model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n_ctx or 0, 512, 512, 8
        p.n_threads = p.n_threads_batch = threads
        if hasattr(p, "kv_unified"):
            p.kv_unified = True
        if kv:
            p.type_k = p.type_v = {"f32": 0, "f16": 1, "q8_0": 8}[kv]
        self._ctx = c.llama_init_from_model(self._model, p)
        if not self._ctx:
            raise RuntimeError("llama_init_from_model failed")
        self._vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self._batch = c.llama_batch_init(512, 0, 1)
        self.facts = {"load_s": time.perf_counter() - start, "version": c.__version__}

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


class OpenVino:
    """OpenVINO GenAI, which has no calls below generate(): it samples greedily besides."""

    def __init__(self, path: str, threads: int, n_ctx: int | None, kv: str | None) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._ov, self._genai = numpy, openvino, openvino_genai
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if kv:
            options["KV_CACHE_PRECISION"] = {"f32": "f32", "f16": "f16", "q8_0": "u8"}[kv]
        start = time.perf_counter()
        self._pipeline = openvino_genai.LLMPipeline(path, "CPU", **options)
        version = openvino_genai.__version__.split("-")[0]
        self.facts = {"load_s": time.perf_counter() - start, "version": version}
        self._calls = 0

    def _metrics(self, n_prompt: int, n_new: int) -> Any:
        self._calls += 1  # another prompt each time: it remembers them
        ids = self._numpy.array([_ids(n_prompt, 30000, 17 + 31 * self._calls)], "int64")
        mask = self._ov.Tensor(self._numpy.ones_like(ids))
        inputs = self._genai.TokenizedInputs(self._ov.Tensor(ids), mask)
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n_new, True, False
        found = self._pipeline.generate(inputs, config).perf_metrics
        assert found.get_num_generated_tokens() == n_new
        return found

    def prefill(self, n: int) -> float:
        return self._metrics(n, 1).get_ttft().mean / 1e3

    def decode(self, n: int, past: int) -> float:
        return self._metrics(past, n + 1).get_tpot().mean / 1e3 * n

    def batch(self, n: int, sequences: int) -> None:
        return None


ENGINES: dict[str, Callable[[str, int, int | None, str | None], Engine]] = {
    "edgerun": Edgerun,
    "llama_cpp": LlamaCpp,
    "openvino": OpenVino,
}


def peak_memory() -> int:
    """Most resident bytes this process has had, pages of mapped files among them."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource  # which on Linux would count the process that started this one

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    what = json.loads(sys.argv[1])
    engine = ENGINES[what["engine"]](what["path"], what["threads"], what["n_ctx"], what["kv"])
    print(json.dumps(engine.facts), flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        if name == "memory":
            answer: float | None = peak_memory()
        elif name == "cpu":
            answer = time.process_time()
        else:
            answer = getattr(engine, name)(*map(int, numbers))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
