"""What a GGUF file holds, as a plain dict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgerun.gguf.metadata import Metadata, ValueType
from edgerun.gguf.reader import GGUFFile
from edgerun.gguf.types import FILE_TYPES

__all__ = ["describe", "jsonable"]

#: Arrays up to this long are given whole, longer ones by their first values.
WHOLE = 64
FIRST = 8


def describe(file: GGUFFile) -> dict[str, Any]:
    """A JSON-ready account of ``file``.

    Keys: ``path``, ``files`` [{path, size}], ``version``, ``size`` (bytes), ``n_params``,
    ``n_tensors``, ``bits_per_weight`` (None without tensors), ``architecture``, ``name``,
    ``file_type``; ``hyperparameters`` (the architecture's own keys, prefix dropped);
    ``tokenizer`` (model, pre, n_tokens, n_merges, special ids, has_chat_template); ``types``
    {name: {tensors, params, bytes}}, largest first; ``metadata`` {key: {type, value}}, where a long
    array has ``first`` and ``count`` in place of ``value``; ``tensors`` [{name, shape (rows first),
    type, offset, nbytes, file}].

    Strings are the file's own, unescaped: callers escape for their medium.
    """
    meta = file.metadata
    tensors = file.tensors.values()
    nbytes = sum(t.nbytes for t in tensors)
    n_params = file.n_params
    arch = meta.get("general.architecture")
    prefix = f"{arch}." if isinstance(arch, str) and arch else None
    file_type = meta.get("general.file_type")
    return {
        "path": text(str(file.path)),
        "files": [
            {"path": text(str(p)), "size": n} for p, n in zip(file.paths, file.sizes, strict=True)
        ],
        "version": file.version,
        "size": file.size,
        "n_params": n_params,
        "n_tensors": len(file.tensors),
        "bits_per_weight": round(8 * nbytes / n_params, 3) if n_params else None,
        "architecture": jsonable(arch),
        "name": jsonable(meta.get("general.name")),
        "file_type": FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        "hyperparameters": {
            text(k[len(prefix) :]): _short(meta, k) for k in meta if prefix and k.startswith(prefix)
        },
        "tokenizer": _tokenizer(meta),
        "types": _types(file),
        "metadata": {text(k): _entry(meta, k) for k in meta},
        "tensors": [
            {
                "name": text(t.name),
                "shape": list(t.shape),
                "type": t.type.name,
                "offset": t.offset,
                "nbytes": t.nbytes,
                "file": t.shard,
            }
            for t in tensors
        ],
    }


def text(s: str) -> str:
    """``s`` with U+FFFD for bytes that were not UTF-8, so that it can be encoded again."""
    return s.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def jsonable(v: Any) -> Any:
    """``v`` in JSON's types; NaN and infinities, which JSON lacks, as strings."""
    if isinstance(v, str):
        return text(v)
    if isinstance(v, np.ndarray):
        v = v.tolist()
    if isinstance(v, list):
        return [jsonable(x) for x in v]
    if isinstance(v, float) and not math.isfinite(v):
        return "NaN" if math.isnan(v) else "Infinity" if v > 0 else "-Infinity"
    return v


def _entry(meta: Metadata, key: str) -> dict[str, Any]:
    kind = meta.types[key]
    entry: dict[str, Any] = {"type": str(kind)}
    if kind.kind is ValueType.ARRAY and kind.count > WHOLE:
        entry["count"] = kind.count
        first = meta.head(key, FIRST)
        # Inner arrays may be long themselves.
        entry["first"] = (
            [f"array of {len(x)}" for x in first]
            if kind.element is ValueType.ARRAY
            else jsonable(first)
        )
    else:
        entry["value"] = _bounded(meta[key])
    return entry


def _bounded(v: Any) -> Any:
    """:func:`jsonable`, with inner arrays longer than WHOLE cut to their length."""
    if isinstance(v, list):
        return [
            f"array of {len(x)}"
            if isinstance(x, (list, np.ndarray)) and len(x) > WHOLE
            else _bounded(x)
            for x in v
        ]
    return jsonable(v)


def _short(meta: Metadata, key: str) -> Any:
    entry = _entry(meta, key)
    return entry["value"] if "value" in entry else f"{entry['type']}"


def _tokenizer(meta: Metadata) -> dict[str, Any]:
    """What is said of the tokenizer. Wrong types are shown as they are: this does not judge."""
    out: dict[str, Any] = {}
    for name, key in (
        ("model", "tokenizer.ggml.model"),
        ("pre", "tokenizer.ggml.pre"),
        ("n_tokens", "tokenizer.ggml.tokens"),
        ("n_merges", "tokenizer.ggml.merges"),
    ):
        if key in meta:
            kind = meta.types[key]
            out[name] = kind.count if kind.kind is ValueType.ARRAY else _short(meta, key)
    for key in meta:
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            out[text(key[len("tokenizer.ggml.") :])] = _short(meta, key)
    if out:
        out["has_chat_template"] = "tokenizer.chat_template" in meta
    return out


def _types(file: GGUFFile) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for t in file.tensors.values():
        row = out.setdefault(t.type.name, {"tensors": 0, "params": 0, "bytes": 0})
        row["tensors"] += 1
        row["params"] += t.n_elements
        row["bytes"] += t.nbytes
    return dict(sorted(out.items(), key=lambda kv: -kv[1]["bytes"]))
