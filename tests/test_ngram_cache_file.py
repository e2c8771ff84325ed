"""The native cache file: what comes back, and what is refused.

``craft`` below lays a file out from the format's description, not through the product's writer, so
that files with true checksums and wrong content can be made, as only a hostile hand would.
"""

from __future__ import annotations

import errno
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path

import naive
import numpy as np
import packed_plain
import pytest
from cache_dicts import (
    COUNT_MAX,
    FINGERPRINT,
    assert_same,
    cache_of,
    count_documents,
    dict_of,
    random_documents,
)
from draftsmith.engine import host
from draftsmith.engine.errors import (
    CacheBadCount,
    CacheBadToken,
    CacheDamaged,
    CacheNewerVersion,
    CacheNotACache,
    CacheOtherVocabulary,
    CacheTruncated,
    CacheUnsuitable,
    DiskFull,
    DraftsmithError,
    InputUnreadable,
    OutputNoFolder,
    OutputNotWritable,
    UsageError,
)
from draftsmith.engine.pages import forget_pages
from draftsmith.ngram.cache import file as cache_file
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache, merge_caches
from draftsmith.ngram.cache.packed import VOCAB_MAX
from draftsmith.ngram.lookup import replay as replay_module
from draftsmith.ngram.lookup import tables
from draftsmith.ngram.lookup.drafter import NgramDrafter
from draftsmith.ngram.lookup.replay import replay
from draftsmith.ngram.lookup.tables import dynamic_bytes, dynamic_of_cache

ORDER_SETS = list(chain.from_iterable(combinations((1, 2, 3, 4), n) for n in range(1, 5)))
CACHE_ERRORS = (
    CacheBadCount,
    CacheBadToken,
    CacheDamaged,
    CacheNewerVersion,
    CacheNotACache,
    CacheOtherVocabulary,
    CacheTruncated,
)
N_VOCAB = 9
N_SOUND = 11  # arrays of a file of SOUND
SOUND_BYTES = 704 + 64 * N_SOUND
SOUND = {(1, 2): {4: 1, 5: 1}, (1, 3): {1: 2, 8: 3}, (8, 8): {0: COUNT_MAX}}


# --------------------------------------------------------------------------------------------------
# The format, written down a second time


@dataclass
class Crafted:
    """One row of the array table and its bytes; what is None follows from the bytes."""

    name: bytes
    dtype: bytes
    data: bytes
    offset: int | None = None
    n_items: int | None = None
    total: int | None = None


@dataclass
class File:
    arrays: list[Crafted]
    magic: bytes = b"\x89DSNG\r\n\x00"
    version: int = 1
    byte_order: int = 0x01020304
    n_arrays: int | None = None
    n_bytes: int | None = None
    n_vocab: int = N_VOCAB
    fingerprint: bytes = FINGERPRINT
    table_crc: int | None = None
    header_crc: int | None = None
    tail: bytes = field(default=b"")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def craft(file: File) -> bytes:
    offset = len(padded(bytes(76 + 56 * len(file.arrays))))
    table = b""
    content = b""
    for array in file.arrays:
        data = padded(array.data)
        item = int(array.dtype[2:3]) if array.dtype[2:3].isdigit() else 1
        table += struct.pack(
            "<24s8sQQQ",
            array.name,
            array.dtype,
            packed_plain.checksum(data) if array.total is None else array.total,
            offset if array.offset is None else array.offset,
            len(array.data) // item if array.n_items is None else array.n_items,
        )
        content += data
        offset += len(data)
    table = padded(bytes(76) + table)[76:]
    content += file.tail
    head = struct.pack(
        "<8sIIIIQQ32s",
        file.magic,
        file.version,
        file.byte_order,
        len(file.arrays) if file.n_arrays is None else file.n_arrays,
        zlib.crc32(table) if file.table_crc is None else file.table_crc,
        76 + len(table) + len(content) if file.n_bytes is None else file.n_bytes,
        file.n_vocab,
        file.fingerprint,
    )
    crc = zlib.crc32(head) if file.header_crc is None else file.header_crc
    return head + struct.pack("<I", crc) + table + content


def sound_file(cache: NgramCache | None = None) -> File:
    if cache is None:
        cache = cache_of(SOUND, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)
    counts = dict_of(cache)
    arrays = [
        Crafted(b"%d.%s" % (order, name.encode()), kind.encode(), np.array(items, kind).tobytes())
        for order in cache.orders
        for name, (kind, items) in packed_plain.columns(counts, order, cache.n_vocab).items()
    ]
    return File(arrays, n_vocab=cache.n_vocab, fingerprint=cache.fingerprint or bytes(32))


def rich() -> NgramCache:
    """Every size, rows of one and of many followers, small and large counts."""
    rng = random.Random(3)
    counts: naive.Cache = {}
    for order in (1, 2, 3, 4):
        for _ in range(30):
            ngram = tuple(rng.randrange(N_VOCAB) for _ in range(order))
            part = rng.sample(range(N_VOCAB), rng.randrange(1, 6))
            sizes = (1, 1, 2, 3, 254, 255, 256, COUNT_MAX)
            counts[ngram] = {token: rng.choice(sizes) for token in part}
    return cache_of(counts, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)


def refused(path: Path, data: bytes, **wanted: object) -> DraftsmithError:
    """The error that opening ``data`` ends with, which has to be one of a cache's, on one line."""
    path.write_bytes(data)
    with pytest.raises(CACHE_ERRORS) as caught:
        open_cache(path, **wanted)  # type: ignore[arg-type]
    assert str(path) in caught.value.message
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.ds"


