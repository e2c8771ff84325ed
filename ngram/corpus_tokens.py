"""Documents to token ids: texts through the tokenizer, ids as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..engine.tokenizer import Tokenizer
from .corpus import Document, id_blocks


def document_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, n_threads: int
) -> Iterator[tuple[int, npt.NDArray[np.int32], bool]]:
    """Yield (document number, int32 ids of a piece of it, whether it is text), in order.

    Every document yields one piece at least.
    """
    first = 0
    for is_text, group in groupby(documents, key=lambda one: one.blocks is not None):
        if is_text:
            number = first
            texts = _blocks(group)
            for index, tokens in tokenizer.encode_documents(texts, n_threads=n_threads):
                number = first + index
                yield number, tokens, True
            first = number + 1
        else:
            for document in group:
                assert document.tokens is not None
                for tokens in id_blocks(document.tokens):
                    yield first, tokens, False
                first += 1


def _blocks(documents: Iterator[Document]) -> Iterator[Iterator[bytes]]:
    for document in documents:
        assert document.blocks is not None
        yield document.blocks
