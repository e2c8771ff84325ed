"""What of conversations is counted into a cache: texts, and no n-gram spans two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from .conversation import Conversation, ReplayTexts

Ids = npt.NDArray[np.int32]
What = Literal["all", "answers"]


def counted_parts(texts: ReplayTexts, what: What, n_shared: int) -> Iterator[Ids]:
    """Yield texts to count, int32 [n], none of them empty.

    Parameters
    ----------
    what : "answers": what the assistant generated, each answer a text. "all": each conversation
        with its prompts, once: where a prompt begins anew, because the template rewrites what was
        said, only what follows the part that it has in common with the last one.
    n_shared : tokens of that part that go before it, so that the n-grams of this size that end
        after the border are counted.
    """
    for conversation in texts:
        if what == "answers":
            for start, stop in conversation.turns.tolist():
                yield conversation.tokens[start:stop]
        else:
            yield from _new_of_each_prompt(conversation, n_shared)


def _new_of_each_prompt(conversation: Conversation, n_shared: int) -> Iterator[Ids]:
    tokens = conversation.tokens
    starts = sorted({0, *conversation.prompts.tolist()})
    before = tokens[:0]
    for start, stop in zip(starts, [*starts[1:], tokens.size], strict=True):
        part = tokens[start:stop]
        n = min(before.size, part.size)
        differs = np.flatnonzero(before[:n] != part[:n])
        n_same = int(differs[0]) if differs.size else n
        if n_same < part.size:
            yield part[max(0, n_same - n_shared) :]
        before = part
