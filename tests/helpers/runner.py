"""Run whole sequences through a backend, the way the engine does but with no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun import arch
from edgerun.backends.base import PAGE_SIZE, Backend, Batch
from edgerun.backends.cpu import CPUBackend
from edgerun.gguf import GGUFFile
from helpers.paths import FIXTURES

F32 = npt.NDArray[np.float32]


def arch_fixtures(backend: type[Backend]) -> list[str]:
    """Names of the fixtures of architectures that ``backend`` has the features for."""
    found = []
    for path in sorted((FIXTURES / "arch").glob("*.gguf")):
        with GGUFFile.open(path) as file:
            family = arch.get(file.get_str("general.architecture"))
            if backend.features.issuperset(family.features(arch.configure(family, file))):
                found.append(path.stem)
    return found


class Tokens:
    """Token ids fed so far and the pages they lie in."""

    def __init__(self) -> None:
        self.n_past = 0
        self.pages: list[int] = []


class Runner:
    """One model on one backend, with a pool of pages handed out in a scattered order.

    Attributes: ``config``, ``program``, ``kv``, ``file``.
    """

    def __init__(
        self,
        path: Path,
        backend: Backend,
        *,
        n_ctx: int = 1024,
        n_pages: int = 64,
        kv_type: str | None = None,
    ) -> None:
        self.backend = backend
        self.file = GGUFFile.open(path)
        family = arch.get(self.file.get_str("general.architecture"))
        self.config = arch.configure(family, self.file, n_ctx)
        specs = family.tensors(self.config)
        raw = arch.raw_tensors(family.name, specs, self.file)
        weights = backend.upload_all({key: (t, specs[key].role) for key, t in raw.items()})
        self.kv = backend.new_kv(family.kv_layers(self.config), n_pages, kv_type)
        self.program = backend.prepare(family.bind(weights, self.config), self.kv, n_ctx)
        # Neighbouring pages of a sequence are rarely neighbours in the pool.
        self._free = [int(p) for p in np.random.default_rng(7).permutation(n_pages)]

    def begin(self) -> Tokens:
        return Tokens()

    def end(self, sequence: Tokens) -> None:
        self._free.extend(sequence.pages)
        sequence.pages = []
        sequence.n_past = 0

    def step(self, rows: Sequence[tuple[Tokens, Sequence[int], Sequence[int]]]) -> F32:
        """One batch of ``(sequence, new tokens, indexes of them whose logits are wanted)``.

        Returns float32 [n_outputs, n_vocab], a copy.
        """
        for sequence, tokens, _ in rows:
            while len(sequence.pages) * PAGE_SIZE < sequence.n_past + len(tokens):
                sequence.pages.append(self._free.pop())
        batch = Batch.pack([(t, s.n_past, s.pages, outputs) for s, t, outputs in rows])
        logits = np.array(self.program.run(batch))
        for sequence, tokens, _ in rows:
            sequence.n_past += len(tokens)
        return logits

    def logits(self, ids: Sequence[int], *, start: int = 0, chunk: int = 512) -> F32:
        """Logits of tokens ``start`` and on: float32 [len(ids) - start, n_vocab]."""
        sequence = self.begin()
        parts = []
        for a in range(0, len(ids), chunk):
            tokens = ids[a : a + chunk]
            parts.append(self.step([(sequence, tokens, range(max(0, start - a), len(tokens)))]))
        self.end(sequence)
        return np.concatenate(parts)


class Alone:
    """Logits of the last token of a text, in pages of its own; goes on where it can."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._text: list[int] = []
        self._tokens = runner.begin()

    def __call__(self, ids: Sequence[int]) -> F32:
        n = len(self._text)
        if n >= len(ids) or self._text != list(ids[:n]):
            self._runner.end(self._tokens)
            self._text, n = [], 0
        self._text = list(ids)
        return np.array(self._runner.step([(self._tokens, ids[n:], [len(ids) - n - 1])])[0])


def among_others(
    runner: Runner, ids: Sequence[int], rows: int = 8, widest: int = 39, others: int = 8
) -> F32:
    """Logits of ``ids`` as one of so many sequences, all at different lengths, prefilled in pieces
    of 1 to ``widest`` tokens; the others have 1 to ``others`` in a step."""
    rng = np.random.default_rng(5)
    vocab = runner.config.n_vocab
    sequences = [runner.begin() for _ in range(rows)]
    mine = (rows - 1) // 2
    parts: list[F32] = []
    done = 0
    while done < len(ids):
        n = min(len(ids) - done, int(rng.integers(1, widest + 1)))
        batch: list[tuple[Tokens, Sequence[int], Sequence[int]]] = []
        for i, s in enumerate(sequences):
            if i == mine:
                batch.append((s, ids[done : done + n], range(n)))
            else:
                other = rng.integers(0, vocab, int(rng.integers(1, others + 1))).tolist()
                batch.append((s, other, [0]))
        parts.append(runner.step(batch)[mine : mine + n])
        done += n
    for s in sequences:
        runner.end(s)
    return np.concatenate(parts)


def same_bits(a: F32, b: F32) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def check_pages(runner: Runner) -> None:
    """Pages can be copied, exported and restored. The pool has 8 of them."""
    ids = np.random.default_rng(4).integers(0, 200, 40).tolist()

    def last(pages: Sequence[int]) -> F32:
        return np.array(runner.program.run(Batch.pack([(ids[-1:], 39, pages, [0])])))

    runner.program.run(Batch.pack([(ids[:39], 0, [0, 1], [])]))
    expected = last([0, 1])
    runner.kv.copy_page(0, 5)
    assert same_bits(expected, last([5, 1]))
    saved = runner.kv.export_page(1)
    assert len(saved) == runner.kv.page_bytes
    runner.kv.import_page(6, saved)
    runner.kv.import_page(1, bytes(len(saved)))
    assert same_bits(expected, last([5, 6]))
    assert not same_bits(expected, last([5, 1]))


def check_window(runner: Runner) -> None:
    """Of a model whose every layer sees 12 tokens: NaN in pages behind the window changes
    nothing."""
    ids = np.random.default_rng(3).integers(0, 200, 50).tolist()
    pages = [3, 9, 4]
    runner.program.run(Batch.pack([(ids[:48], 0, pages[:2], [])]))
    last = Batch.pack([(ids[48:49], 48, pages, [0])])
    expected = np.array(runner.program.run(last))
    nan = np.full(runner.kv.page_bytes // 2, np.nan, np.float16).tobytes()
    runner.kv.import_page(3, nan)  # tokens 0 to 31
    assert same_bits(expected, np.array(runner.program.run(last)))


def cpu_runners() -> Iterator[Callable[..., Runner]]:
    """A fixture's body: opens runners, each on a CPU backend of its own, and closes those."""
    backends: list[CPUBackend] = []

    def make(path: Path, isa: str | None = None, threads: int = 2, **kw: Any) -> Runner:
        backends.append(CPUBackend(threads=threads, isa=isa))
        return Runner(path, backends[-1], **kw)

    yield make
    for b in backends:
        b.close()
