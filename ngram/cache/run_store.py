"""The counted runs of every n-gram size: merged in memory while they fit, in files beyond that."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from .ngram_cache import KeyLayout, Run, join_runs, table_of_run
from .run_files import (
    FileRun,
    check_space,
    memory_blocks,
    merge_blocks,
    table_of_blocks,
)
from .table import OrderTable

# File runs of one size that are merged at once, each with one block in memory and one open file.
MOST_FILES = 32
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 6, 1 << 16


class RunStore:
    """Adds up runs; whatever the order they come in and wherever they lie, the sum is the same.

    Parameters
    ----------
    layouts : order -> how its entries are packed.
    limit_bytes : runs in memory beyond this go to files; None: never. Merging takes as much
        again, making the tables three times as much.
    folder : of the temporary files.

    Attributes
    ----------
    spilled_bytes, n_runs : bytes and number of runs written to files so far.
    """

    def __init__(
        self, layouts: Mapping[int, KeyLayout], limit_bytes: int | None, folder: Path
    ) -> None:
        self._layouts = layouts
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._runs: dict[int, list[Run]] = {order: [] for order in layouts}
        self._files: dict[int, list[FileRun]] = {order: [] for order in layouts}
        self._lock = threading.Lock()
        self.spilled_bytes = 0
        self.n_runs = 0

    def add(self, order: int, run: Run) -> None:
        """Add a run; threads may call this at the same time.

        Raises
        ------
        DiskFull : the runs fit neither into memory nor on the disk
        """
        with self._lock:
            runs = self._runs[order]
            runs.append(run)
            # Like the digits of a binary number: each entry is merged about log2(runs) times.
            while len(runs) > 1 and runs[-2].counts.size < 2 * runs[-1].counts.size:
                _join_last(runs)
            if self._limit_bytes is not None:
                while sum(map(self._bytes_in_memory, self._runs)) > self._limit_bytes:
                    self._spill(max(self._runs, key=self._bytes_in_memory))

    def take_table(self, order: int) -> OrderTable:
        """The sum of all runs of one size, which are gone then.

        Raises
        ------
        DiskFull : there is no room for a table that does not fit into memory
        """
        layout = self._layouts[order]
        runs, files = self._runs[order], self._files[order]
        if files:
            n_most = sum(run.counts.size for run in runs) + sum(file.n_entries for file in files)
            check_space(self._folder, n_most * (4 * layout.width + 12), "the sorted n-grams")
            table = table_of_blocks(self._merged(order), layout, self._folder)
            self._close_files(order)
            runs.clear()
            return table
        while len(runs) > 1:
            _join_last(runs)
        if not runs:
            runs.append(Run(np.empty((layout.n_words, 0), np.uint64), np.empty(0, np.uint32)))
        return table_of_run(runs.pop(), layout)

    def close(self) -> None:
        """Give the space of all files back."""
        for order in self._files:
            self._close_files(order)

    def _close_files(self, order: int) -> None:
        for file in self._files[order]:
            file.close()
        self._files[order].clear()

    def _bytes_in_memory(self, order: int) -> int:
        return sum(run.keys.nbytes + run.counts.nbytes for run in self._runs[order])

    def _block_entries(self, order: int) -> int:
        """So many that a block of every file, and what is merged of them, stay in the limit."""
        block_bytes = (self._limit_bytes or 0) // (4 * MOST_FILES)
        n = block_bytes // (8 * self._layouts[order].n_words + 4)
        return min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, n))

    def _merged(self, order: int) -> Iterator[Run]:
        """The sum of all runs of one size, in memory and in files, as blocks."""
        n = self._block_entries(order)
        runs = [memory_blocks(run, n) for run in self._runs[order]]
        return merge_blocks(runs + [file.blocks() for file in self._files[order]])

    def _spill(self, order: int) -> None:
        """Write the runs of one size that are in memory to a file, as one.

        Once there are many files, they are merged into the new one too.
        """
        files = self._files[order]
        with_files = len(files) >= MOST_FILES
        n_bytes = self._bytes_in_memory(order) + with_files * sum(file.n_bytes for file in files)
        check_space(self._folder, n_bytes, "temporary files")
        n = self._block_entries(order)
        blocks = [memory_blocks(run, n) for run in self._runs[order]]
        if with_files:
            blocks += [file.blocks() for file in files]
        new = FileRun(self._folder, merge_blocks(blocks), self._layouts[order].n_words, n)
        if with_files:
            self._close_files(order)
        files.append(new)
        self._runs[order].clear()
        self.spilled_bytes += new.n_bytes
        self.n_runs += 1


def _join_last(runs: list[Run]) -> None:
    """Replace the last two runs by their sum."""
    b, a = runs.pop(), runs.pop()
    runs.append(join_runs(a, b))
