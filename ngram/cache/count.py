"""Count the n-grams of a corpus, document by document, as tokens stream in, in bounded memory.

Tokens are collected in batches. Of each batch and n-gram size the windows are packed, sorted and
counted to a run, by threads of its own while the next batch fills; a ``RunStore`` adds the runs
up. Additions commute, saturating ones too, so the result depends on the corpus alone: on no
thread, batch size, memory limit or way in which the tokens come.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ...engine.errors import InputEmpty, InputMalformed
from .count_kernels import count_runs, pack_windows
from .ngram_cache import KeyLayout, NgramCache, Run
from .run_store import RunStore

# Tokens sorted at once where memory allows: more do not make the sort faster.
_LARGEST_BATCH = 1 << 21
_SMALLEST_BATCH = 1 << 12
_BETWEEN_DOCUMENTS = np.full(1, -1, np.int32)


def _sorted_run(keys: np.ndarray) -> Run:
    """Sort packed windows (uint64 [n_words, n]) and count equal ones."""
    if keys.shape[0] == 1:
        keys[0].sort()
    else:
        keys = np.ascontiguousarray(keys[:, np.lexsort(keys[::-1])])
    counts = np.empty(keys.shape[1], np.uint32)
    n = count_runs(keys, counts)
    return Run(keys[:, :n].copy(), counts[:n].copy())  # copies, for the rest's memory is free then


def _job_bytes(layout: KeyLayout) -> int:
    """Most memory that counting a batch takes, by token: keys, a sort's copies, counts, the run."""
    n_words = layout.n_words
    sort_bytes = 0 if n_words == 1 else 8 * n_words + 16
    return 8 * n_words + sort_bytes + 4 + 8 * n_words + 4


class NgramCounter:
    """Counts followers of n-grams: for sizes ``orders``, every window inside one document.

    Source: llama.cpp's common_ngram_cache_update, with saturating counts. A context manager that
    removes its temporary files and ends its threads.

    Parameters
    ----------
    orders : n-gram sizes.
    n_vocab : ids are below it.
    n_threads : threads that count, beside the caller's; 1: none, the caller's alone.
    max_memory : bytes that counting may take; runs beyond go to temporary files. Tables that
        went through files are mapped from files. None: no limit, and no file.
    folder : of the temporary files; default: the system's.
    batch_tokens : tokens sorted at once; default: by ``max_memory``.

    Attributes
    ----------
    n_tokens, n_documents : counted so far.
    busy_ns : CPU time of all threads in counting so far.
    """

    def __init__(
        self,
        *,
        orders: Sequence[int],
        n_vocab: int,
        n_threads: int = 1,
        max_memory: int | None = None,
        folder: Path | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._layouts = {o: KeyLayout.for_order(o, n_vocab) for o in sorted(orders)}
        self._n_vocab = n_vocab
        self._n_before = max(orders)  # tokens of an earlier batch that begin windows of the next
        job_bytes = max(map(_job_bytes, self._layouts.values())) * n_threads + 4 * (n_threads + 3)
        if batch_tokens is None:
            batch_tokens = _LARGEST_BATCH
            if max_memory is not None:
                batch_tokens = min(batch_tokens, max_memory // 2 // job_bytes)
                batch_tokens = max(batch_tokens, _SMALLEST_BATCH)
        self._batch_tokens = batch_tokens
        self._new_batch(np.empty(0, np.int32))
        limit_bytes = None
        if max_memory is not None:
            # In the end a run and its table, four times the run at worst, are all there is.
            limit_bytes = max(0, min(max_memory // 4, (max_memory - batch_tokens * job_bytes) // 2))
        self._store = RunStore(self._layouts, limit_bytes, folder or Path(tempfile.gettempdir()))
        self._pool = ThreadPoolExecutor(n_threads, "count") if n_threads > 1 else None
        self._jobs: deque[Future[None]] = deque()
        self._most_jobs = n_threads + len(self._layouts)
        self._lock = threading.Lock()
        self._document = -1
        self.n_tokens = 0
        self.n_documents = 0
        self.busy_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._store.close()

    @property
    def spilled_bytes(self) -> int:
        """Bytes written to temporary files as runs; the tables that come of them are not in it."""
        return self._store.spilled_bytes

    @property
    def n_runs(self) -> int:
        """Runs written to temporary files."""
        return self._store.n_runs

    def add(self, document: int, tokens: np.ndarray) -> None:
        """Count the next tokens (int32 [n]) of a document; a new number begins a new document.

        Raises
        ------
        InputMalformed : a token is outside the vocabulary
        DiskFull : no room for the temporary files
        """
        if document != self._document:
            self._document = document
            self.n_documents += 1
            self._append(_BETWEEN_DOCUMENTS)
        if not tokens.size:
            return
        highest, lowest = int(tokens.max()), int(tokens.min())
        if highest >= self._n_vocab or lowest < 0:
            bad = highest if highest >= self._n_vocab else lowest
            raise InputMalformed(
                f"document {document + 1} holds token {bad}, but the vocabulary has "
                f"{self._n_vocab} tokens",
                remedy="name the model whose tokenizer made the ids",
            )
        self.n_tokens += tokens.size
        self._append(tokens)

    def finish(self, fingerprint: bytes) -> NgramCache:
        """The counts as a cache.

        Raises
        ------
        InputEmpty : there was no token at all
        DiskFull : no room for the temporary files
        """
        if not self.n_tokens:
            raise InputEmpty("the input holds no text", remedy="name files that hold text to count")
        self._count_batch()
        while self._jobs:
            self._jobs.popleft().result()
        tables = {order: self._store.take_table(order) for order in self._layouts}
        return NgramCache(tables, self._n_vocab, fingerprint)

    def _new_batch(self, before: np.ndarray) -> None:
        """Begin a batch after the last tokens of the one before."""
        self._batch = np.empty(before.size + self._batch_tokens, np.int32)
        self._batch[: before.size] = before
        self._n_old = self._n_filled = before.size

    def _append(self, tokens: np.ndarray) -> None:
        while tokens.size:
            part = tokens[: self._batch.size - self._n_filled]
            self._batch[self._n_filled : self._n_filled + part.size] = part
            self._n_filled += part.size
            tokens = tokens[part.size :]
            if self._n_filled == self._batch.size:
                self._count_batch()

    def _count_batch(self) -> None:
        """Have the batch counted, and begin the next."""
        batch = self._batch[: self._n_filled]
        for order in self._layouts:
            # Of the old tokens only what begins windows that end in the new ones.
            tokens = batch[max(0, self._n_old - order) :]
            if self._pool is None:
                self._count(order, tokens)
                continue
            while len(self._jobs) >= self._most_jobs or (self._jobs and self._jobs[0].done()):
                self._jobs.popleft().result()
            self._jobs.append(self._pool.submit(self._count, order, tokens))
        self._new_batch(batch[max(0, batch.size - self._n_before) :])

    def _count(self, order: int, tokens: np.ndarray) -> None:
        """Count the windows of one size and add them to the store."""
        start_ns = time.thread_time_ns()
        layout = self._layouts[order]
        keys = np.empty((layout.n_words, tokens.size), np.uint64)
        n = pack_windows(tokens, layout.width, layout.bits, keys)
        if n:
            self._store.add(order, _sorted_run(keys[:, :n]))
        with self._lock:
            self.busy_ns += time.thread_time_ns() - start_ns
