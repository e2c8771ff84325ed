"""Counting in bounded memory: the same cache whatever goes through files; no file stays."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import naive
import numpy as np
import pytest
from cache_dicts import COUNT_MAX, FINGERPRINT, assert_same, cache_of, random_documents
from draftsmith.engine.errors import DiskFull
from draftsmith.ngram.cache import run_files, run_store
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.ngram_cache import KeyLayout, NgramCache, Run
from draftsmith.ngram.cache.run_store import RunStore

ORDERS = (1, 2, 3, 4)
Usage = namedtuple("Usage", "total used free")


def count_in(
    folder: Path, documents: Sequence[Sequence[int]], *, piece: int = 10**9, **options: int
) -> tuple[NgramCache, NgramCounter]:
    """Count all sizes with temporary files in ``folder``, tokens coming ``piece`` at a time."""
    options = {"n_vocab": 256, **options}
    with NgramCounter(orders=ORDERS, folder=folder, **options) as counter:
        for number, ids in enumerate(documents):
            for start in range(0, max(1, len(ids)), piece):
                counter.add(number, np.array(ids[start : start + piece], np.int32))
        return counter.finish(FINGERPRINT), counter


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n_vocab", [256, 49152, 128256, 2**31 - 1])
@pytest.mark.parametrize("max_memory", [0, 1 << 12, 1 << 15, None])
def test_any_limit_gives_the_same_cache(
    max_memory: int | None, n_vocab: int, n_threads: int, tmp_path: Path
) -> None:
    """An entry lost or doubled where runs are cut into blocks, a count dropped in the merge, an
    n-gram that goes on in the next block and becomes two, threads that overwrite each other."""
    rng = random.Random(n_vocab + n_threads)
    alphabet = [0, 1, n_vocab // 3, n_vocab - 2, n_vocab - 1]
    documents = [*random_documents(rng, 8, alphabet, longest=150), alphabet]
    ref = cache_of(
        naive.count_ngrams(documents, ORDERS),
        orders=ORDERS,
        n_vocab=n_vocab,
        fingerprint=FINGERPRINT,
    )
    for batch, piece in ((29, 10**9), (200, 11), (10_000, 64)):
        options = {"n_vocab": n_vocab, "n_threads": n_threads, "batch_tokens": batch}
        if max_memory is not None:
            options["max_memory"] = max_memory
        comp, counter = count_in(tmp_path, documents, piece=piece, **options)
        assert_same(comp, ref)
        assert (counter.n_runs > 0) == (counter.spilled_bytes > 0)
        if max_memory == 0:
            assert counter.n_runs >= len(ORDERS)
        if max_memory is None:
            assert counter.n_runs == 0
    assert list(tmp_path.iterdir()) == []


def test_more_runs_than_files_are_merged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that vanish when a full set of files is merged into one, or files that stay open."""
    documents = [random.Random(1).choices(range(256), k=1500)]
    monkeypatch.setattr(run_store, "MOST_FILES", 5)
    open_before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    comp, counter = count_in(tmp_path, documents, max_memory=0, batch_tokens=40)
    assert counter.n_runs > 4 * 5 * len(ORDERS)
    ref, _ = count_in(tmp_path, documents)
    assert_same(comp, ref)
    if open_before:  # the maps of four columns each hold one
        assert len(os.listdir("/proc/self/fd")) <= open_before + 4 * len(ORDERS)


@pytest.mark.parametrize("block", [1, 2, 3, 64])
@pytest.mark.parametrize("seed", range(6))
def test_merged_blocks_are_the_sorted_sum(block: int, seed: int) -> None:
    """Keys of several words compared by one of them, equal keys that fall into two blocks."""
    rng = random.Random(seed)
    n_words = rng.choice((1, 2, 3))
    big = 2**64 - 1
    expected: dict[tuple[int, ...], int] = {}
    runs = []
    for _ in range(rng.randrange(1, 9)):
        keys = sorted({tuple(rng.choice((0, 1, big)) for _ in range(n_words)) for _ in range(20)})
        keys = keys[: rng.randrange(len(keys) + 1)]
        counts = [rng.randrange(1, 5) for _ in keys]
        for key, n in zip(keys, counts, strict=True):
            expected[key] = expected.get(key, 0) + n
        words = np.array(keys, np.uint64).reshape(-1, n_words).T.copy()
        runs.append(Run(words, np.array(counts, np.uint32)))
    blocks = list(run_files.merge_blocks([run_files.memory_blocks(run, block) for run in runs]))
    comp = [tuple(column) for b in blocks for column in b.keys.T.tolist()]
    assert comp == sorted(expected)
    assert [n for b in blocks for n in b.counts.tolist()] == [expected[key] for key in comp]
    assert all(b.counts.size for b in blocks)


@pytest.mark.parametrize("limit", [0, None])
def test_counts_saturate_across_files(limit: int | None, tmp_path: Path) -> None:
    """A count that wraps to 0 or below when the runs of a huge corpus are added up."""
    layout = KeyLayout.for_order(1, 4)
    store = RunStore({1: layout}, limit, tmp_path)
    for n in (COUNT_MAX - 1, 1, 1, COUNT_MAX):
        keys = np.array([[1 << 60, 1 << 61]], np.uint64)
        store.add(1, Run(keys, np.array([n, 1], np.uint32)))
    table = store.take_table(1)
    store.close()
    assert table.entry_count.tolist() == [COUNT_MAX, 4]


def test_full_disk_is_found_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk filled to the brim before anybody looks."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 100, 100))
    documents = [random.Random(1).choices(range(256), k=3000)]
    with pytest.raises(DiskFull, match=r"need about .* MB on the disk of .* are free"):
        count_in(tmp_path, documents, max_memory=0, batch_tokens=500, n_threads=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [0, 3, 40])
def test_full_disk_while_a_run_is_written(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that others fill meanwhile: an OSError without a remedy, or files left open."""
    n_writes = 0
    append = run_files.TemporaryFile.append

    def failing(file: run_files.TemporaryFile, *arrays: np.ndarray) -> None:
        nonlocal n_writes
        n_writes += 1
        if n_writes > at:
            file.close()
            file._file = Full()  # type: ignore[assignment]
        append(file, *arrays)

    class Full:
        def seek(self, _: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self) -> None:
            pass

    monkeypatch.setattr(run_files.TemporaryFile, "append", failing)
    documents = [random.Random(1).choices(range(256), k=3000)]
    with pytest.raises(DiskFull, match="No space left on device"):
        count_in(tmp_path, documents, max_memory=0, batch_tokens=500, n_threads=2)
    assert list(tmp_path.iterdir()) == []


def test_files_have_no_name(tmp_path: Path) -> None:
    """A kill -9 while counting, which leaves gigabytes after."""
    with NgramCounter(
        orders=ORDERS, n_vocab=256, max_memory=0, folder=tmp_path, batch_tokens=100
    ) as counter:
        counter.add(0, np.array(random.Random(1).choices(range(256), k=3000), np.int32))
        assert counter.spilled_bytes > 0
        assert list(tmp_path.iterdir()) == []


def test_many_documents_in_one_piece_of_memory(tmp_path: Path) -> None:
    """Memory or calls for each document: a folder of a million tiny files."""
    with NgramCounter(orders=(2,), n_vocab=256, batch_tokens=1000) as counter:
        for number in range(20_000):
            counter.add(number, np.array([1, 2, 3], np.int32))
        table = counter.finish(FINGERPRINT).tables[2]
    assert (table.tokens.tolist(), table.entry_count.tolist()) == ([1, 2], [20_000])
