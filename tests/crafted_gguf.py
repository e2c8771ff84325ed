"""Write GGUF files byte by byte, so that they can lie: any length, offset, type or shape."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from draftsmith.engine.gguf import file as gguf_file

_TYPE_OF_DTYPE = {dtype: number for number, dtype in gguf_file._DTYPES.items() if number != 7}

Value = str | bool | int | float | np.ndarray


@dataclass(frozen=True)
class Crafted:
    """A tensor as the file shall state it.

    Attributes
    ----------
    dimensions : innermost first, as in the file
    data : what is written for it
    offset : what the file says; None for the truth
    """

    name: str | bytes
    type: int
    dimensions: Sequence[int]
    data: bytes = b""
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: Value) -> bytes:
    """A key and its value: int as u32, float as f32, an array by its dtype."""
    if isinstance(value, str):
        kind, raw = gguf_file.STRING, text(value)
    elif isinstance(value, bool):
        kind, raw = gguf_file.BOOL, struct.pack("<B", value)
    elif isinstance(value, int):
        kind, raw = gguf_file.U32, struct.pack("<I", value)
    elif isinstance(value, float):
        kind, raw = gguf_file.F32, struct.pack("<f", value)
    else:
        kind = gguf_file.ARRAY
        raw = struct.pack("<IQ", _TYPE_OF_DTYPE[value.dtype], value.size) + value.tobytes()
    return text(key) + struct.pack("<I", kind) + raw


def crafted(
    tensors: Sequence[Crafted], values: Mapping[str, Value] | None = None, *, alignment: int = 32
) -> bytes:
    """The bytes of a file; data is laid out at multiples of ``alignment``, whatever the file says.

    The last tensor's data is the end of the file.
    """
    values = values or {}
    infos, data = b"", b""
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        infos += text(tensor.name) + struct.pack("<I", len(tensor.dimensions))
        infos += struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
        infos += struct.pack("<IQ", tensor.type, offset)
        data += tensor.data
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(pair(key, value) for key, value in values.items()) + infos
    return head + bytes(-len(head) % alignment) + data


def write_crafted(path: Path, tensors: Sequence[Crafted], **rest: object) -> Path:
    """Write ``crafted(tensors, ...)`` and return the path."""
    path.write_bytes(crafted(tensors, **rest))  # type: ignore[arg-type]
    return path
