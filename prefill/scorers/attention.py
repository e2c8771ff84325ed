"""Score by attention: what queries of the question see in the first layers of a model.

Tokens of the document see a window and the first tokens of the text, or chosen blocks
(``blocksparse``); those of the question see all. At chosen heads, the weights softmax(q . k) of
the question's queries say how much each token matters. Only queries and keys of the last layer
that is looked at are computed; what stands after it never runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import UsageError
from ...engine.transformer.hparams import ModelParams
from ...engine.transformer.kv_cache import KvCache
from ...engine.transformer.layer_pass import LayerPass, Look
from ...engine.transformer.model import Model
from ..prompt.parts import PromptParts, Span
from .attention_kernels import PANEL, weigh
from .blocksparse import BlockPass, BlockRule
from .scores import Scores, document_mass
from .windows import Window, Windows, cut

_ROWS = 64  # queries that are weighed at a time

Reduce = Literal["max", "mean"]
Combine = Literal["mean", "max"]
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, order=True)
class Head:
    """A query head that is looked at.

    Attributes
    ----------
    layer, head : which, from 0 on
    rope : look after RoPE, as the model does; else before it, where distance does not count
    reduce : over the queries; "mean" of the weights, or "max"
    """

    layer: int
    head: int
    rope: bool = True
    reduce: Reduce = "max"

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}{'' if self.rope else ' NoPE'} {self.reduce}"


@dataclass(frozen=True)
class AttentionRule:
    """How attention becomes scores.

    Attributes
    ----------
    heads : one or more
    window : tokens that a token of the document sees, itself included; 0: all before it
    n_sink : first tokens that it sees besides
    blocks : see blocks in place of the window
    combine : over the heads: the mean, or the maximum
    normalise : give each head's weights the sum 1 over the document before
    n_last : queries are so many last tokens of the prompt; 0: all tokens of the question
    softmax : weigh by softmax(q . k); else the products themselves count
    by_query : take the maximum over all heads for each query, then the mean over the queries; what
        the heads say on both is not looked at
    pool : tokens whose scores are averaged around each; odd, 1 for none
    pools_first : average for each head and query, before the maximum

    Raises
    ------
    UsageError : a number out of range, or no head
    """

    heads: tuple[Head, ...]
    window: int = 256
    n_sink: int = 4
    blocks: BlockRule | None = None
    combine: Combine = "mean"
    normalise: bool = True
    n_last: int = 0
    softmax: bool = True
    by_query: bool = False
    pool: int = 1
    pools_first: bool = False

    def __post_init__(self) -> None:
        if not self.heads:
            raise UsageError("no head to look at", remedy="give one or more, such as 15.6")
        if min(self.window, self.n_sink, self.n_last) < 0:
            raise UsageError(
                f"a window of {self.window}, {self.n_sink} first and {self.n_last} last tokens",
                remedy="give 0 or more of each",
            )
        if self.pool < 1 or self.pool % 2 == 0:
            raise UsageError(
                f"scores cannot be averaged over {self.pool} tokens around each",
                remedy="give an odd number",
            )

    @property
    def n_layers(self) -> int:
        """Layers that run as a whole."""
        return max(head.layer for head in self.heads)


def check_heads(heads: Sequence[Head], params: ModelParams) -> None:
    """Check that a model has the heads.

    Raises
    ------
    UsageError : it has not
    """
    for head in heads:
        if not (0 <= head.layer < params.n_layers and 0 <= head.head < params.n_head):
            raise UsageError(
                f"the model has no head {head.head} in layer {head.layer}",
                remedy=f"give layers below {params.n_layers} and heads below {params.n_head}",
            )


class AttentionScorer:
    """The scorers "attention" and "blocksparse", and with other rules the published ones.

    Parameters
    ----------
    model : whose ids the prompts are of
    rule : how to score
    name : as the command line spells it
    windows : how long a text the model reads; default: as it was trained
    on_progress : told (layers done, layers of all texts)

    Raises
    ------
    UsageError : a head that the model has not
    """

    def __init__(
        self,
        model: Model,
        rule: AttentionRule,
        *,
        name: str = "",
        windows: Windows | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        check_heads(rule.heads, model.params)
        self.name = name or ("blocksparse" if rule.blocks else "attention")
        self.model = model
        self.rule = rule
        self.windows = windows or Windows.of_model(model.params.n_ctx_train)
        self._on_progress = on_progress

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt; without a question or a document all values are 0.

        Raises
        ------
        UsageError : there is no memory for the keys of a text
        """
        clock = _Clock()
        found = self.channels(parts, clock)
        if self.rule.normalise:
            found = np.stack([document_mass(channel, parts) for channel in found])
        total = found.max(axis=0) if self.rule.combine == "max" else found.mean(axis=0)
        values = np.where(parts.is_document, total, np.float32(0)).astype(np.float32)
        if not self.rule.softmax and parts.n_document:
            values[parts.is_document] -= values[parts.is_document].min()
        clock.tick("weigh")
        return Scores(
            scorer=self.name,
            values=values,
            query_rows=self.query_rows(parts),
            n_layers=self.rule.n_layers,
            seconds=clock.seconds,
        )

    def query_rows(self, parts: PromptParts) -> NDArray[np.int32]:
        """Tokens of the prompt whose queries count, int32 [n_queries]."""
        start, stop = self.tail(parts)
        start = max(start, stop - (self.rule.n_last or self.windows.size // 2))
        return np.arange(start, stop, dtype=np.int32)

    def tail(self, parts: PromptParts) -> Span:
        """Tokens of the prompt that stand after each part of the document."""
        if not self.rule.n_last:
            return parts.question
        behind = parts.document[-1][1] if parts.document else 0
        return max(0, min(behind, parts.n - self.rule.n_last)), parts.n

    def channels(self, parts: PromptParts, clock: _Clock | None = None) -> NDArray[np.float32]:
        """Scores of each head on its own, float32 [n_heads, n], over the queries, not normalised.

        With ``by_query`` the heads are one. What was not read, being mandatory, has 0.
        """
        clock = clock or _Clock()
        n_channels = 1 if self.rule.by_query else len(self.rule.heads)
        tail = self.tail(parts)
        if tail[0] >= tail[1] or not parts.document:
            return np.zeros((n_channels, parts.n), np.float32)
        found = np.full((n_channels, parts.n), -np.inf, np.float32)
        texts = cut(parts, tail, self.windows)
        for i, text in enumerate(texts):
            here = self._read(text, clock, i, len(texts))
            found[:, text.places] = np.maximum(found[:, text.places], here)
        return np.where(np.isneginf(found), np.float32(0), found)

    def _read(self, text: Window, clock: _Clock, i: int, n_texts: int) -> NDArray[np.float32]:
        """The channels of one text, float32 [n_channels, n]."""
        rule, n = self.rule, text.ids.size
        first, stop = text.tail
        if rule.n_last:
            first = max(first, stop - rule.n_last)
        found = np.zeros((len(rule.heads), n), np.float32)
        lines_by_query: NDArray[np.float32] | None = None
        n_steps = rule.n_layers + 1
        for look in self._looks(text, (first, stop)):
            clock.tick("layers")
            for name in sorted({(h.head, h.rope) for h in rule.heads if h.layer == look.layer}):
                lines = self._lines(look, *name, self._highs(text, (first, stop)))
                if rule.by_query:
                    best = _pooled(next(lines), rule.pool) if rule.pools_first else next(lines)
                    if lines_by_query is not None:
                        best = np.maximum(lines_by_query, best)
                    lines_by_query = best
                else:
                    self._reduce(lines, look.layer, name, found)
            clock.tick("weigh")
            if self._on_progress is not None:
                self._on_progress(i * n_steps + look.layer + 1, n_texts * n_steps)
        if lines_by_query is not None:
            found = lines_by_query.mean(axis=0, keepdims=True)
        return found if rule.pools_first else _pooled(found, rule.pool)

    def _reduce(
        self,
        lines: Iterator[NDArray[np.float32]],
        layer: int,
        name: tuple[int, bool],
        found: NDArray[np.float32],
    ) -> None:
        """Take the maximum and the mean over the queries, for each head of the rule that asks."""
        tops, totals, n_rows = [], [], 0
        for part in lines:
            tops.append(part.max(axis=0))
            totals.append(part.sum(axis=0, dtype=np.float64))
            n_rows += len(part)
        for place, head in enumerate(self.rule.heads):
            if (head.layer, head.head, head.rope) == (layer, *name):
                if head.reduce == "max":
                    found[place] = np.max(tops, axis=0)
                else:
                    found[place] = np.sum(totals, axis=0) / n_rows

    def _looks(self, text: Window, rows: Span) -> Iterator[Look]:
        """Queries and keys of each layer, in order; none where no head is looked at."""
        yield from self._looks_on(self._way(text.ids, text.tail), rows)

    def _way(self, ids: NDArray[np.int32], wide: Span, cache: KvCache | None = None) -> LayerPass:
        """A text at the entry of the first layer, as the rule has its tokens see."""
        rule = self.rule
        if rule.blocks is not None:
            return BlockPass(self.model, ids, rule.blocks, wide=wide, cache=cache)
        return LayerPass(
            self.model, ids, window=rule.window, n_sink=rule.n_sink, wide=wide, cache=cache
        )

    def _looks_on(self, way: LayerPass, rows: Span) -> Iterator[Look]:
        """``_looks`` on a way that is at the first layer; it ends at the last one looked at."""
        rule = self.rule
        for layer in range(rule.n_layers):
            yield way.run(rows, {head.rope for head in rule.heads if head.layer == layer})
        yield way.peek(rows, {head.rope for head in rule.heads if head.layer == rule.n_layers})

    def _highs(self, text: Window, rows: Span) -> NDArray[np.int64]:
        """The last key that each query sees, int64 [n_queries]."""
        return np.arange(*rows, dtype=np.int64)

    def _lines(
        self, look: Look, head: int, rope: bool, highs: NDArray[np.int64]
    ) -> Iterator[NDArray[np.float32]]:
        """Weights of a head's queries, float32 [n_queries, n], some queries at a time.

        With ``by_query`` all at once. A model that computes no numbers gives none, everywhere.
        """
        p = self.model.params
        queries, keys = look.queries[rope], look.keys[rope]
        n_rows, n = len(queries), len(keys)
        n_each = n_rows if self.rule.by_query else min(n_rows, _ROWS)
        lines = np.empty((n_each, -(-n // PANEL) * PANEL), np.float32)
        rows = np.empty((n_each, p.d_head), np.float32)
        panel = np.empty((p.d_head, PANEL), np.float32)
        kv_head = head // (p.n_head // p.n_head_kv)
        scale = np.float32(p.attn_scale)
        is_sound = np.isfinite(queries[:, head]).all() and np.isfinite(keys[:, kv_head]).all()
        for start in range(0, n_rows, n_each):
            part = queries[start : start + n_each]
            at = slice(len(part))
            weigh(
                part, keys, head, kv_head, highs[start : start + n_each], scale, self.rule.softmax,
                rows[at], panel, lines[at],
            )  # fmt: skip
            if not is_sound:
                lines[:] = np.nan
            yield lines[at, :n]


def _pooled(lines: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Each number of each line averaged with those around it, of which fewer are at the ends."""
    if width == 1:
        return lines
    n = lines.shape[1]
    sums = np.zeros((len(lines), n + 1))
    np.cumsum(lines, axis=1, out=sums[:, 1:])
    at = np.arange(n)
    first, stop = np.maximum(0, at - width // 2), np.minimum(n, at + width // 2 + 1)
    pooled: NDArray[np.float32] = ((sums[:, stop] - sums[:, first]) / (stop - first)).astype(
        np.float32
    )
    return pooled


class _Clock:
    """Sums wall time by stage."""

    def __init__(self) -> None:
        self.seconds = {"layers": 0.0, "weigh": 0.0}
        self._last = time.perf_counter()

    def tick(self, stage: str) -> None:
        """Put the time since the last tick to a stage."""
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now