@pytest.fixture
def small() -> NgramCache:
    return cache_of(
        SOUND | {(3,): {1: 1}}, orders=(1, 2, 4), n_vocab=N_VOCAB, fingerprint=FINGERPRINT
    )


# --------------------------------------------------------------------------------------------------
# What comes back


@pytest.mark.parametrize("orders", ORDER_SETS, ids=str)
@pytest.mark.parametrize("fingerprint", [FINGERPRINT, b""], ids=["known", "unknown"])
def test_open_gives_what_was_written(
    orders: tuple[int, ...], fingerprint: bytes, path: Path
) -> None:
    """A size, a table without rows, or the vocabulary lost on the way through the file."""
    rng = random.Random(sum(orders))
    n_vocab = 49152
    for documents in (
        [[7]],  # tables, but no n-gram
        [[1, 2]],  # some tables without n-grams
        [[n_vocab - 1] * 9],
        [*random_documents(rng, 30, [0, 1, 2, 3, n_vocab - 1]), [1]],
    ):
        cache = count_documents(documents, orders=orders, n_vocab=n_vocab, fingerprint=fingerprint)
        n_bytes = write_cache(path, cache)
        assert n_bytes == path.stat().st_size
        opened = open_cache(path)
        assert_same(opened, cache)
        assert opened.format == "native"
        assert_same(open_cache(str(path), n_vocab=n_vocab, fingerprint=FINGERPRINT), cache)


def test_cache_without_tables(path: Path) -> None:
    """A crash on a file of no arrays."""
    write_cache(path, NgramCache({}, 5, FINGERPRINT))
    assert_same(open_cache(path), NgramCache({}, 5, FINGERPRINT))


def test_extremes(path: Path) -> None:
    """The largest id or count refused by a limit that is off by one."""
    big = VOCAB_MAX - 1
    counts = {(big,): {big: COUNT_MAX}, (0, big): {0: 1, big: COUNT_MAX}}
    cache = cache_of(counts, n_vocab=VOCAB_MAX, fingerprint=FINGERPRINT)
    write_cache(path, cache)
    assert_same(open_cache(path, verify=True), cache)


def test_vocabulary_that_can_not_be(path: Path) -> None:
    """An id of 2**31 - 1 that makes a file of gigabytes, for each id has an item in it."""
    cache = cache_of({(1,): {VOCAB_MAX: 1}})
    with pytest.raises(CacheUnsuitable, match=r"cache\.ds: .*4194304"):
        write_cache(path, cache)
    assert list(path.parent.iterdir()) == []


def test_arrays_are_aligned_and_not_copied(path: Path, small: NgramCache) -> None:
    """A cache read into memory, or arrays at odd addresses, which some processors refuse."""
    write_cache(path, small)
    for table in open_cache(path).tables.values():
        for array in table.arrays.values():
            assert array.flags.aligned
            assert array.flags.c_contiguous
            assert not array.flags.owndata
            assert array.size == 0 or array.ctypes.data % 64 == 0


def test_file_is_not_changed_through_the_map(path: Path, small: NgramCache) -> None:
    """A map that writes through: whoever touches an array would damage the file."""
    write_cache(path, small)
    before = path.read_bytes()
    opened = open_cache(path)
    for array in opened.tables[2].arrays.values():
        array[:] = 77
    del opened
    assert path.read_bytes() == before


@pytest.mark.parametrize("orders", [(2,), (1, 2, 3, 4)])
def test_same_cache_same_bytes(orders: tuple[int, ...], tmp_path: Path) -> None:
    """A time, a name or uninitialised padding in the file; pieces or merging that show in it."""
    rng = random.Random(5)
    documents = [*random_documents(rng, 20, range(5)), [1]]
    cache = count_documents(documents, orders=orders)
    again = count_documents(documents[::-1], orders=orders)
    write_cache(tmp_path / "a", cache)
    write_cache(tmp_path / "b", cache)
    write_cache(tmp_path / "c", again)
    write_cache(tmp_path / "d", open_cache(tmp_path / "a"))
    write_cache(tmp_path / "e", merge_caches([open_cache(tmp_path / "a")]))
    a, b, c, d = ((tmp_path / name).read_bytes() for name in "abcd")
    assert a == b == c == d == (tmp_path / "e").read_bytes()


def test_written_over_its_own_map(path: Path, small: NgramCache) -> None:
    """Merging into one of the inputs: the target is cut while its arrays are still read from it."""
    write_cache(path, small)
    before = path.read_bytes()
    opened = open_cache(path)
    write_cache(path, opened)
    assert path.read_bytes() == before
    assert_same(opened, small)


def test_replaced_while_in_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that changes the file in place: whoever has it open would draft from half of the new
    cache, or die."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, N_VOCAB, 256 * 9).astype(np.int32)
    old = count_documents([tokens[::-1].tolist()], orders=(2,), n_vocab=N_VOCAB)
    new = count_documents([[8, 8, 8, 0] * 9], orders=(2,), n_vocab=N_VOCAB)  # and much smaller
    monkeypatch.setattr(replay_module, "_CALL_TOKENS", 256)  # to be asked after each chunk

    def drafts(static: NgramCache, at_half: Callable[[], None]) -> list[object]:
        def on_progress(done: int, total: int) -> None:
            if 2 * done == total:
                at_half()

        options = {"n_vocab": N_VOCAB, "draft_max": 4, "static": static}
        stats = replay(tokens, n_ctx=256, on_progress=on_progress, **options)  # type: ignore[arg-type]
        drafter = NgramDrafter(**options)  # type: ignore[arg-type]
        made: list[object] = [stats.n_drafted, stats.n_accepted, stats.drafted_at.tolist()]
        for at, token in enumerate(tokens[:600].tolist()):
            if at == 300:
                at_half()
            drafter.accept([token])
            made.append(drafter.draft().tolist())
        return made

    def replace_it() -> None:
        write_cache(path, new)
        forget_pages(opened.tables[2].arrays["rest"])  # so that they come from the disk again

    write_cache(path, old)
    expected = drafts(open_cache(path), lambda: None)
    opened = open_cache(path)
    assert drafts(opened, replace_it) == expected
    assert drafts(open_cache(path), lambda: None) != expected
    assert_same(opened, old)
    assert_same(open_cache(path), new)


