"""``hf:OWNER/REPO[@REVISION]/FILE`` sources, through huggingface_hub (resume, tokens, mirrors)."""

from __future__ import annotations

import inspect
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

from edgerun.catalog.sources import Job
from edgerun.errors import DownloadError, printable, why

__all__ = ["fetch", "find_cached"]

_SOURCE = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w.-]+))?/([^\s\\]+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def parse(source: str) -> tuple[str, str | None, str]:
    """Repository, revision and file of a source."""
    m = _SOURCE.fullmatch(source)
    if m is None or ".." in m[3].split("/"):
        raise DownloadError(
            f"{printable(source)!r} is not a hub source: write hf:OWNER/REPO/FILE.gguf"
        )
    return m[1], m[2], m[3]


def fetch(source: str, job: Job) -> str | None:
    repo, revision, file = parse(source)
    # $HF_ENDPOINT is read by the library when it is imported, which may have been long ago.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        import huggingface_hub as hub

        url = hub.hf_hub_url(repo, file, revision=revision, endpoint=endpoint)
        meta = hub.get_hf_file_metadata(url, endpoint=endpoint)
    except Exception as e:
        raise _failed(source, e) from e
    if meta.size is not None:
        job.check_size(meta.size)
        partial = sum(p.stat().st_size for p in job.work.rglob("*") if p.is_file())
        job.check_space(max(meta.size - partial, 0))
    extra: dict[str, Any] = {}
    if "tqdm_class" in inspect.signature(hub.hf_hub_download).parameters:
        extra["tqdm_class"] = _bar_class(job, meta.size)
    try:
        path = hub.hf_hub_download(
            repo,
            file,
            revision=meta.commit_hash or revision,
            local_dir=job.work,
            endpoint=endpoint,
            **extra,
        )
    except Exception as e:
        raise _failed(source, e) from e
    os.replace(path, job.target)
    shutil.rmtree(job.work, ignore_errors=True)
    # Large files are stored by their sha256; a small one's etag is a git hash, which says less.
    return meta.etag if meta.etag and _SHA256.fullmatch(meta.etag) else None


def _failed(source: str, error: Exception) -> DownloadError:
    # The library raises its HTTP client's own errors, and which client depends on its version.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = why(lines[0] if lines else error)
    return DownloadError(f"{source} cannot be fetched: {reason}; run it again to go on")


def _bar_class(job: Job, total: int | None) -> type:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """Passes what the library would draw on to the job's own progress callback."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # an extension of the library's own bar
            kwargs.update(file=io.StringIO(), disable=False)
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            job.report(int(self.n), total)

    return Bar


def find_cached(source: str) -> Path | None:
    """The file in the hub's own cache, if another program has fetched it."""
    repo, revision, file = parse(source)
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub"
    )
    # Most machines have no such repository: spare them the import.
    if not Path(cache, "models--" + repo.replace("/", "--")).expanduser().is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo, file, cache_dir=Path(cache).expanduser(), revision=revision)
    return Path(path) if isinstance(path, str) else None
