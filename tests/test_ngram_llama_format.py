"""llama.cpp's cache file: recorded ones, and every way in which one can be wrong.

Where the oracle's reader, which does as llama.cpp does, accepts and ours refuses is listed here:
up to 15 bytes after the last record, ids below 0, and -1 in front of an id.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path

import naive
import numpy as np
import pytest
from cache_dicts import COUNT_MAX, GOLDEN, assert_same, cache_of, dict_of, golden_bin
from draftsmith.engine.errors import (
    CacheBadCount,
    CacheBadToken,
    CacheNotACache,
    CacheTruncated,
    DraftsmithError,
)
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.llama_format import llama_parts, read_llama
from draftsmith.ngram.cache.ngram_cache import NgramCache
from draftsmith.ngram.cache.packed import VOCAB_MAX

RECORDED = json.loads((GOLDEN / "lookup_golden.json").read_text())
SMALL: naive.Cache = {
    (3, 4): {8: 1, 6: 2},
    (3,): {9: 1},
    (0, 0, 0, 0): {0: COUNT_MAX},
    (5, 6, 7): {2**31 - 1: 1, 0: 7, 4: 4},
    (2**31 - 1, 0): {1: 1},
    (1,): {3: 1, 2: 1},
    (1, 2, 3, 4): {5: 6},
}


def record(ngram: tuple[int, ...], *entries: tuple[int, int], n: int | None = None) -> bytes:
    """One record; ``n`` overrides the number of entries that it states."""
    slots = ngram + (-1,) * (4 - len(ngram))
    numbers = [number for entry in entries for number in entry]
    return struct.pack(f"<{5 + len(numbers)}i", *slots, len(entries) if n is None else n, *numbers)


def read(data: bytes) -> NgramCache:
    # a bytearray, as the memory map that the product reads from, is not read-only
    return read_llama(np.frombuffer(bytearray(data), np.uint8), "some file")


def written(cache: NgramCache) -> bytes:
    return b"".join(words.tobytes() for words in llama_parts(cache))


SMALL_FILE = naive.llama_cache_bytes(SMALL)
BORDERS = {0}
for _ngram, _part in SMALL.items():
    BORDERS.add(max(BORDERS) + 20 + 8 * len(_part))


def test_small_file() -> None:
    """Sizes mixed up, the file's order kept instead of the canonical one, id 0 taken as unused."""
    cache = read(SMALL_FILE)
    assert_same(cache, cache_of(SMALL))
    assert (cache.format, cache.n_vocab, cache.fingerprint) == ("llama.cpp", 0, b"")
    data = written(cache)
    assert len(data) == len(SMALL_FILE) == 20 * cache.n_ngrams + 8 * cache.n_entries
    assert naive.parse_llama_cache(data) == SMALL
    assert_same(read(data), cache)
    assert written(read(data)) == data


@pytest.mark.parametrize("seed", range(20))
def test_order_of_the_file_does_not_matter(seed: int) -> None:
    """Equal caches that differ, as their files came out of two hash maps in different order."""
    rng = random.Random(seed)
    counts: naive.Cache = {}
    for _ in range(rng.randrange(60)):
        ngram = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 5)))
        part = {rng.randrange(6): rng.choice((1, 2, COUNT_MAX)) for _ in range(5)}
        counts[ngram] = part
    shuffled = list(counts.items())
    rng.shuffle(shuffled)
    assert_same(read(naive.llama_cache_bytes(dict(shuffled))), cache_of(counts))


@pytest.mark.parametrize("name", ["kjv_train", "sqlite_train", "kjv_train_dyn", "sqlite_train_dyn"])
def test_recorded_files_lose_nothing(name: str, tmp_path: Path) -> None:
    """An entry lost or changed on the way in or out, over all that llama.cpp really writes."""
    data = golden_bin(name)
    counts = naive.parse_llama_cache(data)
    (tmp_path / "in").write_bytes(data)
    cache = open_cache(tmp_path / "in", n_vocab=49152)
    assert cache.format == "llama.cpp"
    assert dict_of(cache) == counts
    assert write_cache(tmp_path / "out", cache, format="llama.cpp") == len(data)
    back = (tmp_path / "out").read_bytes()
    assert len(back) == len(data)
    assert naive.parse_llama_cache(back) == counts
    assert_same(open_cache(tmp_path / "out", n_vocab=49152), cache)
    recorded = RECORDED["dynamic" if name.endswith("_dyn") else "static"][name.removesuffix("_dyn")]
    assert (cache.n_ngrams, cache.n_entries) == (recorded["n_ngrams"], recorded["n_entries"])
    if "sha256_sorted_records" in recorded:  # ours are sorted already, where there is one size only
        assert hashlib.sha256(back).hexdigest() == recorded["sha256_sorted_records"]


