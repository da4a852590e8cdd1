from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb

from edgerun.errors import GGUFError
from edgerun.gguf import GGUFFile


def write_shards(folder: Path, change: dict[int, dict[str, Any]] | None = None) -> list[Path]:
    """Three shards of a model of four tensors; ``change`` replaces metadata by shard."""
    names = [["a", "b"], ["c"], ["d"]]
    paths = []
    for i, tensors in enumerate(names):
        meta: dict[str, Any] = {
            "split.no": gb.scalar(gb.U16, i),
            "split.count": gb.scalar(gb.U16, 3),
            "split.tensors.count": gb.scalar(gb.I32, 4),
        }
        if i == 0:
            meta = {"general.architecture": "llama", "tags": ["x", "y"]} | meta
        meta |= (change or {}).get(i, {})
        meta = {k: v for k, v in meta.items() if v is not None}
        path = folder / f"big model-{i + 1:05d}-of-00003.gguf"
        data = [gb.tensor(n, np.full((2, 3), ord(n))) for n in tensors]
        paths.append(gb.write(path, meta, data))
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_the_set(tmp_path: Path, opened: int) -> None:
    paths = write_shards(tmp_path)
    with GGUFFile.open(paths[opened]) as f:
        assert f.path == paths[opened]
        assert f.paths == tuple(paths)
        assert list(f.tensors) == ["a", "b", "c", "d"]
        assert f.get_str("general.architecture") == "llama"
        assert f.size == sum(p.stat().st_size for p in paths)
        assert f.n_params == 24
        assert [t.shard for t in f.tensors.values()] == [0, 0, 1, 2]
        for name in f.tensors:
            assert set(f.data(name).view(np.float32)) == {float(ord(name))}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_shard_is_named(tmp_path: Path, missing: int) -> None:
    paths = write_shards(tmp_path)
    paths[missing].unlink()
    with pytest.raises(GGUFError, match=f"split into 3 files and {paths[missing].name} is missing"):
        GGUFFile.open(paths[(missing + 1) % 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: {"split.count": gb.scalar(gb.U16, 4)}}, "part 2 of 3, its metadata part 2 of 4"),
        ({1: {"split.no": gb.scalar(gb.U16, 2)}}, "part 2 of 3, its metadata part 3 of 3"),
        ({1: {"split.no": None}}, "'split.no' is missing"),
        ({1: {"split.no": "one"}}, "'split.no' must hold a whole number"),
        ({2: {"split.tensors.count": gb.scalar(gb.I32, 9)}}, "'split.tensors.count' differs"),
        ({i: {"split.tensors.count": 5} for i in range(3)}, "is 5, but the 3 files hold 4 tensors"),
        ({1: {"general.architecture": "qwen2"}}, "'general.architecture' differs"),
        ({2: {"tags": ["x", "z"]}}, "'tags' differs"),
        ({1: {"split.count": None}}, "is not marked as part of a split model"),
    ],
)
@pytest.mark.parametrize("opened", [0, 2])
def test_shards_that_disagree(
    tmp_path: Path, change: dict[int, dict[str, Any]], message: str, opened: int
) -> None:
    paths = write_shards(tmp_path, change)
    with pytest.raises(GGUFError, match=message):
        GGUFFile.open(paths[opened])


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    meta = {"split.no": 2, "split.count": 3, "split.tensors.count": gb.scalar(gb.I32, 4)}
    gb.write(paths[2], meta, [gb.tensor("a", [[1.0]])])
    with pytest.raises(GGUFError, match=r"00003-of-00003\.gguf: tensor 'a' is also in .*00001"):
        GGUFFile.open(paths[0])


def test_a_renamed_shard(tmp_path: Path) -> None:
    path = write_shards(tmp_path)[1].rename(tmp_path / "weights.gguf")
    with pytest.raises(GGUFError, match=r"in 3 files, whose names must end in -00001-of-00003"):
        GGUFFile.open(path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    with pytest.raises(GGUFError, match=r"00002-of-00003\.gguf: tensor 'c' needs 24 bytes"):
        GGUFFile.open(paths[0])


def test_a_split_of_one_is_a_plain_file(tmp_path: Path) -> None:
    path = gb.write(tmp_path / "any.gguf", {"split.no": 0, "split.count": 1, "a": 1})
    with GGUFFile.open(path) as f:
        assert f.paths == (path,)


def test_shards_may_differ_in_alignment(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    meta = {"general.alignment": 64, "split.no": 1, "split.count": 3}
    gb.write(paths[1], meta, [gb.tensor("c", np.full((2, 3), 99.0))], alignment=64)
    with GGUFFile.open(paths[1]) as f:
        assert set(f.data("c").view(np.float32)) == {99.0}
