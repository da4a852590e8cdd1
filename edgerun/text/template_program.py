"""A compiled chat template: variables in, marked text or a :class:`TemplateError` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateSyntaxError
from jinja2 import TemplateError as JinjaError

from edgerun.errors import TemplateError, printable
from edgerun.text.limits import Budget, LimitExceeded, spending
from edgerun.text.marked import concat
from edgerun.text.sandbox import Refusal, TemplateEnvironment

__all__ = ["BrokenTemplateError", "Program"]

MAX_SOURCE_CHARS = 1 << 17


class BrokenTemplateError(TemplateError):
    """The template failed by itself, as on a type it did not expect; it did not refuse."""


class Program:
    """``source`` compiled. Thread-safe: one program may render on many threads.

    Raises:
        TemplateError: longer than 128 KiB, or malformed; the message has the line.
    """

    def __init__(self, source: str, name: str, clock: Callable[[], datetime]) -> None:
        self.name = printable(name, 80)
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"{self.name} has {len(source)} characters; templates may have {MAX_SOURCE_CHARS}"
            )
        env = TemplateEnvironment(clock)
        try:
            tree = env.rewritten(source)
            self._template = Template.from_code(env, env.compile(tree), env.globals)
        except TemplateSyntaxError as e:
            what = printable(e.message or "syntax error", 200)
            raise TemplateError(f"{self.name} is malformed at line {e.lineno}: {what}") from None
        except (RecursionError, MemoryError):
            raise TemplateError(f"{self.name} is malformed: it is nested too deep") from None
        except (JinjaError, SyntaxError, ValueError, OverflowError, TypeError) as e:
            raise TemplateError(f"{self.name} is malformed: {printable(e)}") from None

    def run(
        self, variables: Mapping[str, Any], input_chars: int, n_messages: int, seconds: float
    ) -> str:
        """Render within the bounds of :mod:`edgerun.text.limits` and ``seconds`` of CPU time.

        Raises:
            TemplateError: the template's own refusal, with its words.
            BrokenTemplateError: any failure the template did not intend.
        """
        budget = Budget(input_chars, n_messages, seconds)
        try:
            with spending(budget):
                return self._text(variables, budget)
        except Refusal as e:
            said = printable(e.message or "the chat template refused", 1000)
            raise TemplateError(said, param="messages") from None
        except LimitExceeded as e:
            raise TemplateError(f"{self.name} was stopped{_line(e)}: {e}") from None
        except RecursionError:
            raise TemplateError(f"{self.name} was stopped: it calls itself too deep") from None
        except MemoryError:
            raise TemplateError(f"{self.name} was stopped: out of memory") from None
        except Exception as e:  # templates can raise anything that Python's operators can
            what = f"{type(e).__name__}: {printable(e)}"
            raise BrokenTemplateError(f"{self.name} failed{_line(e)}: {what}") from None

    def _text(self, variables: Mapping[str, Any], budget: Budget) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(variables):
            budget.tick()
            size += len(piece)
            if size > budget.limit:
                raise LimitExceeded(f"it wrote more than {budget.limit} characters")
            pieces.append(piece)
        text = concat(pieces)
        if not text.isascii():
            text.encode()  # a template may spell half a surrogate pair
        return text


def _line(error: BaseException) -> str:
    """`` at line N`` of the template; jinja2 gives its frames the template's line numbers."""
    line, tb = None, error.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = tb.tb_lineno
        tb = tb.tb_next
    return "" if line is None else f" at line {line}"
