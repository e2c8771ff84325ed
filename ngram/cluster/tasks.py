"""What the workers of a cluster do: pure functions, which may run again wherever one has died.

A group of files is counted into a cache, which is cut into ranges of the n-grams' first token;
the pieces of one range are merged. Sums saturate, so neither the grouping nor the borders of the
ranges nor the order of merging shows in the result.
"""

from __future__ import annotations

import pickle
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from ...engine.errors import ClusterUnfit, InputMalformed, InputUnreadable
from ...engine.tokens.tokenizer import Tokenizer
from ...engine.tokens.vocabulary import Vocabulary
from ..cache.count import NgramCounter
from ..cache.ngram_cache import NgramCache, merge_caches
from ..cache.packed import PackedTable
from ..cache.table import OrderTable
from ..corpus.documents import Corpus, Document
from ..corpus.files import Source
from ..corpus.stats import CorpusStats
from ..corpus.tokens import document_tokens
from .url_store import UrlStore

# Of each sampled file: documents at most, and bytes or ids of each.
_SAMPLE_DOCUMENTS = 64
_SAMPLE_SIZE = 64 << 10


@dataclass(frozen=True)
class Job:
    """What every task has to know.

    Attributes
    ----------
    version : of draftsmith, on the machine that asks.
    vocabulary, fingerprint : what the texts are tokenized with, and its SHA-256.
    orders : n-gram sizes.
    field, escape, is_text, strict : as for ``open_corpus``.
    """

    version: str
    vocabulary: Vocabulary
    fingerprint: bytes
    orders: tuple[int, ...]
    field: str | None
    escape: bool
    is_text: bool
    strict: bool


@dataclass(frozen=True)
class Report:
    """What a task has read.

    Attributes
    ----------
    stats, left_out : as in ``Corpus``.
    n_tokens : tokens counted; ``n_ids`` of them were ids already.
    """

    stats: CorpusStats
    left_out: tuple[str, ...]
    n_tokens: int
    n_ids: int


Pieces = tuple[NgramCache, ...]
Sizes = dict[int, tuple[int, int]]


def own_version() -> str:
    """The version of draftsmith in this process."""
    return version("draftsmith")


def pack_sources(sources: Sequence[Source]) -> bytes:
    """Files of one task, packed: there may be millions, and their paths are much alike."""
    return zlib.compress(pickle.dumps(tuple(sources)), 1)


def sample_borders(job: Job, packed: bytes, n_ranges: int) -> npt.NDArray[np.int64]:
    """Choose the first tokens at which ranges begin, int64 [n_ranges - 1], ascending.

    Looks at the beginnings of some documents, so that ranges hold about as many n-grams each.
    """
    tokenizer = _tokenizer(job)
    pairs = [np.empty(0, np.int64)]
    for _, tokens, _ in document_tokens(_beginnings(job, packed), tokenizer, 1):
        wide = tokens.astype(np.int64)
        pairs.append(wide[:-1] * tokenizer.n_vocab + wide[1:])
    firsts = np.unique(np.concatenate(pairs)) // tokenizer.n_vocab
    at = np.arange(1, n_ranges) * firsts.size // n_ranges
    return firsts[at] if firsts.size else np.zeros(n_ranges - 1, np.int64)


def count_group(job: Job, packed: bytes, borders: npt.NDArray[np.int64]) -> tuple[Pieces, Report]:
    """Count the documents of some files; one piece a range.

    Raises
    ------
    ClusterUnfit : this worker's draftsmith is another one.
    InputUnreadable, InputMalformed : what is wrong with a file.
    """
    tokenizer = _tokenizer(job)
    corpus = _corpus(job, _unpacked(packed), strict=job.strict)
    counter = NgramCounter(orders=job.orders, n_vocab=tokenizer.n_vocab)
    n_ids = 0
    for document, tokens, is_text in document_tokens(
        corpus.documents(tokenizer.check_words), tokenizer, 1
    ):
        n_ids += 0 if is_text else tokens.size
        counter.add(document, tokens)
    report = Report(corpus.stats, corpus.left_out, counter.n_tokens, n_ids)
    if not counter.n_tokens:
        empty = NgramCache({order: _no_rows(order) for order in job.orders})
        return (empty,) * (borders.size + 1), report
    return _cut(counter.finish(job.fingerprint), borders), report


def piece_of(counted: tuple[Pieces, Report], index: int) -> NgramCache:
    """The piece of one range."""
    return counted[0][index]


def report_of(counted: tuple[Pieces, Report]) -> Report:
    """What was read."""
    return counted[1]


def merge_pieces(pieces: Sequence[NgramCache]) -> NgramCache:
    """The sum of pieces of one range."""
    return merge_caches(pieces)


def sizes_of(cache: NgramCache) -> Sizes:
    """Order -> (n-grams, entries)."""
    return {order: (table.n_ngrams, table.n_entries) for order, table in cache.tables.items()}


