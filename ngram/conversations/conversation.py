"""Texts that a replay goes through: who generated which of their tokens, and after what prompt.

A text is a conversation: turns of the assistant, each after the prompt that its request had. A
plain text is one whose only turn begins with its second token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...engine.errors import InputTooShort

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True, eq=False)
class Conversation:
    """One conversation.

    Attributes
    ----------
    tokens : int32 [n].
    turns : int64 [k, 2], first token of each turn and the one after its last, in order; no turn
        is empty, nor without a prompt.
    prompts : int64 [k], where the prompt of each turn begins: ``tokens[prompts[i]:turns[i, 0]]``
        is what the server was sent, ``tokens[turns[i, 0]:turns[i, 1]]`` what it generated. As
        long as each request repeats the last one and its answer token for token, the prompts of
        all turns begin at the same place.
    """

    tokens: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ReplayTexts:
    """Many conversations, joined: what kernels take.

    Attributes
    ----------
    tokens : int32 [N], all of them, in order.
    starts : int64 [C + 1], where each conversation begins, and N.
    turns : int64 [T, 2], turns of the assistant in ``tokens``, in order.
    prompts : int64 [T], where the prompt of each turn begins in ``tokens``.
    turn_of_conversation : int64 [C + 1], the first turn of each conversation, and T.
    """

    tokens: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    turns: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]
    turn_of_conversation: npt.NDArray[np.int64]

    @classmethod
    def of(cls, conversations: Iterable[Conversation]) -> ReplayTexts:
        """Join conversations."""
        joined = Joined()
        for conversation in conversations:
            joined.add(conversation)
        return joined.texts()

    @classmethod
    def of_text(cls, tokens: npt.NDArray[np.int32], n_ctx: int | None = None) -> ReplayTexts:
        """A plain text, int32 [n], as one conversation, or as one for each ``n_ctx`` tokens.

        The first token of each is given, the rest is its turn. A last chunk of one token is left
        out.

        Raises
        ------
        InputTooShort : fewer than two tokens
        """
        tokens = np.ascontiguousarray(tokens, np.int32)
        if tokens.size < 2:
            raise InputTooShort(
                f"the text has {tokens.size} tokens, and a replay needs 2",
                remedy="give a longer text",
            )
        size = max(2, min(n_ctx or tokens.size, tokens.size))
        n = tokens.size - (tokens.size % size == 1)
        begins = np.arange(0, n, size, dtype=np.int64)
        starts = np.append(begins, n)
        turns = np.stack([begins + 1, starts[1:]], axis=1)
        return cls(tokens[:n], starts, turns, begins, np.arange(begins.size + 1, dtype=np.int64))

    def __iter__(self) -> Iterator[Conversation]:
        """The conversations, in order."""
        for c in range(self.n_conversations):
            start, stop = self.starts[c : c + 2]
            first, end = self.turn_of_conversation[c : c + 2]
            yield Conversation(
                self.tokens[start:stop],
                self.turns[first:end] - start,
                self.prompts[first:end] - start,
            )

    @property
    def n_conversations(self) -> int:
        return self.starts.size - 1

    @property
    def n_turns(self) -> int:
        return self.prompts.size

    @property
    def n_generated(self) -> int:
        """Tokens of all turns."""
        return int((self.turns[:, 1] - self.turns[:, 0]).sum())


@dataclass
class Joined:
    """Conversations as they come, to be joined."""

    _tokens: list[npt.NDArray[np.int32]] = field(default_factory=list)
    _turns: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _prompts: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _n: int = 0

    def add(self, conversation: Conversation) -> None:
        """Add one after the others."""
        self._tokens.append(conversation.tokens)
        self._turns.append(conversation.turns + self._n)
        self._prompts.append(conversation.prompts + self._n)
        self._n += conversation.tokens.size

    def texts(self) -> ReplayTexts:
        """All of them; the parts are given away, so that they are not held twice."""
        tokens, turns, prompts = self._tokens, self._turns, self._prompts
        self._tokens, self._turns, self._prompts, self._n = [], [], [], 0
        starts, first_turns = (
            _ends(part.size for part in tokens),
            _ends(len(part) for part in turns),
        )
        return ReplayTexts(
            tokens=_joined(tokens, np.empty(0, np.int32)),
            starts=starts,
            turns=np.concatenate([np.empty((0, 2), np.int64), *turns]),
            prompts=np.concatenate([np.empty(0, np.int64), *prompts]),
            turn_of_conversation=first_turns,
        )


def _ends(sizes: Iterable[int]) -> npt.NDArray[np.int64]:
    """0, and the sums of the sizes up to each."""
    return np.cumsum([0, *sizes], dtype=_INT64)


def _joined(
    parts: list[npt.NDArray[np.int32]], empty: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The parts in one array; each is forgotten as it is copied."""
    whole = np.empty(sum(part.size for part in parts), empty.dtype)
    at = 0
    for number, part in enumerate(parts):
        whole[at : at + part.size] = part
        at += part.size
        parts[number] = empty
    return whole
