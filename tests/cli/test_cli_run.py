"""``edgerun run``: prompts, pipes, terminals, interrupts, errors."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, EDGERUN, environment, one_line_error

from edgerun.cli.options import terminal_text

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals and terminals")
ARGS = ["--backend", "cpu", "--temp", "0"]
EVIL = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\r\u202e"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "says hello.gguf"
    return gb.scripted_model(path, ["Hello", " wörld", "!"], vocab=[" "])


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says "tick tock" for as long as one lets it."""
    path = tmp_path_factory.mktemp("m") / "endless.gguf"
    follow: dict[str | int, str | int] = dict.fromkeys(range(259), " tick")
    return gb.scripted_model(
        path, follow | {" tick": " tock", " tock": " tick"}, vocab=[" "], n_ctx=100_000
    )


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.scripted_model(tmp_path_factory.mktemp("m") / "evil.gguf", ["ok", EVIL, "end"])


def test_an_argument(cli: CLI, model: Path) -> None:
    r = cli("run", "-m", model, *ARGS, "Say", "hello")
    assert (r.status, r.out) == (0, "Hello wörld!")
    assert r.err.startswith("note: this model has no chat template")
    assert "prefill " in r.err
    assert "decode 2 tokens, " in r.err


def test_a_model_where_the_prompt_should_be(cli: CLI, model: Path) -> None:
    """As other runtimes have it; it would be answered, by the default model."""
    for words in (["smollm2-135m"], ["qwen3-4b", "Why is the sky blue?"]):
        r = cli("run", *words)
        error = one_line_error(r)
        assert f"{words[0]} is a model, not a prompt: edgerun run -m {words[0]} PROMPT" in error
    assert f"edgerun run -m '{model}' PROMPT" in one_line_error(cli("run", model, "Hello"))
    asked = cli("run", "-m", model, *ARGS, "-q", "smollm2-135m")  # who names a model means it
    assert asked.out == "Hello wörld!"


def test_speculation_says_the_same(cli: CLI, endless: Path, tmp_path: Path) -> None:
    def run(*options: str | Path) -> tuple[int, str, str]:
        return cli("run", "-m", endless, *ARGS, "-q", "--raw", "-n", "40", *options, "go")

    said = run("--speculation", "off")
    assert said[1].count("tick") == 20
    assert run() == run("--speculation", "ngram") == run("--draft", endless) == said
    wrong = run("--speculation", "often")
    assert wrong.status != 0
    assert "auto, off, ngram, not 'often'" in one_line_error(wrong)
    other = gb.scripted_model(tmp_path / "other.gguf", ["no"], vocab=[" "])
    assert "other tokens" in one_line_error(run("--draft", other))


def test_quiet_raw(cli: CLI, model: Path) -> None:
    assert cli("run", "-m", model, *ARGS, "-q", "--raw", "x") == (0, "Hello wörld!", "")


def tokens(cli: CLI, *args: str | Path, stdin: str | bytes = "") -> int:
    r = cli("run", *ARGS, "--json", "--raw", *args, stdin=stdin)
    assert r.status == 0, r.err
    count: int = json.loads(r.out)["usage"]["prompt_tokens"]
    return count


@pytest.mark.parametrize(
    ("words", "stdin", "same_as"),
    [
        ([], "a prompt\n", "a prompt"),
        (["-"], "a prompt\n", "a prompt"),
        (["explain"], "line 1\nline 2\n", "explain\n\nline 1\nline 2"),
        (["explain"], "  \n", "explain"),
        ([], b"caf\xe9 \xff", "caf\ufffd \ufffd"),
    ],
)
def test_stdin(cli: CLI, model: Path, words: list[str], stdin: str | bytes, same_as: str) -> None:
    assert tokens(cli, "-m", model, *words, stdin=stdin) == tokens(cli, "-m", model, same_as)


def test_no_prompt(cli: CLI, model: Path) -> None:
    assert "no prompt" in one_line_error(cli("run", "-m", model, stdin=" \n"))


