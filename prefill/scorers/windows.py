"""The texts that a model reads in place of a long prompt: parts of it, each with the question.

A model that was trained on so many tokens reads no more at a time, and memory stays bounded. The
question stands after each part, as it usually does in the prompt; where it stood before the
document, it is moved after it, or no token of it would see any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import UsageError
from ..prompt.parts import PromptParts, Span

_HEAD = 64  # tokens of the prompt's beginning that each part begins with, at most
_LEAST = 512


@dataclass(frozen=True)
class Windows:
    """How long a text may be.

    Attributes
    ----------
    longest : tokens that are read as one text
    size : most tokens of a text where there are more than that; 512 or more
    overlap : tokens of the document that a part has from the one before; at most size / 8

    Raises
    ------
    UsageError : a number out of range
    """

    longest: int = 8192
    size: int = 4096
    overlap: int = 128

    def __post_init__(self) -> None:
        if self.size < _LEAST or self.longest < self.size or not 0 <= self.overlap <= self.size / 8:
            raise UsageError(
                f"windows of {self.size} tokens, overlapping by {self.overlap}, for prompts of "
                f"more than {self.longest}",
                remedy=f"give windows of {_LEAST} tokens or more, which overlap by an eighth at "
                "most, for prompts that are longer than one",
            )

    @classmethod
    def of_model(cls, n_ctx_train: int) -> Windows:
        """For a model that was trained on texts of so many tokens."""
        longest = min(cls.longest, max(_LEAST, n_ctx_train))
        size = min(cls.size, longest)
        return cls(longest, size, min(cls.overlap, size // 8))


@dataclass(frozen=True, eq=False)
class Window:
    """A text to read.

    Attributes
    ----------
    ids : int32 [n]
    places : int64 [n], of each token in the prompt; each at most once
    tail : first and after the last token of what stands after the document: the question
    """

    ids: NDArray[np.int32]
    places: NDArray[np.int64]
    tail: Span


def cut(parts: PromptParts, tail: Span, windows: Windows) -> list[Window]:
    """The texts to read of a prompt; together they hold all of its document.

    Parameters
    ----------
    tail : tokens of the prompt that stand after each part of the document: usually the question.
        Of a tail that is longer than half of a window, the end is taken.
    """
    body_stop = max(tail[0], parts.document[-1][1] if parts.document else 0)
    asked = np.arange(max(tail[0], tail[1] - windows.size // 2), tail[1], dtype=np.int64)
    body = np.arange(body_stop, dtype=np.int64)
    body = body[(body < tail[0]) | (body >= tail[1])]
    if body.size + asked.size <= windows.longest or not parts.document:
        return [_window(parts, body, asked)]
    first = parts.document[0][0]
    head = np.arange(min(first, tail[0], _HEAD), dtype=np.int64)
    body = body[(body >= first) & (body < parts.document[-1][1])]
    n_more = windows.size - head.size - asked.size - windows.overlap
    n_windows = max(1, -(-(body.size - windows.overlap) // n_more))
    step = max(1, -(-(body.size - windows.overlap) // n_windows))
    slices = [body[at : at + step + windows.overlap] for at in range(0, n_windows * step, step)]
    return [
        _window(parts, np.concatenate((head, part)), asked)
        for part in slices
        if parts.is_document[part].any()
    ]


def _window(parts: PromptParts, body: NDArray[np.int64], asked: NDArray[np.int64]) -> Window:
    places = np.concatenate((body, asked))
    return Window(parts.ids[places], places, (body.size, places.size))
