"""Any drafter of a row, or several, in a generation loop: accept what was generated, draft.

``NgramDrafter`` does this for llama-lookup's drafting; here it is for all drafters of settings.py,
with the kernels of a replay: same text, same drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ...engine.errors import UsageError
from ..cache.ngram_cache import NgramCache
from ..cache.packed import token_dtype
from ..lookup.replay import check_tokens
from ..lookup.tables import session_of
from .replay import caches_of
from .session_kernels import (
    N_ARRAYS,
    Session,
    begin_in_session,
    draft_in_session,
    forget_in_session,
    grow_bank,
)
from .settings import DrafterSpec
from .slot_kernels import Bank
from .slots import Room, bank_bytes, make_bank

# Repaired, ngram-mod keeps no more n-grams than that of older texts, when a request begins.
_POOL = 1 << 20


class SpecDrafter:
    """Drafts tokens from the text so far, and from texts before it.

    What becomes of a draft is found by what is accepted next: no other call is needed. A draft of
    which all that was evaluated stands, and not all was, counts neither as right nor as refused;
    but ``begin`` takes what a text's last draft has beyond the text as refused, as a replay does.

    Parameters
    ----------
    n_vocab : ids are below it
    spec : the drafters, in order of priority, with their settings
    draft_max : most tokens a draft, if less than the drafters' own
    static, dynamic : caches for ngram-cache; they are read, never changed
    ends : ids that end a generation, for drafters that draft none after them
    n_tokens : room for that many from the start; it grows as needed

    Raises
    ------
    UsageError, CacheUnsuitable, CacheBadToken
    """

    def __init__(
        self,
        n_vocab: int,
        spec: DrafterSpec,
        *,
        draft_max: int | None = None,
        static: NgramCache | None = None,
        dynamic: NgramCache | None = None,
        ends: Sequence[int] = (),
        n_tokens: int = 4096,
    ) -> None:
        if draft_max is not None and draft_max < 0:
            raise UsageError(f"draft_max {draft_max} is below 0", remedy="give 0 or more")
        self.n_vocab = n_vocab
        self.spec = spec
        self.draft_max = spec.draft_max if draft_max is None else min(draft_max, spec.draft_max)
        self._ends = tuple(ends)
        self._caches = caches_of(static, dynamic, n_vocab, max(1, spec.draft_max))
        self._ids = np.empty(0, token_dtype(2 if static is None else n_vocab))
        self._out = np.empty(max(1, spec.draft_max), np.int32)
        self._pending = np.zeros(3, np.int64)
        self._n = 0
        self._n_before = 0  # tokens of older texts
        self._n_all = 0  # room for tokens of all texts
        self._asked = (-1, 0)  # tokens of the text at the last draft, and its n_max
        self._n_drafted = 0  # by it; a shorter one may have been asked for since
        self._begun = False
        self._same = 0
        self._tokens = np.empty(0, np.int32)
        self._take_room(max(16, n_tokens), None)

    def __reduce__(self) -> NoReturn:
        # A copy's kernels would write into this one's arrays, or, elsewhere, into anything.
        raise TypeError("a SpecDrafter can't be copied or pickled; make another")

    def _take_room(self, n_text: int, old: Bank | None) -> None:
        """Take arrays with room for a text of ``n_text``, and write down where all lie."""
        if not self.spec.upstream_exact:  # which never forgets
            self._n_before = min(self._n_before, _POOL + n_text)
        self._n_all = max(self._n_all, 2 * (n_text + self._n_before))
        bank = make_bank(self.spec, Room(n_text, self._n_all, self.n_vocab), self._ends)
        if old is not None:
            grow_bank(bank, old)
        self._bank = bank
        tokens = np.empty(n_text, np.int32)
        tokens[: self._n] = self._tokens[: self._n]
        self._tokens = tokens
        self._session = session_of(
            Session(
                bank=bank,
                dynamic=self._caches.dynamic,
                bigrams=self._caches.bigrams,
                thresholds=self._caches.thresholds,
                origin=self._caches.origin,
                tokens=tokens,
                out=self._out,
            ),
            N_ARRAYS,
        )

    def __len__(self) -> int:
        """Tokens of the text so far."""
        return self._n

    @property
    def memory_bytes(self) -> int:
        """Of the drafters, whether touched or not; caches are not counted."""
        return bank_bytes(self._bank)

    def reset(self) -> None:
        """Forget everything, the text and those before it."""
        forget_in_session(self._session)
        self._n = 0
        self._n_before = 0
        self._begun = False
        self._same = 0
        self._pending[:] = 0
        self._asked = (-1, 0)

    def begin(self, prompt: Sequence[int] | np.ndarray) -> None:
        """Begin the next request of a server's slot: ``prompt`` is the text now.

        What older texts taught stays, as in llama-server.

        Raises
        ------
        InputMalformed : a token is outside the vocabulary; nothing has changed
        """
        tokens = np.asarray(prompt, np.int64)
        check_tokens(tokens, self.n_vocab)
        tokens = tokens.astype(np.int32)
        self._judge()
        n_old = self._n
        most = min(n_old, tokens.size)
        differ = np.flatnonzero(self._tokens[:most] != tokens[:most])
        same = int(differ[0]) if differ.size else most
        if not self._begun:  # the drafters have not seen the old text, but one before it
            same = min(same, self._same)
        if same < n_old:
            self._n_before += n_old
        self._n = 0
        self._pending[:] = 0
        self._begun = False
        self._same = same
        self._asked = (-1, 0)
        self._make_room(tokens.size)
        self._tokens[: tokens.size] = tokens
        self._n = tokens.size

    def _judge(self) -> None:
        """Tell the drafters what became of the last draft, if anything has."""
        if self._pending[0] and self._pending[2] < self._n:
            draft_in_session(self._session, self._pending, self._n, 0, self._ids)

    def _make_room(self, n_tokens: int) -> None:
        n_text = self._tokens.size
        if n_tokens > n_text:
            n_text = max(n_tokens, 2 * n_text)
        elif self._n_before + n_tokens <= self._n_all:
            return
        self._take_room(n_text, self._bank)

    def accept(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append generated (or prompt) tokens to the text.

        Raises
        ------
        InputMalformed : a token is outside the vocabulary; nothing is appended
        """
        n = self._n + len(tokens)
        if n > self._tokens.size or self._n_before + n > self._n_all:
            self._make_room(n)
        if len(tokens) == 1:  # the usual call, and NumPy's would take longer
            token = int(tokens[0])
            if not 0 <= token < self.n_vocab:
                check_tokens(np.array([token]), self.n_vocab)
            self._tokens[self._n] = token
        else:
            tokens = np.asarray(tokens)
            check_tokens(tokens, self.n_vocab)
            self._tokens[self._n : n] = tokens
        self._n = n

    def draft(self, n_max: int | None = None) -> np.ndarray:
        """Up to ``n_max`` tokens (default and limit: ``draft_max``) that may follow the text.

        The first draft of a text takes all but its last token for the request's prompt. Asked for
        as many or fewer again, with nothing accepted since, it says the same.

        Returns
        -------
        int32 [n], valid until the next call; empty where nothing is found
        """
        n_max = self.draft_max if n_max is None else min(n_max, self.draft_max)
        n, asked_for = self._asked
        if n == self._n:  # asked again: nothing has become of the last draft yet
            if n_max <= asked_for:
                self._pending[0] = min(max(n_max, 0), self._n_drafted)
                return self._out[: self._pending[0]]
            self._pending[0] = 0
        elif self._is_undecided():
            self._pending[0] = 0
        if not self._begun:
            if not self._n:
                return self._out[:0]
            begin_in_session(self._session, self._n - 1, self._same)
            self._begun = True
        self._asked = (self._n, n_max)
        self._n_drafted = draft_in_session(self._session, self._pending, self._n, n_max, self._ids)
        return self._out[: self._n_drafted]

    def _is_undecided(self) -> bool:
        """Whether the last draft goes on beyond the text and nothing in it is refused.

        The text's last token is compared first: where all was evaluated it is the model's own, and
        differs.
        """
        since = self._n - int(self._pending[2])
        if not 0 < since < self._pending[0] or self._out[since - 1] != self._tokens[self._n - 1]:
            return False
        # Lists: of a few tokens, np.array_equal takes longer than the draft.
        said = self._tokens[self._n - since : self._n].tolist()
        return bool(said == self._out[:since].tolist())

    def origins(self, n: int) -> list[tuple[str, int]]:
        """(drafter, 0) of each of the last draft's first ``n`` tokens: one has drafted them all."""
        name = self.spec.names[int(self._pending[1])].name
        return [(name, 0)] * min(n, int(self._pending[0]))
