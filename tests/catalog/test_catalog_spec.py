"""models.toml: what is read, what is refused, and how the user's own file is merged."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from helpers.models import gemma3, smollm2

from edgerun import catalog
from edgerun.catalog.spec import check_file, check_name, config_dir, data_dir
from edgerun.errors import ModelFileError
from edgerun.gguf import GGUFFile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(home: Path, text: str) -> None:
    (home / "models.toml").write_text(text, encoding="utf-8")


def test_shipped_catalogue_is_complete() -> None:
    specs = catalog.load_catalog()
    assert catalog.DEFAULT_MODEL in specs
    assert len(specs) >= 15
    for spec in specs.values():
        assert spec.notes, spec.name
        assert spec.license, spec.name
        assert spec.context, spec.name
        assert spec.kv, spec.name
        assert spec.size, spec.name
        need = spec.memory()
        assert need is not None
        assert need > spec.size
        if spec.sources[0].startswith("pypi:"):  # nothing else publishes a hash to check against
            assert spec.sha256, spec.name
            assert spec.exact_size, spec.name


@pytest.mark.parametrize(
    ("name", "model", "prefix"),
    [("smollm2-135m", smollm2, "llama"), ("gemma3-270m", gemma3, "gemma3")],
)
def test_entries_agree_with_the_real_files(name, model, prefix, monkeypatch) -> None:
    monkeypatch.delenv("EDGERUN_HOME")
    path = model()
    spec = catalog.load_catalog()[name]
    assert path.stat().st_size == spec.size
    assert hashlib.sha256(path.read_bytes()).hexdigest() == spec.sha256
    with GGUFFile.open(path) as file:
        meta = {k.removeprefix(f"{prefix}."): v for k, v in file.metadata.items() if prefix in k}
    head_dim = meta["embedding_length"] // meta["attention.head_count"]
    assert spec.context == meta["context_length"]
    assert spec.kv == (
        meta["block_count"],
        meta["attention.head_count_kv"],
        meta.get("attention.key_length", head_dim),
    )


def test_memory_counts_weights_and_cache() -> None:
    spec = catalog.ModelSpec("m", ("x",), "m.gguf", size=10**9, context=8192, kv=(30, 3, 64))
    per_token = 30 * 3 * 64 * 2 * 2  # layers, heads, head size, K and V, two bytes each
    a, b = spec.memory(4096), spec.memory(1024)
    assert a is not None
    assert b is not None
    assert a - b == per_token * (4096 - 1024)
    assert spec.memory(10**9) == spec.memory(8192)  # never more than the model's own context
    assert catalog.ModelSpec("m", ("x",), "m.gguf").memory() is None


def test_user_file_adds_and_overrides(home: Path) -> None:
    write(home, '[mine]\nsource = "models/a b　漢.gguf"\n[smollm2-135m]\nnotes = "changed"\n')
    specs = catalog.load_catalog()
    assert specs["mine"].sources == (str(home / "models/a b　漢.gguf"),)
    assert specs["mine"].file == "a b　漢.gguf"
    assert specs["smollm2-135m"].notes == "changed"
    assert specs["smollm2-135m"].sha256  # the fields not named stay


def test_a_new_source_drops_the_old_hash(home: Path) -> None:
    write(home, '[smollm2-135m]\nsource = "https://example.org/x.gguf"\n')
    spec = catalog.load_catalog()["smollm2-135m"]
    assert (spec.sha256, spec.size) == (None, None)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[a\n", "not valid TOML"),
        ("x = 1\n", "'x' must be a table"),
        ("[a]\nfile = 'b.gguf'\n", "source must be"),
        ("[a]\nsource = []\n", "source must be"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nsha256 = 'abc'\n", "sha256"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nsize = -1\n", "size"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nsize = true\n", "size"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nsize_gb = nan\n", "size_gb"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nkv = [1, 2]\n", "kv"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nnotes = 3\n", "notes"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nshaa = 'x'\n", "unknown field 'shaa'"),
        ("['../evil']\nsource = 'hf:o/r/f.gguf'\n", "'../evil' is not allowed"),
        ("['..']\nsource = 'hf:o/r/f.gguf'\n", "not allowed"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nfile = '../../x'\n", "plain file name"),
        ("[a]\nsource = 'hf:o/r/f.gguf'\nfile = '/etc/x'\n", "plain file name"),
    ],
)
def test_bad_entries_are_named(home: Path, text: str, names: str) -> None:
    write(home, text)
    with pytest.raises(ModelFileError, match=r"models\.toml") as e:
        catalog.load_catalog()
    assert names in str(e.value)
    assert "\n" not in str(e.value)


def test_control_bytes_never_reach_the_message(home: Path) -> None:
    write(home, '["a\\u001b[2Jb"]\nsource = "x"\n')
    with pytest.raises(ModelFileError) as e:
        catalog.load_catalog()
    assert "\x1b" not in str(e.value)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\\b", "con", "NUL.x", "a:b", "-x", "x."])
def test_unsafe_names(name: str) -> None:
    with pytest.raises(ModelFileError):
        check_name(name)


@pytest.mark.parametrize("name", ["qwen3-0.6b", "漢字", "a_b.c"])
def test_safe_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("file", ["", ".", "..", " ", "a/b", "a\\b", "a\x00", "a\nb", "C:x", "aux"])
def test_unsafe_files(file: str) -> None:
    with pytest.raises(ModelFileError):
        check_file(file, "here")


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGERUN_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # the XDG specification has it ignored
    assert data_dir() == tmp_path / "edgerun"
    assert config_dir() == Path("~/.config/edgerun").expanduser()
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_dir() == Path("~/Library/Application Support/edgerun").expanduser()