def test_native_and_back(tmp_path: Path) -> None:
    """A cache that changes when it goes through the native format."""
    small = {n: {t: c for t, c in p.items() if t < VOCAB_MAX} for n, p in SMALL.items()}
    small = {ngram: part for ngram, part in small.items() if max(ngram) < VOCAB_MAX}
    cache = read(naive.llama_cache_bytes(small))
    write_cache(tmp_path / "native", cache, format="native")
    opened = open_cache(tmp_path / "native")
    assert opened.format == "native"
    assert_same(opened, cache)
    assert written(opened) == written(cache)


def test_cut_at_every_byte() -> None:
    """A cut file read as if it were whole. Only a cut between two records can't be seen."""
    records = list(SMALL.items())
    for size in range(len(SMALL_FILE) + 1):
        if size in BORDERS:
            n = sorted(BORDERS).index(size)
            assert dict_of(read(SMALL_FILE[:size])) == dict(records[:n])
        else:
            with pytest.raises(CacheTruncated, match=r"^some file: .*ends inside the record"):
                read(SMALL_FILE[:size])


@pytest.mark.parametrize("size", range(1, 20))
@pytest.mark.parametrize("filler", [0x00, 0x01, 0xFF])
def test_bytes_after_the_last_record(size: int, filler: int) -> None:
    """A rest that llama.cpp ignores (up to 15 bytes): the file is cut, or is something else."""
    with pytest.raises((CacheTruncated, CacheNotACache)):
        read(SMALL_FILE + bytes([filler]) * size)


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_count_of_zero_or_below(count: int, at: int) -> None:
    """A count that later turns a percentage around, or that reads as 4 billion without its sign."""
    entries = [(5, 1), (6, 2), (7, 3)]
    entries[at] = (entries[at][0], count)
    with pytest.raises(CacheBadCount, match="count of 0 or below"):
        read(record((1, 2), (3, 1)) + record((1, 3), *entries))


@pytest.mark.parametrize("n", [0, -1, -(2**31)])
def test_record_without_entries(n: int) -> None:
    """An n-gram without followers, or a walk that goes backwards and never ends."""
    with pytest.raises(CacheBadCount, match="0 or fewer entries"):
        read(record((1, 2), (3, 1)) + record((1, 3), n=n))
    with pytest.raises(CacheBadCount, match="0 or fewer entries"):
        read(record((1, 3), n=n) + record((1, 2), (3, 1)))


@pytest.mark.parametrize("n", [2, 3, 2**28, 2**29, 2**30, 2**31 - 1])
def test_record_with_too_many_entries(n: int) -> None:
    """A number believed: memory taken for it, or a position that wraps."""
    with pytest.raises(CacheTruncated):
        read(record((1, 3), (3, 1), n=n))


@pytest.mark.parametrize(
    "slots",
    [
        (-1, -1, -1, -1),
        (-1, 5, -1, -1),
        (5, -1, 6, -1),
        (5, -1, -1, 6),
        (5, 6, -1, 7),
        (-1, 5, 6, 7),
        (-2, -1, -1, -1),
        (5, -2, -1, -1),
        (5, 6, 7, -2),
        (5, 6, 7, -(2**31)),
        (5, -1, -1, -2),
    ],
)
def test_malformed_ngram(slots: tuple[int, int, int, int]) -> None:
    """An n-gram with a hole, or with an id below 0, that a lookup would never or wrongly find."""
    for data in (record(slots, (3, 1)), record((9,), (3, 1)) + record(slots, (3, 1))):
        with pytest.raises(CacheNotACache, match="there is no n-gram"):
            read(data)


@pytest.mark.parametrize("token", [-1, -2, -(2**31)])
def test_negative_follower(token: int) -> None:
    """A drafted id below 0."""
    with pytest.raises((CacheNotACache, CacheBadToken)):
        read(record((1, 2), (3, 1), (token, 1)))


