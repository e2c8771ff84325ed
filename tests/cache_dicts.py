"""Between the oracle's dicts of dicts and the product's flat arrays, by plain loops."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import naive
import numpy as np
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.ngram_cache import NgramCache, OrderTable

GOLDEN = Path(__file__).parent / "golden"
FINGERPRINT = bytes(range(1, 33))
COUNT_MAX = 2**31 - 1


def table_of(counts: naive.Cache, order: int) -> OrderTable:
    """The n-grams of one size, in the order that the product promises."""
    ngrams = sorted(ngram for ngram in counts if len(ngram) == order)
    tokens = [token for ngram in ngrams for token in ngram]
    entries = [entry for ngram in ngrams for entry in sorted(counts[ngram].items())]
    starts = [0]
    for ngram in ngrams:
        starts.append(starts[-1] + len(counts[ngram]))
    return OrderTable(
        np.array(tokens, np.int32),
        np.array(starts, np.int64),
        np.array([token for token, _ in entries], np.int32),
        np.array([count for _, count in entries], np.uint32),
    )


def cache_of(
    counts: naive.Cache,
    *,
    orders: Iterable[int] | None = None,
    n_vocab: int = 0,
    fingerprint: bytes = b"",
) -> NgramCache:
    """The cache of a dict; ``orders`` adds empty tables."""
    orders = sorted({len(ngram) for ngram in counts} | set(orders or ()))
    return NgramCache({o: table_of(counts, o) for o in orders}, n_vocab, fingerprint)


def dict_of(cache: NgramCache) -> naive.Cache:
    """The dict of a cache; nothing is lost but the order of rows and entries."""
    counts: naive.Cache = {}
    for order, table in cache.tables.items():
        ngrams = table.tokens.reshape(-1, order).tolist()
        starts = table.entry_start.tolist()
        entries = list(zip(table.entry_token.tolist(), table.entry_count.tolist(), strict=True))
        for row, ngram in enumerate(ngrams):
            counts[tuple(ngram)] = dict(entries[starts[row] : starts[row + 1]])
    return counts


def count_documents(
    documents: Iterable[Sequence[int]],
    *,
    orders: Sequence[int] = (1, 2, 3, 4),
    n_vocab: int = 256,
    fingerprint: bytes = FINGERPRINT,
) -> NgramCache:
    """What the product counts, a document at a time."""
    counter = NgramCounter(orders=orders, n_vocab=n_vocab)
    for number, document in enumerate(documents):
        counter.add(number, np.array(document, np.int32))
    return counter.finish(fingerprint)


def assert_same(comp: NgramCache, ref: NgramCache) -> None:
    """Everything but the format is equal, types and order of the arrays too."""
    assert comp.n_vocab == ref.n_vocab
    assert comp.fingerprint == ref.fingerprint
    assert comp.orders == ref.orders
    for order in ref.orders:
        for name in ("tokens", "entry_start", "entry_token", "entry_count"):
            a, b = (getattr(c.tables[order], name) for c in (comp, ref))
            assert a.dtype == b.dtype, (order, name)
            np.testing.assert_array_equal(a, b, err_msg=f"{order}.{name}")


def frozen_bytes(cache: NgramCache) -> bytes:
    """All arrays as bytes, to see that nobody has touched them."""
    return b"|".join(
        array.tobytes()
        for t in cache.tables.values()
        for array in (t.tokens, t.entry_start, t.entry_token, t.entry_count)
    )


def random_documents(
    rng: random.Random, n_documents: int, alphabet: Sequence[int], longest: int = 40
) -> list[list[int]]:
    """Documents of random length, 0 included."""
    return [rng.choices(alphabet, k=rng.randrange(longest)) for _ in range(n_documents)]


@cache
def golden_ids(text: str) -> np.ndarray:
    """The ids of a recorded text, int32 [n]; ``both_test`` is the two test texts in a row."""
    if text == "both_test":
        return np.concatenate((golden_ids("kjv_test"), golden_ids("sqlite_test")))
    data = gzip.decompress((GOLDEN / f"{text}.ids.gz").read_bytes())
    return np.frombuffer(data, "<i4").astype(np.int32)


def golden_bin(name: str) -> bytes:
    """A recorded llama.cpp cache file."""
    return gzip.decompress((GOLDEN / f"{name}.bin.gz").read_bytes())
