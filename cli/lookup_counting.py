"""What ``lookup-create`` counts: texts here or on a cluster, and conversations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..engine.errors import UsageError
from .formats import number, size
from .output import Output

if TYPE_CHECKING:
    import numpy as np

    from ..engine.gguf.file import GgufMetadata
    from ..engine.stages import Stages
    from ..engine.tokens.tokenizer import Tokenizer
    from ..ngram.cache.ngram_cache import NgramCache
    from ..ngram.cluster.count import ClusterCorpus
    from ..ngram.conversations.files import ChatFiles
    from ..ngram.corpus.documents import Corpus
    from .chat_options import ChatOptions

# Measured: a thread's table of known pieces and its buffers; the kernels when they are loaded, and
# blocks of text on their way; the least that counting works well in.
_THREAD_BYTES = 48_000_000
_MORE_BYTES = 64_000_000
_LEAST_BYTES = 32_000_000


@dataclass(frozen=True)
class CountRequest:
    """The options of one call, checked as far as that needs no file."""

    model: str
    files: list[str]
    target: str
    format: Literal["native", "llama.cpp"]
    field: str | None
    escape: bool
    is_text: bool
    strict: bool
    chat: bool
    answers: bool
    template: ChatOptions
    n_threads: int | None
    max_memory: int | None
    dask: str | None
    ngram_min: int
    ngram_max: int

    @property
    def orders(self) -> range:
        """N-gram sizes."""
        return range(self.ngram_min, self.ngram_max + 1)


class Counted(NamedTuple):
    """What counting came to; None is what a cluster's workers keep to themselves."""

    cache: NgramCache
    n_tokens: int
    spilled_bytes: int | None = None
    n_runs: int | None = None
    cpu_s: float | None = None
    n_threads: int | None = None
    max_memory: int | None = None


def opened(request: CountRequest) -> Corpus | ClusterCorpus | ChatFiles:
    """Find the files."""
    if request.chat:
        from ..ngram.conversations.files import open_chats

        return open_chats(request.files, strict=request.strict)
    if request.dask is None:
        from ..ngram.corpus.documents import open_corpus

        return open_corpus(
            request.files,
            field=request.field,
            escape=request.escape,
            is_text=request.is_text,
            strict=request.strict,
        )
    from ..ngram.cluster.count import open_cluster_corpus

    return open_cluster_corpus(
        request.files,
        field=request.field,
        escape=request.escape,
        is_text=request.is_text,
        strict=request.strict,
    )


def counted(
    request: CountRequest,
    corpus: Corpus | ClusterCorpus | ChatFiles,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> tuple[Counted, dict[str, Any]]:
    """Count, and return the record's keys of what was read as well."""
    from ..ngram.cluster.count import ClusterCorpus
    from ..ngram.conversations.files import ChatFiles
    from .inputs import corpus_keys, token_pieces, warn_of_repairs
    from .replay.inputs import CHAT_KEYS

    if isinstance(corpus, ChatFiles):
        return _count_chats(request, corpus, metadata, tokenizer, stages, out)
    if isinstance(corpus, ClusterCorpus):
        done = _count_on_cluster(request, corpus, tokenizer, stages, out)
    else:
        n_threads = _n_threads(request)
        pieces = token_pieces(corpus, tokenizer, n_threads)
        done = _count(request, pieces, corpus, tokenizer, stages, out)
    warn_of_repairs(corpus, out)
    return done, {**corpus_keys(corpus), **dict.fromkeys(CHAT_KEYS)}


def _count_chats(
    request: CountRequest,
    files: ChatFiles,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> tuple[Counted, dict[str, Any]]:
    """Count conversations, or what the assistant said in them."""
    from ..ngram.conversations.counts import counted_parts
    from .replay.inputs import CHAT_KEYS, read_chats

    texts, keys = read_chats(files, request.template, metadata, tokenizer, stages, out)
    parts = counted_parts(texts, "answers" if request.answers else "all", request.ngram_min)
    n_parts = 0

    def pieces() -> Iterator[tuple[int, np.ndarray]]:
        nonlocal n_parts
        for part in parts:
            yield n_parts, part
            n_parts += 1

    done = _count(request, pieces(), files, tokenizer, stages, out)
    skipped = [f"{bad.place}: {bad.reason}" for bad in files.stats.bad]
    own = {"n_documents": n_parts, "n_skipped": files.stats.n_bad, "skipped": skipped}
    return done, {**dict.fromkeys(CHAT_KEYS), **keys, **own}


def _share_memory(max_memory: int | None, n_threads: int) -> tuple[int, int]:
    """Return the limit of the command in bytes, and what of it is left for counting.

    Raises
    ------
    UsageError : too little is left
    """
    from ..engine.host import available_memory_bytes, rss_bytes

    rest = rss_bytes() + n_threads * _THREAD_BYTES + _MORE_BYTES
    least = rest + _LEAST_BYTES
    if max_memory is None:
        max_memory = max(least, available_memory_bytes() // 2)
    if max_memory < least:
        fewer = ", or fewer --threads" if n_threads > 1 else ""
        raise UsageError(
            f"--max-memory of {size(max_memory)} is too small: Python, the vocabulary and "
            f"{number(n_threads)} threads take {size(rest)}",
            remedy=f"give {-(-least // 10**7) * 10}M or more{fewer}",
        )
    return max_memory, max_memory - rest


def _n_threads(request: CountRequest) -> int:
    from ..engine.host import n_usable_threads

    return request.n_threads or n_usable_threads()


def _count(
    request: CountRequest,
    pieces: Iterator[tuple[int, np.ndarray]],
    corpus: Corpus | ChatFiles,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> Counted:
    """Count texts, in pieces of (number of the text, int32 ids), on this machine."""
    from ..ngram.cache.count import NgramCounter
    from .inputs import show_read

    n_threads = _n_threads(request)
    max_memory, count_memory = _share_memory(request.max_memory, n_threads)
    with (
        NgramCounter(
            orders=request.orders,
            n_vocab=tokenizer.n_vocab,
            n_threads=n_threads,
            max_memory=count_memory,
            folder=Path(request.target).resolve().parent,
        ) as counter,
        out.progress("counting", unit="bytes") as bar,
    ):
        with stages.stage("tokenize"):
            for document, tokens in pieces:
                counter.add(document, tokens)
                show_read(bar, corpus)
        with stages.stage("count"):
            cache = counter.finish(tokenizer.fingerprint)
    return Counted(
        cache,
        counter.n_tokens,
        counter.spilled_bytes,
        counter.n_runs,
        counter.busy_ns / 1e9,
        n_threads,
        max_memory,
    )


def _count_on_cluster(
    request: CountRequest, corpus: ClusterCorpus, tokenizer: Tokenizer, stages: Stages, out: Output
) -> Counted:
    """Count a corpus on the workers of a Dask scheduler."""
    from ..ngram.cluster.count import count_on_cluster
    from .inputs import show_read

    assert request.dask is not None
    with out.progress("counting", unit="bytes") as bar, stages.stage("tokenize"):
        cache, n_tokens = count_on_cluster(
            request.dask, corpus, tokenizer, request.orders, lambda: show_read(bar, corpus)
        )
    return Counted(cache, n_tokens)
