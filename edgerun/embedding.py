"""Texts as vectors: what is asked for, checked, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun.backends.base import Program, without_head
from edgerun.engine import Worker
from edgerun.engine.embedding import POOLINGS, Embedding, Vectors
from edgerun.errors import ContextLengthError, GenerationError, RequestError, printable
from edgerun.loading import LoadedModel
from edgerun.requests import token_ids
from edgerun.text.tokenizer import Tokenizer

__all__ = ["Begun", "Embedder", "Embeddings", "choose_pooling", "scaled", "text_ids"]

#: GGUF's ``{arch}.pooling_type``.
_BY_NUMBER = {1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """``vectors`` float32 [n_texts, n_dims], each of length 1; ``prompt_tokens`` of all texts."""

    vectors: Vectors
    prompt_tokens: int


class Begun:
    """Texts on their way to vectors."""

    def __init__(self, work: Embedding, dimensions: int | None, n_tokens: int) -> None:
        self._work, self._dimensions, self._n_tokens = work, dimensions, n_tokens

    def cancel(self) -> None:
        """End the work; harmless when it is done."""
        self._work.result.cancel()

    def result(self) -> Embeddings:
        """Wait for the vectors."""
        try:
            return self._finished(self._work.result.result())
        except BaseException:  # an interrupt ends the work, too
            self.cancel()
            raise

    async def aresult(self) -> Embeddings:
        """:meth:`result` for coroutines."""
        import asyncio

        return self._finished(await asyncio.wrap_future(self._work.result))

    def _finished(self, vectors: Vectors) -> Embeddings:
        if not np.isfinite(vectors).all():
            raise GenerationError("the model's hidden states are not numbers: no vector to give")
        return Embeddings(scaled(vectors, self._dimensions), self._n_tokens)


class Embedder:
    """Makes vectors with a loaded model, on its engine's thread."""

    def __init__(self, model: LoadedModel, worker: Worker) -> None:
        self._model, self._worker = model, worker
        self._made: Program | None = None

    def begin(
        self,
        texts: str | Sequence[str | Sequence[int]],
        pooling: str | None,
        dimensions: int | None,
    ) -> Begun:
        """Check and queue texts.

        Raises:
            RequestError, ContextLengthError: as :meth:`edgerun.llm.LLM.embed`.
            ClosedError: the worker was closed.
        """
        model = self._model
        if model.forward is None or model.config is None:
            raise RequestError(
                "llama.cpp runs this model, and edgerun takes no embeddings from it: choose one of "
                "an architecture that edgerun runs itself",
                param="model",
            )
        chosen = choose_pooling(pooling, model.facts)
        check_dimensions(dimensions, model.config.n_embd)
        several = _several(texts)
        n_vocab = model.tokenizer.n_vocab
        given = [t if isinstance(t, str) else token_ids(t, n_vocab, "input") for t in several]
        if not given:
            raise RequestError("input is empty: give at least one text", param="input")
        ids = text_ids(given, model.tokenizer, model.n_ctx)
        work = Embedding(self._program, ids, chosen)
        self._worker.embed(work)
        return Begun(work, dimensions, sum(map(len, ids)))

    def _program(self) -> Program:
        """On the engine's thread, as all that touches the backend."""
        model = self._model
        if self._made is None:
            assert model.forward is not None
            forward = without_head(model.forward)
            self._made = model.backend.prepare(forward, model.kv, model.n_ctx)
        return self._made


def _several(texts: Any) -> Iterable[Any]:
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Iterable):
        raise RequestError(
            f"expected a text or a list of them, not {type(texts).__name__}", param="input"
        )
    return texts


def choose_pooling(asked: str | None, facts: Mapping[str, Any]) -> str:
    """``asked``, else what the file says, else ``"mean"``.

    Raises:
        RequestError: an unknown pooling, or the model ranks texts and has no vectors for them.
    """
    if asked is not None:
        if asked not in POOLINGS:
            raise RequestError(
                f"pooling must be one of {', '.join(POOLINGS)}, not {printable(repr(asked), 40)}",
                param="pooling",
            )
        return asked
    number = facts.get(f"{facts.get('general.architecture')}.pooling_type", 0)
    if number == 4:
        raise RequestError("this model ranks pairs of texts: it has no vectors for single ones")
    return _BY_NUMBER.get(number, "mean")


def text_ids(texts: Sequence[Any], tokenizer: Tokenizer, n_ctx: int) -> list[list[int]]:
    """Token ids of texts, with the tokens the model expects around them. Lists of ids are taken as
    they are.

    Raises:
        RequestError: a text is empty.
        ContextLengthError: one is longer than the context.
    """
    found = []
    for i, text in enumerate(texts):
        ids = (
            tokenizer.encode(text, add_bos=True, add_eos=tokenizer.add_eos)
            if isinstance(text, str)
            else list(text)
        )
        if not ids:
            raise RequestError(f"input {i} is empty: there is nothing to embed", param="input")
        if len(ids) > n_ctx:
            raise ContextLengthError(len(ids), n_ctx)
        found.append(ids)
    return found


def check_dimensions(dimensions: int | None, n_embd: int) -> None:
    """Raise RequestError unless vectors of ``n_embd`` values can be cut to ``dimensions``."""
    if dimensions is None:
        return
    whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if not whole or not 1 <= dimensions <= n_embd:
        raise RequestError(
            f"dimensions must be between 1 and this model's {n_embd}, not {dimensions!r}",
            param="dimensions",
        )


def scaled(vectors: Vectors, dimensions: int | None) -> Vectors:
    """The first ``dimensions`` values of each vector, brought to length 1; zeros stay zeros."""
    cut = vectors[:, :dimensions].astype(np.float64)
    length = np.sqrt((cut * cut).sum(axis=1, keepdims=True))
    result: Vectors = (cut / np.where(length > 0, length, 1.0)).astype(np.float32)
    return result
