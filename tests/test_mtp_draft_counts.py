"""What is counted of drafts, by origin and position."""

from __future__ import annotations

from draftsmith.engine.decode.generation import Round
from draftsmith.engine.decode.pacer import n_alike
from draftsmith.mtp.draft_counts import DraftCounts


def test_counts_by_origin_and_position() -> None:
    """What one origin drafted counted for another; tokens that were watched and not evaluated."""
    origins = iter("abaa")  # asked for drafts alone
    counts = DraftCounts(lambda: next(origins))
    for draft, n_verified, tokens in (
        ([1, 2], 2, [1, 3]),
        ([5], 1, [5, 6]),
        ([7, 8, 9], 3, [7, 8]),
        ([4, 4], 1, [4, 4]),
        ([], 0, [1]),
    ):
        n_stand = n_alike(draft[:n_verified], tokens)
        counts(Round(draft, n_verified, n_stand, tokens, verify_ns=9, draft_ns=1))
    assert counts.positions == {"a": ([3, 2, 1], [3, 1, 0]), "b": ([1], [1])}
