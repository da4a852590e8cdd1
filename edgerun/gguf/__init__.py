"""GGUF files: what they hold (:class:`GGUFFile`) and how their blocks decode (:mod:`.blocks`)."""

from edgerun.gguf.blocks import dequantize, dequantize_rows
from edgerun.gguf.metadata import Metadata, MetaType, ValueType
from edgerun.gguf.parse import TensorInfo
from edgerun.gguf.reader import GGUFFile
from edgerun.gguf.types import FILE_TYPES, GGMLType, row_bytes

__all__ = [
    "FILE_TYPES",
    "GGMLType",
    "GGUFFile",
    "MetaType",
    "Metadata",
    "TensorInfo",
    "ValueType",
    "dequantize",
    "dequantize_rows",
    "row_bytes",
]
