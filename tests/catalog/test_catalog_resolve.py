"""From a name or a path to a file, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun import catalog
from edgerun.errors import DownloadError, ModelFileError, ModelNotFoundError, NotPulledError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def store(home: Path, name: str, file: str, content: bytes = b"GGUF") -> Path:
    path = home / "models" / name / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["m.gguf", "a b.gguf", "漢字.gguf", "a　b.gguf", "noext"])
def test_a_file_is_used_where_it_lies(tmp_path: Path, home: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    assert catalog.resolve(name).path == Path(name)
    assert catalog.resolve(tmp_path / name).path == tmp_path / name
    assert not home.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("QWEN3-8B", "did you mean qwen3-8b"),
        ("./nothing.gguf", "no such file: ./nothing.gguf"),
        ("nothing.gguf", "no such file"),
        ("../../etc", "no such file"),
        ("zzzzzz", "see edgerun list"),
        ("", "no model or file"),
        ("a\x00b", "a"),
        ("x" * 5000, "x"),
        ("\x1b[2J", "no model or file"),
    ],
)
def test_nothing_of_that_name(text: str, says: str) -> None:
    with pytest.raises(ModelNotFoundError) as e:
        catalog.resolve(text)
    assert says in str(e.value)
    assert "\x1b" not in str(e.value)
    assert "\x00" not in str(e.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelFileError, match="is a folder"):
        catalog.resolve("folder")


def test_a_folder_does_not_hide_a_name(tmp_path: Path) -> None:
    (tmp_path / "qwen3-8b").mkdir()
    with pytest.raises(NotPulledError, match="edgerun pull qwen3-8b"):
        catalog.resolve("qwen3-8b", pull=False)


def test_a_stored_file_of_the_wrong_size_does_not_count(home: Path) -> None:
    store(home, "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF cut")
    with pytest.raises(NotPulledError):
        catalog.resolve(pull=False)


def test_remove(home: Path) -> None:
    path = store(home, "qwen3-8b", "Qwen3-8B-Q4_K_M.gguf", b"GGUF" * 10)
    assert catalog.resolve("qwen3-8b").path == path
    assert {e.name for e in catalog.list_models() if e.stored} == {"qwen3-8b"}
    assert catalog.remove("qwen3-8b") == 40
    assert not path.parent.exists()
    with pytest.raises(ModelNotFoundError, match="not in the store"):
        catalog.remove("qwen3-8b")


@pytest.mark.parametrize("name", ["..", "../home", "/tmp", "a/b", "."])
def test_remove_stays_in_the_store(home: Path, name: str) -> None:
    store(home, "x", "x.gguf")
    with pytest.raises(ModelFileError, match="not allowed"):
        catalog.remove(name)
    assert (home / "models/x/x.gguf").exists()


def test_remove_waits_for_no_pull(home: Path) -> None:
    from filelock import FileLock

    store(home, "qwen3-8b", "Qwen3-8B-Q4_K_M.gguf")
    lock = FileLock(home / "models/qwen3-8b.lock")
    with lock, pytest.raises(DownloadError, match="being pulled"):
        catalog.remove("qwen3-8b")


def test_list_shows_what_a_stopped_pull_left(home: Path) -> None:
    store(home, "qwen3-8b", "Qwen3-8B-Q4_K_M.gguf.part", b"x" * 7)
    entry = next(e for e in catalog.list_models() if e.name == "qwen3-8b")
    assert (entry.path, entry.stored, entry.partial) == (None, False, 7)


def test_two_sources_with_one_file_name_are_two_models(home: Path) -> None:
    from edgerun.catalog.store import _find_spec

    a, b = (_find_spec(f"https://{host}/model.gguf") for host in ("a.example", "b.example"))
    assert a.name != b.name
    assert a.file == b.file == "model.gguf"


def test_a_path_source(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "my model.gguf").write_bytes(b"GGUF")
    (home / "models.toml").write_text('[mine]\nsource = "my model.gguf"\n[gone]\nsource = "x"\n')
    assert catalog.resolve("mine").path == home / "my model.gguf"
    with pytest.raises(DownloadError, match="no such file"):
        catalog.resolve("gone")