def test_first_of_equal_tokens_wins() -> None:
    """Summing, or keeping the last: llama.cpp keeps the first."""
    data = record((1, 2), (5, 1), (6, 2), (5, 9), (4, 4), (6, 1))
    assert dict_of(read(data)) == {(1, 2): {5: 1, 6: 2, 4: 4}}
    assert naive.parse_llama_cache(data) == dict_of(read(data))


def test_first_of_equal_ngrams_wins() -> None:
    """Records joined, or the last kept; entries counted for rows that were dropped."""
    data = b"".join(
        [
            record((7, 7), (1, 1)),
            record((1, 2), (5, 1), (6, 2)),
            record((1, 2), (5, 7), (9, 9)),
            record((1,), (5, 3)),
            record((7, 7), (1, 5), (2, 5), (3, 5)),
            record((1,), (6, 4)),
            record((0, 9), (4, 4)),
        ]
    )
    ref = {(7, 7): {1: 1}, (1, 2): {5: 1, 6: 2}, (1,): {5: 3}, (0, 9): {4: 4}}
    assert_same(read(data), cache_of(ref))
    assert naive.parse_llama_cache(data) == ref


@pytest.mark.parametrize("seed", range(10))
def test_duplicates_at_random(seed: int) -> None:
    """The same, with duplicates everywhere."""
    rng = random.Random(seed)
    data = b"".join(
        record(
            tuple(rng.randrange(2) for _ in range(rng.randrange(1, 4))),
            *((rng.randrange(4), rng.randrange(1, 9)) for _ in range(rng.randrange(1, 6))),
        )
        for _ in range(60)
    )
    assert_same(read(data), cache_of(naive.parse_llama_cache(data)))


def test_token_outside_the_vocabulary(tmp_path: Path) -> None:
    """llama.cpp checks no id; one outside the model's vocabulary would be drafted."""
    path = tmp_path / "cache"
    for counts in ({(1, 256): {2: 1}}, {(1, 2): {256: 1}}):
        path.write_bytes(naive.llama_cache_bytes(counts))
        assert open_cache(path, n_vocab=257).n_vocab == 257
        assert dict_of(open_cache(path)) == counts
        with pytest.raises(CacheBadToken, match=r"\b256\b.*outside the vocabulary"):
            open_cache(path, n_vocab=256)


def test_fuzz_random_bytes() -> None:
    """A crash, a hang or another kind of exception on bytes that are no cache."""
    rng = random.Random(0)
    for size in [*range(60), *(rng.randrange(400) for _ in range(300))]:
        data = rng.choice(
            [
                rng.randbytes(size),
                bytes(rng.choice((0, 0, 0, 1, 255)) for _ in range(size)),
                b"".join(struct.pack("<i", rng.randrange(-1, 4)) for _ in range(size // 4)),
            ]
        )
        _agrees_with_the_oracle(data)


def test_fuzz_damaged_files() -> None:
    """Damage that one of the checks lets through although llama.cpp would assert on it."""
    rng = random.Random(1)
    n_accepted = 0
    for _ in range(3000):
        data = bytearray(SMALL_FILE)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            action = rng.randrange(3)
            if action == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif action == 1:
                value = rng.choice((-2, -1, 0, 1, 2, COUNT_MAX))
                data[at // 4 * 4 : at // 4 * 4 + 4] = struct.pack("<i", value)
            else:
                del data[at : at + rng.choice((1, 4, 8, 20))]
        n_accepted += _agrees_with_the_oracle(bytes(data))
    assert 300 < n_accepted < 2900, "the fuzz no longer damages, or no longer leaves files whole"


def _agrees_with_the_oracle(data: bytes) -> bool:
    """Whether we read it: then llama.cpp does, and finds the same."""
    try:
        cache = read(data)
    except DraftsmithError:
        return False
    assert_same(cache, cache_of(naive.parse_llama_cache(data)))
    return True


def test_empty_tables_write_nothing() -> None:
    """A cache without n-grams: a crash, or records of nothing."""
    assert written(cache_of({}, orders=(1, 2, 3, 4))) == b""
    assert written(NgramCache({})) == b""
    assert read(b"").orders == ()
