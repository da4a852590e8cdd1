"""``https://`` sources: one ranged download that survives a dropped connection and a restart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.catalog.sources import Job
from edgerun.errors import DownloadError, printable, why

if TYPE_CHECKING:
    import httpx

__all__ = ["fetch"]

_TRIES = 5  # in a row without one new byte
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


class _TryAgainError(Exception):
    """A failure that another try may not meet."""


def fetch(url: str, job: Job) -> str | None:
    import httpx

    if url.startswith("http://") and job.spec.sha256 is None:
        raise DownloadError(
            f"{printable(url)} is not encrypted: use https, or give its sha256 in models.toml"
        )
    failures, best = 0, _size(job.target)
    timeout = httpx.Timeout(20.0, read=60.0)
    with httpx.Client(follow_redirects=True, timeout=timeout) as client:
        while True:
            try:
                _get(client, url, job)
                return None
            except (httpx.TransportError, httpx.TooManyRedirects, _TryAgainError) as e:
                reason = why(e)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
                raise DownloadError(f"{printable(url)} is not a usable address: {e}") from e
            size = _size(job.target)
            failures = 0 if size > best else failures + 1
            best = max(best, size)
            if failures >= _TRIES:
                raise DownloadError(
                    f"{printable(url)} cannot be fetched: {reason}; {best} bytes are kept, "
                    "run it again to go on"
                )
            time.sleep(0.2 * 2**failures)


def _get(client: httpx.Client, url: str, job: Job) -> None:
    """One request from where the partial file ends; returns when the file is whole."""
    note = job.work / "source.json"
    have = _resumable(url, job, note)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if validator := _read(note).get("validator"):
            headers["If-Range"] = validator
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status == 416:
            total = _total(response)
            if total is not None and total == have:
                return
            job.target.unlink(missing_ok=True)
            raise _TryAgainError("the server's file is shorter than what is here")
        if status in _RETRY_STATUS:
            raise _TryAgainError(f"HTTP {status}")
        if status not in (200, 206):
            raise DownloadError(f"{printable(url)} cannot be fetched: HTTP {status}")
        if status == 206 and not response.headers.get("Content-Range", "").startswith(
            f"bytes {have}-"
        ):
            job.target.unlink(missing_ok=True)
            raise _TryAgainError("the server sent another range than asked for")
        start = have if status == 206 else 0
        total = _total(response)
        if total is not None:
            job.check_size(total)
            job.check_space(total - start)
        _write(note, {"url": url, "validator": _validator(response)})
        done = _save(response, job, start, total)
    if total is not None and done < total:
        raise _TryAgainError(f"the connection closed after {done} of {total} bytes")


def _save(response: httpx.Response, job: Job, start: int, total: int | None) -> int:
    done = start
    with job.target.open("r+b" if start else "wb") as out:
        out.seek(start)
        for block in response.iter_raw():
            done += len(block)
            if total is not None and done > total:
                raise DownloadError(f"{response.url} sent more than the {total} bytes it announced")
            out.write(block)
            job.report(done, total)
    return done


def _resumable(url: str, job: Job, note: Path) -> int:
    """Bytes of the partial file that a request may build on; others are dropped."""
    have = _size(job.target)
    known = _read(note)
    # Without a validator only a checksum can tell two versions of the file apart.
    if have and known.get("url") == url and (known.get("validator") or job.spec.sha256):
        return have
    job.target.unlink(missing_ok=True)
    return 0


def _validator(response: httpx.Response) -> str | None:
    etag: str | None = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):  # RFC 9110 13.1.5: If-Range needs a strong one
        return etag
    modified: str | None = response.headers.get("Last-Modified")
    return modified


def _total(response: httpx.Response) -> int | None:
    if response.status_code == 200:
        text = response.headers.get("Content-Length", "")
    else:
        text = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(note: Path) -> dict[str, str | None]:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(note: Path, content: dict[str, str | None]) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(content), encoding="utf-8")