def test_json(cli: CLI, model: Path) -> None:
    r = cli("run", "-m", model, *ARGS, "--json", "--raw", "-n", "2", "x")
    assert (r.status, r.err) == (0, "")
    assert r.out.isascii()
    assert r.out.count("\n") == 1
    got = json.loads(r.out)
    assert got["text"] == "Hello wörld"
    assert got["model"] == "says hello"
    assert got["finish_reason"] == "length"
    assert len(got["token_ids"]) == got["usage"]["completion_tokens"] == 2
    assert got["decode_per_second"] > 0


def test_json_of_evil_text(cli: CLI, evil: Path) -> None:
    r = cli("run", "-m", evil, *ARGS, "--json", "--raw", "x")
    assert r.out[:-1].isprintable()
    assert json.loads(r.out)["text"] == f"ok{EVIL}end"


def test_options_reach_the_sampler(cli: CLI, model: Path, tmp_path: Path) -> None:
    base = ["run", "-m", model, "-q", "--raw", "x", "--backend", "cpu"]
    assert cli(*base, "-n", "1").out == "Hello"
    assert cli(*base, "--stop", "ld").out == "Hello wör"
    assert cli(*base, "-n", "0").out == ""
    assert cli(*base, "-n", "-1").out == "Hello wörld!"
    assert len(cli(*base, "--ignore-eos", "-n", "9").out) > len("Hello wörld!")
    full = cli(*base, "--ignore-eos", "-n", "99", "--ctx", "40", "--json")
    on = cli(*base, "--ignore-eos", "-n", "99", "--ctx", "40", "--json", "--context-shift")
    long = ["x" * 30 if a == "x" else a for a in base]
    kept = cli(*long, "-n", "9", "--ctx", "40", "--context-shift", "--keep", "30")
    assert json.loads(full.out)["usage"]["completion_tokens"] < 40
    assert json.loads(on.out)["usage"]["completion_tokens"] == 99
    assert "n_keep may be at most half of it, 20" in kept.err
    random = gb.random_model(tmp_path / "random.gguf", seed=2)
    hot = ["run", "-m", random, "-q", "--raw", "x", "--temp", "1.5", "-n", "12", "--seed"]
    assert cli(*hot, "4").out == cli(*hot, "4").out
    assert len({cli(*hot, str(s)).out for s in range(5)}) > 1


def test_a_system_prompt(cli: CLI, model: Path) -> None:
    def count(*more: str) -> int:
        r = cli("run", "-m", model, *ARGS, "--json", "hi", *more)
        return int(json.loads(r.out)["usage"]["prompt_tokens"])

    assert count("--system", "Be kind") > count()
    # Without the template there is no place for it, and it is not dropped in silence.
    said = one_line_error(cli("run", "-m", model, *ARGS, "--raw", "--system", "Be kind", "hi"))
    assert "--system" in said


# -- errors --------------------------------------------------------------------------------------


def test_errors_are_one_line(cli: CLI, model: Path, tmp_path: Path) -> None:
    html = tmp_path / "page\x1b[31m.gguf"
    html.write_text("<!DOCTYPE html><html>404</html>\n" * 9)
    run = ["run", *ARGS, "hi"]
    assert "missing.gguf" in one_line_error(cli(*run, "-m", tmp_path / "missing.gguf"))
    assert "not a GGUF file" in one_line_error(cli(*run, "-m", html))
    assert one_line_error(cli(*run, "-m", tmp_path))
    assert "is not a regular file" in one_line_error(cli(*run, "-m", os.devnull))
    one = [*run, "-m", model]
    for option, value, word in [
        ("--temp", "nan", "temperature"),
        ("--temp", "-7", "temperature"),
        ("--top-p", "2", "top_p"),
        ("-n", "-2", "max_tokens"),
        ("--ctx", "0", "n_ctx"),
        ("--ctx", "3", "the context holds 3"),
        ("--threads", "0", "threads"),
        ("--kv", "q9", "'q9'"),
        ("--backend", "abacus", "'abacus'"),
    ]:
        r = cli(*one, option, value)
        note = "note: this model has no chat template; --raw may suit it better\n"
        assert word in one_line_error(r._replace(err=r.err.removeprefix(note)))
    r = cli(*one, "--temp", "warm")
    assert r.status == 2
    assert "--temp: invalid float value: 'warm'" in r.err


