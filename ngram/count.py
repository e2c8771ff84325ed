"""Count the n-grams of a corpus, document by document, as tokens stream in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.errors import InputEmpty, InputMalformed
from .cache import KeyLayout, NgramCache, Run, join_runs, table_of_run
from .count_kernels import count_runs, pack_windows

# Windows sorted at once: 32 MB of keys, about what the sort's speed no longer gains from.
_BATCH = 1 << 22


def _sorted_run(keys: np.ndarray) -> Run:
    """Sort packed windows (uint64 [n_words, n]) and count equal ones."""
    if keys.shape[0] == 1:
        keys[0].sort()
    else:
        keys = np.ascontiguousarray(keys[:, np.lexsort(keys[::-1])])
    counts = np.empty(keys.shape[1], np.uint32)
    n = count_runs(keys, counts)
    return Run(np.ascontiguousarray(keys[:, :n]), counts[:n].copy())


class _OrderCounter:
    """Counts of one n-gram size: a batch of windows that fills, and sorted runs of the earlier."""

    def __init__(self, order: int, n_vocab: int) -> None:
        self.layout = KeyLayout.for_order(order, n_vocab)
        self._windows: list[np.ndarray] = []
        self._n_windows = 0
        self._runs: list[Run] = []

    def add(self, tokens: np.ndarray) -> None:
        n = tokens.size - self.layout.width + 1
        if n < 1:
            return
        keys = np.empty((self.layout.n_words, n), np.uint64)
        pack_windows(tokens, self.layout.width, self.layout.bits, keys)
        self._windows.append(keys)
        self._n_windows += n
        if self._n_windows >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._windows:
            self._runs.append(_sorted_run(np.concatenate(self._windows, axis=1)))
            self._windows, self._n_windows = [], 0
        # Like the digits of a binary number: each entry is merged about log2(batches) times.
        while len(self._runs) > 1 and self._runs[-2].counts.size < 2 * self._runs[-1].counts.size:
            b, a = self._runs.pop(), self._runs.pop()
            self._runs.append(join_runs(a, b))

    def finish(self) -> Run:
        self._flush()
        while len(self._runs) > 1:
            b, a = self._runs.pop(), self._runs.pop()
            self._runs.append(join_runs(a, b))
        if self._runs:
            return self._runs[0]
        return Run(np.empty((self.layout.n_words, 0), np.uint64), np.empty(0, np.uint32))


class NgramCounter:
    """Counts followers of n-grams: for sizes ``orders``, every window inside one document.

    Source: llama.cpp's common_ngram_cache_update, with saturating counts.
    """

    def __init__(self, *, orders: Sequence[int], n_vocab: int) -> None:
        self._counters = {order: _OrderCounter(order, n_vocab) for order in sorted(orders)}
        self._n_vocab = n_vocab
        self._width = max(orders) + 1
        self._document = -1
        self._tail = np.empty(0, np.int32)
        self.n_tokens = 0
        self.n_documents = 0

    def add(self, document: int, tokens: np.ndarray) -> None:
        """Count the next tokens (int32 [n]) of a document; a new number begins a new document.

        Raises
        ------
        InputMalformed : a token is outside the vocabulary
        """
        if document != self._document:
            self._document = document
            self._tail = np.empty(0, np.int32)
            self.n_documents += 1
        if not tokens.size:
            return
        if int(tokens.max()) >= self._n_vocab or int(tokens.min()) < 0:
            bad = int(tokens.max()) if int(tokens.max()) >= self._n_vocab else int(tokens.min())
            raise InputMalformed(
                f"document {document + 1} holds token {bad}, but the vocabulary has "
                f"{self._n_vocab} tokens",
                remedy="name the model whose tokenizer made the ids",
            )
        self.n_tokens += tokens.size
        joined = np.concatenate((self._tail, tokens))
        for counter in self._counters.values():
            # Of the tail only what completes windows that end in the new tokens.
            n_before = min(self._tail.size, counter.layout.width - 1)
            counter.add(joined[self._tail.size - n_before :])
        self._tail = joined[max(0, joined.size - self._width + 1) :].copy()

    def finish(self, fingerprint: bytes) -> NgramCache:
        """The counts as a cache.

        Raises
        ------
        InputEmpty : there was no token at all
        """
        if not self.n_tokens:
            raise InputEmpty("the input holds no text", remedy="name files that hold text to count")
        tables = {o: table_of_run(c.finish(), c.layout) for o, c in self._counters.items()}
        return NgramCache(tables, self._n_vocab, fingerprint)
