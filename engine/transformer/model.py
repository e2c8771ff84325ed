"""A GGUF model that runs: tokens in, logits and hidden states out.

The pass itself is ``forward_kernels.run_layers``; here its arrays are made and kept. What a pass
computes for a token is the same, bit for bit, whatever else is in the batch and however many
threads share the work: verifying a draft gives the very logits that plain decoding would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import REMEDY_DAMAGED, ModelDamaged, UsageError, naming_model
from ..gguf.file import GgufMetadata, read_metadata
from ..gguf.kinds import check_has_weights
from ..gguf.tensors import Tensor, open_tensors
from ..host import n_physical_cores
from . import forward_kernels as kernels
from .dequant import dequantise
from .hparams import ModelParams, read_params
from .kv_cache import KvCache, padded
from .pack import finite_vector, not_finite, pack
from .rope import RopeTable
from .weights import EMBEDDINGS, ROPE_FACTORS, pieces_of
from .workers import Workers

BATCH = 512  # tokens of the largest pass; longer inputs are cut
ROW_GRAIN = 16


@dataclass(frozen=True)
class Pass:
    """What one call of ``forward`` gives, for the rows that were asked for.

    Attributes
    ----------
    logits : float32 [n_rows, n_vocab]
    hidden : float32 [n_rows, n_embd], before the last norm
    normed : float32 [n_rows, n_embd], after it
    taps : what ``taps`` asked for, of all tokens
    all_hidden : float32 [n_tokens, n_embd], as ``hidden`` of all tokens, where it was asked for
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32]
    normed: NDArray[np.float32]
    taps: Taps | None = None
    all_hidden: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Taps:
    """What to take out of the layers on the way, and then what was taken.

    Attributes
    ----------
    hidden_layers : layers whose input is wanted; n_layers is not one (that is ``Pass.hidden``)
    query_layers : layers whose queries and keys are wanted
    hidden : float32 [len(hidden_layers), n_tokens, n_embd]
    queries : float32 [len(query_layers), 2, n_tokens, n_head, d_head], before and after RoPE
    keys : float32 [len(query_layers), 2, n_tokens, n_head_kv, d_head], likewise

    The dimensions of a head of an architecture that rotates neighbours (llama) come in the order
    even, then odd: as the weights are packed.
    """

    hidden_layers: Sequence[int] = ()
    query_layers: Sequence[int] = ()
    hidden: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    queries: NDArray[np.float32] = field(
        default_factory=lambda: np.empty((0, 2, 0, 0, 0), np.float32)
    )
    keys: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 2, 0, 0, 0), np.float32))