def test_layout_is_the_described_one(path: Path, small: NgramCache) -> None:
    """A change of layout without a new version: older releases would read nonsense."""
    wide = cache_of(SOUND, orders=(1, 2, 3, 4), n_vocab=2**16, fingerprint=FINGERPRINT)
    for cache in (small, replace(small, fingerprint=b""), rich(), wide):
        write_cache(path, cache)
        assert path.read_bytes() == craft(sound_file(cache))


def test_empty_cache_in_llama_format(path: Path, small: NgramCache) -> None:
    """A file that nobody opens: llama.cpp's of an empty cache has 0 bytes, and so looks one whose
    writing has failed."""
    write_cache(path, small)
    for empty in (cache_of({}), cache_of({}, orders=(2, 3), n_vocab=5)):
        with pytest.raises(CacheUnsuitable, match=r"cache\.ds: a cache without n-grams"):
            write_cache(path, empty, format="llama.cpp")
    assert_same(open_cache(path), small)


# --------------------------------------------------------------------------------------------------
# Damage


def test_cut_at_every_byte(path: Path, small: NgramCache) -> None:
    """A file that ends too early taken for a whole one, or a read beyond its end."""
    write_cache(path, small)
    data = path.read_bytes()
    for size in range(len(data)):
        error = refused(path, data[:size])
        assert type(error) is CacheTruncated, (size, error)


@pytest.mark.parametrize("size", [1, 4, 63, 64, 4096])
def test_bytes_after_the_end(size: int, path: Path, small: NgramCache) -> None:
    """Two files in one, or a longer file's rest under a shorter one."""
    write_cache(path, small)
    assert type(refused(path, path.read_bytes() + bytes(size))) is CacheDamaged


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte(mask: int, path: Path, small: NgramCache) -> None:
    """A byte that no checksum covers: padding, a reserved field, the checksums themselves."""
    write_cache(path, small)
    data = bytearray(path.read_bytes())
    for at in range(len(data)):
        data[at] ^= mask
        error = refused(path, data)
        data[at] ^= mask
        # with its magic damaged it is read as a llama.cpp file, which it is not either
        assert at < 8 or type(error) is CacheDamaged, (at, error)


def test_bytes_exchanged(path: Path, small: NgramCache) -> None:
    """A checksum that does not see the order of bytes, as a sum would not."""
    write_cache(path, small)
    data = path.read_bytes()
    for at in range(8, len(data) - 1):
        if data[at] != data[at + 1]:
            changed = data[:at] + data[at + 1 : at + 2] + data[at : at + 1] + data[at + 2 :]
            assert type(refused(path, changed)) is CacheDamaged


def test_blocks_zeroed(path: Path, small: NgramCache) -> None:
    """A block that never reached the disk: a checksum of zeros over zeros must not agree."""
    write_cache(path, small)
    data = path.read_bytes()
    for at in range(0, len(data), 64):
        changed = data[:at] + bytes(64) + data[at + 64 :]
        if changed != data:
            refused(path, changed)


# --------------------------------------------------------------------------------------------------
# True checksums, wrong content


def of(file: File, name: str) -> int:
    """Where the array stands in the table; of bigrams where no size is said."""
    full = (name if "." in name else f"2.{name}").encode()
    return [array.name for array in file.arrays].index(full)


def changed(name: str, at: int | slice, value: object) -> Callable[[File], None]:
    """Items of one of the arrays; ``value`` may be made of all, or be a slice of them."""

    def apply(file: File) -> None:
        one = file.arrays[of(file, name)]
        items = np.frombuffer(one.data, one.dtype.decode()).copy()
        if callable(value):
            items[at] = value(items)
        else:
            items[at] = items[value].copy() if isinstance(value, slice) else value
        one.data = items.tobytes()

    return apply


def shuffled(name: str, *order: int) -> Callable[[File], None]:
    """The first items in another order."""

    def apply(file: File) -> None:
        one = file.arrays[of(file, name)]
        items = np.frombuffer(one.data, one.dtype.decode()).copy()
        items[: len(order)] = items[list(order)]
        one.data = items.tobytes()

    return apply


def row(which: str, **fields: object) -> Callable[[File], None]:
    """Fields of the array's row in the table."""

    def apply(file: File) -> None:
        at = of(file, which)
        file.arrays[at] = replace(file.arrays[at], **fields)  # type: ignore[arg-type]

    return apply


def header(**fields: object) -> Callable[[File], None]:
    def apply(file: File) -> None:
        for name, value in fields.items():
            setattr(file, name, value)

    return apply


def drop(name: str) -> Callable[[File], None]:
    return lambda file: file.arrays.pop(of(file, name)) and None  # type: ignore[func-returns-value]


def repeat(name: str) -> Callable[[File], None]:
    return lambda file: file.arrays.append(file.arrays[of(file, name)])


