"""The models there are: the catalogue's and those that lie on this machine; what fits of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgerun import arch, catalog
from edgerun.amounts import size_text
from edgerun.catalog.split import is_whole, parts
from edgerun.errors import EdgerunError, OutOfMemoryError, RequestError, printable, why
from edgerun.gguf import FILE_TYPES, GGUFFile
from edgerun.loading import LoadedModel, runs_on
from edgerun.planning import Room, plan
from edgerun.tui.partner import Choice

__all__ = ["Facts", "Shelf", "folders", "read_facts", "verdict"]

_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?I?Q\d(?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4)(?![A-Za-z0-9])", re.I
)
#: Files and levels of folders that a look around visits at most: a disk may be vast or slow.
_MOST, _DEEP = 500, 4
#: Tokens of context below which a model fits, but just.
_EASY = 4096
#: KV bytes a value of what the cpu backend takes unless told otherwise.
_F16 = 2


@dataclass(frozen=True)
class Facts:
    """What planning needs of a model: bytes of weights, of K and V of one token, trained context.
    ``wrong``: why it cannot be used."""

    size: int
    token_bytes: int | None = None
    n_ctx: int | None = None
    quant: str = ""
    wrong: str = ""


def read_facts(path: Path, kv_type: str = "f16") -> Facts:
    """Of a file's head; some 30 ms."""
    try:
        with GGUFFile.open(path) as file:
            meta = file.metadata
            name = meta.get_str("general.architecture", "")
            kind = meta.get_int("general.file_type", None)
            quant = _quant(path.name) or (FILE_TYPES.get(kind, "") if kind is not None else "")
            try:
                family = arch.get(name)
                config = arch.configure(family, file)
                each = sum(layer.token_bytes(kv_type) for layer in family.kv_layers(config))
                return Facts(file.size, each, config.n_ctx_train, quant)
            except EdgerunError as e:
                n_ctx = meta.get_int(f"{name}.context_length", None)
                wrong = "" if runs_on(name) == "llama_cpp" else printable(e)
                return Facts(file.size, None, n_ctx, quant, wrong)
    except (EdgerunError, OSError) as e:
        return Facts(0, wrong=why(e))


def verdict(facts: Facts, total: int, free: int, asked: int | None) -> tuple[bool, str, bool]:
    """Whether a model fits, why or why not in a few words, and whether it does so narrowly.

    Args:
        total, free: bytes of memory; ``free`` as it is once the model in use is gone.
        asked: the context that it would be loaded with; None = as much as there is room for.
    """
    room = Room(total, free, facts.size)
    need = facts.size + room.margin
    if facts.token_bytes is None:
        if need > free:
            return False, f"needs {size_text(need)}, {size_text(free)} are free", False
        return True, "", need > free * 0.9
    trained = facts.n_ctx or _EASY
    try:
        n_ctx = plan(room, facts.token_bytes, trained, asked, 1).n_ctx
    except OutOfMemoryError:
        need += facts.token_bytes * (asked or min(512, trained))
        return False, f"needs {size_text(need)}, {size_text(free)} are free", False
    except RequestError as e:
        return False, printable(e), False
    short = n_ctx < min(_EASY, trained)
    why = f"context {n_ctx >> 10}k" if 1024 <= n_ctx < trained else ""
    return True, why or (f"context {n_ctx}" if n_ctx < trained else ""), short or need > free * 0.95


