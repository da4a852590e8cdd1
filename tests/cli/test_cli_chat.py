"""``edgerun chat`` line by line: with its input piped, and stopped in the middle; its options."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, EDGERUN, environment, one_line_error
from helpers.http import Endpoint

from edgerun.llm import LLM

ARGS = ["--backend", "cpu", "--temp", "0"]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.scripted_model(tmp_path_factory.mktemp("m") / "m.gguf", ["Hi", "!"], vocab=[" "])


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """The conversation of each request, as (role, content)."""
    seen: list[list[tuple[str, str]]] = []
    original = LLM.stream_chat

    def spy(self, messages, *args, **kwargs):  # type: ignore[no-untyped-def]
        seen.append([(m["role"], m["content"]) for m in messages])
        return original(self, messages, *args, **kwargs)

    monkeypatch.setattr(LLM, "stream_chat", spy)
    return seen


Prompts = list[list[tuple[str, str]]]
ONE, TWO, HI = ("user", "one"), ("user", "two"), ("assistant", "Hi!")


def test_a_conversation(cli: CLI, model: Path, prompts: Prompts) -> None:
    r = cli("chat", "-m", model, *ARGS, "--system", "Be", stdin="one\n\ntwo\n")
    assert (r.status, r.out) == (0, "Hi!\nHi!\n")
    be = ("system", "Be")
    assert prompts == [[be, ONE], [be, ONE, HI, TWO]]
    assert len(re.findall(r"\[prefill \d+ tokens, .* decode 1 tokens, .*\]", r.err)) == 2


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ("one\n/retry\n", [ONE]),
        ("one\n/undo\ntwo\n", [TWO]),
        ("one\n/reset\ntwo\n", [TWO]),
        ("one\ntwo\n/retry\n", [ONE, HI, TWO]),
        ("one\n/system Be  kind\ntwo", [("system", "Be  kind"), TWO]),
        ("/system x\n/system\none", [ONE]),
        ("a \\\nb\\\n", [("user", "a \nb")]),
        ("one\n/quit\ntwo\n", [ONE]),
        ("one\n  /exit  \ntwo\n", [ONE]),
    ],
)
def test_commands(cli: CLI, model: Path, prompts: Prompts, lines: str, last: object) -> None:
    assert cli("chat", "-m", model, *ARGS, stdin=lines).status == 0
    assert prompts[-1] == last


def test_words_of_the_commands(cli: CLI, model: Path, prompts: Prompts) -> None:
    r = cli("chat", "-m", model, stdin="/help\n/undo\n/retry\n/no\x1b[2Jway\n")
    assert (r.status, r.out) == (0, "")
    assert "/retry           answer the last question again" in r.err
    assert r.err.count("nothing to take back\n") == 2
    assert "unknown command /no\\x1b[2Jway; /help lists them\n" in r.err
    assert prompts == []


def test_input_that_is_not_text(cli: CLI, model: Path, prompts: Prompts) -> None:
    assert cli("chat", "-m", model, *ARGS, stdin=b"caf\xe9\n").status == 0
    assert prompts == [[("user", "caf\ufffd")]]


def test_a_full_context_ends_the_question_not_the_chat(
    cli: CLI, model: Path, prompts: Prompts
) -> None:
    long = "x" * 300
    r = cli("chat", "-m", model, *ARGS, "--ctx", "128", stdin=f"one\n{long}\n/retry\ntwo\n")
    assert r.status == 0
    assert re.search(r"\nerror: the prompt has \d+ tokens but the context holds 128", r.err)
    assert r.out == "Hi!\n" * 3
    assert prompts == [[ONE], [ONE, HI, ("user", long)], [ONE], [ONE, HI, TWO]]


def test_context_shift_goes_on_and_says_what_is_left_out(
    cli: CLI, model: Path, prompts: Prompts
) -> None:
    lines = f"one\n{'x' * 60}\n{'y' * 60}\n"
    r = cli("chat", "-m", model, *ARGS, "--ctx", "128", "--context-shift", stdin=lines)
    assert r.status == 0
    assert r.out == "Hi!\n" * 3
    assert "[context full: 4 older messages left out]\n" in r.err
    assert len(prompts[-1]) == 5  # the chat itself forgets nothing


def test_a_failed_retry_keeps_the_turn(
    cli: CLI, model: Path, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/retry fails once; the question and its first answer are still there afterwards."""
    from edgerun.errors import GenerationError

    spied = LLM.stream_chat

    def failing(self, messages, *args, **kwargs):  # type: ignore[no-untyped-def]
        stream = spied(self, messages, *args, **kwargs)
        if len(prompts) == 2:
            raise GenerationError("NaN")
        return stream

    monkeypatch.setattr(LLM, "stream_chat", failing)
    r = cli("chat", "-m", model, *ARGS, stdin="one\n/retry\ntwo\n")
    assert "error: NaN\n" in r.err
    assert prompts == [[ONE], [ONE], [ONE, HI, TWO]]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_stops_the_answer_not_the_chat(tmp_path: Path) -> None:
    follow: dict[str | int, str | int] = dict.fromkeys(range(259), " tick")
    follow |= {" tick": " tock", " tock": " tick"}
    path = gb.scripted_model(tmp_path / "m.gguf", follow, vocab=[" "], n_ctx=100_000)
    chat = subprocess.Popen(
        [*EDGERUN, "chat", "-m", str(path), *ARGS],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(b"one\n")
    assert chat.stdout.read(5) == b" tick"
    chat.send_signal(signal.SIGINT)
    before = b""
    while not before.endswith(b"\n"):  # the stopped answer's end
        before += chat.stdout.read(1)
    chat.stdin.write(b"/undo\n/undo\n/quit\n")
    out, err = chat.communicate(timeout=30)
    assert chat.returncode == 0
    assert out == b""
    assert b"\n(stopped)\n" in err
    assert err.count(b"nothing to take back") == 1  # the stopped turn was there, and only it
    assert b"Traceback" not in err


def test_a_question_on_the_command_line(cli: CLI, model: Path, prompts: Prompts) -> None:
    r = cli("chat", "-m", model, *ARGS, "one", stdin="two\n")
    assert (r.status, r.out) == (0, "Hi!\nHi!\n")
    assert prompts == [[ONE], [ONE, HI, TWO]]


def test_a_server_answers(cli: CLI, model: Path) -> None:
    with Endpoint({"scripted": model}, api_keys=("secret",)) as server:
        there = ["--url", server.url, "--api-key", "secret", "--temp", "0"]
        r = cli("chat", *there, "--plain", stdin="one\n/retry\n")
        assert (r.status, r.out) == (0, "Hi!\nHi!\n")
        assert r.err.startswith(f"scripted · {server.url} · /help for commands\n")
        r = cli("chat", *there, "-m", "other", stdin="one\n")
        assert "other" in one_line_error(r)
        r = cli("chat", "--url", server.url, stdin="one\n")
        assert "key" in one_line_error(r)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--url", "localhost:1", "--ctx", "64"], "--ctx says how a model is run here"),
        (["--url", "localhost:1", "--kv-disk", "off"], "--kv-disk says how a model is run here"),
        (["smollm2-135m"], "is a model, not a question: edgerun chat -m smollm2-135m QUESTION"),
        (["--url", "localhost:1", "--exact"], "--exact says how a model is run here"),
        (["--url", "localhost:1", "--gpu-layers", "3"], "--gpu-layers says how a model is run"),
        (["--url", "ftp://x"], "'ftp://x' is not an address"),
        (["--url", "localhost:1"], "localhost:1 cannot be reached"),
        (["--api-key", "x"], "--api-key is for a server: give its address with --url"),
        (["--continue"], "earlier chats can be gone on with in a terminal's full screen only"),
        (["--resume", "x"], "earlier chats can be gone on with in a terminal's full screen only"),
        (["--temp", "-7"], "temperature must be between"),
        (["--plain", "--theme", "edgerun-light"], "--theme is for the full screen"),
    ],
)
def test_options_that_cannot_be_followed(cli: CLI, args: list[str], said: str) -> None:
    assert said in one_line_error(cli("chat", *args, stdin="one\n"))


def test_one_chat_to_go_on_with(cli: CLI) -> None:
    assert cli("chat", "-c", "--resume", "x").status == 2
