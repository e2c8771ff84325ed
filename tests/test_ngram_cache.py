"""The laws of merging, and what a cache says of itself."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce

import naive
import pytest
from cache_dicts import (
    COUNT_MAX,
    FINGERPRINT,
    assert_same,
    cache_of,
    count_documents,
    dict_of,
    frozen_bytes,
    random_documents,
)
from draftsmith.engine.errors import (
    CacheBadCount,
    CacheBadToken,
    CacheDamaged,
    CacheOtherVocabulary,
    DraftsmithError,
)
from draftsmith.ngram.cache.ngram_cache import NgramCache, check_cache, merge_caches

VOCABULARIES = (2, 256, 49152, 128256, 2**31 - 1)


def documents_of(rng: random.Random, n_vocab: int, n: int) -> list[list[int]]:
    alphabet = [0, n_vocab - 1, rng.randrange(n_vocab), rng.randrange(n_vocab)]
    return [*random_documents(rng, n, alphabet), [0]]


def summed(*counts: naive.Cache) -> naive.Cache:
    """The saturated sum of dicts."""
    total: naive.Cache = {}
    for one in counts:
        for ngram, part in one.items():
            into = total.setdefault(ngram, {})
            for token, n in part.items():
                into[token] = min(into.get(token, 0) + n, COUNT_MAX)
    return total


def random_counts(rng: random.Random, n_ids: int, sizes: tuple[int, ...]) -> naive.Cache:
    """Any n-grams at all, with counts at both ends of their range."""
    counts: naive.Cache = {}
    for _ in range(rng.randrange(1, 40)):
        ngram = tuple(rng.choice((0, 1, n_ids - 1)) for _ in range(rng.choice(sizes)))
        count = rng.choice((1, 2, 3, 2**30, COUNT_MAX - 2, COUNT_MAX - 1, COUNT_MAX))
        counts.setdefault(ngram, {})[rng.choice((0, 1, n_ids // 2, n_ids - 1))] = count
    return counts


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("n_parts", [2, 3, 4, 5, 9])
def test_merge_of_parts_is_the_whole(n_vocab: int, n_parts: int) -> None:
    """A part forgotten when the number of parts is no power of two; a table packed otherwise than
    counted windows are."""
    rng = random.Random(n_vocab * 10 + n_parts)
    parts = [documents_of(rng, n_vocab, rng.randrange(6)) for _ in range(n_parts)]
    whole = count_documents([d for part in parts for d in part], n_vocab=n_vocab)
    merged = merge_caches([count_documents(part, n_vocab=n_vocab) for part in parts])
    assert_same(merged, whole)


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_merge_commutes_and_associates(n_vocab: int) -> None:
    """A merge that prefers one side."""
    rng = random.Random(n_vocab)
    a, b, c = (count_documents(documents_of(rng, n_vocab, 8), n_vocab=n_vocab) for _ in range(3))
    assert_same(merge_caches([a, b]), merge_caches([b, a]))
    left = merge_caches([merge_caches([a, b]), c])
    assert_same(left, merge_caches([a, merge_caches([b, c])]))
    assert_same(left, merge_caches([c, a, b]))
    assert_same(left, reduce(lambda x, y: merge_caches([x, y]), (b, c, a)))


def test_merge_of_copies_multiplies() -> None:
    """Equal n-grams kept twice, or counted once."""
    one = count_documents(documents_of(random.Random(1), 256, 10))
    for k in (1, 2, 3, 7):
        merged = merge_caches([one] * k)
        times = {n: {t: k * c for t, c in p.items()} for n, p in dict_of(one).items()}
        assert_same(
            merged, cache_of(times, orders=one.orders, n_vocab=256, fingerprint=FINGERPRINT)
        )


@pytest.mark.parametrize("seed", range(20))
def test_merge_of_any_counts(seed: int) -> None:
    """Counts that wrap at 2**31 or 2**32 instead of staying at 2**31 - 1, in whatever order."""
    rng = random.Random(seed)
    n_vocab = rng.choice(VOCABULARIES)
    all_counts = [random_counts(rng, n_vocab, (1, 2, 3, 4)) for _ in range(rng.randrange(2, 7))]
    caches = [cache_of(c, n_vocab=n_vocab, fingerprint=FINGERPRINT) for c in all_counts]
    ref = cache_of(summed(*all_counts), n_vocab=n_vocab, fingerprint=FINGERPRINT)
    assert_same(merge_caches(caches), ref)
    assert_same(merge_caches(caches[::-1]), ref)


@pytest.mark.parametrize(
    ("a", "b", "total"),
    [
        (COUNT_MAX - 1, 1, COUNT_MAX),
        (COUNT_MAX, 1, COUNT_MAX),
        (1, COUNT_MAX, COUNT_MAX),
        (COUNT_MAX, COUNT_MAX, COUNT_MAX),
        (2**30, 2**30, COUNT_MAX),
        (2**30, 2**30 - 1, COUNT_MAX),
        (2**30, 2**30 - 2, COUNT_MAX - 1),
    ],
)
def test_counts_saturate(a: int, b: int, total: int) -> None:
    """A sum that wraps, or that stops one too early."""
    caches = [cache_of({(1, 2): {3: n}}, n_vocab=10) for n in (a, b)]
    assert dict_of(merge_caches(caches))[(1, 2)] == {3: total}


def test_merge_of_different_sizes_of_ngrams() -> None:
    """A size that only one of the caches has is dropped, or mixed up with another."""
    documents = documents_of(random.Random(2), 256, 8)
    bigrams = count_documents(documents, orders=(2,))
    others = count_documents(documents, orders=(1, 2, 4))
    merged = merge_caches([bigrams, others])
    assert merged.orders == (1, 2, 4)
    assert dict_of(merged) == summed(dict_of(bigrams), dict_of(others))


def test_merge_with_empty_tables() -> None:
    """A crash on a run without entries; an empty table that vanishes."""
    empty = count_documents([[5]], orders=(2, 3))
    full = count_documents([[1, 2, 3, 4, 1, 2, 3, 4]], orders=(2,))
    assert_same(merge_caches([empty, empty]), empty)
    merged = merge_caches([empty, full, empty])
    assert merged.orders == (2, 3)
    assert dict_of(merged) == dict_of(full)


def test_merge_leaves_its_inputs_alone() -> None:
    """Sums written into an input's arrays: the second merge would then count more."""
    rng = random.Random(3)
    caches = [count_documents(documents_of(rng, 49152, 9), n_vocab=49152) for _ in range(3)]
    before = [frozen_bytes(cache) for cache in caches]
    first = merge_caches(caches)
    assert_same(merge_caches(caches), first)
    assert [frozen_bytes(cache) for cache in caches] == before