def swap(a: str, b: str) -> Callable[[File], None]:
    """Rows of the table name each other's arrays."""

    def apply(file: File) -> None:
        x, y = file.arrays[of(file, a)], file.arrays[of(file, b)]
        x.name, y.name = y.name, x.name

    return apply


def resized(name: str, n_more: int) -> Callable[[File], None]:
    """Items less at the end, or zeros more."""

    def apply(file: File) -> None:
        one = file.arrays[of(file, name)]
        n_bytes = n_more * int(one.dtype[2:3])
        one.data = one.data[:n_bytes] if n_bytes < 0 else one.data + bytes(n_bytes)

    return apply


def wide_tokens(name: str) -> Callable[[File], None]:
    """An array of tokens in the type of a larger vocabulary."""

    def apply(file: File) -> None:
        one = file.arrays[of(file, name)]
        one.data = np.frombuffer(one.data, "<u2").astype("<u4").tobytes()
        one.dtype = b"<u4"

    return apply


def in_turn(*faults: Callable[[File], None]) -> Callable[[File], None]:
    def apply(file: File) -> None:
        for fault in faults:
            fault(file)

    return apply


NAMES = tuple(packed_plain.columns(SOUND, 2, N_VOCAB))

# Found on every opening: what would lead kernels outside of arrays, and what costs nothing to see.
CRAFTED: dict[str, tuple[Callable[[File], None], type[DraftsmithError]]] = {
    "count of 0": (changed("count", 2, 0), CacheBadCount),
    "large count of 254": (changed("many_count", 0, 254), CacheBadCount),
    "large count of 0": (changed("many_count", 0, 0), CacheBadCount),
    "large count of 2**31": (changed("many_count", 0, 2**31), CacheBadCount),
    "large count of 2**32 - 1": (changed("many_count", 0, 2**32 - 1), CacheBadCount),
    "follower = n_vocab": (changed("next", 4, N_VOCAB), CacheBadToken),
    "follower = 2**16 - 1": (changed("next", 0, 2**16 - 1), CacheBadToken),
    "n-gram token = n_vocab": (changed("rest", 2, N_VOCAB), CacheBadToken),
    "n-gram token = 2**16 - 1": (changed("rest", 0, 2**16 - 1), CacheBadToken),
    "verdict = n_vocab": (changed("verdict", 0, N_VOCAB), CacheBadToken),
    "verdict = 2**16 - 2": (changed("verdict", 2, 2**16 - 2), CacheBadToken),
    "first begins at 1": (changed("first", 0, 1), CacheDamaged),
    "first falls": (changed("first", 4, 3), CacheDamaged),
    "first of 2**32 - 1": (changed("first", 4, 2**32 - 1), CacheDamaged),
    "first ends too low": (changed("first", -1, 2), CacheDamaged),
    "first ends too high": (changed("first", -1, 4), CacheDamaged),
    "first ends at 2**32 - 1": (changed("first", -1, 2**32 - 1), CacheDamaged),
    "4 rows said": (changed("shape", 0, 4), CacheDamaged),
    "2 rows said": (changed("shape", 0, 2), CacheDamaged),
    "no rows said": (changed("shape", 0, 0), CacheDamaged),
    "2**63 rows said": (changed("shape", 0, 2**63), CacheDamaged),
    "2**64 - 1 rows said": (changed("shape", 0, 2**64 - 1), CacheDamaged),
    "4 entries said": (changed("shape", 1, 4), CacheDamaged),
    "2**63 entries said": (changed("shape", 1, 2**63), CacheDamaged),
    "2**64 - 1 entries said": (changed("shape", 1, 2**64 - 1), CacheDamaged),
    "shift of 9": (changed("shape", 2, 9), CacheDamaged),
    "shift of 64": (changed("shape", 2, 64), CacheDamaged),
    "shift of 2**63": (changed("shape", 2, 2**63), CacheDamaged),
    "shift too small for the blocks": (changed("shape", 2, 1), CacheDamaged),
    "all of the shape 2**63": (changed("shape", slice(None), 2**63), CacheDamaged),
    "offset outside": (row("shape", offset=1 << 20), CacheDamaged),
    "offset of 2**63": (row("count", offset=2**63), CacheDamaged),
    "offset of 2**64 - 64": (row("count", offset=2**64 - 64), CacheDamaged),
    "offset of 0": (row("shape", offset=0), CacheDamaged),
    "offset at the file's end": (row("slots", offset=SOUND_BYTES), CacheDamaged),
    "overlapping arrays": (row("next", offset=SOUND_BYTES - 64), CacheDamaged),
    "2**63 items": (row("first", n_items=2**63), CacheDamaged),
    "2**64 - 1 items": (row("count", n_items=2**64 - 1), CacheDamaged),
    "2**61 items": (row("shape", n_items=2**61), CacheDamaged),
    "2**62 items": (row("first", n_items=2**62), CacheDamaged),
    "one item more": (row("count", n_items=6), CacheDamaged),
    "one item less": (row("count", n_items=4), CacheDamaged),
    "no first": (row("first", n_items=0, data=b""), CacheDamaged),
    "no shape": (row("shape", n_items=0, data=b""), CacheDamaged),
    "no slots": (row("slots", n_items=0, data=b""), CacheDamaged),
    "array's checksum": (row("next", total=1), CacheDamaged),
    "unknown name": (row("count", name=b"2.weight"), CacheDamaged),
    "name without a size": (row("count", name=b"count"), CacheDamaged),
    "empty name": (row("count", name=b""), CacheDamaged),
    "name that is not ASCII": (row("count", name=b"\xff\xfe.count"), CacheDamaged),
    "name with a line break": (row("count", name=b"\n.count", offset=0), CacheDamaged),
    "name with more behind its end": (row("count", name=b"2.count\0x"), CacheDamaged),
    "size of 0": (row("count", name=b"0.count"), CacheDamaged),
    "size of 5": (row("count", name=b"5.count"), CacheDamaged),
    "size of 02": (row("count", name=b"02.count"), CacheDamaged),
    "slots of single tokens": (row("slots", name=b"1.slots"), CacheDamaged),
    "other type": (row("many_count", dtype=b"<i4"), CacheDamaged),
    "big-endian type": (row("many_count", dtype=b">u4"), CacheDamaged),
    "unknown type": (row("many_count", dtype=b"\xff" * 8), CacheDamaged),
    "no type": (row("many_count", dtype=b""), CacheDamaged),
    "counts of 16 bits": (row("count", dtype=b"<u2", data=bytes([1, 0] * 5)), CacheDamaged),
    "wide rest": (wide_tokens("rest"), CacheDamaged),
    "wide followers": (wide_tokens("next"), CacheDamaged),
    "wide verdicts": (wide_tokens("verdict"), CacheDamaged),
    "counts twice": (repeat("count"), CacheDamaged),
    "names exchanged": (swap("rest", "next"), CacheDamaged),
    "version 0": (header(version=0), CacheDamaged),
    "version 2": (header(version=2), CacheNewerVersion),
    "version 2**32 - 1": (header(version=2**32 - 1), CacheNewerVersion),
    "version 2, wrong checksum": (header(version=2, header_crc=5), CacheDamaged),
    "other byte order": (header(byte_order=0x04030201), CacheDamaged),
    "no arrays said": (header(n_arrays=0), CacheDamaged),
    "fewer arrays said": (header(n_arrays=N_SOUND - 1), CacheDamaged),
    "more arrays said": (header(n_arrays=N_SOUND + 1), CacheDamaged),
    "2**32 - 1 arrays said": (header(n_arrays=2**32 - 1), CacheDamaged),
    "table's checksum": (header(table_crc=1), CacheDamaged),
    "header's checksum": (header(header_crc=1), CacheDamaged),
    "fewer bytes said": (header(n_bytes=SOUND_BYTES - 64), CacheDamaged),
    "0 bytes said": (header(n_bytes=0), CacheDamaged),
    "more bytes said": (header(n_bytes=SOUND_BYTES + 64), CacheTruncated),
    "2**64 - 1 bytes said": (header(n_bytes=2**64 - 1), CacheTruncated),
    "bytes after the last array": (header(tail=bytes(64)), CacheDamaged),
    "vocabulary of 8": (header(n_vocab=8), CacheDamaged),
    "vocabulary of 2**16": (header(n_vocab=2**16), CacheDamaged),
    "vocabulary of 2**31 + 1": (header(n_vocab=2**31 + 1), CacheDamaged),
    "vocabulary of 2**63": (header(n_vocab=2**63), CacheDamaged),
    "vocabulary of 2**64 - 1": (header(n_vocab=2**64 - 1), CacheDamaged),
    "fingerprint of a vocabulary of 0": (header(n_vocab=0), CacheDamaged),
    **{f"{name} missing": (drop(name), CacheDamaged) for name in NAMES},
    **{f"{name} one item less": (resized(name, -1), CacheDamaged) for name in NAMES},
    **{f"{name} one item more": (resized(name, 1), CacheDamaged) for name in NAMES},
}


