"""A comparison of drafting with plain decoding, with its bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .session import BAR_AFTER_S, Session, prefill_bar

if TYPE_CHECKING:
    from ...engine.decode.comparison import Comparison, MakeDrafting
    from ..output import Output


def compare(
    session: Session, make_drafting: MakeDrafting, n_turns: int, out: Output, sizes: Sequence[int]
) -> Comparison:
    """Generate a session's text ``n_turns`` times each way, then time steps of those sizes.

    The session's cache needs room for the largest of them beyond the text.

    Raises
    ------
    KeyboardInterrupt : Ctrl-C; half a comparison is none
    """
    from ...engine.decode.comparison import Start, compare

    first = make_drafting()
    with prefill_bar(out) as on_prefill:
        start = Start(session.model, session.cache, session.plan, first.drafter, on_prefill)
    with out.progress("comparing", unit="tokens", after_s=BAR_AFTER_S) as bar:
        return compare(
            start, make_drafting, n_turns, first=first, sizes=sizes, on_progress=bar.update
        )