def test_a_forced_instruction_set_that_is_not_there(
    cli: CLI, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGERUN_ISA", "nonsense")
    message = one_line_error(cli("run", "-m", model, "hi"))
    assert "'nonsense'" in message
    assert "one of: " in message
    assert "generic" in message.split("one of: ")[1]


# -- as a process --------------------------------------------------------------------------------


def shell(*args: str | Path) -> list[str]:
    return [*EDGERUN, "run", *ARGS, *map(str, args)]


def test_piped_output_is_exact(evil: Path) -> None:
    run = subprocess.run(
        shell("-m", evil, "--raw", "-q"), input=b"x", capture_output=True, env=environment()
    )
    assert (run.returncode, run.stdout) == (0, f"ok{EVIL}end".encode())
    assert run.stderr == b""


def on_a_terminal(command: list[str], patience: float = 60) -> tuple[int, bytes]:
    """Exit status, and what the command wrote to a terminal of its own."""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment()
    )
    os.close(theirs)
    out, deadline = b"", time.monotonic() + patience
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            out += part
    os.close(ours)
    return process.wait(patience), out


@posix
def test_nothing_raw_reaches_a_terminal(evil: Path) -> None:
    status, out = on_a_terminal(shell("-m", evil, "--raw", "x"))
    assert status == 0
    text = out.decode().replace("\r\n", "\n")
    first, _, rest = text.partition("end\n")
    assert first == "ok" + terminal_text(EVIL)
    assert rest.startswith("prefill ")
    assert not set("\x1b\x07\x9b\r\u202e") & set(text)


def test_terminal_text() -> None:
    assert terminal_text("a\tb\nc") == "a\tb\nc"
    assert terminal_text("\x00\x1b\x7f\x85\x9b\r\u2028\u202e") == "\ufffd" * 8
    kept = "naïve 漢字 👩\u200d👧 שלום\u200f [/] [b + x"
    assert terminal_text(kept) == kept


def start(model: Path) -> subprocess.Popen[bytes]:
    """A run without end, once its first word is out."""
    run = subprocess.Popen(
        shell("-m", model, "--raw", "x"),
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert run.stdout is not None
    assert run.stdout.read(5) == b" tick"
    return run


@posix
def test_ctrl_c_keeps_what_was_said(endless: Path) -> None:
    run = start(endless)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert out == (b" tock tick" * len(out))[: len(out)]
    assert err == b""


@posix
def test_a_reader_that_leaves_ends_it(endless: Path) -> None:
    run = start(endless)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    assert run.wait(timeout=30) == 141
    assert run.stderr.read() == b""
    run.stderr.close()


@posix
def test_waiting_for_stdin_is_explained(model: Path) -> None:
    run = subprocess.Popen(
        shell("-m", model, "--raw", "-q", "x"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert run.stderr is not None
    assert run.stderr.readline().startswith(b"waiting for more of the prompt on stdin")
    out, err = run.communicate(timeout=30)  # closes stdin
    assert (run.returncode, out, err) == (0, "Hello wörld!".encode(), b"")


def test_reasoning_is_left_out_of_pipes_and_dimmed_on_a_terminal(
    cli: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgerun.cli.options import reasoning_writer, writer

    extra = {"tokenizer.chat_template": "{# <think> </think> #}{{ messages[0].content }}"}
    pieces = ["<think>", "Hm", "</think>", "Hi"]
    model = gb.scripted_model(tmp_path / "m.gguf", pieces, vocab=[" "], extra=extra)
    assert cli("run", "-m", model, *ARGS, "-q", "x").out == "Hi"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    write = writer()
    think = reasoning_writer(write)
    for reasoning, text in (("H", ""), ("m", ""), ("", "Hi"), ("", "!")):
        think(reasoning)
        write(text)
    assert capsys.readouterr().out == "\x1b[2mH\x1b[22m\x1b[2mm\x1b[22m\n\nHi!"