def test_crafted_file_is_sound(path: Path) -> None:
    """Crafted faults that are found only because the crafting itself is wrong."""
    path.write_bytes(craft(sound_file()))
    assert dict_of(open_cache(path, verify=True)) == SOUND
    assert path.stat().st_size == SOUND_BYTES  # which some of the faults count on


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("fault", "error"), CRAFTED.values(), ids=[name.replace(" ", "-") for name in CRAFTED]
)
def test_true_checksums_wrong_content(
    fault: Callable[[File], None], error: type[DraftsmithError], verify: bool, path: Path
) -> None:
    """Trust in a file because its checksums are right: kernels would read outside of arrays."""
    file = sound_file()
    fault(file)
    assert type(refused(path, craft(file), verify=verify)) is error


# Found only when every invariant is checked: drafting goes astray, but not out of the arrays.
# Faults in the file of rich(), whose bigrams begin with the rows 0, 1; many followers in row 0.
DEEP: dict[str, tuple[Callable[[File], None], type[DraftsmithError]]] = {
    "equal rows": (changed("rest", 1, lambda items: items[0]), CacheDamaged),
    "rows out of order": (shuffled("rest", 1, 0), CacheDamaged),
    "equal rows of 3": (changed("3.rest", slice(None), 0), CacheDamaged),
    "rows of 4 out of order": (changed("4.rest", slice(None, None, 3), 0), CacheDamaged),
    "one token twice": (changed("1.first", slice(1, 3), lambda items: items[2]), CacheDamaged),
    "equal followers": (changed("next", slice(None), 3), CacheDamaged),
    "followers fall": (changed("next", slice(None), slice(None, None, -1)), CacheDamaged),
    "followers of 1 fall": (changed("1.next", slice(None), slice(None, None, -1)), CacheDamaged),
    "starts at 1": (changed("offset", 0, 1), CacheDamaged),
    "base of 1": (changed("base", 0, 1), CacheDamaged),
    "base of 2**32 - 1": (changed("base", 0, 2**32 - 1), CacheDamaged),
    "row without followers": (changed("offset", 1, 0), CacheDamaged),
    "starts fall": (shuffled("offset", 0, 2, 1), CacheDamaged),
    "starts from the end": (changed("offset", slice(None), slice(None, None, -1)), CacheDamaged),
    "start of 65535": (changed("offset", 1, 65535), CacheDamaged),
    "all starts beyond": (changed("offset", slice(None), 65535), CacheDamaged),
    "last start too low": (changed("offset", -1, lambda items: items[-1] - 1), CacheDamaged),
    "last start too high": (changed("offset", -1, lambda items: items[-1] + 1), CacheDamaged),
    "large counts unsorted": (shuffled("many_entry", 1, 0), CacheBadCount),
    "large counts of one entry": (changed("many_entry", slice(None), 0), CacheBadCount),
    "large count beyond": (changed("many_entry", -1, 2**32 - 1), CacheBadCount),
    "large count at the end": (
        in_turn(resized("many_entry", 1), resized("many_count", 1),
                changed("many_count", -1, 255), changed("many_entry", -1, 10**6)),
        CacheBadCount,
    ),
    "large count lacks": (
        in_turn(resized("many_entry", -1), resized("many_count", -1)), CacheBadCount,
    ),
    "large counts lack": (
        in_turn(row("many_entry", data=b""), row("many_count", data=b"")), CacheBadCount,
    ),
    "small count said to be large": (
        changed("count", slice(None), lambda items: items | 255), CacheBadCount,
    ),
    "large count said to be small": (
        changed("count", slice(None), lambda items: items & 127 | 1), CacheBadCount,
    ),
    "no empty place": (changed("slots", slice(None), lambda items: items | 1), CacheDamaged),
    "no empty place, tags kept": (
        changed("slots", slice(None), lambda items: np.where(items, items, 7)), CacheDamaged,
    ),
    "slots all ones": (changed("slots", slice(None), 2**32 - 1), CacheDamaged),
    "slots all empty": (changed("slots", slice(None), 0), CacheDamaged),
    "row 0 everywhere": (
        changed("slots", slice(None), lambda items: np.where(items, items // 32 * 32 + 1, 0)),
        CacheDamaged,
    ),
    "rows beyond": (
        changed("slots", slice(None), lambda items: np.where(items, items | 31, 0)), CacheDamaged,
    ),
    "places exchanged": (changed("slots", slice(None), slice(None, None, -1)), CacheDamaged),
    "verdict of another": (changed("verdict", slice(None), 8), CacheDamaged),
    "no verdicts": (changed("verdict", slice(None), 2**16 - 1), CacheDamaged),
    "no row of the first token": (
        changed("first", slice(1, 8), 0), CacheDamaged,
    ),
    "all rows of token 0": (
        changed("first", slice(1, None), lambda items: items[-1]), CacheDamaged,
    ),
}  # fmt: skip

REPLAY_ALL = """
import sys
from pathlib import Path
import numpy as np
from draftsmith.engine.errors import DraftsmithError
from draftsmith.ngram.cache.file import open_cache
from draftsmith.ngram.lookup.drafter import NgramDrafter
from draftsmith.ngram.lookup.replay import replay

tokens = np.random.default_rng(1).integers(0, 9, 2049).astype(np.int32)
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, end=" ", flush=True)
    try:
        static = open_cache(path)
    except DraftsmithError:
        print("refused")
        continue
    stats = replay(tokens, n_ctx=256, draft_max=5, n_vocab=9, static=static)
    assert stats.n_chunks == 8
    drafter = NgramDrafter(9, draft_max=5, static=static)
    for token in tokens[:300].tolist():
        drafter.accept([token])
        assert all(0 <= drafted < 9 for drafted in drafter.draft())
    print("drafted", stats.n_drafted)
"""


def replay_all(folder: Path) -> dict[str, str]:
    """What became of each file of the folder, in a process of its own, which may crash or hang."""
    command = [sys.executable, "-c", REPLAY_ALL, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-200:], done.stderr[-2000:])
    return {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("fault", "error"), DEEP.values(), ids=[name.replace(" ", "-") for name in DEEP]
)
def test_deep_faults(
    fault: Callable[[File], None], error: type[DraftsmithError], path: Path
) -> None:
    """What no checksum shows, merged or converted into a file that looks sound."""
    file = sound_file(rich())
    fault(file)
    data = craft(file)
    assert data != craft(sound_file(rich()))
    assert type(refused(path, data, verify=True)) is error
    opened = open_cache(path)
    with pytest.raises(error):
        merge_caches([opened])
    for format in ("native", "llama.cpp"):
        with pytest.raises(error):
            write_cache(path, opened, format=format)
    assert path.read_bytes() == data


def test_drafting_from_deep_faults(tmp_path: Path) -> None:
    """A search that never ends, or a kernel that reads outside, under checksums that hold."""
    (tmp_path / "sound").write_bytes(craft(sound_file(rich())))
    for number, (fault, _) in enumerate(DEEP.values()):
        file = sound_file(rich())
        fault(file)
        (tmp_path / f"deep{number}").write_bytes(craft(file))
    rng = random.Random(1)
    for number in range(300):
        (tmp_path / f"random{number}").write_bytes(craft(damaged(rng, sound_file(rich()))))
    became = replay_all(tmp_path)
    assert len(became) == 1 + len(DEEP) + 300
    assert {became[name] for name in became if not name.startswith("random")} == {"drafted"}
    assert sum(what == "drafted" for what in became.values()) > 100


def damaged(rng: random.Random, sound: File) -> File:
    """One or two bytes of one array changed, where it has bytes."""
    file = replace(sound, arrays=[replace(array) for array in sound.arrays])
    array = rng.choice([array for array in file.arrays if array.data])
    data = bytearray(array.data)
    for _ in range(rng.randrange(1, 3)):
        data[rng.randrange(len(data))] ^= rng.choice((1, 2, 0x80, 0xFF))
    array.data = bytes(data)
    return file


def test_crafted_damage_at_random(path: Path) -> None:
    """An uncaught exception, or content that no check has seen, under checksums that hold."""
    rng = random.Random(0)
    sound = sound_file()
    n_refused = 0
    for _ in range(1000):
        path.write_bytes(craft(damaged(rng, sound)))
        try:
            cache = open_cache(path, verify=True)
        except CACHE_ERRORS:
            n_refused += 1
        else:
            again = cache_of(dict_of(cache), n_vocab=N_VOCAB, fingerprint=FINGERPRINT)
            assert_same(cache, again)
    assert 500 < n_refused < 1000


# --------------------------------------------------------------------------------------------------
# Vocabularies


def test_other_vocabulary(path: Path, small: NgramCache) -> None:
    """Ids of one model drafted for another."""
    write_cache(path, small)
    other = FINGERPRINT[::-1]
    for n_vocab in (N_VOCAB, N_VOCAB + 1):
        with pytest.raises(CacheOtherVocabulary, match="another vocabulary") as caught:
            open_cache(path, n_vocab=n_vocab, fingerprint=other)
        assert other.hex()[:12] in caught.value.message
        assert FINGERPRINT.hex()[:12] in caught.value.message


def test_same_vocabulary(path: Path, small: NgramCache) -> None:
    """The right model refused."""
    write_cache(path, small)
    opened = open_cache(path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT)
    assert (opened.n_vocab, opened.fingerprint) == (N_VOCAB, FINGERPRINT)


@pytest.mark.parametrize("n_vocab", [N_VOCAB - 1, N_VOCAB + 1, 3])
def test_other_size_under_the_same_fingerprint(n_vocab: int, path: Path, small: NgramCache) -> None:
    """A crafted header that lets ids outside the model's vocabulary in: the drafter would read
    outside of its arrays."""
    write_cache(path, small)
    with pytest.raises((CacheOtherVocabulary, CacheBadToken)):
        open_cache(path, n_vocab=n_vocab, fingerprint=FINGERPRINT)


def test_size_alone_is_compared_too(path: Path, small: NgramCache) -> None:
    """With no fingerprint wanted, ids outside of the wanted vocabulary are let in."""
    write_cache(path, small)
    with pytest.raises((CacheOtherVocabulary, CacheBadToken)):
        open_cache(path, n_vocab=3)


def test_unknown_vocabulary_takes_the_wanted_one(path: Path, small: NgramCache) -> None:
    """A cache that says no vocabulary let through with ids outside the model's."""
    write_cache(path, replace(small, n_vocab=0, fingerprint=b""))
    assert open_cache(path).n_vocab == 0
    assert open_cache(path, n_vocab=N_VOCAB, fingerprint=FINGERPRINT).n_vocab == N_VOCAB
    with pytest.raises(CacheBadToken, match=r"token 8, outside the vocabulary of 8\b"):
        open_cache(path, n_vocab=8, fingerprint=FINGERPRINT)


@pytest.mark.parametrize("counts", [{(8, 1): {1: 1}}, {(1, 8): {1: 1}}, {(1, 1): {8: 1}}])
def test_unknown_vocabulary_that_is_larger(counts: naive.Cache, path: Path) -> None:
    """Only some of the arrays searched for ids outside the model's vocabulary."""
    write_cache(path, cache_of(counts))
    with pytest.raises(CacheBadToken, match=r"token 8, outside the vocabulary of 8\b"):
        open_cache(path, n_vocab=8, fingerprint=FINGERPRINT)
    for n_vocab in (9, 20):
        opened = open_cache(path, n_vocab=n_vocab, fingerprint=FINGERPRINT)
        tokens = np.resize(np.arange(n_vocab, dtype=np.int32) % 9, 513)
        assert replay(tokens, n_ctx=256, draft_max=3, n_vocab=n_vocab, static=opened).n_chunks == 2


# --------------------------------------------------------------------------------------------------
# Not a cache at all


@pytest.mark.parametrize(
    "data",
    [
        b"once upon a time there was a text that somebody took for a cache\n" * 20,
        b"short text\n",
        b'{"schema": 1, "command": "lookup-stats", "n_draft": 3}\n',
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0\0\0\1\0\x08\6\0\0\0" + bytes(range(200)),
        b"PK\x03\x04" + bytes(range(100)),
        b"\x1f\x8b\x08\x00" + bytes(range(200, 250)) * 3,
        b"GGUF\x03\0\0\0" + bytes(range(1, 200)),
        b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }"
        + b" " * 60,
        bytes(100),
        b"\xff" * 100,
        b"\x89DSNH\r\n\x00" + bytes(range(1, 120)),
    ],
    ids=["text", "short", "json", "png", "zip", "gzip", "gguf", "npy", "zeros", "ones", "magic"],
)
def test_not_a_cache(data: bytes, path: Path) -> None:
    """Anything read as llama.cpp's format, which has no magic. It is told by nonsense in it only: a
    record longer than the file (then it might be a cut cache: CacheTruncated), no n-gram where one
    should begin (CacheNotACache), or numbers below 1 (CacheBadCount)."""
    error = refused(path, data, n_vocab=49152, fingerprint=FINGERPRINT)
    assert type(error) in (CacheNotACache, CacheTruncated, CacheBadCount)


