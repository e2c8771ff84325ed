"""A text through a model's layers, all of it through one before the next.

What scores a prompt needs some of the layers, queries of a few tokens and keys of all, and no
logits. Layer by layer only one layer's keys and values are held, its weights stay in the CPU's
cache from batch to batch, and whoever looks may stop at any layer. What a token gets is what
``Model.forward`` gives it, bit for bit, where it sees the same tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UsageError
from . import forward_kernels as kernels
from .kv_cache import KvCache
from .model import (
    BATCH,
    Model,
    Scratch,
    Taps,
    captures_of,
    sizes_of,
    tokens_of_block,
)


@dataclass(frozen=True, eq=False)
class Look:
    """Queries and keys of a layer, by whether RoPE has turned them (True, False).

    Attributes
    ----------
    layer : which
    queries : float32 [n_rows, n_head, d_head], of the rows that were asked for
    keys : float32 [n, n_head_kv, d_head], of all tokens

    The order of a head's dimensions is that of ``Taps``.
    """

    layer: int
    queries: dict[bool, NDArray[np.float32]] = field(default_factory=dict)
    keys: dict[bool, NDArray[np.float32]] = field(default_factory=dict)


class LayerPass:
    """A text at the entry of a layer.

    Parameters
    ----------
    model : whose layers
    tokens : int32 [n], 1 or more
    positions : int64 [n], for RoPE; default: from 0 on
    window : tokens that a token sees, itself included; 0: all before it
    n_sink : first tokens that every token sees besides
    wide : first and after the last token of those that see all before them
    cache : gets keys and values of all layers, from slot 0 on; default: one layer's are held

    Layers that have a window of their own (gemma3) keep it, and just it, for every token.

    Attributes
    ----------
    layer : the next one
    x : float32 [n, n_embd], what it gets

    Raises
    ------
    UsageError : no token, one outside of the vocabulary, or more than the cache or memory holds
    """

    def __init__(
        self,
        model: Model,
        tokens: ArrayLike,
        *,
        positions: NDArray[np.int64] | None = None,
        window: int = 0,
        n_sink: int = 0,
        wide: tuple[int, int] = (0, 0),
        cache: KvCache | None = None,
    ) -> None:
        ids = model.ids_of(tokens)
        n = ids.size
        if cache is not None and cache.n_ctx < n:
            raise UsageError(
                f"{n} tokens do not fit in a context of {cache.n_ctx}",
                remedy="give a larger context or a shorter text",
            )
        self.model = model
        self.layer = 0
        self._n_sink = n_sink
        self._is_single = cache is None
        params = model.params
        self._cache = cache or KvCache(replace(params, n_layers=1), n)
        self.x = model.embed(ids)
        if positions is None:
            positions = np.arange(n, dtype=np.int64)
        self._batches = [(a, min(a + BATCH, n)) for a in range(0, n, BATCH)]
        self._turns = [model.rope.turns(positions[a:b]) for a, b in self._batches]
        self._high = np.arange(n, dtype=np.int64)
        low = np.zeros((2, n), np.int64)
        if window:
            low[0] = np.maximum(0, self._high - window + 1)
            low[0, slice(*wide)] = 0
        if params.window:
            low[1] = np.maximum(0, self._high - params.window + 1)
        self._low = low
        self._scratch: Scratch = model.room(min(n, BATCH), n)

    @property
    def n(self) -> int:
        """Tokens of the text."""
        return len(self.x)

    def run(self, rows: tuple[int, int] = (0, 0), sides: Collection[bool] = ()) -> Look:
        """Go through the next layer.

        Parameters
        ----------
        rows : first and after the last token whose queries are wanted
        sides : of RoPE, from which queries and keys are wanted: False before it, True after it
        """
        look = self._through(rows, sides, is_cut=False)
        self.layer += 1
        return look

    def peek(self, rows: tuple[int, int], sides: Collection[bool]) -> Look:
        """Queries and keys of the next layer, computed without the rest of it."""
        return self._through(rows, sides, is_cut=True)

    def _through(self, rows: tuple[int, int], sides: Collection[bool], *, is_cut: bool) -> Look:
        p = self.model.params
        if self.layer >= p.n_layers:
            raise ValueError(f"no layer {self.layer} in a model of {p.n_layers}")
        n_rows = max(0, rows[1] - rows[0])
        look = Look(self.layer)
        for side in sides:
            look.queries[side] = np.empty((n_rows, p.n_head, p.d_head), np.float32)
            look.keys[side] = np.empty((self.n, p.n_head_kv, p.d_head), np.float32)
        taps = Taps(query_layers=range(int(bool(sides))))
        taken, captures = captures_of(replace(p, n_layers=1), taps, min(self.n, BATCH))
        assert taken is not None
        for place in range(len(self._batches)):
            self._batch(place, captures, is_cut=is_cut)
            self._take(look, place, taken, rows)
        return look

    def _take(self, look: Look, place: int, taken: Taps, rows: tuple[int, int]) -> None:
        """Copy what a batch left in the captures."""
        start, stop = self._batches[place]
        first, end = max(rows[0], start), min(rows[1], stop)
        for side, keys in look.keys.items():
            keys[start:stop] = taken.keys[0, int(side), : stop - start]
            if first < end:
                look.queries[side][first - rows[0] : end - rows[0]] = taken.queries[
                    0, int(side), first - start : end - start
                ]

    def _batch(self, place: int, captures: kernels.Captures, *, is_cut: bool) -> None:
        """The next layer for one batch; all before it have gone through."""
        model, il = self.model, self.layer
        start, stop = self._batches[place]
        sizes = self.sizes(stop - start)
        sizes[kernels.CUT] = is_cut
        sizes[kernels.N_SINK] = 0 if model.params.local[il] else self._n_sink
        scratch = self._scratch
        scratch.sync[:] = 0
        low = np.ascontiguousarray(self._low[:, start:stop])
        model.workers.run(
            kernels.run_layers, scratch.sync, model.layers(il, il + 1), sizes,
            self.x[start:stop], self._turns[place],
            kernels.Seen(low, self._high[start:stop], np.empty(0, np.int64)), self.held(),
            scratch.buffers, captures,
        )  # fmt: skip

    def sizes(self, n_tokens: int) -> NDArray[np.int64]:
        """int64 [N_SIZES], for a batch in one layer."""
        sizes = sizes_of(self.model.params)
        sizes[kernels.LAST_LAYER] = 1
        sizes[kernels.N_TOKENS] = n_tokens
        sizes[kernels.N_BLOCK] = tokens_of_block(self.model.params)
        return sizes

    def held(self) -> kernels.Cache:
        """Keys and values of the layer, [1, ...] of those of ``KvCache``."""
        at = 0 if self._is_single else self.layer
        return kernels.Cache(self._cache.keys[at : at + 1], self._cache.values[at : at + 1])