def join_ranges(sizes: Sequence[Sizes], ranges: Iterator[NgramCache]) -> dict[int, OrderTable]:
    """Put ranges, in order, after one another; only one of them is in memory beside the result."""
    tables = {}
    for order in sizes[0]:
        n_ngrams, n_entries = (sum(size[order][i] for size in sizes) for i in range(2))
        tables[order] = OrderTable(
            np.empty(n_ngrams * order, np.int32),
            np.zeros(n_ngrams + 1, np.int64),
            np.empty(n_entries, np.int32),
            np.empty(n_entries, np.uint32),
        )
    row = dict.fromkeys(tables, 0)
    entry = dict.fromkeys(tables, 0)
    for part in ranges:
        for order, table in part.tables.items():
            whole, at, first = tables[order], row[order], entry[order]
            row[order] += table.n_ngrams
            entry[order] += table.n_entries
            whole.tokens[at * order : row[order] * order] = table.tokens
            whole.entry_start[at : row[order] + 1] = table.entry_start + first
            whole.entry_token[first : entry[order]] = table.entry_token
            whole.entry_count[first : entry[order]] = table.entry_count
    return tables


def _cut(cache: NgramCache, borders: npt.NDArray[np.int64]) -> Pieces:
    """Cut a cache at first tokens; copies, so that no piece keeps the others in memory."""
    cuts = {
        order: [0, *np.searchsorted(table.tokens[::order], borders).tolist(), table.n_ngrams]
        for order, table in cache.tables.items()
    }
    rows = {order: list(pairwise(cut)) for order, cut in cuts.items()}
    return tuple(
        NgramCache(
            {order: _rows(table, order, *rows[order][i]) for order, table in cache.tables.items()},
            cache.n_vocab,
            cache.fingerprint,
        )
        for i in range(borders.size + 1)
    )


def _rows(table: OrderTable | PackedTable, order: int, start: int, stop: int) -> OrderTable:
    first, last = int(table.entry_start[start]), int(table.entry_start[stop])
    return OrderTable(
        table.tokens[start * order : stop * order].copy(),
        table.entry_start[start : stop + 1] - first,
        table.entry_token[first:last].copy(),
        table.entry_count[first:last].copy(),
    )


def _no_rows(order: int) -> OrderTable:
    ids = np.empty(0, np.int32)
    return OrderTable(ids, np.zeros(1, np.int64), ids, np.empty(0, np.uint32))


def _unpacked(packed: bytes) -> tuple[Source, ...]:
    sources: tuple[Source, ...] = pickle.loads(zlib.decompress(packed))
    return sources


def _corpus(
    job: Job, sources: Sequence[Source], *, strict: bool, block_bytes: int = 1 << 20
) -> Corpus:
    return Corpus(
        sources,
        (),
        field=job.field,
        escape=job.escape,
        is_text=job.is_text,
        strict=strict,
        block_bytes=block_bytes,
        store=UrlStore(),
    )


def _beginnings(job: Job, packed: bytes) -> Iterator[Document]:
    """What files begin with; of those at fault that ``count_group`` will skip, nothing."""
    for source in _unpacked(packed):
        # Strict, or a file that was found would be read to its end first.
        corpus = _corpus(job, (source,), strict=True, block_bytes=_SAMPLE_SIZE)
        try:
            documents = [_beginning(one) for one in islice(corpus.documents(), _SAMPLE_DOCUMENTS)]
        except (InputUnreadable, InputMalformed):
            if job.strict or not source.is_found:
                raise
            continue
        yield from documents


def _beginning(document: Document) -> Document:
    if document.blocks is not None:
        return Document(document.name, iter(list(islice(document.blocks, 1))), None)
    assert document.tokens is not None
    return Document(document.name, None, document.tokens[:_SAMPLE_SIZE])


_TOKENIZERS: dict[bytes, Tokenizer] = {}
_LOCK = threading.Lock()


def _tokenizer(job: Job) -> Tokenizer:
    """The job's tokenizer, made once a process.

    Raises
    ------
    ClusterUnfit : another version, which may count otherwise.
    """
    if own_version() != job.version:
        raise ClusterUnfit(
            f"a worker has draftsmith {own_version()}, but {job.version} asks",
            remedy="install the same version on every worker",
        )
    with _LOCK:
        if job.fingerprint not in _TOKENIZERS:
            tokenizer = Tokenizer(job.vocabulary)
            if tokenizer.fingerprint != job.fingerprint:
                raise ClusterUnfit(
                    "a worker reads another vocabulary than was sent "
                    f"({tokenizer.fingerprint.hex()[:12]}, not {job.fingerprint.hex()[:12]})",
                    remedy="install the same version of draftsmith on every worker",
                )
            _TOKENIZERS.clear()
            _TOKENIZERS[job.fingerprint] = tokenizer
        return _TOKENIZERS[job.fingerprint]