def test_text_is_not_a_cache(path: Path) -> None:
    """A corpus named where a cache is expected, the likeliest mistake: `it is cut, create it again`
    would mislead."""
    data = b"once upon a time there was a text that somebody took for a cache\n" * 20
    error = refused(path, data, n_vocab=49152, fingerprint=FINGERPRINT)
    assert type(error) is CacheNotACache


def test_missing_file(path: Path) -> None:
    """A missing dynamic cache taken for an empty one, as llama.cpp does."""
    with pytest.raises(InputUnreadable, match=r"cache\.ds does not exist"):
        open_cache(path)


def test_folder(tmp_path: Path) -> None:
    """IsADirectoryError as a traceback."""
    with pytest.raises(InputUnreadable, match="is not a file"):
        open_cache(tmp_path)


def test_file_below_a_file(path: Path) -> None:
    """NotADirectoryError as a traceback."""
    path.write_bytes(b"x")
    with pytest.raises(InputUnreadable):
        open_cache(path / "cache")


def test_empty_file(path: Path) -> None:
    """An empty file can't be mapped: ValueError as a traceback."""
    assert type(refused(path, b"")) is CacheTruncated


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_pipe(path: Path) -> None:
    """Waiting forever for somebody to write."""
    os.mkfifo(path)
    with pytest.raises(InputUnreadable, match="is not a file"):
        open_cache(path)


