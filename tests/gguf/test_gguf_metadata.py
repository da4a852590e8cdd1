from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb

from edgerun.errors import GGUFError
from edgerun.gguf import GGUFFile

META = {
    "int": 7,
    "neg": -7,
    "float": 0.5,
    "nan": float("nan"),
    "bool": True,
    "str": "x",
    "ints": gb.array(gb.U32, [1, 2, 3]),
    "floats": gb.array(gb.F32, [0.5]),
    "bools": gb.array(gb.BOOL, [True, False]),
    "strs": ["a", "b"],
    "empty": gb.array(gb.STR, []),
}


@pytest.fixture
def f(tmp_path: Path) -> GGUFFile:
    return GGUFFile.open(gb.write(tmp_path / "m.gguf", META))


def test_right_types(f: GGUFFile) -> None:
    assert f.get_int("int") == 7
    assert f.get_int("neg") == -7
    assert f.get_float("float") == 0.5
    assert f.get_float("int") == 7.0
    assert isinstance(f.get_float("int"), float)
    assert np.isnan(f.get_float("nan"))
    assert f.get_bool("bool") is True
    assert f.get_str("str") == "x"
    assert f.get_int_array("ints").tolist() == [1, 2, 3]
    assert f.get_float_array("floats").tolist() == [0.5]
    assert f.get_float_array("ints").tolist() == [1, 2, 3]
    assert f.get_bool_array("bools").tolist() == [True, False]
    assert f.get_str_array("strs") == ["a", "b"]
    assert f.get_str_array("empty") == []
    assert f.get_per_layer("int", 2) == [7, 7]
    assert f.get_per_layer("ints", 3) == [1, 2, 3]


def test_defaults(f: GGUFFile) -> None:
    assert f.get_int("no", 3) == 3
    assert f.get_int("no", None) is None
    assert f.get_float("no", 1.5) == 1.5
    assert f.get_str("no", "d") == "d"
    assert f.get_bool("no", False) is False
    assert f.get_str_array("no", []) == []
    assert f.get_int_array("no", None) is None
    assert f.get_per_layer("no", 2, 5) == [5, 5]
    assert f.get_per_layer("no", 2, None) is None


@pytest.mark.parametrize(
    ("getter", "key", "wanted", "found"),
    [
        ("get_int", "str", "a whole number", "string 'x'"),
        ("get_int", "bool", "a whole number", "bool True"),
        ("get_int", "float", "a whole number", "float32 0.5"),
        ("get_int", "ints", "a whole number", "array[uint32, 3]"),
        ("get_float", "str", "a number", "string 'x'"),
        ("get_float", "bool", "a number", "bool True"),
        ("get_str", "int", "a string", "uint32 7"),
        ("get_str", "strs", "a string", "array[string, 2]"),
        ("get_bool", "int", "true or false", "uint32 7"),
        ("get_str_array", "ints", "an array of strings", "array[uint32, 3]"),
        ("get_str_array", "str", "an array of strings", "string 'x'"),
        ("get_int_array", "floats", "an array of whole numbers", "array[float32, 1]"),
        ("get_int_array", "int", "an array of whole numbers", "uint32 7"),
        ("get_float_array", "strs", "an array of numbers", "array[string, 2]"),
        ("get_bool_array", "ints", "an array of true or false", "array[uint32, 3]"),
    ],
)
def test_wrong_types_name_key_want_and_find(
    f: GGUFFile, getter: str, key: str, wanted: str, found: str
) -> None:
    with pytest.raises(GGUFError) as e:
        getattr(f, getter)(key)
    assert str(e.value) == f"m.gguf: metadata key '{key}' must hold {wanted}, not {found}"
    with pytest.raises(GGUFError):  # a default is for an absent key, not for a wrong one
        getattr(f, getter)(key, None)


def test_absent_keys(f: GGUFFile) -> None:
    for getter in ("get_int", "get_float", "get_str", "get_bool", "get_str_array", "get_int_array"):
        with pytest.raises(GGUFError, match=r"m\.gguf: metadata key 'no\\x1b' is missing"):
            getattr(f, getter)("no\x1b")


def test_per_layer_of_the_wrong_length(f: GGUFFile) -> None:
    with pytest.raises(GGUFError, match=r"'ints' must hold .* array of 4 of them, not array"):
        f.get_per_layer("ints", 4)
    with pytest.raises(GGUFError, match="'no' is missing"):
        f.get_per_layer("no", 4)