class Shelf:
    """Reads heads of files once, and again when they change. For one thread at a time."""

    def __init__(self) -> None:
        self._facts: dict[tuple[Path, str], tuple[tuple[int, int], Facts]] = {}

    def choices(self, loaded: LoadedModel | None, options: Mapping[str, Any]) -> list[Choice]:
        """The catalogue in its order, then what else lies here, by name.

        Args:
            loaded: the model in use; its memory will be free again for the next one.
            options: what models are loaded with.

        Raises:
            ModelFileError: the user's own catalogue is malformed.
        """
        total, free = _memory(loaded)
        kv_type, asked = _kv_type(options), options.get("n_ctx")
        out: list[Choice] = []
        here: set[Path] = set()
        for entry in catalog.list_models():
            spec, path = entry.spec, entry.path
            if path is not None:
                here.add(_real(path))
                facts = self._of(path, kv_type)
            elif spec is not None and spec.size is not None:
                layers, heads, size = spec.kv or (0, 0, 0)
                each = 2 * _F16 * layers * heads * size or None
                facts = Facts(spec.size, each, spec.context, _quant(spec.file))
                if spec.arch and runs_on(spec.arch) is None:
                    facts = replace(facts, wrong=f"{spec.arch} models need llama.cpp here")
            else:
                facts = Facts(0)
            out.append(
                _choice(
                    entry.name, entry.name, facts, (total, free, asked),
                    pulled=path is not None,
                    notes=spec.notes if spec else "",
                    partial=entry.partial,
                )
            )  # fmt: skip
        return out + self._files(here, kv_type, (total, free, asked))

    def _files(
        self, here: set[Path], kv_type: str, memory: tuple[int, int, int | None]
    ) -> list[Choice]:
        out = []
        for path in _look_around(folders()):
            if (real := _real(path)) in here:
                continue
            here.add(real)
            facts = self._of(path, kv_type)
            out.append(_choice(path.stem, str(path), facts, memory, source="file"))
        return sorted(out, key=lambda c: c.name.casefold())

    def _of(self, path: Path, kv_type: str) -> Facts:
        try:
            stat = path.stat()
        except OSError as e:
            return Facts(0, wrong=why(e))
        stamp, key = (stat.st_mtime_ns, stat.st_size), (path, kv_type)
        old = self._facts.get(key)
        if old is None or old[0] != stamp:
            old = self._facts[key] = stamp, read_facts(path, kv_type)
        return old[1]


def folders() -> list[Path]:
    """Where GGUF files may lie: this folder and what other programs have fetched."""
    home = Path.home()
    hub = os.environ.get("HF_HUB_CACHE") or (
        Path(os.environ.get("HF_HOME") or home / ".cache/huggingface") / "hub"
    )
    caches = [Path(hub), home / ".cache/llama.cpp", home / ".lmstudio/models", home / "models"]
    llama_cpp = os.environ.get("LLAMA_CACHE")
    return [Path.cwd(), *([Path(llama_cpp)] if llama_cpp else []), *caches]


def _look_around(roots: list[Path]) -> Iterator[Path]:
    """GGUF files, of split ones the first; not the eyes of others, nor what is half fetched."""
    left = _MOST
    for i, root in enumerate(roots):
        deep = 1 if i == 0 else _DEEP  # the current folder may be anything: not below it
        for folder, below, files in os.walk(root):
            at = Path(folder)
            level = len(at.parts) - len(root.parts)
            below[:] = [] if level >= deep else sorted(d for d in below if not d.startswith("."))
            for name in sorted(files):
                if not name.lower().endswith(".gguf") or name.lower().startswith("mmproj"):
                    continue
                if parts(name)[0] == name and is_whole(at / name, None):
                    yield at / name
                    left -= 1
                if left <= 0:
                    return


def _choice(
    name: str,
    target: str,
    facts: Facts,
    memory: tuple[int, int, int | None],
    *,
    pulled: bool = True,
    source: str = "catalogue",
    notes: str = "",
    partial: int = 0,
) -> Choice:
    fits, why, tight = None, facts.wrong, False
    if facts.wrong:
        fits = False
    elif facts.size:
        fits, why, tight = verdict(facts, *memory)
    return Choice(
        name, target, facts.size or None, pulled, fits, why, source, facts.n_ctx, notes,
        0 if pulled else partial, facts.quant, tight, not facts.wrong,
    )  # fmt: skip


def _memory(loaded: LoadedModel | None) -> tuple[int, int]:
    """Bytes in all, and those that will be free once the model in use is gone."""
    if loaded is not None:
        memory = loaded.backend.memory()
        return memory.total, min(memory.total, memory.free + loaded.size)
    import psutil

    now = psutil.virtual_memory()
    return now.total, now.available


def _kv_type(options: Mapping[str, Any]) -> str:
    """The type that planning reckons with; unless told otherwise backends take f16, or wider."""
    asked = str(options.get("kv_type") or "f16").split(":")[0]
    return asked if asked in ("f16", "q8_0", "q4r", "f32") else "f16"


def _quant(name: str) -> str:
    found = _QUANT.findall(name)
    return str(found[-1]).upper() if found else ""


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except OSError:
        return path
