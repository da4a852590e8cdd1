"""How much memory there is, against psutil's answer."""

from __future__ import annotations

import builtins
from typing import Any

import psutil
import pytest

from edgerun.backends.host import host_memory


def test_memory_agrees_with_psutil() -> None:
    found, other = host_memory(), psutil.virtual_memory()
    assert found.total == other.total
    assert found.free == pytest.approx(other.available, rel=0.1)


def test_where_proc_is_not_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == "/proc/meminfo" and kwargs.get("encoding"):
            raise FileNotFoundError(path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", refuse)
    assert host_memory().total == psutil.virtual_memory().total
