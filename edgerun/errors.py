"""Every exception edgerun raises on purpose.

::

    EdgerunError
    ├── ModelFileError            a model file cannot be used
    │   ├── GGUFError             malformed, truncated or hostile bytes
    │   └── UnsupportedModelError well formed, but an architecture, type or tokenizer edgerun lacks
    ├── ModelNotFoundError        a name or path resolves to nothing
    │   └── NotPulledError        a known name whose file is not on this machine yet
    ├── DownloadError             a pull failed and may be retried
    │   └── ChecksumError         the bytes arrived but are not the published ones
    ├── BackendError              a backend cannot do what was asked
    │   ├── BackendUnavailableError  not usable on this machine; the message says why
    │   └── OutOfMemoryError      the model or its cache does not fit
    ├── RequestError              the caller's input is wrong (HTTP 400)
    │   ├── TemplateError         the chat template refused the messages, or is broken
    │   └── ContextLengthError    more tokens than the context holds
    ├── GenerationError           the model produced something unusable, e.g. NaN logits
    └── ClosedError               the LLM was closed while, or before, the call ran, or another
                                  process loaded it, from which this one was forked

Each message names the thing, the value found, and the way out, in one line. Text that came
from a file or a model goes through :func:`printable`, so no control byte reaches a terminal.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "ChecksumError",
    "ClosedError",
    "ContextLengthError",
    "DownloadError",
    "EdgerunError",
    "GGUFError",
    "GenerationError",
    "ModelFileError",
    "ModelNotFoundError",
    "NotPulledError",
    "OutOfMemoryError",
    "RequestError",
    "TemplateError",
    "UnsupportedModelError",
    "printable",
    "why",
]


class EdgerunError(Exception):
    """Base of the tree. ``code`` is a stable snake_case word for scripts and HTTP bodies."""

    code = "edgerun_error"


class ModelFileError(EdgerunError):
    code = "model_file_error"


class GGUFError(ModelFileError):
    code = "gguf_error"


class UnsupportedModelError(ModelFileError):
    code = "unsupported_model"


class ModelNotFoundError(EdgerunError):
    code = "model_not_found"


class NotPulledError(ModelNotFoundError):
    code = "model_not_pulled"


class DownloadError(EdgerunError):
    code = "download_error"


class ChecksumError(DownloadError):
    code = "checksum_mismatch"


class BackendError(EdgerunError):
    code = "backend_error"


class BackendUnavailableError(BackendError):
    code = "backend_unavailable"


class OutOfMemoryError(BackendError):
    code = "out_of_memory"


class RequestError(EdgerunError):
    """The caller's input is wrong. ``param`` names the offending field, where there is one."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class TemplateError(RequestError):
    code = "template_error"


class ContextLengthError(RequestError):
    """``n_prompt_tokens`` tokens were sent to a context of ``n_ctx``."""

    code = "context_length_exceeded"

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt has {n_prompt_tokens} tokens but the context holds {n_ctx}, "
            "one of them for the answer: shorten the prompt or load the model with a larger n_ctx",
            param="prompt",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class GenerationError(EdgerunError):
    code = "generation_error"


class ClosedError(EdgerunError):
    code = "closed"


# Cc (C0, DEL, C1), Cf (bidi overrides, zero width), line and paragraph separators, surrogates.
_UNSAFE = {"Cc", "Cf", "Zl", "Zp", "Cs"}


#: How Python begins an error of the system; libraries pass it on as text.
_NUMBER = re.compile(r"^\[(?:Errno|WinError) -?\d+\] ")


def printable(text: object, limit: int = 200) -> str:
    """``text`` with every unsafe character escaped and at most ``limit`` characters long.

    For error messages and tables that quote a file or a model: nothing in the result can move
    the cursor, change colours or reorder the line.
    """
    s = str(text)
    cut = s[: limit + 1]
    if cut.isprintable():  # by Python's narrower idea of that; true of nearly all
        return cut if len(cut) <= limit else cut[:limit] + "…"
    out = "".join(
        c if unicodedata.category(c) not in _UNSAFE else c.encode("unicode_escape").decode("ascii")
        for c in cut[:limit]
    )
    return out + "…" if len(cut) > limit else out


def why(error: BaseException | str) -> str:
    """What went wrong, printable: of an OSError the system's words alone, without the number and
    the path that the message names already; of another error what it says, or its name."""
    said = getattr(error, "strerror", None) or _NUMBER.sub("", str(error))
    return printable(said or type(error).__name__)