@pytest.mark.parametrize(
    ("n_vocab", "fingerprint"), [(256, FINGERPRINT[::-1]), (257, FINGERPRINT), (255, FINGERPRINT)]
)
def test_merge_of_different_vocabularies(n_vocab: int, fingerprint: bytes) -> None:
    """Ids of two models added up as if they meant the same."""
    ours = count_documents([[1, 2, 3]])
    other = count_documents([[1, 2, 3]], n_vocab=n_vocab, fingerprint=fingerprint)
    unknown = cache_of({(1,): {2: 1}})
    for caches in ([ours, other], [other, ours], [unknown, ours, unknown, other]):
        named = [replace(cache, source=f"file{i}") for i, cache in enumerate(caches)]
        with pytest.raises(CacheOtherVocabulary, match="another vocabulary") as caught:
            merge_caches(named)
        assert fingerprint.hex()[:12] in caught.value.message
        for cache in named:
            assert (cache.source in caught.value.message) == bool(cache.fingerprint)
        assert "\n" not in str(caught.value)


def test_merge_of_unknown_with_known_vocabulary() -> None:
    """A llama.cpp cache refused though its ids fit, or a result that forgets its vocabulary."""
    native = count_documents([[1, 2, 3, 255]])
    counts = {(1, 2): {3: 4}, (255,): {0: COUNT_MAX}}
    foreign = NgramCache(cache_of(counts).tables, format="llama.cpp")
    for caches in ([native, foreign], [foreign, native]):
        merged = merge_caches(caches)
        assert (merged.n_vocab, merged.fingerprint) == (256, FINGERPRINT)
        assert merged.format == "native"
        assert dict_of(merged) == summed(dict_of(native), counts)


@pytest.mark.parametrize("counts", [{(1, 256): {3: 4}}, {(1, 2): {256: 4}}, {(2**31 - 1,): {1: 1}}])
def test_merge_of_ids_that_do_not_fit(counts: naive.Cache) -> None:
    """An id of another model's cache that spills into its neighbour's bits when it is packed."""
    foreign = NgramCache(cache_of(counts).tables, format="llama.cpp")
    named = replace(foreign, source="foreign.bin"), count_documents([[1, 2, 3]])
    with pytest.raises(CacheBadToken, match=r"foreign\.bin .*(256|2147483647)"):
        merge_caches(named)


