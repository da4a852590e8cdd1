"""What callers give in place of numbers, lists and truths."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun import SamplingParams
from edgerun.errors import RequestError

HUGE = 10**400  # no float is as large


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_tokens", 1.5, "a whole number"), ("max_tokens", True, "a whole number"),
        ("max_tokens", -1, "0 or more"), ("mirostat", 3, "between 0 and 2"), ("n", 0, "1 and 128"),
        ("temperature", "1", "a finite number"), ("temperature", float("nan"), "a finite number"),
        ("temperature", True, "a finite number"), ("temperature", HUGE, "between"),
        ("top_p", -HUGE, "between 0.0 and 1.0"), ("time_limit", -1, "between"),
        ("stop", 3, "a list of strings"), ("stop", ["a", 3], "a list of strings"),
        ("samplers", ["magic"], "unknown sampler 'magic'"),
        ("stop_token_ids", "1", "a list of token ids"), ("stop_token_ids", [-1], "token ids"),
        ("stop_token_ids", [True], "token ids"), ("stop_token_ids", 7, "token ids"),
        ("ignore_eos", 1, "true or false"), ("context_shift", None, "true or false"),
        ("logit_bias", [1], "must map token ids"), ("logit_bias", {"1": 1}, "keys are token ids"),
        ("logit_bias", {1: "x"}, "[1] must be a number"),
        ("logit_bias", {1: float("nan")}, "[1] must be a number"),
        ("logit_bias", {1: HUGE}, "[1] must be a number"),
        ("constraint", "json", "must be a Constraint"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(RequestError) as e:
        SamplingParams(**{name: value})
    assert e.value.param == name
    assert name in str(e.value) or name == "samplers"
    assert wanted in str(e.value)


def test_right_values() -> None:
    p = SamplingParams(
        max_tokens=0, stop="x", stop_token_ids=(3,), logit_bias={5: -100, 6: float("inf")}
    )
    assert p.stop == ("x",)
    assert SamplingParams(stop=["", "a"]).stop == ("a",)
