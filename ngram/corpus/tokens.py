"""Documents to token ids: texts through the tokenizer, ids as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ...engine.errors import InputMalformed, WordTooLong
from ...engine.tokens.tokenizer import Tokenizer
from .documents import Document
from .ids import id_blocks
from .store import show_path


def document_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, n_threads: int
) -> Iterator[tuple[int, npt.NDArray[np.int32], bool]]:
    """Yield (document number, int32 ids of a piece of it, whether it is text), in order.

    Every document yields one piece at least.

    Raises
    ------
    InputMalformed : ids outside the vocabulary, or what is wrong with a document or its text
    """
    first = 0
    for is_text, group in groupby(documents, key=lambda one: one.blocks is not None):
        if is_text:
            number = first
            for index, tokens in _text_tokens(group, tokenizer, n_threads):
                number = first + index
                yield number, tokens, True
            first = number + 1
        else:
            for document in group:
                assert document.tokens is not None
                for tokens in id_blocks(document.tokens):
                    _check_ids(tokens, document.name, tokenizer.n_vocab)
                    yield first, tokens, False
                first += 1


def _text_tokens(
    documents: Iterator[Document], tokenizer: Tokenizer, n_threads: int
) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
    """Yield (index of the document, int32 ids of a piece of it); an error names the document."""
    name = ""

    def blocks() -> Iterator[Iterator[bytes]]:
        nonlocal name
        for document in documents:
            assert document.blocks is not None
            name = document.name
            yield document.blocks

    try:
        yield from tokenizer.encode_documents(blocks(), n_threads=n_threads)
    except WordTooLong as error:  # of the document taken last, for texts are cut as they are taken
        raise WordTooLong(f"{show_path(name)}: {error.message}", remedy=error.remedy) from error


def _check_ids(tokens: npt.NDArray[np.int32], name: str, n_vocab: int) -> None:
    highest = int(tokens.max()) if tokens.size else 0
    if highest >= n_vocab:
        raise InputMalformed(
            f"{show_path(name)}: holds token {highest}, but the vocabulary has {n_vocab} tokens",
            remedy="name the model whose tokenizer made the ids",
        )