def test_merge_of_unknown_vocabularies() -> None:
    """Keys packed for too small a vocabulary when no cache says its own."""
    a = {(2**31 - 1, 5): {2**31 - 1: 1}, (1,): {1: 1}}
    b = {(1, 2, 3, 4): {0: COUNT_MAX}, (2**31 - 1, 5): {2**31 - 1: 2}}
    caches = [NgramCache(cache_of(c).tables, format="llama.cpp") for c in (a, b)]
    merged = merge_caches(caches)
    assert (merged.n_vocab, merged.fingerprint, merged.format) == (0, b"", "llama.cpp")
    assert dict_of(merged) == summed(a, b)
    assert dict_of(merge_caches([NgramCache({}), NgramCache({})])) == {}


def test_what_a_cache_says_of_itself() -> None:
    """Sizes that the tables print: n-grams and entries mixed up, or one size only."""
    cache = cache_of({(1,): {2: 9, 7: 1}, (1, 2): {8: 1}, (1, 3): {2: 1, 4: 1}}, n_vocab=9)
    assert cache.orders == (1, 2)
    assert (cache.n_ngrams, cache.n_entries, cache.max_token()) == (3, 5, 8)
    assert cache.memory_bytes == 4 * (1 + 4) + 8 * (2 + 3) + 4 * 5 + 4 * 5
    assert NgramCache({}).max_token() == -1
    assert cache_of({(11,): {2: 1}}).max_token() == 11


FAULTS: list[tuple[str, str, int, int, type[DraftsmithError]]] = [
    ("count of zero", "entry_count", 1, 0, CacheBadCount),
    ("count above int32", "entry_count", 0, 2**31, CacheBadCount),
    ("count of -1", "entry_count", 4, 2**32 - 1, CacheBadCount),
    ("follower outside the vocabulary", "entry_token", 4, 9, CacheBadToken),
    ("negative follower", "entry_token", 0, -1, CacheBadToken),
    ("n-gram outside the vocabulary", "tokens", 5, 9, CacheBadToken),
    ("negative n-gram", "tokens", 0, -2, CacheBadToken),
    ("equal rows", "tokens", 3, 2, CacheDamaged),
    ("rows out of order", "tokens", 3, 0, CacheDamaged),
    ("first tokens out of order", "tokens", 4, 0, CacheDamaged),
    ("equal followers", "entry_token", 1, 4, CacheDamaged),
    ("followers out of order", "entry_token", 3, 0, CacheDamaged),
    ("starts later than 0", "entry_start", 0, 1, CacheDamaged),
    ("starts before 0", "entry_start", 0, -1, CacheDamaged),
    ("row without followers", "entry_start", 1, 0, CacheDamaged),
    ("starts that fall", "entry_start", 1, 4, CacheDamaged),
    ("start far outside", "entry_start", 1, 2**62, CacheDamaged),
    ("start far below", "entry_start", 2, -(2**62), CacheDamaged),
    ("ends too early", "entry_start", 3, 4, CacheDamaged),
    ("ends too late", "entry_start", 3, 6, CacheDamaged),
]
SOUND = {(1, 2): {4: 1, 5: 1}, (1, 3): {1: 2, 8: 3}, (8, 8): {0: COUNT_MAX}}


@pytest.mark.parametrize(
    ("array", "at", "value", "error"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0].replace(" ", "-") for fault in FAULTS],
)
def test_check_finds_each_fault(
    array: str, at: int, value: int, error: type[DraftsmithError]
) -> None:
    """An invariant that nobody checks: kernels would read outside their arrays, or miss rows."""
    cache = cache_of(SOUND, n_vocab=9)
    check_cache(cache, "sound")
    getattr(cache.tables[2], array)[at] = value
    with pytest.raises(error, match=r"^name of the file: ") as caught:
        check_cache(cache, "name of the file")
    assert "\n" not in str(caught.value)


def test_check_without_a_vocabulary() -> None:
    """Ids up to the largest int32 refused, or negative ones let in, if no vocabulary is known."""
    check_cache(cache_of({(2**31 - 1,): {2**31 - 1: 1}}), "x")
    with pytest.raises(CacheBadToken):
        check_cache(cache_of({(-1,): {5: 1}}), "x")
