"""A drafter that knows the answer, and says it as wrong as it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgerun.engine import Draft
from helpers.fake_program import N_VOCAB


@dataclass
class Scripted:
    """Knows the true continuation of its text and guesses it right, wrong, or right up to a point:
    ``right`` gives for each guess how many of its tokens are right."""

    prompt: list[int]
    answer: list[int]
    right: Sequence[int]
    length: int = 6
    name: str = "scripted"
    quick: bool = True
    text: list[int] = field(default_factory=list)
    guesses: int = 0
    asked: list[int] = field(default_factory=list)

    def extend(self, ids: Sequence[int]) -> None:
        self.text += ids
        assert self.text == (self.prompt + self.answer)[: len(self.text)]

    def draft(self, most: int) -> Draft:
        assert len(self.text) >= len(self.prompt)
        assert most >= 1
        self.asked.append(most)
        true = self.answer[len(self.text) - len(self.prompt) :]
        right = self.right[self.guesses % len(self.right)]
        self.guesses += 1
        guess = (true + [5] * self.length)[: self.length]
        for i in range(right, self.length):
            guess[i] = (guess[i] + 1) % N_VOCAB
        return Draft(tuple(guess), (0.9,) * self.length)
