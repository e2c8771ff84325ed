"""A cache's n-grams of one size as plain flat arrays: what counting makes and merging takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...engine.errors import CacheBadCount, CacheBadToken, CacheDamaged

COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class OrderTable:
    """The n-grams of one size.

    Attributes
    ----------
    tokens : int32 [n_ngrams * order], rows strictly ascending, lexicographic
    entry_start : int64 [n_ngrams + 1], strictly ascending: no n-gram without a follower
    entry_token : int32 [n_entries], strictly ascending within an n-gram
    entry_count : uint32 [n_entries], 1 to 2**31 - 1 (saturated)
    """

    tokens: np.ndarray
    entry_start: np.ndarray
    entry_token: np.ndarray
    entry_count: np.ndarray

    @property
    def n_ngrams(self) -> int:
        return self.entry_start.size - 1

    @property
    def n_entries(self) -> int:
        return self.entry_token.size

    @property
    def n_bytes(self) -> int:
        return sum(
            array.nbytes
            for array in (self.tokens, self.entry_start, self.entry_token, self.entry_count)
        )

    @property
    def unpacked_bytes(self) -> int:
        """Memory that ``PackedTable`` would take to be like this one, which is: none."""
        return 0

    def max_token(self) -> int:
        """The largest id that occurs, or -1."""
        arrays = (self.tokens, self.entry_token)
        return max((int(array.max()) for array in arrays if array.size), default=-1)


def refuse(status: int, at: int, order: int, n_ids: int, what: str) -> None:
    """Raise what a check found: 0 nothing, 1 entry ``at``'s count, 2 token ``at``, 3 row ``at``,
    4 the index.

    Raises
    ------
    CacheBadCount, CacheBadToken, CacheDamaged
    """
    if status == 1:
        raise CacheBadCount(
            f"{what}: the count of entry {at} of the {order}-grams is not 1 to {COUNT_MAX}",
            remedy="the file is damaged: create it again",
        )
    if status == 2:
        raise CacheBadToken(
            f"{what}: a {order}-gram holds token {at}, outside the vocabulary of {n_ids}",
            remedy="name the model that the cache was made with, or create it again",
        )
    if status == 3:
        raise CacheDamaged(
            f"{what}: the {order}-grams are not in order at row {at}",
            remedy="the file is damaged: create it again",
        )
    if status == 4:
        raise CacheDamaged(
            f"{what}: the index of the {order}-grams does not belong to them",
            remedy="the file is damaged: create it again",
        )
