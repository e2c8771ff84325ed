"""What the commands have in common between their options and the library: texts to token ids,
stages to seconds, and the keys that every record ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import UsageError
from .formats import number
from .output import Bar, Output

if TYPE_CHECKING:
    import numpy as np

    from ..engine.tokens.prompt_ends import TextEnds
    from ..engine.tokens.tokenizer import Tokenizer
    from ..ngram.cache.ngram_cache import NgramCache
    from ..ngram.cluster.count import ClusterCorpus
    from ..ngram.conversations.files import ChatFiles
    from ..ngram.corpus.documents import Corpus
    from ..ngram.corpus.stats import CorpusStats

INPUTS_SHOWN = 1000
SKIPPED_NAMED = 5
COMPILE_NOTE = "compiling kernels (first run only, cached afterwards)…"


def token_pieces(
    corpus: Corpus, tokenizer: Tokenizer, n_threads: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (document number, int32 ids of a piece of it) in order; one piece at least each.

    Texts go through the tokenizer; .npy documents are ids already.

    Raises
    ------
    InputEmpty : neither text nor ids in any document; a BOS alone is nothing to count.
    """
    from ..ngram.corpus.stats import nothing_in
    from ..ngram.corpus.tokens import document_tokens

    n_ids = 0
    documents = corpus.documents(tokenizer.check_words)
    for document, tokens, is_text in document_tokens(documents, tokenizer, n_threads):
        n_ids += 0 if is_text else tokens.size
        yield document, tokens
    if not corpus.stats.n_bytes and not n_ids:
        raise nothing_in(corpus.stats)


def refuse_text_and_field(field: str | None, *, is_text: bool) -> None:
    """Raise UsageError where one option says that JSON is text, and another that it is not."""
    if field is not None and is_text:
        raise UsageError(
            "--text and --field exclude each other",
            remedy="give --field for a text in each line, or --text for the files as they are",
        )


def show_read(bar: Bar, corpus: Corpus | ClusterCorpus | ChatFiles) -> None:
    """Show on a bar how much of the inputs has been read."""
    bar.update(corpus.bytes_read, corpus.total_bytes)


def warn_of_repairs(corpus: Corpus | ClusterCorpus, out: Output) -> None:
    """Warn of what was not text: invalid UTF-8, and what was skipped or left out in folders."""
    n_invalid, n_files = corpus.stats.n_invalid_utf8, corpus.stats.n_invalid_files
    if n_invalid:
        where = next(iter(corpus.stats.invalid_by_file))
        more = f" and {n_files - 1} more" if n_files > 1 else ""
        out.warn(
            f"{n_invalid} invalid UTF-8 sequence{'s' if n_invalid > 1 else ''} replaced by U+FFFD, "
            f"in {where}{more}; convert the text to UTF-8"
        )
    if corpus.left_out:
        out.note(f"{len(corpus.left_out)} files in folders are not text and were left out")
    if corpus.stats.n_null:
        out.warn(f"{number(corpus.stats.n_null)} rows without a text were left out")
    warn_of_skipped(corpus.stats, out)


def warn_of_ends(ends: TextEnds, out: Output) -> None:
    """Warn of documents that have a BOS or an EOS of their own beside the tokenizer's."""
    ends.finish()
    for n, what in ((ends.n_two_bos, "begin with two BOS"), (ends.n_two_eos, "end with two EOS")):
        if n:
            out.warn(
                f"{number(n)} documents {what}: the text has one of its own, and the tokenizer "
                "adds one, as llama.cpp does; leave it out of the text"
            )


def warn_of_skipped(stats: CorpusStats, out: Output) -> None:
    """Name what was found in folders and could not be read."""
    if not stats.n_skipped:
        return
    for path, reason in stats.skipped[:SKIPPED_NAMED]:
        out.warn(f"skipped {path}: {reason}")
    more = stats.n_skipped - SKIPPED_NAMED
    listed = "; --json names the first 100" if more > 0 else ""
    out.warn(
        f"{number(stats.n_skipped)} in folders could not be read and were skipped{listed} "
        "(--strict ends the run instead)"
    )


def corpus_keys(corpus: Corpus | ClusterCorpus) -> dict[str, Any]:
    """Return the record's keys of a text that was read."""
    stats = corpus.stats
    return {
        "n_documents": stats.n_documents,
        "n_bytes": stats.n_bytes,
        "n_invalid_utf8": stats.n_invalid_utf8,
        "n_null": stats.n_null,
        "n_left_out": len(corpus.left_out),
        "n_skipped": stats.n_skipped,
        "skipped": [f"{one.path}: {one.reason}" for one in stats.skipped],
    }


def open_cache_for(
    tokenizer: Tokenizer, path: str | None, *, verify: bool = False
) -> NgramCache | None:
    """Open a cache that a tokenizer's ids are looked up in; None: there is none.

    Raises
    ------
    CacheNotACache, CacheOtherVocabulary, ... : see ``open_cache``
    """
    from ..ngram.cache.file import open_cache

    if path is None:
        return None
    n_vocab, fingerprint = tokenizer.n_vocab, tokenizer.fingerprint
    return open_cache(path, n_vocab=n_vocab, fingerprint=fingerprint, verify=verify)


def describe_files(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the record's entry for each file that a command read; null bytes for what is gone.

    To be asked when the files have been opened: a result must not be lost with one of them.
    """
    return [{"path": path, "bytes": _size_of(path)} for path in paths]


def _size_of(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):
        return None


def describe_corpus(corpus: Corpus | ClusterCorpus | ChatFiles) -> list[dict[str, Any]]:
    """Return the record's entry for each text that a command read; null bytes for stdin.

    Of more than INPUTS_SHOWN the last entry is for all the others.
    """
    shown = [{"path": s.path, "bytes": s.size} for s in corpus.sources[:INPUTS_SHOWN]]
    others = corpus.sources[INPUTS_SHOWN:]
    if others:
        n_bytes = sum(source.size or 0 for source in others)
        shown.append({"path": f"and {len(others)} more", "bytes": n_bytes})
    return shown


def closing_keys(
    options: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], compile_s: float
) -> dict[str, Any]:
    """Return the keys that every command's record ends with."""
    from ..engine.host import describe_host, peak_rss_bytes

    return {
        "options": dict(options),
        "inputs": list(inputs),
        "host": asdict(describe_host()),
        "compile_s": compile_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }
