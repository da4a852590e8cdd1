"""Which models can be served: files named, folders of files, or all that were pulled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgerun import catalog
from edgerun.catalog.split import is_whole, parts
from edgerun.errors import EdgerunError, ModelFileError, printable, why
from edgerun.gguf import FILE_TYPES, GGUFFile

__all__ = ["ModelCard", "Sources", "read_card"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelCard:
    """What the head of a model's file says.

    Attributes:
        id: the name it is served under.
        path: the file, of a split model the first.
        size: bytes, of all its files.
        created: when the file was written, unix seconds.
        architecture, file_type: GGUF's names for them; None if the file has none.
        n_params: values in its tensors.
        n_ctx_train: the longest context it was trained for; None if the file does not say.
        n_embd, n_vocab: as the file has them, or None.
        has_template: whether it has a chat template.
        error: why it cannot be used, if that is known; then the facts are missing.
    """

    id: str
    path: Path
    size: int = 0
    created: int = 0
    architecture: str | None = None
    file_type: str | None = None
    n_params: int = 0
    n_ctx_train: int | None = None
    n_embd: int | None = None
    n_vocab: int | None = None
    has_template: bool = False
    error: EdgerunError | None = None


def read_card(name: str, path: Path) -> ModelCard:
    """The card of a file; one with ``error`` if it cannot be read."""
    created = 0
    try:
        created = int(path.stat().st_mtime)
        with GGUFFile.open(path) as file:
            meta = file.metadata
            arch = meta.get_str("general.architecture", None)
            kind = meta.get_int("general.file_type", None)
            tokens = "tokenizer.ggml.tokens"
            return ModelCard(
                name,
                path,
                file.size,
                created,
                arch,
                FILE_TYPES.get(kind) if kind is not None else None,
                file.n_params,
                meta.get_int(f"{arch}.context_length", None),
                meta.get_int(f"{arch}.embedding_length", None),
                len(meta.get_str_array(tokens)) if tokens in meta else None,
                "tokenizer.chat_template" in meta,
            )
    except (EdgerunError, OSError) as e:
        error = e if isinstance(e, EdgerunError) else ModelFileError(f"{path.name}: {why(e)}")
        return ModelCard(name, path, created=created, error=error)


class Sources:
    """The models that can be served, looked up anew each time: files come and go.

    Safe to use from any thread.

    Args:
        models: found ones, each under its name; the first is the default.
        folders: every GGUF file in them, by its name without ``.gguf``; a split model counts once.
        pulled: also every model that was pulled.

    Raises:
        ModelFileError: one of ``folders`` is none.
    """

    def __init__(
        self,
        models: Sequence[catalog.Resolved] = (),
        folders: Sequence[Path] = (),
        *,
        pulled: bool = False,
    ) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ModelFileError(f"{printable(folder)} is not a folder of models")
        self._models, self._folders, self._pulled = tuple(models), tuple(folders), pulled
        self._cards: dict[tuple[str, Path], tuple[tuple[int, int], ModelCard]] = {}
        self._lock = threading.Lock()

    def files(self) -> dict[str, Path]:
        """File by name, in order. Of two files with one name the second gets its folder's, too."""
        found: dict[str, Path] = {}
        for name, path in self._all():
            if path in found.values():
                continue
            unique, n = name, 2
            if unique in found:
                unique = f"{path.parent.name}/{name}"
            while unique in found:
                unique, n = f"{name}-{n}", n + 1
            found[unique] = path
        return found

    def _all(self) -> Iterable[tuple[str, Path]]:
        for model in self._models:
            yield model.name, _first(model.path)
        for folder in self._folders:
            yield from _scan(folder)
        if self._pulled:
            for entry in catalog.list_models():
                if entry.path is not None:
                    yield entry.name, _first(entry.path)

    def cards(self) -> list[ModelCard]:
        """A card of each, unusable ones too. Heads are read once, and again when a file changes."""
        with self._lock:
            fresh: dict[tuple[str, Path], tuple[tuple[int, int], ModelCard]] = {}
            for name, path in self.files().items():
                stamp, key = _stamp(path), (name, path)
                old = self._cards.get(key)
                if old is not None and old[0] == stamp:
                    fresh[key] = old
                    continue
                card = read_card(name, path)
                if card.error is not None:
                    log.warning("%s cannot be served: %s", printable(name), card.error)
                fresh[key] = (stamp, card)
            self._cards = fresh
            return [card for _, card in fresh.values()]


def _scan(folder: Path) -> Iterable[tuple[str, Path]]:
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    except OSError as e:
        log.warning("%s cannot be listed: %s", printable(folder), why(e))
        return
    for path in files:
        if parts(path.name)[0] != path.name:
            continue  # a later part of a set
        if path.name.lower().startswith("mmproj"):
            continue  # the eyes of another model, no model itself
        if not is_whole(path, None):
            log.warning("%s: parts of this model are missing", printable(path.name))
            continue
        yield _plain_name(path), path


def _plain_name(path: Path) -> str:
    """``NAME`` of NAME.gguf and NAME-00001-of-00003.gguf."""
    whole = parts(path.name)
    stem = path.name[: -len(path.suffix)]
    return stem if len(whole) == 1 else stem[: -len("-00001-of-00003")]


def _first(path: Path) -> Path:
    return path.with_name(parts(path.name)[0])


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return stat.st_mtime_ns, stat.st_size
