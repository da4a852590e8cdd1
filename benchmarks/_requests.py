"""One engine that answers requests, in a process of its own, told over stdin what to time; answers
one JSON value a line. Runs with any Python that has the engine.

``together N COUNT``: N requests at once, of COUNT tokens each. ``first N SEED``: the first token of
a prompt of N tokens, the same one for the same seed. ``gap N``: a running stream while a prompt of
N tokens arrives. ``close``: end as an application ends.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from typing import Any, TypeAlias

Answer: TypeAlias = "dict[str, Any] | float"

PROMPT = 32  # tokens of each of several requests


def _ids(n: int, seed: int, vocab: int) -> list[int]:
    """Random tokens: no two prompts share a start, and none holds a control token."""
    r = random.Random(seed)
    return [r.randrange(300, min(vocab, 30000)) for _ in range(n)]


class Edgerun:
    """Requests through ``LLM``, each read by a thread of its own."""

    def __init__(self, path: str, threads: int, n_ctx: int, disk: str | None = None) -> None:
        start = time.perf_counter()
        from edgerun import LLM

        # What is asked here is answered with text that repeats itself: speculation would be
        # flattered.
        self._llm = LLM(
            path, n_ctx=n_ctx, threads=threads, speculation="off", kv_disk=disk or "off"
        )
        self._vocab = self._llm.model.tokenizer.n_vocab
        self._calls = 0
        self.facts = {"load_s": time.perf_counter() - start, **self._llm.backend.describe()}

    def _new(self, n: int) -> list[int]:
        self._calls += 1
        return _ids(n, 1000 + self._calls, self._vocab)

    def _text(self) -> list[int]:
        """A prompt that no model ends soon; ``ignore_eos`` is not what users send."""
        self._calls += 1
        text = f"{self._calls}. The long history of the town, in many chapters. First chapter: "
        ids = self._llm.tokenize(text)
        return (ids * (1 + PROMPT // len(ids)))[:PROMPT]

    def together(self, n: int, count: int) -> Answer:
        prompts = [self._text() for _ in range(n)]
        arrived: list[list[tuple[float, int]]] = [[] for _ in prompts]
        start = time.perf_counter()
        streams = [self._llm.stream(p, max_tokens=count, temperature=0) for p in prompts]

        def read(i: int) -> None:
            for chunk in streams[i]:
                arrived[i].append((time.perf_counter(), len(chunk.token_ids)))

        readers = [threading.Thread(target=read, args=(i,)) for i in range(n)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        whole = max(a[-1][0] for a in arrived) - start
        tokens = sum(k for a in arrived for _, k in a)
        if tokens < n * count:
            raise RuntimeError(f"{n * count} tokens were asked for, {tokens} came")
        # While all of them run: from the last one's first token to the first one's end.
        since, until = max(a[0][0] for a in arrived), min(a[-1][0] for a in arrived)
        running = sum(k for a in arrived for at, k in a if since < at <= until)
        return {"whole": tokens / whole, "running": running / (until - since)}

    def first(self, n: int, seed: int) -> Answer:
        ids = _ids(n, seed, self._vocab)
        start = time.perf_counter()
        done = self._llm.generate(ids, max_tokens=1, temperature=0, ignore_eos=True)
        return {"seconds": time.perf_counter() - start, "cached": done.usage.cached_tokens}

    def gap(self, n: int) -> Answer:
        """Gaps of a stream, in seconds, alone and while the prompt is being computed."""
        times: list[float] = []
        options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
        stream = self._llm.stream(self._new(PROMPT), max_tokens=n, **options)

        def read() -> None:
            times.extend(time.perf_counter() for _ in stream)

        reader = threading.Thread(target=read)
        reader.start()
        while len(times) < 40:
            time.sleep(0.01)
        begin = time.perf_counter()
        self._llm.generate(self._new(n), max_tokens=1, **options)
        end = time.perf_counter()
        stream.close()
        reader.join()
        pairs = list(itertools.pairwise(times))
        return {
            "alone": [b - a for a, b in pairs if b < begin],
            "gaps": [b - a for a, b in pairs if begin < b and a < end],
            "seconds": end - begin,
        }

    def close(self) -> Answer:
        start = time.perf_counter()
        self._llm.close()
        return time.perf_counter() - start


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level calls: all requests in one batch, its own
    greedy sampler, and the bytes of each token."""

    def __init__(self, path: str, threads: int, n_ctx: int, disk: str | None = None) -> None:
        import ctypes

        import llama_cpp as c

        self._c = c
        self._piece = ctypes.create_string_buffer(64)
        start = time.perf_counter()
        c.llama_backend_init()
        self._model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        p = c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n_ctx, 512, 512, 16
        p.n_threads = p.n_threads_batch = threads
        if hasattr(p, "kv_unified"):
            p.kv_unified = True
        self._ctx = c.llama_init_from_model(self._model, p)
        if not self._ctx:
            raise RuntimeError("llama_init_from_model failed")
        self._vocab = c.llama_model_get_vocab(self._model)
        self._greedy = c.llama_sampler_init_greedy()
        self._batch = c.llama_batch_init(512, 0, 1)
        self._calls = 0
        self.facts = {"load_s": time.perf_counter() - start, "version": c.__version__}

    def _run(self, rows: list[list[int]], past: int) -> list[int]:
        """One step of all sequences; their next tokens."""
        b, i, last = self._batch, 0, []
        for seq, tokens in enumerate(rows):
            for j, t in enumerate(tokens):
                b.token[i], b.pos[i], b.n_seq_id[i] = t, past + j, 1
                b.seq_id[i][0] = seq
                b.logits[i] = j == len(tokens) - 1
                i += 1
            last.append(i - 1)
        b.n_tokens = i
        if self._c.llama_decode(self._ctx, b):
            raise RuntimeError("llama_decode failed")
        out = []
        for i in last:
            token = self._c.llama_sampler_sample(self._greedy, self._ctx, i)
            self._c.llama_token_to_piece(self._vocab, token, self._piece, 64, 0, False)
            out.append(token)
        return out

    def together(self, n: int, count: int) -> Answer:
        self._c.llama_memory_seq_rm(self._c.llama_get_memory(self._ctx), -1, 0, -1)
        self._calls += 1
        vocab = self._c.llama_vocab_n_tokens(self._vocab)
        prompts = [_ids(PROMPT, 100 * self._calls + i, vocab) for i in range(n)]
        start = time.perf_counter()
        tokens = self._run(prompts, 0)
        since = time.perf_counter()
        for i in range(count - 1):
            tokens = self._run([[t] for t in tokens], PROMPT + i)
        end = time.perf_counter()
        return {"whole": n * count / (end - start), "running": n * (count - 1) / (end - since)}

    def close(self) -> Answer:
        return 0.0


ENGINES = {"edgerun": Edgerun, "llama_cpp": LlamaCpp}


def main() -> None:
    what = json.loads(sys.argv[1])
    engine = ENGINES[what["engine"]](what["path"], what["threads"], what["n_ctx"], what["disk"])
    print(json.dumps(engine.facts), flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        print(json.dumps(getattr(engine, name)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
