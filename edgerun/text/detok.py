"""Token ids to text, one at a time: whole characters only, stop strings never shown."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from edgerun.text.stops import StopMatcher
from edgerun.text.tokenizer import Tokenizer

__all__ = ["StreamDetokenizer"]


class StreamDetokenizer:
    """The text of one generation, as its tokens come. The cost per token does not grow.

    The texts returned by :meth:`push` and a final :meth:`flush` join to the decoded text up to the
    first stop string, however the tokens cut it. Bytes that cannot become a character turn into
    U+FFFD as soon as that is certain.

    Attributes:
        stopped: a stop string was completed; later tokens are ignored.
        matched: that stop string, or None.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        previous: int | None = None,
        special: bool = False,
        exact: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        """
        Args:
            stop: strings that end the text; empty ones are ignored.
            previous: the token before the first one pushed (the prompt's last), None at the start
                of a text. Decides whether a leading space belongs to the text, in vocabularies
                that put one before each text.
            special: show control tokens instead of dropping them.
            exact: the tokens were chosen byte by byte: drop no leading space.
            shown: control tokens to show in any case.
        """
        self._tokenizer = tokenizer
        self._special = special
        self._shown = frozenset(shown)
        self._strips = tokenizer.space_prefix and not exact
        self._fresh = self._strips and (previous is None or tokenizer.starts_text(previous))
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        return self._stops.matched is not None

    @property
    def matched(self) -> str | None:
        return self._stops.matched

    def push(self, token_id: int) -> str:
        """The text that became safe to show with this token; often part of it, or nothing.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        t = self._tokenizer
        data = t.token_bytes(token_id, special=self._special or token_id in self._shown)
        if self._strips:
            starts = t.starts_text(token_id)
            if self._fresh and not starts and data.startswith(b" "):
                data = data[1:]
            self._fresh = starts
        if self.stopped:
            return ""
        return self._stops.push(self._decode(data))

    def feed(self, token_ids: Iterable[int]) -> tuple[str, int]:
        """Push tokens until one completes a stop string.

        Returns:
            The text to show, and how many of the tokens count: all of them, or those up to and
            including the one that completed the stop string. The rest was never said.
        """
        out: list[str] = []
        for i in token_ids:
            if self.stopped:
                break
            out.append(self.push(i))
        return "".join(out), len(out)

    def flush(self) -> str:
        """The end: whatever was held back, cut characters as U+FFFD. Empty after a stop."""
        if self.stopped:
            return ""
        return self._stops.push(self._decode(b"", True)) + self._stops.flush()
