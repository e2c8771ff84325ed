"""Arrays mapped from files: pages that were read count as memory until they are let go, and a map
that is larger than memory would seem to fill it.
"""

from __future__ import annotations

import mmap

import numpy as np


def forget_pages(array: np.ndarray) -> None:
    """Let go of what was read of the file that an array is mapped from; nothing for other arrays.

    The array must not have been written to in a private map: that would be undone.
    """
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
