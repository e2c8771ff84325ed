"""Mutants of n-gram caches, for fault_drill.py.

Bits, bytes, numbers, truncations, additions and swapped parts of a small native and a small
llama.cpp cache; some native ones twice, or with their checksums put right again, as a hostile hand
would. They go through open, replay and merge. A native file that was not put right must be refused
or hold what it held.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
from draftsmith.ngram.cache import file as cache_file
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache, merge_caches
from draftsmith.ngram.cache.packed_kernels import checksum
from draftsmith.ngram.lookup.replay import replay
from drill_bytes import mutate

N_VOCAB = 300
FINGERPRINT = bytes(range(1, 33))


class Caches:
    """The mutants and what is done with them; see ``fault_drill.Subject``."""

    # What opening costs whatever the file: NumPy objects, messages, the model's own tables.
    floor_bytes = 4 << 20

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole, self._tokens = small_cache()
        self._kind, self._path = "", folder

    def prepare(self) -> None:
        write_cache(self._folder / "native", self._whole)
        write_cache(self._folder / "llama", self._whole, format="llama.cpp")

    def warm_up(self, scratch: Path) -> None:
        self._path = scratch / "mutant"
        self._path.write_bytes((self._folder / "native").read_bytes())
        self._open_and_use()

    def write(self, seed: int, scratch: Path) -> tuple[str, int]:
        """Write a mutant; returns its kind and size."""
        name = "llama" if seed % 4 == 2 else "native"
        self._kind, data = mutant(seed, (self._folder / name).read_bytes())
        self._path.unlink()
        self._path.write_bytes(data)
        return self._kind, len(data)

    def use(self) -> str:
        cache = self._open_and_use()
        unchanged = self._kind in ("put right", "llama.cpp") or same(cache, self._whole)
        return "right" if unchanged else "wrong"

    def bytes_beside(self) -> int:
        """All that is allocated, tracemalloc sees."""
        return 0

    def _open_and_use(self) -> NgramCache:
        """Open, replay as static and as dynamic cache, merge."""
        cache = open_cache(self._path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)
        static = cache if 2 in cache.tables else None
        for static_cache, dynamic in ((static, None), (None, cache)):
            replay(
                self._tokens,
                n_ctx=256,
                draft_max=4,
                n_vocab=N_VOCAB,
                static=static_cache,
                dynamic=dynamic,
            )
        merge_caches([cache, self._whole])
        return cache


def small_cache() -> tuple[NgramCache, np.ndarray]:
    rng = np.random.default_rng(1)
    tokens = np.minimum(rng.geometric(0.05, 3000), N_VOCAB - 1).astype(np.int32)
    counter = NgramCounter(orders=(1, 2, 3, 4), n_vocab=N_VOCAB)
    counter.add(0, tokens)
    return counter.finish(FINGERPRINT), tokens


def mutant(seed: int, whole: bytes) -> tuple[str, bytes]:
    """(kind, bytes) of the mutant with that number."""
    rng = random.Random(seed)
    kind = ("native", "put right", "llama.cpp", "native twice")[seed % 4]
    data = mutate(whole, rng)
    if kind == "native twice":
        data = mutate(data, rng) if data else data
    return kind, put_right(data) if kind == "put right" else data


def put_right(data: bytes) -> bytes:
    """The same with true checksums, as far as the table of arrays can still be read."""
    fixed = bytearray(data)
    header, entry = cache_file._HEADER, cache_file._ENTRY
    if len(fixed) < header.size:
        return data
    n_arrays = min(int.from_bytes(fixed[16:20], "little"), 64)
    for i in range(n_arrays):
        at = header.size + i * entry.size
        if at + entry.size > len(fixed):
            return bytes(fixed)
        name, dtype, _, offset, n_items = entry.unpack(fixed[at : at + entry.size])
        try:
            n_bytes = n_items * np.dtype(dtype.rstrip(b"\0").decode()).itemsize
        except (TypeError, UnicodeDecodeError, ValueError):
            continue
        stop = offset + -(-n_bytes // 64) * 64
        if stop <= len(fixed) and offset % 8 == 0:
            words = np.frombuffer(bytes(fixed[offset:stop]), np.uint64)
            total = int(checksum(words.copy()))
            fixed[at : at + entry.size] = entry.pack(name, dtype, total, offset, n_items)
    table_stop = -(-(header.size + entry.size * n_arrays) // 64) * 64
    fixed[20:24] = struct.pack("<I", zlib.crc32(fixed[header.size : table_stop]))
    fixed[72:76] = struct.pack("<I", zlib.crc32(fixed[:72]))
    return bytes(fixed)


def same(a: NgramCache, b: NgramCache) -> bool:
    """Whether two caches hold the same."""
    return a.orders == b.orders and all(
        np.array_equal(getattr(a.tables[order], name), getattr(b.tables[order], name))
        for order in a.orders
        for name in ("tokens", "entry_start", "entry_token", "entry_count")
    )