class Model:
    """Weights, and buffers for passes of up to ``BATCH`` tokens. Made by ``load_model``.

    Attributes
    ----------
    params : sizes and rules of the architecture
    n_threads : threads of a pass
    n_bytes : memory of the packed weights
    arena, slots, kinds, reals : the weights as ``forward_kernels`` reads them; a layer each, its
        slots and whether it is local
    rope : position embedding of its layers
    workers : the threads
    """

    def __init__(
        self,
        params: ModelParams,
        arena: NDArray[np.uint8],
        slots: NDArray[np.int64],
        embeddings: Tensor,
        rope: RopeTable,
        n_threads: int,
    ) -> None:
        self.params = params
        self.n_threads = n_threads
        self.n_bytes = arena.nbytes
        self.arena = arena
        self.slots = slots
        self._embeddings = embeddings
        self.rope = rope
        self.workers = Workers(n_threads)
        self.kinds = np.array(params.local, np.int64)
        self.reals = np.array([params.eps, params.attn_scale, params.softcap], np.float32)
        self._scratch: Scratch | None = None

    def close(self) -> None:
        """End the threads and let go of the weights."""
        self.workers.close()
        self.arena = np.empty(0, np.uint8)
        self._scratch = None

    def layers(self, first: int = 0, stop: int | None = None) -> kernels.Layers:
        """The weights of some layers; of all with what follows them, by default."""
        some = slice(first, stop)
        return kernels.Layers(self.arena, self.slots[some], self.kinds[some], self.reals)

    def new_cache(self, n_ctx: int) -> KvCache:
        """An empty cache with room for ``n_ctx`` tokens."""
        return KvCache(self.params, n_ctx)

    def forward(
        self,
        tokens: ArrayLike,
        cache: KvCache,
        *,
        rows: Literal["last", "all", "none"] | NDArray[np.int64] = "last",
        positions: NDArray[np.int64] | None = None,
        taps: Taps | None = None,
        all_hidden: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Pass:
        """Evaluate tokens after those that ``cache`` holds, and append them to it.

        Parameters
        ----------
        tokens : int32 [n], 1 or more
        rows : which of them get logits: ascending places in ``tokens``, or a word
        positions : int64 [n], for RoPE; default: the tokens' slots in the cache
        taps : layers to look into
        all_hidden : keep the last hidden states of all tokens, whichever ``rows`` get logits; the
            last layer is then computed for all of them
        on_progress : told (tokens done, n) after each batch of at most ``BATCH``

        Raises
        ------
        UsageError : no token, no room for them, or rows that are not places in ``tokens``
        ModelDamaged : logits that are not finite
        """
        ids = self._checked(tokens, cache)
        wanted = _places(rows, ids.size)
        if positions is None:
            positions = np.arange(cache.length, cache.length + ids.size, dtype=np.int64)
        parts = []
        before = cache.length
        try:
            for start in range(0, ids.size, BATCH):
                stop = min(start + BATCH, ids.size)
                inside = wanted[(wanted >= start) & (wanted < stop)] - start
                at = positions[start:stop]
                parts.append(self._batch(ids[start:stop], cache, inside, at, taps, all_hidden))
                if on_progress is not None:
                    on_progress(stop, ids.size)
        except BaseException:
            cache.truncate(before)
            raise
        return _joined(parts)

    def forward_streams(
        self,
        tokens: ArrayLike,
        cache: KvCache,
        *,
        starts: NDArray[np.int64],
        slots: NDArray[np.int64],
        taps: Taps | None = None,
    ) -> Pass:
        """Evaluate the next token of each of many texts that share a cache.

        Text b holds the slots starts[b] to slots[b] - 1, and gets slots[b] too. What a text gets
        is the same, bit for bit, as in a cache of its own. ``cache.length`` says nothing here.

        Parameters
        ----------
        tokens : int32 [n], 1 to ``BATCH``
        starts : int64 [n], multiples of 256
        slots : int64 [n]
        taps : layers to look into

        Raises
        ------
        UsageError : no token or too many, or slots outside the cache or before their starts
        ModelDamaged : logits that are not finite
        """
        ids = self.ids_of(tokens)
        if ids.size > BATCH or starts.shape != ids.shape or slots.shape != ids.shape:
            raise UsageError(
                f"{ids.size} tokens with {starts.size} starts and {slots.size} slots",
                remedy=f"give 1 to {BATCH} of each, as many of one as of the others",
            )
        if (starts % kernels.SPLIT).any() or (starts < 0).any() or (slots < starts).any():
            raise UsageError(
                "texts that share a cache start outside of their places",
                remedy=f"start each at a multiple of {kernels.SPLIT}, at most at its slot",
            )
        if slots.max() >= cache.n_ctx:
            raise UsageError(
                f"slot {slots.max()} is outside of a context of {cache.n_ctx}",
                remedy="give a larger context",
            )
        rows = np.arange(ids.size, dtype=np.int64)
        return self._run(ids, cache, rows, slots - starts, starts, slots, 1, taps)

    def _checked(self, tokens: ArrayLike, cache: KvCache) -> NDArray[np.int64]:
        ids = self.ids_of(tokens)
        if cache.length + ids.size > cache.n_ctx:
            raise UsageError(
                f"{ids.size} tokens do not fit after {cache.length} in a context of {cache.n_ctx}",
                remedy="give a larger context or a shorter text",
            )
        return ids

    def ids_of(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """int64 [n]: the tokens, 1 or more of this vocabulary.

        Raises
        ------
        UsageError : none, or others
        """
        ids = np.asarray(tokens, np.int64).reshape(-1)
        if ids.size == 0:
            raise UsageError("no token to evaluate", remedy="give one or more")
        if ids.min() < 0 or ids.max() >= self.params.n_vocab:
            raise UsageError(
                f"a token outside the vocabulary of {self.params.n_vocab}",
                remedy="tokenize the text with this model",
            )
        return ids

    def _batch(
        self,
        ids: NDArray[np.int64],
        cache: KvCache,
        kept: NDArray[np.int64],
        positions: NDArray[np.int64],
        taps: Taps | None,
        all_hidden: bool,
    ) -> Pass:
        """One pass of at most ``BATCH`` tokens after those of the cache."""
        n = ids.size
        slots = np.arange(cache.length, cache.length + n, dtype=np.int64)
        starts = np.zeros(n, np.int64)
        n_block = tokens_of_block(self.params)
        done = self._run(ids, cache, kept, positions, starts, slots, n_block, taps, all_hidden)
        cache.length += n
        return done

    def _run(
        self,
        ids: NDArray[np.int64],
        cache: KvCache,
        kept: NDArray[np.int64],
        positions: NDArray[np.int64],
        starts: NDArray[np.int64],
        high: NDArray[np.int64],
        n_block: int,
        taps: Taps | None,
        all_hidden: bool = False,
    ) -> Pass:
        """One pass of at most ``BATCH`` tokens, which see the slots ``starts`` to ``high``."""
        n = ids.size
        scratch = self.room(n, cache.n_ctx)
        x = self.embed(ids)
        turns = self.rope.turns(positions)
        low = np.stack((starts, starts))
        if self.params.window:
            low[1] = np.maximum(starts, high - self.params.window + 1)
        sizes = self._sizes(n, n_block, kept.size)
        if all_hidden:
            sizes[kernels.CUT] = False
        taken, captures = captures_of(self.params, taps, n)
        scratch.sync[:] = 0
        self.workers.run(
            kernels.run_layers, scratch.sync, self.layers(), sizes, x, turns,
            kernels.Seen(low, high, kept), kernels.Cache(cache.keys, cache.values),
            scratch.buffers, captures,
        )  # fmt: skip
        hidden = x[kept] if all_hidden else x[: kept.size].copy()
        logits, normed = self._head(hidden, sizes, scratch)
        return Pass(logits, hidden, normed, taken, x if all_hidden else None)

    def _head(
        self, x: NDArray[np.float32], sizes: NDArray[np.int64], scratch: Scratch
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        n_rows = len(x)
        n_padded = -(-self.params.n_vocab // ROW_GRAIN) * ROW_GRAIN
        logits = np.empty((n_rows, n_padded), np.float32)
        found = logits[:, : self.params.n_vocab]
        normed = np.empty((n_rows, self.params.n_embd), np.float32)
        if n_rows:
            self.workers.run(
                kernels.run_head, scratch.sync, self.layers(), sizes, x, normed,
                scratch.buffers.work.act, logits,
            )  # fmt: skip
            # NaN shows in both, infinities in one of them
            if not np.isfinite((found.max(axis=1), found.min(axis=1))).all():
                raise ModelDamaged(
                    "the model computes logits that are not finite", remedy=REMEDY_DAMAGED
                )
        return found, normed

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [n, n_embd]: the tokens' embeddings."""
        table = self._embeddings
        x = dequantise(table.type, table.data[ids])
        if not np.isfinite(x).all():
            raise not_finite(table)
        if self.params.embd_scale != 1.0:
            x *= np.float32(self.params.embd_scale)
        return x

    def _sizes(self, n_tokens: int, n_block: int, n_rows: int) -> NDArray[np.int64]:
        sizes = sizes_of(self.params)
        sizes[kernels.N_TOKENS] = n_tokens
        sizes[kernels.N_BLOCK] = n_block
        sizes[kernels.N_ROWS] = n_rows
        sizes[kernels.CUT] = n_rows < n_tokens
        return sizes

    def room(self, n: int, n_ctx: int) -> Scratch:
        """Buffers for a pass of n tokens in a cache of n_ctx; small and large passes share them."""
        n_tokens = 16 if n <= 16 else BATCH
        scratch = self._scratch
        if scratch is None or scratch.n_tokens < n_tokens or scratch.n_ctx < n_ctx:
            n_ctx = max(n_ctx, scratch.n_ctx if scratch else 0)
            self._scratch = scratch = Scratch(self.params, n_tokens, n_ctx, self.n_threads)
        return scratch


def sizes_of(p: ModelParams) -> NDArray[np.int64]:
    """int64 [N_SIZES]: those of the architecture; what differs from pass to pass is 0."""
    sizes = np.zeros(kernels.N_SIZES, np.int64)
    sizes[: kernels.GELU + 1] = (
        p.n_embd, p.n_head, p.n_head_kv, p.d_head, p.rope.n_rot, p.n_ff, p.gelu
    )  # fmt: skip
    sizes[kernels.LAST_LAYER] = p.n_layers
    return sizes


def tokens_of_block(p: ModelParams) -> int:
    """Tokens of one text that share the keys which attention reads."""
    return max(1, kernels.BLOCK_ROWS // (p.n_head // p.n_head_kv))


def captures_of(p: ModelParams, taps: Taps | None, n: int) -> tuple[Taps | None, kernels.Captures]:
    """What is taken out of a pass of ``n`` tokens, and that as the kernels fill it."""
    hidden_place = np.full(p.n_layers, -1, np.int64)
    query_place = np.full(p.n_layers, -1, np.int64)
    wanted = taps if taps is not None else Taps()
    for place, layers in (
        (hidden_place, wanted.hidden_layers),
        (query_place, wanted.query_layers),
    ):
        for i, layer in enumerate(layers):
            place[layer] = i
    hidden = np.empty((len(wanted.hidden_layers), n, p.n_embd), np.float32)
    n_query = len(wanted.query_layers)
    queries = np.empty((n_query, 2, n, p.n_head * p.d_head), np.float32)
    keys = np.empty((n_query, 2, n, p.n_head_kv * p.d_head), np.float32)
    taken = None
    if taps is not None:
        taken = Taps(
            wanted.hidden_layers,
            wanted.query_layers,
            hidden,
            queries.reshape(n_query, 2, n, p.n_head, p.d_head),
            keys.reshape(n_query, 2, n, p.n_head_kv, p.d_head),
        )
    return taken, kernels.Captures(hidden_place, query_place, hidden, queries, keys)


class Scratch:
    """The buffers of a pass, float32 but for the integers of quantised activations."""

    def __init__(self, params: ModelParams, n_tokens: int, n_ctx: int, n_threads: int) -> None:
        def floats(*shape: int) -> NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        def grain(n: int) -> int:
            return -(-n // ROW_GRAIN) * ROW_GRAIN

        self.n_tokens = n_tokens
        self.n_ctx = n_ctx
        self.sync = np.zeros(1 + params.n_layers, np.int64)
        n_q = params.n_head * params.d_head
        n_kv = params.n_head_kv * params.d_head
        n_wide = max(params.n_ff, n_q, params.n_embd)
        act = activations(n_tokens, params.n_embd)
        wide = activations(n_tokens, n_wide)
        work = kernels.Work(
            act,
            wide,
            floats(n_tokens, grain(n_q)),
            floats(n_tokens, grain(n_kv)),
            floats(n_tokens, grain(n_kv)),
            floats(n_tokens, grain(n_q)),
            floats(n_tokens, grain(params.n_ff)),
            floats(n_tokens, grain(params.n_ff)),
            floats(n_tokens, grain(params.n_embd)),
        )
        group = params.n_head // params.n_head_kv
        rows = max(kernels.BLOCK_ROWS, group)
        d_pad = padded(params.d_head)
        places = max(n_threads, -(-n_ctx // kernels.SPLIT) * params.n_head_kv)
        parts = kernels.Parts(
            floats(places, rows, d_pad), floats(places, rows), floats(places, rows)
        )
        rooms = kernels.Room(
            floats(n_threads, rows, params.d_head),
            np.zeros((n_threads, rows), np.int64),
            np.zeros((n_threads, rows), np.int64),
            floats(n_threads, rows, kernels.SPLIT),
            floats(n_threads, rows, d_pad),
            floats(n_threads, rows),
            floats(n_threads, rows),
        )
        self.buffers = kernels.Buffers(work, parts, rooms)


def activations(n_tokens: int, n: int) -> kernels.Activations:
    """Room for ``n_tokens`` rows of ``n`` floats and the integers made of them."""
    blocks = -(-n // 32)
    return kernels.Activations(
        np.zeros((n_tokens, n), np.float32),
        np.zeros((n_tokens, 32 * blocks), np.int8),
        np.zeros((n_tokens, 32 * blocks), np.int16),
        np.zeros((n_tokens, blocks), np.float32),
        np.zeros((n_tokens, blocks), np.float32),
        np.zeros((n_tokens, 2 * blocks), np.float32),
        np.zeros((n_tokens, blocks), np.int32),
    )


def _places(rows: str | NDArray[np.int64], n: int) -> NDArray[np.int64]:
    if isinstance(rows, str):
        return {
            "last": np.array([n - 1], np.int64),
            "all": np.arange(n, dtype=np.int64),
            "none": np.empty(0, np.int64),
        }[rows]
    places = np.ascontiguousarray(rows, np.int64)
    if places.size and not (places[0] >= 0 and places[-1] < n and (np.diff(places) > 0).all()):
        raise UsageError(
            f"rows of a pass of {n} tokens have to ascend from 0 to {n - 1}",
            remedy="name each row once, in order",
        )
    return places


def _joined(parts: list[Pass]) -> Pass:
    if len(parts) == 1:
        return parts[0]
    taps = parts[0].taps
    if taps is not None:
        taken = [part.taps for part in parts if part.taps is not None]
        taps = Taps(
            taps.hidden_layers,
            taps.query_layers,
            np.concatenate([tap.hidden for tap in taken], axis=1),
            np.concatenate([tap.queries for tap in taken], axis=2),
            np.concatenate([tap.keys for tap in taken], axis=2),
        )
    return Pass(
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.hidden for part in parts]),
        np.concatenate([part.normed for part in parts]),
        taps,
        _all_hidden(parts),
    )


def _all_hidden(parts: list[Pass]) -> NDArray[np.float32] | None:
    hidden = [part.all_hidden for part in parts if part.all_hidden is not None]
    return np.concatenate(hidden) if hidden else None


def load_model(
    path: Path | str,
    metadata: GgufMetadata | None = None,
    *,
    n_threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Map a GGUF (the first part of a split one) and pack its weights.

    Parameters
    ----------
    metadata : of that file, if it has been read already
    n_threads : default: physical cores
    on_progress : told (bytes packed, all bytes)

    Raises
    ------
    InputUnreadable, ModelNotGguf, ModelDamaged, ModelUnsupported
    """
    if metadata is None:
        metadata = read_metadata(path)
    check_has_weights(metadata)
    tensors = open_tensors(path, metadata)
    if EMBEDDINGS not in tensors:
        raise ModelDamaged(f"{path} has no tensor {EMBEDDINGS}", remedy=REMEDY_DAMAGED)
    params = read_params(metadata, tensors[EMBEDDINGS].shape[0])
    n_threads = n_threads or n_physical_cores()
    shape = params.n_layers + 1, kernels.N_SLOTS
    factors = None
    with naming_model(path):
        pieces = pieces_of(params, tensors)
        if ROPE_FACTORS in tensors:  # of a llama model: any other was refused with it
            factors = finite_vector(tensors[ROPE_FACTORS])
        rope = RopeTable(params, factors)
        arena, slots = pack(pieces, shape, n_threads=n_threads, on_progress=on_progress)
    return Model(params, arena, slots, tensors[EMBEDDINGS], rope, n_threads)
