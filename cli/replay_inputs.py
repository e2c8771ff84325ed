"""From the files of a call to texts that can be replayed, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..engine.errors import InputTooShort, UsageError
from .output import Output, Table

if TYPE_CHECKING:
    import numpy as np

    from ..engine.gguf_file import GgufMetadata
    from ..engine.tokenizer import Tokenizer
    from ..ngram.conversations import ReplayTexts
    from ..ngram.corpus import Corpus
    from .inputs import Stages


@dataclass(frozen=True)
class ReadRequest:
    """What is to be read.

    Attributes
    ----------
    n_ctx : tokens a chunk of plain text; 0: as many as the model was trained on
    """

    files: list[str]
    n_ctx: int
    field: str | None
    escape: bool
    n_threads: int


@dataclass(frozen=True)
class ReplayInputs:
    """Texts, and what records and tables say of them.

    Attributes
    ----------
    keys : of each record
    inputs : the record's entry of each file
    tables : shown behind the others
    """

    texts: ReplayTexts
    keys: dict[str, Any]
    inputs: list[dict[str, Any]]
    tables: list[Table] = field(default_factory=list)


def read_texts(
    request: ReadRequest,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    stages: Stages,
    out: Output,
) -> ReplayInputs:
    """Read texts; each document is cut into chunks of ``n_ctx`` tokens, a conversation each.

    Raises
    ------
    InputEmpty : neither text nor ids
    InputTooShort : no document has two tokens
    """
    from ..ngram.conversations import Conversation, ReplayTexts
    from ..ngram.corpus import open_corpus
    from .inputs import describe_corpus, show_read, warn_of_repairs

    corpus = open_corpus(request.files, field=request.field, escape=request.escape)
    n_ctx = chunk_tokens(request.n_ctx, metadata, out)
    conversations: list[Conversation] = []
    with out.progress("tokenizing", unit="bytes") as bar, stages.stage("tokenize"):
        for tokens in _documents(corpus, tokenizer, request.n_threads):
            if tokens.size > 1:
                conversations += ReplayTexts.of_text(tokens, n_ctx)
            show_read(bar, corpus)
    if not conversations:
        raise InputTooShort(
            "no document has two tokens, which a replay needs", remedy="give longer texts"
        )
    warn_of_repairs(corpus, out)
    keys = {
        "n_documents": corpus.stats.n_documents,
        "n_bytes": corpus.stats.n_bytes,
        "n_invalid_utf8": corpus.stats.n_invalid_utf8,
    }
    return ReplayInputs(ReplayTexts.of(conversations), keys, describe_corpus(corpus))


def chunk_tokens(wanted: int, metadata: GgufMetadata, out: Output) -> int:
    """Return the chunk length: what is wanted or the model's own, rounded up as llama.cpp does.

    Raises
    ------
    UsageError : the model does not say what it was trained on
    """
    from ..ngram.replay import round_up_ctx

    n_ctx = wanted
    if n_ctx == 0:
        values = metadata.values
        trained = values.get(f"{values.get('general.architecture')}.context_length")
        n_ctx = trained if isinstance(trained, int) else 0
        if n_ctx < 1:
            raise UsageError(
                f"{metadata.path} does not say what context it was trained on",
                remedy="give -c N",
            )
    rounded = round_up_ctx(n_ctx)
    if rounded != n_ctx:
        out.note(f"-c {n_ctx} is rounded up to {rounded}, a multiple of 256, as llama.cpp does")
    return rounded


def _documents(corpus: Corpus, tokenizer: Tokenizer, n_threads: int) -> Iterator[np.ndarray]:
    """Yield the ids of each document: int32 [n]."""
    import numpy as np

    from .inputs import token_pieces

    pieces = token_pieces(corpus, tokenizer, n_threads)
    for _, of_one in groupby(pieces, key=itemgetter(0)):
        yield np.concatenate([tokens for _, tokens in of_one])
