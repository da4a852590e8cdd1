"""What speculation a loaded model gets: from its own text, or from a second model."""

from __future__ import annotations

from pathlib import Path

from edgerun.engine.drafting import BestDrafter, DraftModel, NgramDrafter, Speculation, StepCosts
from edgerun.errors import RequestError, printable
from edgerun.gguf import GGUFFile
from edgerun.loading import LoadedModel, find, load
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["SPECULATION", "check_choice", "open_speculation"]

#: What ``speculation=`` takes.
SPECULATION = ("auto", "off", "ngram")


def check_choice(speculation: str, draft: str | Path | None) -> None:
    """Refuse what cannot be meant, before anything is loaded.

    Raises:
        RequestError: an unknown choice, or a draft model that would not be used.
    """
    if speculation not in SPECULATION:
        raise RequestError(
            f"speculation must be one of {', '.join(SPECULATION)}, not {speculation!r}",
            param="speculation",
        )
    if draft is not None and speculation == "off":
        raise RequestError(
            f"the draft model {draft} is of no use with speculation off: leave one of them out",
            param="draft",
        )


def open_speculation(
    model: LoadedModel, speculation: str, draft: str | Path | None
) -> Speculation | None:
    """The speculation of ``model``, or None for none.

    ``auto`` speculates where a row's logits do not depend on the step's width, so that texts stay
    what they are; how far is decided step by step, from what steps of each width cost.

    Raises:
        RequestError: ``draft`` has other tokens than ``model``.
        ModelNotFoundError, DownloadError, ModelFileError, OutOfMemoryError: ``draft`` cannot be
            found, fetched, used or held.
    """
    if speculation == "off" or (
        speculation == "auto" and draft is None and not model.backend.batch_invariant
    ):
        return None
    if draft is None:
        return Speculation(NgramDrafter)
    costs = StepCosts()
    second = _open_draft(model, draft, costs)
    return Speculation(
        lambda costs, account: BestDrafter(NgramDrafter(costs, account), second.drafter()), costs
    )


def _open_draft(model: LoadedModel, draft: str | Path, costs: StepCosts) -> DraftModel:
    from edgerun.backends.split import SplitBackend

    path = find(draft).path
    with GGUFFile.open(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        family = file.metadata.get_str("general.architecture")
        trained = file.metadata.get_int(f"{family}.context_length", model.n_ctx)
    _check_tokens(model, tokenizer, path)
    backend = model.backend.back if isinstance(model.backend, SplitBackend) else model.backend
    loaded = load(path, backend, min(model.n_ctx, trained))
    return DraftModel(
        loaded.program,
        loaded.kv.n_pages,
        loaded.kv.page_size,
        loaded.n_ctx,
        min(model.tokenizer.n_vocab, tokenizer.n_vocab),
        lambda: costs.seconds(1),
    )


def _check_tokens(model: LoadedModel, other: Tokenizer, path: Path) -> None:
    """Refuse a draft model whose ids mean something else. Models of one family may differ in how
    far their vocabulary is padded.

    Raises:
        RequestError: names the first token that differs.
    """
    ours, theirs = model.tokenizer.vocab.tokens, other.vocab.tokens
    if ours[: len(theirs)] == theirs[: len(ours)]:
        return
    i = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    raise RequestError(
        f"the draft model {printable(path.name)} has other tokens than "
        f"{printable(model.path.name)}: {i} is {printable(repr(theirs[i]), 40)} there and "
        f"{printable(repr(ours[i]), 40)} here; choose a smaller model of the same family",
        param="draft",
    )
