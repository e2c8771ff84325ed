"""Drafting for llama-cpp-python: what its ``Llama`` takes as ``draft_model``.

That library's loop calls the draft model once a round with all ids of the text so far, the token
just sampled last, and verifies what it gets; a rejected draft is cut off before the next call. A
drafter here wants to hear of each token once. What lies between is found by comparison: the ids
of the last call and its draft are kept, and in a loop that goes on the new ids are accepted
drafts and one more token. llama-cpp-python itself is not imported, for it asks for no more than
``__call__``.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from ..engine.decode.pacer import Pacer
from ..engine.errors import UsageError

# Known tokens that must be the same before new ones are taken for their continuation.
_WINDOW = 64
_NOTHING = np.empty(0, np.int32)


class TokenDrafter(Protocol):
    """What drafts: ``NgramDrafter``, or anything else that has this."""

    n_vocab: int
    draft_max: int

    def accept(self, tokens: np.ndarray, /) -> None:
        """Append tokens (int32 [n]) to the text."""

    def draft(self, n_max: int, /) -> np.ndarray:
        """At most ``n_max`` tokens that may follow, int32 [n], valid until the next call."""

    def reset(self) -> None:
        """Forget the text."""


class _Pacing:
    """Drafts as much as pays, by what rounds took and yielded so far."""

    def __init__(self, drafter: TokenDrafter, draft_max: int) -> None:
        self._drafter = drafter
        self._pacer = Pacer(draft_max)
        self._drafted: list[int] = []
        self._n_offered = 0
        self._draft_ns: int | None = None

    def begin(self) -> None:
        """Another text."""
        self._pacer.begin()

    def observe(self, tokens: np.ndarray, verify_ns: int) -> None:
        """Learn what became of the last draft: ``tokens`` (int32 [n]) of the text, in that time."""
        self._pacer.observe(
            self._drafted,
            self._n_offered,
            tokens.tolist(),
            verify_ns=verify_ns,
            draft_ns=self._draft_ns,
        )

    def draft(self, n_max: int) -> np.ndarray:
        """See ``TokenDrafter``."""
        n = self._pacer.n_to_draft(n_max)
        self._draft_ns = None
        draft = _NOTHING
        if n:
            start_ns = time.perf_counter_ns()
            draft = self._drafter.draft(n)
            self._draft_ns = time.perf_counter_ns() - start_ns
        self._drafted = draft.tolist()
        self._n_offered = self._pacer.n_to_verify(len(draft))
        return draft[: self._n_offered]


class LlamaCppDraftModel:
    """A drafter as llama-cpp-python's ``draft_model``; one for each ``Llama``, as that no threads.

    ``Llama`` has to be made with ``logits_all=True``: it keeps the logits of one batch only
    otherwise, and fails at the first draft after that.

    Parameters
    ----------
    drafter : is told the text, reset with it, and asked for drafts; nobody else may do so
    n_max : tokens a draft, at most the drafter's own limit, which is the default; may be set anew
        at any time
    paced : draft no more than pays, by the time between the calls; else as much as there is. What
        is drafted then differs from run to run, and with it the size of batches, to which
        llama.cpp's logits are not always indifferent: of two tokens as good as equal, the other
        may win (docs/python-api.md says when they are)

    Attributes
    ----------
    n_calls, n_drafts : rounds, and those of them with a draft, since the beginning or ``clear``
    n_drafted : tokens of these drafts
    n_accepted : of them, found in the text of a later call. The last draft of a text is not
        counted as accepted, for the library does not tell what became of it
    draft_ns : spent in here

    Raises
    ------
    UsageError : ``n_max`` below 0
    """

    def __init__(
        self, drafter: TokenDrafter, *, n_max: int | None = None, paced: bool = True
    ) -> None:
        if n_max is not None and n_max < 0:
            raise UsageError(f"n_max {n_max} is below 0", remedy="give 0 or more")
        self.drafter = drafter
        self.n_max = drafter.draft_max if n_max is None else n_max
        self._pacing = _Pacing(drafter, self.n_max) if paced else None
        self._asked = drafter if self._pacing is None else self._pacing
        self._left_ns = 0  # when the last call was over
        self._ids = np.empty(1024, np.int32)  # of the last call, and after them its draft
        self.clear()
        self.reset()

    def clear(self) -> None:
        """Set the counts to 0."""
        self.n_calls = self.n_drafts = self.n_drafted = self.n_accepted = 0
        self.draft_ns = 0

    def reset(self) -> None:
        """Forget the text. Needless between texts, which are told apart."""
        self._n = self._n_drafted = 0
        self.drafter.reset()

    def __call__(self, input_ids: np.ndarray, /, **_: Any) -> np.ndarray:
        """Draft what may follow ``input_ids`` (intc [n]), in time of the new ones among them.

        A text that does not go on from the last one is read anew. Ids in it that no token has, as
        the library leaves them for images, are passed over.

        Returns
        -------
        intc [k], a copy; empty where there is nothing to draft

        Raises
        ------
        InputMalformed : the last id, which the model has sampled, is outside the drafter's
            vocabulary
        """
        start_ns = time.perf_counter_ns()
        ids = np.asarray(input_ids, np.int32)
        n_old = self._n
        goes_on = self._goes_on(ids)
        if not goes_on:
            self._read(ids)
        if self._pacing is not None:
            if goes_on:
                self._pacing.observe(ids[n_old:], start_ns - self._left_ns)
            else:
                self._pacing.begin()
        self._n, self._n_drafted = len(ids), 0
        draft = np.array(self._asked.draft(self.n_max), np.intc)
        self._n_drafted = len(draft)
        if len(draft):
            self._write(draft, self._n)
            self.n_drafts += 1
            self.n_drafted += len(draft)
        self.n_calls += 1
        self._left_ns = time.perf_counter_ns()
        self.draft_ns += self._left_ns - start_ns
        return draft

    def _goes_on(self, ids: np.ndarray) -> bool:
        """Take the new ids, if they are drafts that were accepted and one more token.

        Of what is before them only a window is compared, so that a round takes the same time in
        any text. Where that is deceived, drafts are worse and the text is still the model's own.
        """
        n, n_old = len(ids), self._n
        n_accepted = n - 1 - n_old
        if not n_old or not 0 <= n_accepted <= self._n_drafted:
            return False
        start = max(0, n_old - _WINDOW)
        if ids[start : n - 1].tobytes() != self._ids[start : n - 1].tobytes():
            return False
        self.drafter.accept(ids[n_old:])
        self._write(ids[n - 1 :], n - 1)
        self.n_accepted += n_accepted
        return True

    def _read(self, ids: np.ndarray) -> None:
        """Take any text, after comparing all of it with the last one."""
        n_known = self._n
        if _n_alike(ids, self._ids[:n_known]) < n_known:
            self.reset()
            n_known = 0
        new = ids[n_known:]
        if not len(new):
            return
        sound = (new >= 0) & (new < self.drafter.n_vocab)
        sound[-1] = True  # or is refused: no image, but a wrong vocabulary
        self.drafter.accept(new[sound])
        draft = self._ids[n_known : n_known + self._n_drafted]
        self.n_accepted += _n_alike(new[:-1], draft)
        self._write(new, n_known)

    def _write(self, ids: np.ndarray, at: int) -> None:
        stop = at + len(ids)
        if stop > self._ids.size:
            grown = np.empty(2 * stop, np.int32)
            grown[:at] = self._ids[:at]
            self._ids = grown
        self._ids[at:stop] = ids


def _n_alike(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids, from the first on, are the same in both."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n