def test_unreadable_file(path: Path, small: NgramCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """PermissionError as a traceback (faked: root may read everything)."""
    write_cache(path, small)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(InputUnreadable, match="Permission denied"):
        open_cache(path)


# --------------------------------------------------------------------------------------------------
# Writing


@pytest.mark.parametrize(
    ("format", "parts"), [("native", "_native_parts"), ("llama.cpp", "llama_parts")]
)
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(errno.ENOSPC, ""), DiskFull),
        (OSError(errno.EIO, ""), OutputNotWritable),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["full", "broken", "interrupt"],
)
def test_failure_in_the_middle(
    format: cache_file.Format,
    parts: str,
    error: BaseException,
    seen: type[BaseException],
    path: Path,
    small: NgramCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a cache in the place of the old one, or a temporary file left beside it."""
    write_cache(path, small)
    before = path.read_bytes()
    real = getattr(cache_file, parts)

    def failing(*args: object) -> Iterator[object]:
        yield next(iter(real(*args)))
        raise error

    monkeypatch.setattr(cache_file, parts, failing)
    other = count_documents([[1, 2, 3] * 5])
    with pytest.raises(seen):
        write_cache(path, other, format=format)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert_same(open_cache(path), small)


def test_output_folder_missing(tmp_path: Path, small: NgramCache) -> None:
    """FileNotFoundError as a traceback."""
    for format in ("native", "llama.cpp"):
        with pytest.raises(OutputNoFolder, match="missing"):
            write_cache(tmp_path / "missing" / "cache", small, format=format)
    assert list(tmp_path.iterdir()) == []


def test_output_is_a_folder(tmp_path: Path, small: NgramCache) -> None:
    """IsADirectoryError as a traceback."""
    with pytest.raises(OutputNotWritable, match="is a folder"):
        write_cache(tmp_path, small)


# --- memory, and files that change ----------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with ten bytes to spare, which everything is held against."""
    monkeypatch.setattr(host, "available_memory_bytes", lambda: 10)
    monkeypatch.setattr(host, "_NEVER_SHORT_BYTES", 1)


@pytest.mark.usefixtures("little_memory")
def test_caches_that_memory_does_not_suffice_for(path: Path, small: NgramCache) -> None:
    """A cache of 3 GB as -lcd is killed by the system at 22.7 GB, without a word."""
    write_cache(path, small)
    held = open_cache(path)  # a map: takes nothing
    told = r"takes \d+\.\d GB of memory, and 0\.0 GB are free"
    for load in (
        lambda: open_cache(path, verify=True),
        lambda: dynamic_of_cache(held),
        lambda: merge_caches([held, held]),
    ):
        with pytest.raises(UsageError, match=told) as error:
            load()
        assert "smaller" in error.value.remedy
    llama = path.with_name("llama.bin")
    write_cache(llama, small, format="llama.cpp")
    with pytest.raises(UsageError, match=told):
        open_cache(llama)


def test_memory_that_suffices_is_not_refused(path: Path) -> None:
    """An estimate so high that a cache is refused which would have fitted."""
    cache = rich()
    n_bytes = sum(table.n_bytes for table in cache.tables.values())
    write_cache(path, cache)
    opened = open_cache(path)
    unpacked = sum(table.unpacked_bytes for table in opened.tables.values())
    assert n_bytes * 0.9 <= unpacked <= n_bytes * 1.8 + 1000
    dynamic = dynamic_of_cache(opened)
    n_edges = sum(table.n_entries for table in opened.tables.values())
    n_ngrams = sum(table.n_ngrams for table in opened.tables.values())
    assert tables._bytes_of_dynamic(n_ngrams, n_edges) >= dynamic_bytes(dynamic) - 256
    assert all(table.unpacked_bytes == 0 for table in opened.tables.values())


def test_llama_cache_that_changes_while_it_is_read(
    path: Path, small: NgramCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that were checked are others when they are used: writes after the arrays."""
    write_cache(path, small, format="llama.cpp")
    reference = open_cache(path)
    real = cache_file.read_llama

    def changed_before(data: np.ndarray, what: str) -> NgramCache:
        with path.open("r+b") as file:
            file.write(b"\x7f" * path.stat().st_size)
            file.truncate(40)
        assert not isinstance(data, np.memmap)
        return real(data, what)

    monkeypatch.setattr(cache_file, "read_llama", changed_before)
    assert_same(open_cache(path), reference)
