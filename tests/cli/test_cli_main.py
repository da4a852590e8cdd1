"""The shell around the commands: exit codes, errors, pipes, start-up; and pull, list, rm."""

from __future__ import annotations

import gc
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.gguf_build import random_model

import edgerun.cli
from edgerun import __version__

EDGERUN = [sys.executable, "-m", "edgerun"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_every_command_is_a_module_and_every_module_a_command() -> None:
    folder = Path(edgerun.cli.__file__).parent
    with_parser = {p.stem for p in folder.glob("*.py") if "def add_parser(" in p.read_text()}
    assert set(edgerun.cli.COMMANDS) == with_parser


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert edgerun.cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in edgerun.cli.COMMANDS)
    assert "examples:" in shown


@pytest.mark.parametrize("name", edgerun.cli.COMMANDS)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        edgerun.cli.main([name, "--help"])
    assert e.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: edgerun {name}" in shown
    assert "\nexample" in shown
    assert f"\n  edgerun {name}" in shown
    assert max(map(len, shown.splitlines())) <= 100


_LEAVE = """
import atexit, sys, threading, time
atexit.register(lambda: print("at exit", flush=True))
def work():
    time.sleep(0.2)
    print("thread", flush=True)
THREAD
from edgerun import cli
cli._dispatch = lambda argv: print("x" * 100_000) or 7
sys.exit(cli.main())
"""


