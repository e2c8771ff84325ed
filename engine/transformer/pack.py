"""All matrices of a model packed into one flat array, in the tiles that the kernels read.

A matrix is unpacked from the GGUF's layout once, here, and keeps its bits a weight: 4-bit types
become tiles of nibbles, 5- to 8-bit types of bytes, floats panels of their own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    REMEDY_CONVERT,
    REMEDY_DAMAGED,
    ModelDamaged,
    ModelUnsupported,
    UsageError,
)
from ..gguf.tensors import Tensor, TensorType
from ..host import available_memory_bytes
from ..pages import forget_pages
from .forward_kernels import (
    BF16_PANEL,
    F16_PANEL,
    F32_PANEL,
    N_PLACES,
    S8_FLOAT,
    S8_HALF,
    U4_FLOAT,
    U4_HALF,
    VECTOR,
)
from .pack_kernels import pack_panels, pack_tiles

ALIGNMENT = 64
# Of the file, after which its pages are let go: each time costs a millisecond, and they count as
# memory of the process until then.
FORGET_BYTES = 1 << 27
FORMS = {
    TensorType.F32: F32_PANEL,
    TensorType.F16: F16_PANEL,
    TensorType.BF16: BF16_PANEL,
    TensorType.Q4_0: U4_HALF,
    TensorType.Q4_1: U4_HALF,
    TensorType.Q4_K: U4_FLOAT,
    TensorType.Q5_0: S8_HALF,
    TensorType.Q8_0: S8_HALF,
    TensorType.Q5_1: S8_FLOAT,
    TensorType.Q5_K: S8_FLOAT,
    TensorType.Q6_K: S8_FLOAT,
}
# Bytes of 8 rows by 32 columns in a quantised tile.
BLOCK_BYTES = {U4_HALF: 160, U4_FLOAT: 192, S8_HALF: 272, S8_FLOAT: 384}
ITEM_BYTES = {F32_PANEL: 4, F16_PANEL: 2, BF16_PANEL: 2}
EXPONENT_BITS = {F32_PANEL: 0x7F800000, F16_PANEL: 0x7C00, BF16_PANEL: 0x7F80}


@dataclass(frozen=True)
class Piece:
    """A matrix or vector to pack.

    Attributes
    ----------
    at : (row, place) of the slot it gets
    tensor : where its weights are
    order : int64 [n_rows], the tensor's row (of a vector: number) that each of its rows is
    is_vector : kept as float32, one number a row
    """

    at: tuple[int, int]
    tensor: Tensor
    order: NDArray[np.int64]
    is_vector: bool

    @property
    def form(self) -> int:
        """Which kernel reads it."""
        return VECTOR if self.is_vector else FORMS[self.tensor.type]

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return 16 if self.form in ITEM_BYTES else 8

    @property
    def n_tiles(self) -> int:
        """Tiles of all its rows."""
        return 1 if self.is_vector else -(-self.order.size // self.tile_rows)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        n = self.tensor.shape[-1]
        if self.is_vector:
            return 4 * self.order.size
        if self.form in ITEM_BYTES:
            return 16 * n * ITEM_BYTES[self.form]
        return n // 32 * BLOCK_BYTES[self.form]

    @property
    def n_bytes(self) -> int:
        """Bytes in the arena, whole cache lines."""
        return -(-self.n_tiles * self.tile_bytes // ALIGNMENT) * ALIGNMENT


def pack(
    pieces: list[Piece],
    shape: tuple[int, int],
    *,
    n_threads: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the arena, uint8 [n], and the slots, int64 [*shape, N_PLACES].

    ``on_progress(done, total)`` is told bytes.

    Raises
    ------
    UsageError : more than this machine's memory
    ModelDamaged : a number that is not finite
    """
    total = sum(piece.n_bytes for piece in pieces)
    available = available_memory_bytes()
    # asked first: an operating system that overcommits would say yes, and kill later
    if total > available:
        raise UsageError(
            f"the weights take {total / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are "
            "free",
            remedy="name a smaller model, or one with fewer bits a weight",
        )
    arena = _aligned(total)
    slots = np.full((*shape, N_PLACES), -1, np.int64)
    start = read = 0
    with ThreadPoolExecutor(n_threads) as pool:
        for piece in pieces:
            stop = start + piece.n_bytes
            slots[piece.at] = (
                start, piece.form, piece.order.size, piece.tensor.shape[-1], piece.tile_bytes
            )  # fmt: skip
            list(pool.map(lambda job: job(), _jobs(piece, arena[start:stop], n_threads)))
            read += piece.tensor.data.nbytes
            if read > FORGET_BYTES or piece is pieces[-1]:
                forget_pages(piece.tensor.data)
                read = 0
            start = stop
            if on_progress is not None:
                on_progress(start, total)
    return arena, slots


def _aligned(n_bytes: int) -> NDArray[np.uint8]:
    """uint8 [n_bytes], zeros, from a cache line's beginning."""
    room = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + n_bytes]


def _jobs(piece: Piece, out: NDArray[np.uint8], n_threads: int) -> Iterator[Callable[[], None]]:
    """The work of packing one piece, in parts of whole tiles."""
    if piece.is_vector:
        out[: piece.tile_bytes].view(np.float32)[:] = finite_vector(piece.tensor)[piece.order]
        return
    order = np.full(piece.n_tiles * piece.tile_rows, -1, np.int64)
    order[: piece.order.size] = piece.order
    tiles = out[: piece.n_tiles * piece.tile_bytes].reshape(piece.n_tiles, piece.tile_bytes)
    for i in range(n_threads):
        first, last = (piece.n_tiles * part // n_threads for part in (i, i + 1))
        yield partial(_pack_part, piece, order, tiles, first, last)


def _pack_part(
    piece: Piece, order: NDArray[np.int64], tiles: NDArray[np.uint8], first: int, last: int
) -> None:
    raw = piece.tensor.data
    form = piece.form
    if form in ITEM_BYTES:
        kind = np.uint32 if form == F32_PANEL else np.uint16
        panels = tiles.view(kind).reshape(piece.n_tiles, piece.tensor.shape[-1], 16)
        exponent = kind(EXPONENT_BITS[form])
        n_bad = pack_panels(raw.view(kind), order, exponent, first, last, panels)
    else:
        n_bad = pack_tiles(
            int(piece.tensor.type),
            raw,
            order,
            piece.tensor.shape[-1] // 32,
            form in (U4_HALF, U4_FLOAT),
            form in (U4_FLOAT, S8_FLOAT),
            first,
            last,
            tiles,
        )
    if n_bad:  # a pass would not always notice: rounding activations makes numbers of NaN
        raise not_finite(piece.tensor)


def not_finite(tensor: Tensor) -> ModelDamaged:
    """The error of a tensor that holds NaN or an infinity."""
    return ModelDamaged(
        f"tensor {tensor.name} holds a number that is not finite",
        remedy=REMEDY_DAMAGED,
    )


def finite_vector(tensor: Tensor) -> NDArray[np.float32]:
    """A norm or bias as float32 [n].

    Raises
    ------
    ModelUnsupported : it is quantised
    ModelDamaged : a number that is not finite
    """
    raw = tensor.data.reshape(-1)
    if tensor.type == TensorType.F32:
        values = raw.view(np.float32)
    elif tensor.type == TensorType.F16:
        values = raw.view(np.float16).astype(np.float32)
    else:
        raise ModelUnsupported(
            f"tensor {tensor.name} is of type {tensor.type.name}, and has to be F32 or F16",
            remedy=REMEDY_CONVERT,
        )
    if not np.isfinite(values).all():
        raise not_finite(tensor)
    return values
