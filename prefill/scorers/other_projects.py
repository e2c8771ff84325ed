"""Four published ways to score a prompt, as settings of the attention scorer, to compare with.

What belongs to their selections (forced beginnings and ends, other chunks) is left out: all
scorers meet the same selection. All run dense attention here, whatever they run at home.

pflash : PFlash, May 2026. The last 8 tokens of the prompt, all layers and heads, before RoPE;
    maximum over heads, mean over queries, averaged over 13 tokens
lucebox : the same project, September 2026. Tokens of the question, all heads of a middle layer,
    before RoPE; means
gemfilter : GemFilter (Shi et al. 2024). The last token, products summed over the heads of a
    layer at two fifths of the depth, averaged over 5 tokens
specprefill : Speculative Prefill (Liu et al. 2025). Tokens that the model generates, all layers
    and heads; averaged over 13 tokens, maximum over heads, mean over queries
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import UsageError
from ...engine.transformer.kv_cache import KvCache
from ...engine.transformer.layer_pass import Look
from ...engine.transformer.model import Model, Taps
from ..prompt.parts import PromptParts, Span
from .attention import AttentionRule, AttentionScorer, Head, OnProgress, Reduce
from .windows import Window, Windows

PUBLISHED = ("pflash", "lucebox", "gemfilter", "specprefill")

_LOOK_AHEAD = 8


def published_scorer(
    name: str,
    model: Model,
    *,
    windows: Windows | None = None,
    on_progress: OnProgress | None = None,
) -> AttentionScorer:
    """One of ``PUBLISHED``.

    Parameters
    ----------
    windows, on_progress : as of ``AttentionScorer``

    Raises
    ------
    UsageError : no such scorer
    """
    settings: dict[str, Any] = {"name": name, "windows": windows, "on_progress": on_progress}
    n_layers = model.params.n_layers
    if name == "pflash":
        heads = _heads(model, range(n_layers), rope=False)
        rule = AttentionRule(heads, window=0, normalise=False, n_last=8, by_query=True, pool=13)
        return AttentionScorer(model, rule, **settings)
    if name == "lucebox":
        heads = _heads(model, [n_layers // 2], rope=False, reduce="mean")
        return AttentionScorer(model, AttentionRule(heads, window=0, normalise=False), **settings)
    if name == "gemfilter":
        heads = _heads(model, [n_layers * 13 // 32], rope=True)
        rule = AttentionRule(heads, window=0, normalise=False, n_last=1, softmax=False, pool=5)
        return AttentionScorer(model, rule, **settings)
    if name == "specprefill":
        return SpecPrefillScorer(model, **settings)
    raise UsageError(
        f"no published scorer is called {name!r}", remedy=f"give one of {', '.join(PUBLISHED)}"
    )


def _heads(
    model: Model, layers: range | list[int], *, rope: bool, reduce: Reduce = "max"
) -> tuple[Head, ...]:
    return tuple(
        Head(layer, head, rope, reduce) for layer in layers for head in range(model.params.n_head)
    )


class SpecPrefillScorer(AttentionScorer):
    """Asks with the queries of tokens that the model itself generates after the prompt.

    Parameters
    ----------
    model, name, windows, on_progress : as of ``AttentionScorer``
    n_ahead : tokens to generate, 1 or more; the likeliest each, whatever they are

    Raises
    ------
    UsageError : fewer than one
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ahead: int = _LOOK_AHEAD,
        name: str = "specprefill",
        windows: Windows | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        if n_ahead < 1:
            raise UsageError(f"cannot look {n_ahead} tokens ahead", remedy="give 1 or more")
        heads = _heads(model, range(model.params.n_layers), rope=True)
        rule = AttentionRule(
            heads, window=0, normalise=False, n_last=1, by_query=True, pool=13, pools_first=True
        )
        super().__init__(model, rule, name=name, windows=windows, on_progress=on_progress)
        self._n_ahead = n_ahead

    def query_rows(self, parts: PromptParts) -> NDArray[np.int32]:
        """None: the queries are of tokens that are not in the prompt."""
        return np.empty(0, np.int32)

    def _looks(self, text: Window, rows: Span) -> Iterator[Look]:
        layers = range(self.model.params.n_layers)
        cache = self.model.new_cache(text.ids.size + self._n_ahead)
        logits = self.model.forward(text.ids, cache).logits
        taken = []
        for _ in range(self._n_ahead):
            token = int(logits[-1].argmax())
            found = self.model.forward([token], cache, taps=Taps(query_layers=layers))
            logits = found.logits
            if found.taps is not None:
                taken.append(found.taps.queries[:, 1])
        queries = np.concatenate(taken, axis=1)
        for layer in layers:
            keys = _keys(cache, layer, text.ids.size)
            yield Look(layer, {True: np.ascontiguousarray(queries[layer])}, {True: keys})

    def _highs(self, text: Window, rows: Span) -> NDArray[np.int64]:
        return np.full(self._n_ahead, text.ids.size - 1, np.int64)


def _keys(cache: KvCache, layer: int, n: int) -> NDArray[np.float32]:
    """Keys after RoPE of the first n slots, float32 [n, n_head_kv, d_head]."""
    panels = cache.keys[layer].view(np.float16)
    n_heads, _, d_head, _ = panels.shape
    rows = panels.transpose(1, 3, 0, 2).reshape(-1, n_heads, d_head)[:n]
    return np.ascontiguousarray(rows, np.float32)