@pytest.mark.parametrize("thread", ["pass", "threading.Thread(target=work).start()"])
def test_a_quick_exit_forgets_nothing(thread: str) -> None:
    """Output, exit handlers, the status, and a thread that is not done."""
    done = subprocess.run(
        [sys.executable, "-c", _LEAVE.replace("THREAD", thread)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    said = ["thread"] if thread != "pass" else []
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["x" * 100_000, *said, "at exit"]
    assert done.stderr == ""


def test_collections_are_on_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        edgerun.cli.main(["--version"])
    assert edgerun.cli.main([]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        edgerun.cli.main(["--version"])
    assert e.value.code == 0
    assert capsys.readouterr().out == f"edgerun {__version__}\n"


@pytest.mark.parametrize("argv", [["nonsense"], ["pull"], ["list", "--x\x1b[2J\n"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        edgerun.cli.main(argv)
    assert e.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith(" --help\n")
    assert "\x1b" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rnu", "hi"], "there is no command 'rnu': did you mean run?; see edgerun --help"),
        (["xyzzy"], "there is no command 'xyzzy'; see edgerun --help"),
        (["./m.gguf"], 'as in edgerun run -m ./m.gguf "Hello"; see edgerun --help'),
        (["--versoin"], "no option --versoin: did you mean --version?; see edgerun --help"),
        (["run", "--temprature", "0", "hi"], "--temprature: did you mean --temp?; see edgerun run"),
        (["run", "hi", "--temp", "0", "you"], "'you' has no place here"),
        (["serve", "m.gguf"], "'m.gguf' has no place here: did you mean -m m.gguf?; see"),
        (["list", "x"], "'x' has no place here; see edgerun list --help"),
    ],
)  # fmt: skip
def test_a_slip_is_told_what_was_meant(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        edgerun.cli.main(argv)
    assert e.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_pipes_speak_utf8_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python's own choice is a code page and carriage returns."""

    def streams(platform: str) -> tuple[bytes, str]:
        out = io.BytesIO()
        typed = io.BytesIO("漢\r\n".encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(typed, encoding="cp1252"))
        for name in ("stdout", "stderr"):
            wrapped = io.TextIOWrapper(out, encoding="cp1252", newline="\r\n")
            monkeypatch.setattr(sys, name, wrapped)
        edgerun.cli._open_streams(platform)
        sys.stdout.write("é漢\n")
        sys.stdout.flush()
        return out.getvalue(), sys.stdin.read()

    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    assert streams("win32") == ("é漢\n".encode(), "漢\n")
    assert streams("linux")[0] == b"\xe9?\r\n"  # as it was set up, and no error
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    assert streams("win32")[0] == b"\xe9?\r\n"


@pytest.mark.skipif(os.name != "posix", reason="descriptors")
@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], ids=["in", "out", "err", "all"]
)
def test_closed_streams_read_and_write_nothing(closed: str) -> None:
    line = shlex.join([*EDGERUN, "doctor", "--json"])
    done = subprocess.run(
        f"{line} {closed}", shell=True, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (">&-" in closed.split()) != ('"backends"' in done.stdout)


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert edgerun.cli.main(["pull", "smolm2\n\x1b[2J"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: no model or file is called")
    assert err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["rm", "x"], "x is not in the store; stored: "),
        (["pull", "hf:a/b/c.gguf"], "Not a directory"),
    ],
)
def test_a_home_that_is_a_file(
    command: list[str], error: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("")
    assert edgerun.cli.main(["list"]) == 0
    assert "smollm2-135m" in capsys.readouterr().out
    assert edgerun.cli.main(command) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert error in err.splitlines()[-1]
    assert "Errno" not in err


@pytest.mark.parametrize("command", [["list"], ["rm", "x"], ["serve"]])
def test_a_home_of_somebody_elses(
    command: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    (home / "models").mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", refused)
    assert edgerun.cli.main(command) == 1
    assert capsys.readouterr().err == (
        f"error: {home / 'models'} cannot be listed: Permission denied\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("command", [["list"], ["doctor", "--json"]])
def test_output_that_cannot_be_written(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*EDGERUN, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_other_exceptions_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.catalog.list_models", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        edgerun.cli.main(["list"])


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgerun.catalog.list_models", interrupt)
    assert edgerun.cli.main(["list"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_during_a_pull_leaves_no_traceback(home: Path) -> None:
    import socket

    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        home.mkdir()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/m.gguf"
        text = f'[m]\nsource = "{url}"\nsha256 = "{"0" * 64}"\n'
        (home / "models.toml").write_text(text)
        run = subprocess.Popen([*EDGERUN, "pull", "m"], stderr=subprocess.PIPE, text=True)
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            run.send_signal(signal.SIGINT)
            err = run.communicate(timeout=20)[1]
    assert run.returncode == 130
    assert "Traceback" not in err


@pytest.mark.skipif(os.name != "posix", reason="pipes")
@pytest.mark.parametrize("command", ["list", "show"])
def test_a_closed_pipe_is_quiet(command: str, tmp_path: Path) -> None:
    args = [command] if command == "list" else [command, str(random_model(tmp_path / "m.gguf"))]
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run([*EDGERUN, *args], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert run.returncode == 141
    assert run.stderr == ""


def test_a_terminal_without_unicode(home: Path) -> None:
    home.mkdir()
    (home / "models.toml").write_text('["漢字"]\nsource = "x"\n', encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = subprocess.run([*EDGERUN, "list"], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    assert "\n??\n" in run.stdout


def test_list_and_rm(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "models/qwen3-8b/Qwen3-8B-Q4_K_M.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF" * 10)
    assert edgerun.cli.main(["list", "--json"]) == 0
    entries = {e["name"]: e for e in json.loads(capsys.readouterr().out)}
    assert entries["qwen3-8b"]["path"] == str(path)
    assert entries["qwen3-8b"]["stored"] is True
    assert entries["smollm2-135m"]["path"] is None
    assert entries["smollm2-135m"]["memory_4k"] > entries["smollm2-135m"]["size"] == 98362432
    assert edgerun.cli.main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "pulled" in lines["qwen3-8b"]
    assert "pulled" not in lines["smollm2-135m"]
    assert edgerun.cli.main(["rm", "qwen3-8b"]) == 0
    assert not path.exists()
    assert edgerun.cli.main(["rm", "qwen3-8b"]) == 1


def test_pull_prints_the_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "models/qwen3-8b/Qwen3-8B-Q4_K_M.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert edgerun.cli.main(["pull", "qwen3-8b"]) == 0
    assert capsys.readouterr().out == f"{path}\n"


@pytest.mark.skipif(os.name != "posix", reason="CPU time of a child process")
def test_parsing_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom edgerun.cli import build_parser\n"
        "build_parser('run').parse_args(['run', 'x'])\n"
        "print([m for m in ('numpy', 'rich', 'httpx', 'huggingface_hub', 'asyncio', 'jinja2')"
        " if m in sys.modules])"
    )
    assert min(_cpu_seconds(code) for _ in range(5)) < 0.15
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"[]\n"


def _cpu_seconds(code: str) -> float:
    # Not the wall clock: other work on the machine must not fail the test.
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = os.times()
    return sum(after[i] - before[i] for i in (2, 3))
