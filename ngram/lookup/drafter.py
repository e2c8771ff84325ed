"""The n-gram drafter of a generation loop: accept what was generated, draft what may follow.

The context cache holds the whole conversation, as llama-lookup's does; the rule is in
docs/ngram.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ...engine.errors import UsageError
from ..cache.ngram_cache import NgramCache
from ..cache.packed import token_dtype
from .draft_kernels import Context
from .replay import SOURCES, check_ids, check_tokens
from .session_kernels import N_ARRAYS, Session, accept_in_session, draft_in_session
from .tables import (
    SIZES,
    THRESHOLDS,
    bigrams_of_cache,
    context_with_room,
    dynamic_of_cache,
    empty_context,
    session_of,
)


class NgramDrafter:
    """Drafts tokens from the text so far, a dynamic and a static cache.

    Parameters
    ----------
    n_vocab : ids are below it
    draft_max : most tokens a draft
    static, dynamic : caches as ``open_cache`` returns them; they are read, never changed
    n_tokens : room for that many from the start; it grows as needed

    Raises
    ------
    UsageError, CacheUnsuitable, CacheBadToken
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        draft_max: int = 3,
        static: NgramCache | None = None,
        dynamic: NgramCache | None = None,
        n_tokens: int = 4096,
    ) -> None:
        if draft_max < 0:
            raise UsageError(f"draft_max {draft_max} is below 0", remedy="give 0 or more")
        check_ids(static, n_vocab)
        check_ids(dynamic, n_vocab)
        self.n_vocab = n_vocab
        self.draft_max = draft_max
        self._first_room = n_tokens
        self._tokens = np.empty(0, np.int32)
        self._dynamic = dynamic_of_cache(dynamic)
        self._bigrams = bigrams_of_cache(static, n_vocab)
        self._ids = np.empty(0, token_dtype(n_vocab))
        self._state = np.zeros(SIZES + 1, np.int32)
        self._draft = np.empty(max(1, draft_max), np.int32)
        self._origin = np.empty((max(1, draft_max), 2), np.int64)
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self._n = 0
        self._state[:] = 0
        self._room(self._first_room, empty_context(self._first_room, self.n_vocab))

    def __reduce__(self) -> NoReturn:
        # A copy's kernels would write into this one's arrays, or, elsewhere, into anything.
        raise TypeError("an NgramDrafter can't be copied or pickled; make another")

    def _room(self, n_tokens: int, context: Context) -> None:
        """Take arrays with room for ``n_tokens``, and write down where all arrays lie."""
        self._context = context
        tokens = np.empty(n_tokens, np.int32)
        if self._n:
            tokens[: self._n] = self._tokens[: self._n]
        self._tokens = tokens
        self._session = session_of(
            Session(
                context=context,
                dynamic=self._dynamic,
                bigrams=self._bigrams,
                tokens=tokens,
                state=self._state,
                thresholds=THRESHOLDS,
                draft=self._draft,
                origin=self._origin,
            ),
            N_ARRAYS,
        )

    def __len__(self) -> int:
        """Tokens of the text so far."""
        return self._n

    def accept(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Append generated (or prompt) tokens to the text.

        Raises
        ------
        InputMalformed : a token is outside the vocabulary; nothing is appended
        """
        n_more = len(tokens)
        if self._n + n_more > self._tokens.size:
            n_tokens = max(self._n + n_more, 2 * self._tokens.size)
            self._room(n_tokens, context_with_room(self._context, n_tokens))
        # For one, the usual call, NumPy's three would take longer than to learn.
        if n_more != 1 or not 0 <= int(tokens[0]) < self.n_vocab:
            tokens = np.asarray(tokens)
            check_tokens(tokens, self.n_vocab)
        self._tokens[self._n : self._n + n_more] = tokens
        accept_in_session(self._session, self._n, n_more)
        self._n += n_more

    def draft(self, n_max: int | None = None) -> np.ndarray:
        """Up to ``n_max`` tokens (default and limit: ``draft_max``) that may follow the text.

        Returns
        -------
        int32 [n], valid until the next call; empty where nothing is found
        """
        n_max = self.draft_max if n_max is None else min(n_max, self.draft_max)
        return self._draft[: draft_in_session(self._session, self._n, n_max, self._ids)]

    def origins(self, n: int) -> list[tuple[str, int]]:
        """(cache, n-gram size) of each of the last draft's first ``n`` tokens."""
        return [(SOURCES[source], int(size)) for source, size in self._origin[:n]]
