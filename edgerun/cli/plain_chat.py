"""A conversation line by line: ``edgerun chat --plain``, and where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from edgerun.chat import ChatOptions
from edgerun.cli.options import (
    forgive_stdin,
    open_llm,
    reasoning_writer,
    sampling_params,
    speed_line,
    writer,
)
from edgerun.errors import ClosedError, EdgerunError, RequestError, printable

if TYPE_CHECKING:
    import argparse

    from edgerun.core import Chunk, SamplingParams
    from edgerun.llm import LLM

__all__ = ["HELP", "run"]

T = TypeVar("T")

#: Its commands.
HELP = """\
/help            this text
/system TEXT     set the system prompt and start over
/reset           forget the conversation
/undo            forget the last question and its answer
/retry           answer the last question again
/quit            leave (so does Ctrl-D)
End a line with \\ to go on on the next. Ctrl-C stops an answer."""


def run(args: argparse.Namespace) -> int:
    """Ask and answer until the input ends; questions come from the command line and from stdin,
    answers go to stdout. Nothing is kept.

    Raises:
        RequestError: an option needs what is kept.
    """
    if args.latest or args.resume is not None:
        raise RequestError("earlier chats can be gone on with in a terminal's full screen only")
    params = sampling_params(args)
    forgive_stdin()
    with suppress(ImportError):
        import readline  # noqa: F401  history and line editing for input()
    first = " ".join(args.question).strip()
    with _Server(args) if args.url else open_llm(args, chat=True) as talker:
        chat = _Chat(talker, params, args.system)
        _say(f"{_about(talker)} · /help for commands")
        if first:
            chat.take(first)
        while True:
            try:
                line = _read()
            except KeyboardInterrupt:
                _say("\n(Ctrl-D or /quit leaves)")
                continue
            if line is None or not chat.take(line):
                return 0


def _about(talker: LLM | _Server) -> str:
    if isinstance(talker, _Server):
        return f"{printable(talker.name)} · {printable(talker.url)}"
    facts = talker.backend.describe()
    backend = " ".join([talker.backend.name, *(f"{k}={v}" for k, v in facts.items())])
    return f"{printable(talker.name)} · {backend} · context {talker.n_ctx}"


class _Server:
    """The part of :class:`edgerun.LLM` that is needed here, of a model behind an address."""

    def __init__(self, args: argparse.Namespace) -> None:
        import asyncio

        from edgerun.cli.chat import partner

        self.url: str = args.url
        self._loop = asyncio.new_event_loop()
        self._partner = partner(args)
        try:
            about = self._run(self._partner.load(args.model, lambda *_: None))
        except BaseException:
            self.close()
            raise
        self.name: str = about.model

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._partner.close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            with suppress(BaseException):  # its end, whichever
                self._loop.run_until_complete(task)
            raise

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Generator[Chunk, None, None]:
        """As :meth:`edgerun.LLM.stream_chat`; closing it ends the request."""
        answer = self._partner.answer(messages, params, ChatOptions())
        try:
            while True:
                try:
                    yield self._run(_next(answer))
                except StopAsyncIteration:
                    return
        finally:
            self._run(answer.aclose())


async def _next(answer: AsyncGenerator[Chunk, None]) -> Chunk:
    return await anext(answer)


def _read() -> str | None:
    """The next input, continued over lines that end in a backslash; ``None`` at its end."""
    prompt = "> " if sys.stdin.isatty() else ""
    lines = []
    try:
        lines.append(input(prompt))
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(". " if prompt else ""))
    except EOFError:
        return "\n".join(lines) if lines else None
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Chat:
    """A conversation and what its commands do to it."""

    def __init__(self, llm: LLM | _Server, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._messages: list[dict[str, Any]] = []
        self._write = writer()

    def take(self, line: str) -> bool:
        """Act on one input; False when it was the last."""
        word, _, rest = line.strip().partition(" ")
        if word in ("/quit", "/exit"):
            return False
        if word == "/help":
            _say(HELP)
        elif word == "/system":
            self._system, self._messages = rest or None, []
        elif word == "/reset":
            self._messages = []
        elif word == "/undo":
            self._drop_turn()
        elif word == "/retry":
            before = self._messages
            question = self._drop_turn()
            if question is not None and not self._ask(question):
                self._messages = before
        elif word.startswith("/"):
            _say(f"unknown command {printable(word)}; /help lists them")
        elif line.strip():
            self._ask(line)
        return True

    def _drop_turn(self) -> str | None:
        if not self._messages:
            _say("nothing to take back")
            return None
        question: str = self._messages[-2]["content"]
        self._messages = self._messages[:-2]
        return question

    def _ask(self, question: str) -> bool:
        """Stream an answer and remember the turn; False if there was none to remember."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        turn = [*self._messages, {"role": "user", "content": question}]
        answer, last = "", None
        think = reasoning_writer(self._write)
        try:
            with closing(self._llm.stream_chat([*system, *turn], self._params)) as chunks:
                for last in chunks:
                    answer += last.text
                    think(last.reasoning)
                    self._write(last.text)
        except KeyboardInterrupt:
            _say("\n(stopped)")
            if not answer:
                return False
        except ClosedError:
            raise
        except EdgerunError as e:  # e.g. the context is full: the conversation is still there
            _say(("\n" if answer else "") + f"error: {printable(e, 2000)}")
            return False
        self._write("\n")
        self._messages = [*turn, {"role": "assistant", "content": answer}]
        if last is not None and last.usage is not None and (n := last.usage.left_out):
            _say(f"[context full: {n} older message{'s' if n > 1 else ''} left out]")
        if last is not None and last.timings is not None:
            _say(f"[{speed_line(last.timings)}]")
        return True
