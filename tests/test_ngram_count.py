"""Counting against the oracle: sizes at their edges, all key widths, the input cut anyhow."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence

import naive
import numpy as np
import pytest
from cache_dicts import (
    COUNT_MAX,
    FINGERPRINT,
    GOLDEN,
    assert_same,
    cache_of,
    count_documents,
    dict_of,
    golden_bin,
    golden_ids,
    random_documents,
)
from draftsmith.engine.errors import InputEmpty, InputMalformed
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.ngram_cache import KeyLayout, NgramCache

ORDERS = (1, 2, 3, 4)
# One bit a token, bits that divide 64 and bits that do not, and the largest vocabulary of int32.
VOCABULARIES = (1, 2, 3, 256, 257, 49152, 65536, 65537, 128256, 2**30, 2**31 - 1)
RECORDED = json.loads((GOLDEN / "lookup_golden.json").read_text())


def expected(documents: Sequence[Sequence[int]], orders: Sequence[int], n_vocab: int) -> NgramCache:
    counts = naive.count_ngrams(documents, orders)
    return cache_of(counts, orders=orders, n_vocab=n_vocab, fingerprint=FINGERPRINT)


def add_in_pieces(counter: NgramCounter, number: int, ids: Sequence[int], cuts: list[int]) -> None:
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        counter.add(number, np.array(ids[start:stop], np.int32))


def test_vocabularies_cover_all_key_widths() -> None:
    """Tests that never reach keys of two or three words, where the comparison of words matters."""
    widths = {v: [KeyLayout.for_order(o, v).n_words for o in ORDERS] for v in VOCABULARIES}
    assert widths[256] == [1, 1, 1, 1]
    assert widths[49152] == [1, 1, 1, 2]
    assert widths[65537] == [1, 1, 2, 2]
    assert widths[128256] == [1, 1, 2, 2]
    assert widths[2**31 - 1] == [1, 2, 2, 3]


@pytest.mark.parametrize("n_vocab", VOCABULARIES)
@pytest.mark.parametrize("order", ORDERS)
def test_count_equals_the_oracle(order: int, n_vocab: int) -> None:
    """Off by one at a document's edge, a token that spills into its neighbour's bits, a sort by the
    wrong word."""
    rng = random.Random(n_vocab * 4 + order)
    ends = sorted({0, n_vocab // 2, max(0, n_vocab - 2), n_vocab - 1})
    sizes = sorted({0, 1, max(0, order - 1), order, order + 1, order + 2, 60})
    cases = [[[rng.choice(ends) for _ in range(n)]] for n in sizes if n]
    cases += [[[n_vocab - 1] * n] for n in sizes if n]
    cases += [[[0] * n] for n in sizes if n]
    cases.append([[rng.randrange(n_vocab) for _ in range(200)]])
    cases.append([*random_documents(rng, 20, ends), [0]])
    cases.append([[], [0], [], ends, [], []])
    for documents in cases:
        comp = count_documents(documents, orders=(order,), n_vocab=n_vocab)
        assert_same(comp, expected(documents, (order,), n_vocab))


@pytest.mark.parametrize("orders", [(1,), (2,), (2, 4), (1, 2, 3, 4), (4, 1, 3)])
def test_orders_are_independent(orders: tuple[int, ...]) -> None:
    """The tail kept for the longest size makes a shorter one count windows twice."""
    documents = random_documents(random.Random(1), 15, range(5))
    assert_same(count_documents(documents, orders=orders), expected(documents, sorted(orders), 256))


@pytest.mark.parametrize("seed", range(30))
def test_any_pieces_give_the_same_cache(seed: int) -> None:
    """A window lost or counted twice where a document's tokens come in two calls of add."""
    rng = random.Random(seed)
    n_vocab = rng.choice((4, 256, 49152, 2**31 - 1))
    alphabet = [rng.randrange(n_vocab) for _ in range(4)]
    orders = rng.choice([(2,), (1, 4), ORDERS])
    documents = [*random_documents(rng, 6, alphabet), alphabet]
    counter = NgramCounter(orders=orders, n_vocab=n_vocab)
    for number, ids in enumerate(documents):
        cuts = sorted(rng.randrange(len(ids) + 1) for _ in range(rng.randrange(30)))
        add_in_pieces(counter, number, ids, cuts)
    assert_same(counter.finish(FINGERPRINT), expected(documents, orders, n_vocab))
    assert counter.n_tokens == sum(map(len, documents))
    assert counter.n_documents == len(documents)


def test_token_by_token() -> None:
    """A tail that forgets tokens when it is fed one at a time, or that grows past its document."""
    ids = random.Random(2).choices(range(3), k=50)
    counter = NgramCounter(orders=ORDERS, n_vocab=3)
    add_in_pieces(counter, 0, ids, list(range(1, 50)))
    add_in_pieces(counter, 1, ids[::-1], list(range(1, 50)))
    assert_same(counter.finish(FINGERPRINT), expected([ids, ids[::-1]], ORDERS, 3))


