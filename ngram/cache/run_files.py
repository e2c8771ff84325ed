"""Sorted runs beyond memory: written to temporary files in blocks, merged as they are read back.

A temporary file has no name (where the platform can do that, it never had one), so that nothing
is left of it after an error, Ctrl-C or kill -9.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ...engine.errors import DiskFull
from .count_kernels import row_starts, unpack_rows
from .ngram_cache import KeyLayout, Run, join_runs
from .table import OrderTable

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_space(folder: Path, n_bytes: int, what: str) -> None:
    """Refuse what does not fit on the disk of ``folder``.

    Raises
    ------
    DiskFull : fewer than ``n_bytes`` are free
    """
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise DiskFull(
            f"{what} need about {n_bytes / 1e6:,.0f} MB on the disk of {folder}, and "
            f"{free / 1e6:,.0f} MB are free",
            remedy="free space there, or name an output on another disk",
        )


class TemporaryFile:
    """A file without a name, written at its end and read anywhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes]
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._refusal(error) from error
        self.n_bytes = 0

    def append(self, *arrays: np.ndarray) -> None:
        """Write arrays (C-contiguous) at the end.

        Raises
        ------
        DiskFull : they do not fit
        """
        try:
            self._file.seek(self.n_bytes)
            for array in arrays:
                rest = memoryview(array).cast("B") if array.size else memoryview(b"")
                while rest:
                    rest = rest[self._file.write(rest) :]
                self.n_bytes += array.nbytes
        except OSError as error:
            raise self._refusal(error) from error

    def read(self, offset: int, array: np.ndarray) -> None:
        """Fill an array with the bytes from ``offset`` on."""
        self._file.seek(offset)
        rest = memoryview(array).cast("B")
        while rest:
            n_read = self._file.readinto(rest)  # type: ignore[attr-defined]
            if not n_read:
                raise self._refusal(OSError(errno.EIO, os.strerror(errno.EIO)))
            rest = rest[n_read:]

    def map(self, dtype: type) -> np.ndarray:
        """All of the file as an array [n]; lives on when the file is closed."""
        if not self.n_bytes:
            return np.empty(0, dtype)
        return np.frombuffer(mmap.mmap(self._file.fileno(), self.n_bytes), dtype)

    def close(self) -> None:
        self._file.close()

    def _refusal(self, error: OSError) -> Exception:
        if error.errno not in _NO_SPACE:
            return error
        return DiskFull(
            f"a temporary file in {self._folder} can't be written ({os.strerror(error.errno)})",
            remedy="free space there, or name an output on another disk",
        )


class FileRun:
    """A run in a file of its own: blocks of keys (uint64 [n_words, n]) and counts (uint32 [n]).

    Raises
    ------
    DiskFull : it does not fit; nothing is left of it
    """

    def __init__(
        self, folder: Path, blocks: Iterable[Run], n_words: int, block_entries: int
    ) -> None:
        self._file = TemporaryFile(folder)
        self._n_words = n_words
        self._blocks: list[tuple[int, int]] = []  # offset, entries
        try:
            for merged in blocks:
                for block in memory_blocks(merged, block_entries):
                    self._blocks.append((self._file.n_bytes, block.counts.size))
                    self._file.append(block.keys, block.counts)
        except BaseException:
            self.close()
            raise

    @property
    def n_entries(self) -> int:
        return sum(n for _, n in self._blocks)

    @property
    def n_bytes(self) -> int:
        return self._file.n_bytes

    def blocks(self) -> Iterator[Run]:
        """The run again, block by block."""
        for offset, n in self._blocks:
            keys = np.empty((self._n_words, n), np.uint64)
            counts = np.empty(n, np.uint32)
            self._file.read(offset, keys)
            self._file.read(offset + keys.nbytes, counts)
            yield Run(keys, counts)

    def close(self) -> None:
        """Give the space back."""
        self._file.close()


def memory_blocks(run: Run, block_entries: int) -> Iterator[Run]:
    """A run in memory, block by block."""
    for start in range(0, run.counts.size, block_entries):
        stop = start + block_entries
        yield Run(np.ascontiguousarray(run.keys[:, start:stop]), run.counts[start:stop])


def merge_blocks(runs: Sequence[Iterator[Run]]) -> Iterator[Run]:
    """The sum of ascending runs, block by block; no more than one block of each is in memory."""
    heads = [(block, run) for run in runs if (block := next(run, None)) is not None]
    while heads:
        # Every run has shown all that it holds up to the least of the blocks' last keys.
        bound = min(tuple(block.keys[:, -1].tolist()) for block, _ in heads)
        parts: list[Run] = []
        rest: list[tuple[Run, Iterator[Run]]] = []
        for block, run in heads:
            n = _n_up_to(block.keys, bound)
            if n:
                parts.append(Run(np.ascontiguousarray(block.keys[:, :n]), block.counts[:n]))
            if n < block.counts.size:
                rest.append((Run(block.keys[:, n:], block.counts[n:]), run))
            elif (following := next(run, None)) is not None:
                rest.append((following, run))
        heads = rest
        while len(parts) > 1:
            pairs = [join_runs(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[len(parts) & ~1 :]
        yield parts[0]


def _n_up_to(keys: np.ndarray, bound: tuple[int, ...]) -> int:
    """How many of ascending keys (uint64 [n_words, n]) are no greater than ``bound``."""
    start, stop = 0, int(keys.shape[1])
    for word, value in zip(keys, bound, strict=True):
        same = word[start:stop]
        first, last = (int(np.searchsorted(same, np.uint64(value), s)) for s in ("left", "right"))
        start, stop = start + first, start + last
    return stop


def table_of_blocks(blocks: Iterator[Run], layout: KeyLayout, folder: Path) -> OrderTable:
    """Unpack an ascending run, block by block, into the arrays of a cache, mapped from files."""
    order = layout.width - 1
    columns = [TemporaryFile(folder) for _ in range(4)]
    try:
        n_entries = 0
        last = np.full(order, -1, np.int32)
        for block in blocks:
            n = block.counts.size
            start = np.empty(n + 1, np.int64)
            start = start[: row_starts(block.keys, layout.width, layout.bits, start) + 1]
            tokens = np.empty((start.size - 1) * order, np.int32)
            entry_token = np.empty(n, np.int32)
            unpack_rows(block.keys, layout.width, layout.bits, start, tokens, entry_token)
            goes_on = int(np.array_equal(tokens[:order], last))  # the last n-gram of the one before
            last = tokens[tokens.size - order :].copy()
            columns[0].append(tokens[goes_on * order :])
            columns[1].append(start[goes_on:-1] + n_entries)
            columns[2].append(entry_token)
            columns[3].append(block.counts)
            n_entries += n
        columns[1].append(np.array([n_entries], np.int64))
        kinds = (np.int32, np.int64, np.int32, np.uint32)
        return OrderTable(*(c.map(k) for c, k in zip(columns, kinds, strict=True)))
    finally:
        for column in columns:
            column.close()
