"""Layers with block-sparse attention: each block of tokens sees the blocks that seem to matter.

FlashPrefill's selection (Fan et al. 2026) in place of a window: see ``blocksparse_kernels``. The
first blocks, the latest ones and, by the last blocks of the text and those of the question, all
are seen. Inside its own block a token sees what stands before it, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...engine.errors import UsageError
from ...engine.transformer import forward_kernels
from ...engine.transformer.kv_cache import KvCache, padded
from ...engine.transformer.layer_pass import LayerPass
from ...engine.transformer.model import BATCH, Model
from . import blocksparse_kernels as kernels

SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class BlockRule:
    """Which blocks are seen.

    Attributes
    ----------
    size : tokens of a block: 16, 32, 64, 128 or 256
    alpha : part of the best block's score at which another is seen, 0 to 1; 0 for all
    n_sink : first blocks, which all see
    n_local : latest blocks, which all see, the own one included; 1 or more
    n_full : last blocks of the text that see all

    Raises
    ------
    UsageError : a number out of range
    """

    size: int = 64
    alpha: float = 0.12
    n_sink: int = 2
    n_local: int = 4
    n_full: int = 2

    def __post_init__(self) -> None:
        if self.size not in SIZES or not 0 <= self.alpha <= 1:
            raise UsageError(
                f"blocks of {self.size} tokens, seen from {self.alpha} of the best on",
                remedy=f"give a size of {', '.join(map(str, SIZES))}, and 0 to 1",
            )
        if self.n_sink < 0 or self.n_local < 1 or self.n_full < 0:
            raise UsageError(
                f"{self.n_sink} first, {self.n_local} latest and {self.n_full} last blocks",
                remedy="give 0 or more, and one of the latest at least",
            )


class BlockPass(LayerPass):
    """A ``LayerPass`` whose tokens see blocks, not a window.

    Parameters
    ----------
    rule : which blocks
    wide : first and after the last token of those whose blocks see all

    Attributes
    ----------
    chosen : uint8 [n_head, n_blocks, n_blocks], 1 where in the last layer that ran a block of
        queries (second axis) saw a block of keys; layers with a window of their own leave it
    """

    def __init__(
        self,
        model: Model,
        tokens: ArrayLike,
        rule: BlockRule,
        *,
        wide: tuple[int, int] = (0, 0),
        cache: KvCache | None = None,
    ) -> None:
        super().__init__(model, tokens, cache=cache)
        p = model.params
        n_blocks = -(-self.n // rule.size)
        n_columns = -(-n_blocks // kernels.PANEL) * kernels.PANEL
        full = np.zeros(n_blocks, np.uint8)
        full[max(0, n_blocks - rule.n_full) :] = 1
        if wide[0] < wide[1]:
            full[wide[0] // rule.size : -(-wide[1] // rule.size)] = 1
        self.chosen = np.zeros((p.n_head, n_blocks, n_blocks), np.uint8)
        self._size = rule.size
        self._blocks = kernels.Blocks(
            np.array([rule.size, rule.n_sink, rule.n_local], np.int64),
            float(rule.alpha),
            full,
            np.zeros(
                (p.n_head_kv, n_columns // kernels.PANEL, p.d_head, kernels.PANEL), np.float32
            ),
            self.chosen,
        )
        t, r, d_pad = model.n_threads, rule.size, padded(p.d_head)
        self._rooms = kernels.Room(
            np.zeros((t, r, p.d_head), np.float32),
            np.zeros((t, r), np.int64),
            np.zeros((t, r), np.int64),
            np.zeros((t, r, n_columns), np.float32),
            np.zeros((t, n_columns), np.float64),
            np.zeros((t, r, forward_kernels.SPLIT), np.float32),
            np.zeros((t, r, d_pad), np.float32),
            np.zeros((t, r), np.float32),
            np.zeros((t, r), np.float32),
            np.zeros((t, r, d_pad), np.float32),
            np.zeros((t, r), np.float32),
            np.zeros((t, r), np.float32),
        )

    def _batch(self, place: int, captures: forward_kernels.Captures, *, is_cut: bool) -> None:
        model, il = self.model, self.layer
        if model.params.local[il]:
            super()._batch(place, captures, is_cut=is_cut)
            return
        start, stop = self._batches[place]
        sizes = self.sizes(stop - start)
        sizes[forward_kernels.CUT] = is_cut
        scratch = self._scratch
        scratch.sync[:] = 0
        if not is_cut:
            self.chosen[:, start // self._size :] = 0
        model.workers.run(
            kernels.run_sparse_layer, scratch.sync, model.layers(il, il + 1), sizes,
            self.x[start:stop], self._turns[place], self._high[start:stop], self.held(),
            scratch.buffers.work, self._rooms, self._blocks, captures,
        )  # fmt: skip


assert BATCH % max(SIZES) == 0  # a batch begins with a block
