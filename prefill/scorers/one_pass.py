"""One pass in place of two: what scoring computed for kept tokens goes on through the other layers.

FastKV's idea (Jo et al. 2025): the first L layers have seen the whole prompt already, through a
window. Kept tokens' states go on from there, and their keys and values of those layers are
taken over, at the positions that they were made for: original ones. The last token of the prompt
alone goes through all layers again, with the answer after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...engine.transformer.kv_cache import PANEL, KvCache
from ...engine.transformer.layer_pass import LayerPass, Look
from ...engine.transformer.model import Model
from ..prompt.parts import PromptParts, Span
from .attention import AttentionScorer
from .scores import Scores
from .windows import Window


@dataclass(frozen=True, eq=False)
class Begun:
    """A prompt after its first layers.

    Attributes
    ----------
    ids : int32 [n]
    n_layers : layers that are done
    x : float32 [n, n_embd], what the next one gets
    cache : keys and values of those layers, and of the next
    """

    ids: NDArray[np.int32]
    n_layers: int
    x: NDArray[np.float32]
    cache: KvCache

    def finish(self, model: Model, kept: NDArray[np.int32], cache: KvCache) -> None:
        """Take kept tokens through the other layers, into an empty cache.

        Parameters
        ----------
        kept : int32 [n_kept], 1 or more places, ascending

        Raises
        ------
        UsageError : they do not fit into the cache
        """
        way = LayerPass(model, self.ids[kept], positions=kept.astype(np.int64), cache=cache)
        _gather(self.cache, kept, self.n_layers, cache)
        way.layer, way.x = self.n_layers, np.ascontiguousarray(self.x[kept])
        while way.layer < model.params.n_layers - 1:
            way.run()
        way.peek((0, 0), ())  # of the last layer, nothing but keys and values is wanted
        cache.length = kept.size


def _gather(source: KvCache, kept: NDArray[np.int32], n_layers: int, target: KvCache) -> None:
    """Copy the slots of kept tokens, of the first layers, to the first slots."""
    slots = np.arange(kept.size)
    layers = slice(0, n_layers)
    # Two index arrays apart: their axis comes first, [n_kept, n_layers, n_head_kv, d_head].
    target.keys[layers, :, slots // PANEL, :, slots % PANEL] = source.keys[
        layers, :, kept // PANEL, :, kept % PANEL
    ]
    target.values[layers, :, : kept.size] = source.values[layers][:, :, kept]


class OnePassScorer(AttentionScorer):
    """Scores by attention, and holds what it has computed of the last prompt.

    A prompt that is read in several windows, or whose question stands before its document, is
    scored, and nothing is held.
    """

    _ids: NDArray[np.int32]
    _begun: Begun | None = None

    def take(self) -> Begun | None:
        """What was computed of the last prompt, once; None: nothing is held."""
        begun, self._begun = self._begun, None
        return begun

    def score(self, parts: PromptParts) -> Scores:
        """See ``AttentionScorer``."""
        self._begun = None
        self._ids = parts.ids
        return super().score(parts)

    def _looks(self, text: Window, rows: Span) -> Iterator[Look]:
        n_read, n_layers = text.ids.size, self.rule.n_layers
        if not np.array_equal(text.places, np.arange(n_read)):
            self._begun = None
            yield from super()._looks(text, rows)
            return
        # After the question stand the template's last tokens, which the target needs, too.
        wide = (text.tail[0], self._ids.size)
        held = replace(self.model.params, n_layers=n_layers + 1)
        cache = KvCache(held, self._ids.size)
        way = self._way(self._ids, wide, cache)
        for look in self._looks_on(way, rows):
            yield replace(look, keys={side: keys[:n_read] for side, keys in look.keys.items()})
        self._begun = Begun(self._ids, n_layers, way.x, cache)
