"""The tensors of a GGUF file, mapped from it: nothing is read before it is used.

What the file says about a tensor is checked before a view is made of it, so that a view never
passes the end of the file. Split models are opened whole, by their first part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    REMEDY_DAMAGED,
    DraftsmithError,
    InputUnreadable,
    ModelDamaged,
    ModelUnsupported,
)
from .file import (
    ALIGNMENT,
    GgufMetadata,
    TensorInfo,
    open_map,
    read_metadata,
)

MAX_NAME = 63  # ggml's own limit
MAX_ALIGNMENT = 1 << 20

_FIRST_PART = re.compile(r"^(?P<stem>.*)-00001-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


class TensorType(IntEnum):
    """The types that the engine computes with, by ggml's numbers; I32 is of ids, not of weights."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    I32 = 26
    BF16 = 30

    @property
    def block_items(self) -> int:
        """Numbers of a block; a row is whole blocks."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _BLOCKS[self][1]


_BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
    TensorType.I32: (1, 4),
    TensorType.BF16: (1, 2),
}

# ggml's other types, for messages.
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a model.

    Attributes
    ----------
    name : as in the file, "blk.0.attn_q.weight"
    type : of its numbers
    shape : in NumPy's order, rows first and the length of a row last
    data : uint8 [n_rows, row_bytes], a read-only view of the mapped file. A vector is one row;
        dimensions above two are folded into the rows.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def open_tensors(path: Path | str, metadata: GgufMetadata | None = None) -> dict[str, Tensor]:
    """Map the tensors of a model, of all its parts; returns them by name.

    ``metadata`` is that of ``path``, if it has been read already.

    Raises
    ------
    InputUnreadable : the file or another part of the model is missing or cannot be read.
    ModelNotGguf : a file that does not begin as a GGUF file.
    ModelDamaged : what the file says about its tensors, or a part about the model, cannot be.
    ModelUnsupported : a type that the engine does not know, or a later part of a split model.
    """
    path = Path(path)
    first = read_metadata(path) if metadata is None else metadata
    tensors: dict[str, Tensor] = {}
    for part in _parts(first):
        for tensor in _map_part(part):
            if tensor.name in tensors:
                raise _damaged(part.path, f"tensor '{tensor.name}' stands twice in the model")
            tensors[tensor.name] = tensor
    n_announced = first.integer("split.tensors.count")
    if n_announced is not None and _n_parts(first) > 1 and n_announced != len(tensors):
        raise _damaged(
            path, f"the parts hold {len(tensors)} tensors, but {n_announced} are announced"
        )
    return tensors


def _n_parts(metadata: GgufMetadata) -> int:
    return metadata.integer("split.count") or 1


def _parts(first: GgufMetadata) -> Iterator[GgufMetadata]:
    """The metadata of all parts, the first one's to begin with."""
    yield first
    n_parts = _n_parts(first)
    if n_parts < 2:
        return
    match = _FIRST_PART.match(first.path.name)
    if match is None or int(match["count"]) != n_parts:
        raise ModelUnsupported(
            f"{first.path} is the first of {n_parts} parts, but its name does not say so",
            remedy=f"give the parts names that end in -00001-of-{n_parts:05d}.gguf and so on",
        )
    for index in range(1, n_parts):
        name = f"{match['stem']}-{index + 1:05d}-of-{n_parts:05d}.gguf"
        yield _read_part(first.path.with_name(name), index, n_parts)


def _read_part(path: Path, index: int, n_parts: int) -> GgufMetadata:
    try:
        part = read_metadata(path, is_later_part=True)
    except InputUnreadable as error:
        raise InputUnreadable(
            f"part {index + 1} of {n_parts} of the model is missing: {error.message}",
            remedy="put all parts into one folder",
        ) from error
    found = (part.integer("split.no"), part.integer("split.count"))
    if found != (index, n_parts):
        raise _damaged(path, f"split.no and split.count are {found}, expected {(index, n_parts)}")
    return part


def _map_part(part: GgufMetadata) -> Iterator[Tensor]:
    """Views of the tensors of one file."""
    alignment = _alignment(part)
    whole = np.frombuffer(open_map(part.path), np.uint8)
    last_stop, last_name = 0, ""
    for info in sorted(part.tensors, key=lambda info: info.offset):
        kind = _type_of(part.path, info)
        n_rows, row_bytes = _size_of(part.path, info, kind)
        if info.offset % alignment:
            raise _damaged(
                part.path,
                f"tensor '{info.name}' begins at offset {info.offset}, expected a multiple of "
                f"{alignment}",
            )
        if info.offset < last_stop:
            raise _damaged(part.path, f"tensors '{last_name}' and '{info.name}' overlap")
        last_stop, last_name = info.offset + n_rows * row_bytes, info.name
        if part.data_start + last_stop > whole.size:
            raise _damaged(
                part.path,
                f"the file ends at byte {whole.size}, but tensor '{info.name}' at byte "
                f"{part.data_start + last_stop}",
            )
        start = part.data_start + info.offset
        data = whole[start : start + n_rows * row_bytes].reshape(n_rows, row_bytes)
        yield Tensor(info.name, kind, info.dimensions[::-1], data)


def _alignment(part: GgufMetadata) -> int:
    alignment = part.integer("general.alignment")
    if alignment is None:
        return ALIGNMENT
    # Below 8, a row of float32 might not lie at a multiple of its numbers' size.
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise _damaged(
            part.path,
            f"general.alignment is {alignment}, expected a power of two from 8 to {MAX_ALIGNMENT}",
        )
    return alignment


def _type_of(path: Path, info: TensorInfo) -> TensorType:
    if not info.name.isprintable() or not 0 < len(info.name) <= MAX_NAME:
        raise _damaged(path, f"a tensor's name is {info.name[:MAX_NAME]!r}")
    if info.type in _BLOCKS:
        return TensorType(info.type)
    found = _OTHER_TYPES.get(info.type, f"of an unknown number, {info.type}")
    supported = ", ".join(kind.name for kind in TensorType if kind != TensorType.I32)
    raise ModelUnsupported(
        f"{path}: tensor '{info.name}' is of type {found}, which the engine does not know",
        remedy=f"convert or quantise the model to one of {supported}",
    )


def _size_of(path: Path, info: TensorInfo, kind: TensorType) -> tuple[int, int]:
    """Rows and bytes of a row; Python's integers do not overflow."""
    if not info.dimensions or 0 in info.dimensions:
        raise _damaged(path, f"tensor '{info.name}' has the shape {info.dimensions[::-1]}")
    n_columns = info.dimensions[0]
    if n_columns % kind.block_items:
        raise _damaged(
            path,
            f"tensor '{info.name}' has rows of {n_columns} numbers, expected a multiple of "
            f"{kind.block_items} for {kind.name}",
        )
    return prod(info.dimensions[1:]), n_columns // kind.block_items * kind.block_bytes


def _damaged(path: Path, what: str) -> DraftsmithError:
    return ModelDamaged(f"{path}: {what}", remedy=REMEDY_DAMAGED)
