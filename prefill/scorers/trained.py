"""Score by a trained projection of what a model's first layers make of tokens.

Of each token of the question, the nearest token in and around a block of the document counts, by
the cosine of the two; a block's score is the sum, by the importance of the question's tokens, and
a softmax over all blocks shares out a mass of 1. So it is a lexical overlap in which words that
mean the same are near each other (late interaction, as in ColBERT, Khattab and Zaharia 2020).

The document is read without the question, and the question without the document: so either may
go through layers of its own, and parts of a document that is longer than what the model reads at
a time are compared as if it were one.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import UsageError
from ...engine.transformer.layer_pass import LayerPass
from ...engine.transformer.model import Model
from ..prompt.parts import PromptParts
from .attention import OnProgress
from .projection import Projection, normed
from .scores import Scores
from .windows import Window, Windows, cut

# Of a longer question, so many last tokens count; and as many of the prompt's first ones stand
# before it, as they would before a document.
_QUESTION, HEAD = 512, 64


class TrainedScorer:
    """The scorer "trained"; see the module.

    Parameters
    ----------
    model : whose ids the prompts are of
    projection : made for such a model; its vocabulary is not looked at again
    windows : how long a text the model reads; default: as it was trained
    on_progress : told (layers done, layers of all texts)

    Raises
    ------
    UsageError : the projection is for a model of another size
    """

    name = "trained"

    def __init__(
        self,
        model: Model,
        projection: Projection,
        *,
        windows: Windows | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        p = model.params
        if (p.n_layers, p.n_embd) != (projection.n_layers, projection.n_embd):
            raise UsageError(
                f"{projection.path} is for a model of {projection.n_layers} layers and "
                f"{projection.n_embd} columns, and not of {p.n_layers} and {p.n_embd}",
                remedy="name a file that was trained for this model",
            )
        self.model = model
        self.projection = projection
        self.windows = windows or Windows.of_model(p.n_ctx_train)
        self._on_progress = on_progress

    def score(self, parts: PromptParts) -> Scores:
        """Score a prompt; without a question or a document all values are 0.

        Raises
        ------
        UsageError : there is no memory for the keys of a text
        """
        seconds = {"question": 0.0, "layers": 0.0, "compare": 0.0}
        first, stop = parts.question
        rows = np.arange(max(first, stop - _QUESTION), stop, dtype=np.int32)
        values = np.zeros(parts.n, np.float32)
        if rows.size and parts.n_document:
            start = time.perf_counter()
            with np.errstate(all="ignore"):  # what is not finite is refused by the selection
                queries, weights = self._asked(parts, rows)
                seconds["question"] = time.perf_counter() - start
                values[parts.is_document] = self._values(parts, queries, weights, seconds)
        return Scores(
            scorer=self.name,
            values=values,
            query_rows=rows,
            n_layers=self.projection.document_layers[-1],
            seconds=seconds,
        )

    def _asked(
        self, parts: PromptParts, rows: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Queries, float32 [n_queries, rank], and what each counts, float32 [n_queries]."""
        p = self.projection
        head = parts.ids[: min(HEAD, parts.document[0][0], rows[0])]
        ids = np.concatenate((head, parts.ids[rows]))
        states = states_of(self.model, ids, p.question_layers)[head.size :]
        return p.queries(states), p.weights(states)

    def _values(
        self,
        parts: PromptParts,
        queries: NDArray[np.float32],
        weights: NDArray[np.float32],
        seconds: dict[str, float],
    ) -> NDArray[np.float32]:
        """Values of the document's tokens, float32 [n_document]."""
        p = self.projection
        blocks = block_of_tokens(parts, p.block)
        nearest = np.full((len(queries), blocks.max() + 1), -np.inf, np.float32)
        texts = cut(parts, parts.question, self.windows)
        for i, text in enumerate(texts):
            last = time.perf_counter()
            keys, at = self._keys(text, blocks, i, len(texts))
            now = time.perf_counter()
            seconds["layers"] += now - last
            starts = np.flatnonzero(np.diff(at, prepend=-1))
            found = np.maximum.reduceat(queries @ keys.T, starts, axis=1)
            nearest[:, at[starts]] = np.maximum(nearest[:, at[starts]], found)
            seconds["compare"] += time.perf_counter() - now
        last = time.perf_counter()
        scores = p.scale * (weights @ reached(nearest, parts, p.block, p.reach)).astype(np.float64)
        masses = np.exp(scores - scores.max())
        masses /= masses.sum() * p.block
        seconds["compare"] += time.perf_counter() - last
        values: NDArray[np.float32] = masses[blocks[parts.is_document]].astype(np.float32)
        return values

    def _keys(
        self, text: Window, blocks: NDArray[np.int64], i: int, n_texts: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Keys of the document's tokens in a text, float32 [n, rank], and their blocks, int64."""
        p, places = self.projection, text.places[: text.tail[0]]
        at = blocks[places]
        is_document = at >= 0
        states = states_of(
            self.model,
            text.ids[: places.size],
            p.document_layers,
            window=p.window,
            n_sink=p.n_sink,
            on_layer=self._on_layer(i, n_texts),
        )
        return p.keys(states[is_document]), at[is_document]

    def _on_layer(self, i: int, n_texts: int) -> OnProgress:
        def tell(done: int, of: int) -> None:
            if self._on_progress is not None:
                self._on_progress(i * of + done, n_texts * of)

        return tell


def states_of(
    model: Model,
    ids: NDArray[np.int32],
    layers: tuple[int, ...],
    *,
    window: int = 0,
    n_sink: int = 0,
    on_layer: OnProgress = lambda done, of: None,
) -> NDArray[np.float32]:
    """What goes into some layers for each token of a text, as ``normed``, side by side.

    Parameters
    ----------
    ids : int32 [n], 1 or more
    layers : ascending
    window, n_sink : see ``LayerPass``
    on_layer : told (layers done, layers)

    Returns
    -------
    float32 [n, n_layers * n_embd]

    Raises
    ------
    UsageError : there is no memory for the keys of the text
    """
    last = layers[-1]
    if last == 0:
        on_layer(1, 1)
        return normed(model.embed(model.ids_of(ids)))
    way = LayerPass(model, ids, window=window, n_sink=n_sink)
    found = []
    for layer in range(last + 1):
        if layer in layers:
            found.append(normed(way.x))
        if layer < last:
            way.run()
        on_layer(layer + 1, last + 1)
    return np.concatenate(found, axis=1)


def block_of_tokens(parts: PromptParts, size: int) -> NDArray[np.int64]:
    """The block that each token is in, int64 [n], -1 outside the document.

    Each part of it begins a block; they are numbered through.
    """
    blocks = np.full(parts.n, -1, np.int64)
    spans = parts.chunks(size)
    blocks[parts.is_document] = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
    return blocks


def reached(
    nearest: NDArray[np.float32], parts: PromptParts, size: int, reach: int
) -> NDArray[np.float32]:
    """The maximum over each block and those around it in the same part, as ``nearest``.

    Parameters
    ----------
    nearest : float32 [n_queries, n_blocks]
    size : tokens of a block
    reach : blocks on either side
    """
    found = nearest.copy()
    first = 0
    for start, stop in parts.document:
        end = first + -(-(stop - start) // size)
        here, out = nearest[:, first:end], found[:, first:end]
        for by in range(1, min(reach, end - first - 1) + 1):
            np.maximum(out[:, by:], here[:, :-by], out=out[:, by:])
            np.maximum(out[:, :-by], here[:, by:], out=out[:, :-by])
        first = end
    return found
