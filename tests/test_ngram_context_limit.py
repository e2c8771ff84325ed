"""Conversations that are longer than a slot's context."""

from __future__ import annotations

import numpy as np
import pytest
from draftsmith.ngram.conversations.context_limit import Beyond, beyond, within
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts


def conversation(
    n: int, turns: list[tuple[int, int]], prompts: list[int] | None = None
) -> Conversation:
    return Conversation(
        np.arange(n, dtype=np.int32),
        np.array(turns, np.int64),
        np.array(prompts or [0] * len(turns), np.int64),
    )


def short() -> ReplayTexts:
    """Two conversations; of the first all answers share a prompt, the second begins anew once."""
    return ReplayTexts.of(
        [
            conversation(30, [(4, 8), (10, 16), (20, 30)]),
            conversation(40, [(35, 40)]),
            conversation(24, [(12, 14), (18, 24)], [0, 14]),
        ]
    )


@pytest.mark.parametrize(
    ("n_ctx", "refused", "stopped"),
    [(40, 0, 0), (39, 0, 1), (36, 0, 1), (35, 1, 0), (30, 1, 0), (29, 1, 1), (20, 2, 0), (4, 6, 0)],
)
def test_counts(n_ctx: int, refused: int, stopped: int) -> None:
    """An answer after a prompt that just fills the slot, or one token off: llama-server refuses
    a prompt of n_ctx tokens, and yields n_ctx - n_prompt tokens after a shorter one."""
    found = beyond(short(), n_ctx)
    assert found == Beyond(refused, stopped, 40)
    assert bool(found) == (refused + stopped > 0)


def test_what_is_left() -> None:
    """A refused answer replayed, an early end that takes the next prompt with it."""
    left = list(within(short(), 13))
    assert [one.turns.tolist() for one in left] == [[[4, 8], [10, 13]], [[12, 13], [18, 24]]]
    assert [one.prompts.tolist() for one in left] == [[0, 0], [0, 14]]
    assert [one.tokens.size for one in left] == [13, 24]
    assert beyond(within(short(), 13), 13) == Beyond(0, 0, 13)


def test_a_prompt_that_just_fills_the_slot() -> None:
    """An answer of no token, kept as a turn."""
    left = list(within(short(), 12))
    assert [one.turns.tolist() for one in left] == [[[4, 8], [10, 12]], [[18, 24]]]


def test_the_text_of_a_stopped_answer_is_in_the_next_prompt() -> None:
    """Tokens cut out of the middle: the client sends the whole answer again."""
    (one,) = within(ReplayTexts.of([conversation(20, [(4, 12), (14, 20)], [0, 12])]), 8)
    assert (one.turns.tolist(), one.prompts.tolist()) == ([[4, 8], [14, 20]], [0, 12])
    np.testing.assert_array_equal(one.tokens, np.arange(20))


def test_nothing_fits() -> None:
    """Conversations without a turn, which kernels do not expect."""
    left = within(short(), 2)
    assert (left.n_conversations, left.n_turns, left.tokens.size) == (0, 0, 0)
