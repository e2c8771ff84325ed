"""Keys and values of the tokens so far, as float16, in flat arrays that never move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..host import available_memory_bytes
from .hparams import ModelParams

PANEL = 16  # keys side by side, a lane each


class KvCache:
    """Room for ``n_ctx`` tokens; token i of the text lies in slot i.

    Attributes
    ----------
    keys : uint16 (float16 bits) [n_layers, n_head_kv, n_ctx / 16, d_head, 16]
    values : uint16 (float16 bits) [n_layers, n_head_kv, n_ctx, padded d_head]
    length : tokens held

    Raises
    ------
    UsageError : no room for a single token, or more than this machine's memory
    """

    def __init__(self, params: ModelParams, n_ctx: int) -> None:
        if n_ctx < 1:
            raise UsageError(f"a context of {n_ctx} tokens holds nothing", remedy="give 1 or more")
        n_slots = -(-n_ctx // PANEL) * PANEL
        heads = (params.n_layers, params.n_head_kv)
        each = 2 * params.n_layers * params.n_head_kv * (params.d_head + padded(params.d_head))
        available = available_memory_bytes()
        # asked first: an operating system that overcommits would say yes, and kill later
        if n_slots * each > available:
            raise UsageError(
                f"a context of {n_ctx} tokens takes {n_slots * each / 1e9:.1f} GB of memory, and "
                f"{available / 1e9:.1f} GB are free",
                remedy=f"give a context of at most {available // each}",
            )
        self.n_ctx = n_ctx
        self.length = 0
        self.keys: NDArray[np.uint16] = np.zeros(
            (*heads, n_slots // PANEL, params.d_head, PANEL), np.uint16
        )
        self.values: NDArray[np.uint16] = np.zeros(
            (*heads, n_slots, padded(params.d_head)), np.uint16
        )

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ``length``.

        Raises
        ------
        UsageError : it holds fewer
        """
        if not 0 <= length <= self.length:
            raise UsageError(
                f"cannot keep {length} of {self.length} tokens", remedy="keep at most what there is"
            )
        self.length = length

    @property
    def n_bytes(self) -> int:
        """Memory that a full cache takes; pages that no token touched take none yet."""
        return self.keys.nbytes + self.values.nbytes


def padded(d_head: int) -> int:
    """Columns of a value row: whole panels."""
    return -(-d_head // PANEL) * PANEL