def test_where_documents_are_cut_matters() -> None:
    """An n-gram that spans two documents."""
    ids = [1, 2, 3, 1, 2, 3, 1, 2]
    for cut in range(len(ids) + 1):
        documents = [ids[:cut], ids[cut:]]
        comp = count_documents(documents, n_vocab=4)
        assert_same(comp, expected(documents, ORDERS, 4))
    assert (3,) in dict_of(count_documents([ids], n_vocab=4))
    assert (3,) not in dict_of(count_documents([ids[:3], ids[3:6], ids[6:]], n_vocab=4))


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 49, 50, 51, 1000])
@pytest.mark.parametrize("n_vocab", [256, 49152, 2**31 - 1])
def test_batches_give_the_same_cache(batch: int, n_vocab: int) -> None:
    """Windows lost at the edge of a batch, runs merged twice or never, counts of a run dropped."""
    rng = random.Random(batch)
    documents = random_documents(rng, 12, [0, 1, n_vocab // 3, n_vocab - 1], longest=70)
    counter = NgramCounter(orders=ORDERS, n_vocab=n_vocab, batch_tokens=batch)
    for number, ids in enumerate(documents):
        cuts = sorted(rng.randrange(len(ids) + 1) for _ in range(8))
        add_in_pieces(counter, number, ids, cuts)
    assert_same(counter.finish(FINGERPRINT), expected(documents, ORDERS, n_vocab))


def test_callers_buffer_may_be_used_again() -> None:
    """Windows or a tail that are views of the caller's array, read after it was overwritten."""
    ids = random.Random(3).choices(range(4), k=60)
    buffer = np.empty(7, np.int32)
    counter = NgramCounter(orders=ORDERS, n_vocab=4)
    for start in range(0, len(ids), 7):
        piece = buffer[: len(ids[start : start + 7])]
        piece[:] = ids[start : start + 7]
        before = piece.copy()
        counter.add(0, piece)
        assert (piece == before).all()
        buffer[:] = 3
    assert_same(counter.finish(FINGERPRINT), expected([ids], ORDERS, 4))


def test_one_count_above_all_others() -> None:
    """A count kept in something smaller than 32 bits."""
    cache = count_documents([[7] * 70_000], orders=(1, 4))
    assert dict_of(cache) == {(7,): {7: 69_999}, (7, 7, 7, 7): {7: 69_996}}
    assert cache.tables[1].entry_count.dtype == np.uint32
    assert max(cache.tables[1].entry_count) < COUNT_MAX


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_token_outside_the_vocabulary(bad: int, at: int) -> None:
    """An id that would fill its neighbour's bits: found, named with its document, not counted."""
    counter = NgramCounter(orders=(2,), n_vocab=4)
    counter.add(0, np.array([0, 1, 2, 3], np.int32))
    ids = np.arange(7, dtype=np.int32) % 4
    ids[at] = bad
    with pytest.raises(InputMalformed, match=rf"document 2 holds token {bad}\b.*\b4 tokens"):
        counter.add(1, ids)


def test_nothing_to_count() -> None:
    """A cache made of nothing, which then drafts nothing without a word."""
    counter = NgramCounter(orders=ORDERS, n_vocab=4)
    with pytest.raises(InputEmpty):
        counter.finish(FINGERPRINT)
    counter.add(0, np.empty(0, np.int32))
    counter.add(1, np.empty(0, np.int32))
    with pytest.raises(InputEmpty):
        counter.finish(FINGERPRINT)


def test_one_token_makes_empty_tables() -> None:
    """A text too short for any n-gram taken for an empty one, or a crash on tables without rows."""
    cache = count_documents([[3]], n_vocab=4)
    assert_same(cache, expected([[3]], ORDERS, 4))
    assert (cache.orders, cache.n_ngrams, cache.n_entries) == (ORDERS, 0, 0)


@pytest.mark.parametrize("text", ["kjv_train", "sqlite_train"])
def test_static_cache_equals_llama_cpps(text: str) -> None:
    """Bigrams counted otherwise than llama-lookup-create counts them on a real text."""
    ids = golden_ids(text)[:-1]  # llama.cpp's -f drops the newline that ends the file
    cache = count_documents([ids], orders=(2,), n_vocab=49152)
    recorded = RECORDED["static"][text]
    assert cache.n_ngrams == recorded["n_ngrams"]
    assert cache.n_entries == recorded["n_entries"]
    records = sorted(dict_of(cache).items())
    words = [
        np.array([*ngram, -1, -1, len(part), *(x for e in sorted(part.items()) for x in e)], "<i4")
        for ngram, part in records
    ]
    hashed = hashlib.sha256(b"".join(word.tobytes() for word in words)).hexdigest()
    assert hashed == recorded["sha256_sorted_records"]


@pytest.mark.parametrize("text", ["kjv_train", "sqlite_train"])
def test_all_sizes_equal_the_recorded_dynamic_cache(text: str) -> None:
    """One of the four sizes wrong on a real text."""
    cache = count_documents([golden_ids(text)[:20_000]], n_vocab=49152)
    assert dict_of(cache) == naive.parse_llama_cache(golden_bin(f"{text}_dyn"))
