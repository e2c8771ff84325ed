"""Arrays mapped from files, used block by block: pages that were read count as memory until they
are let go, and a map that is larger than memory would seem to fill it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

_BLOCK_BYTES = 1 << 24


def forget_pages(array: np.ndarray) -> None:
    """Let go of what was read of the file that an array is mapped from; nothing for other arrays.

    The array must not have been written to in a private map: that would be undone.
    """
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def byte_blocks(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array (C-contiguous), letting go of each block when it is done with."""
    if not array.size:
        return
    data = memoryview(array).cast("B")
    for start in range(0, len(data), _BLOCK_BYTES):
        yield data[start : start + _BLOCK_BYTES]
        forget_pages(array)
