"""What of a loaded model's KV pages is kept on disk: where, how much, and what they depend on."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from functools import partial
from pathlib import Path

import edgerun
from edgerun.backends.base import PAGE_SIZE
from edgerun.catalog.spec import data_dir
from edgerun.catalog.split import parts
from edgerun.engine.disk import MIN_PAGES, DiskTier
from edgerun.engine.disk_files import PageFolder
from edgerun.errors import RequestError, printable
from edgerun.loading import LoadedModel

__all__ = ["VARIABLE", "folder", "open_disk", "parse_limit"]

log = logging.getLogger(__name__)

#: The environment variable that says what ``"auto"`` means: a size or ``off``.
VARIABLE = "EDGERUN_KV_DISK"

_AUTO = 2 << 30  # bytes, at most
_AUTO_SHARE = 0.1  # of the disk's free space, at most
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_HEAD = 4 << 20  # bytes of a model file that are hashed as they are: its metadata, or most of it
_SAMPLES = 512  # of the rest
_SAMPLE = 4096  # bytes each

#: Changes whenever a page's bits, for the same model and backend, mean something else.
_FORMAT = "edgerun kv 1"


def folder() -> Path:
    """Where pages lie: ``kv`` in the data folder. Removing it loses time, nothing else."""
    return data_dir() / "kv"


def parse_limit(choice: int | str, name: str = "kv_disk") -> int | None:
    """Bytes that ``choice`` allows; None for ``auto``, which :func:`open_disk` decides.

    Args:
        choice: bytes, a number with K, M, G or T (of 1024; kB and the like are of 1000),
            ``off`` or ``auto``.
        name: what it is called in an error.

    Raises:
        RequestError: it is none of these.
    """
    text = str(choice).strip().lower()
    if text == "auto":
        return None
    if text == "off":
        return 0
    m = _SIZE.fullmatch(text)
    if m is None or isinstance(choice, bool):
        raise RequestError(
            f"{name} must be a size such as 2G, or off, not {printable(repr(choice), 40)}",
            param="kv_disk",
        )
    base = 1000 if (m[3] or "").lower() == "b" else 1024  # 2GB are less than 2GiB, or 2G for short
    return int(float(m[1]) * base ** " kmgt".index((m[2] or " ").lower()))


def open_disk(model: LoadedModel, choice: int | str) -> DiskTier | None:
    """The disk tier of ``model``, or None for none, as for a coarse backend.

    Its folder is opened in the background.

    ``auto`` is what ``$EDGERUN_KV_DISK`` says, else 2 GiB or a tenth of the free disk, whichever is
    less.

    Raises:
        RequestError: ``choice``, or the variable if it counts, is no size.
    """
    limit = parse_limit(choice)
    if limit is None:
        limit = parse_limit(os.environ.get(VARIABLE) or "auto", VARIABLE)
    if limit == 0 or model.config is None:  # a coarse backend's pages are whole contexts
        return None
    kv = model.kv
    return DiskTier(
        partial(_open, model, folder(), limit), kv.export_page, kv.import_page, kv.page_bytes
    )


def _open(model: LoadedModel, root: Path, limit: int | None) -> PageFolder:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if limit is None:
        limit = min(_AUTO, int(shutil.disk_usage(root).free * _AUTO_SHARE))
    page_bytes = model.kv.page_bytes
    if limit < MIN_PAGES * page_bytes:
        log.info("%d bytes on disk hold too few KV pages of %d bytes", limit, page_bytes)
    return PageFolder(root, model_key(model), PAGE_SIZE, page_bytes, limit)


def model_key(model: LoadedModel) -> bytes:
    """16 bytes for all that the bits of a KV page depend on, beside the tokens.

    Of each model file these are its size, its time, its first 4 MiB and 512 samples of 4 KiB,
    evenly spread: training moves every weight it touches at all, and so every sample of it. Hashing
    the whole file would take longer than loading it.

    Raises:
        OSError: a file cannot be read.
    """
    h = hashlib.blake2b(digest_size=16)
    config, kv = model.config, model.kv
    assert config is not None  # open_disk saw to it
    rest = (
        _FORMAT,
        edgerun.__version__,
        model.backend.numerics(),
        model.kv_type,
        PAGE_SIZE,
        kv.page_bytes,
        config.arch,
        config.attention,
        [(r.inv_freq.tobytes(), r.interleaved, r.mscale) for r in dict.fromkeys(config.ropes)],
    )
    h.update(repr(rest).encode())
    for name in parts(model.path.name):
        _sample(h, model.path.with_name(name))
    return h.digest()


def _sample(h: hashlib.blake2b, path: Path) -> None:
    with open(path, "rb", buffering=0) as f:
        s = os.fstat(f.fileno())
        h.update(repr((s.st_size, s.st_mtime_ns)).encode())
        h.update(f.read(_HEAD) or b"")
        for i in range(_SAMPLES if s.st_size > _HEAD else 0):
            f.seek(_HEAD + (s.st_size - _HEAD) * i // _SAMPLES)
            h.update(f.read(_SAMPLE) or b"")
