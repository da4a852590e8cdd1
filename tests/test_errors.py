"""What messages quote of other errors."""

from __future__ import annotations

import pytest

from edgerun.errors import why


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/a/b"), "No such file or directory"),
        (RuntimeError("[Errno -2] Name or service not known"), "Name or service not known"),
        (RuntimeError("[WinError 10061] refused"), "refused"),
        ("[Errno 111] Connection refused", "Connection refused"),
        (ValueError("at [Errno 5] there"), "at [Errno 5] there"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("a\x1b[2Jb\n"), "a\\x1b[2Jb\\n"),
    ],
)
def test_the_words_alone(error: BaseException | str, words: str) -> None:
    assert why(error) == words
