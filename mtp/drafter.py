"""The MTP drafter of a generation loop: sees the trunk's hidden states, drafts what may follow.

Entry p of a head's keys and values is made of token p and the trunk's hidden state at p - 1, the
one that predicted it; so position 0 has none. Entries of drafted tokens are made of the head's own
hidden states instead, and thrown away with the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import InputMalformed, UsageError
from ..engine.transformer.forward_kernels import N_BLOCK, Cache, Layers
from ..engine.transformer.kv_cache import KvCache
from ..engine.transformer.model import (
    BATCH,
    ROW_GRAIN,
    Scratch,
    activations,
    captures_of,
    sizes_of,
    tokens_of_block,
)
from . import mtp_kernels as kernels
from .head import MtpHead

_FEW = 16  # rows of the usual pass
_TURNS_AHEAD = 256  # positions
_COLDEST = 1e-30  # logits over a lower temperature are no float32


class MtpDrafter:
    """Drafts with a head, or a chain of them, for one text at a time.

    The text may come in rounds of any kind: what is drafted is the same, bit for bit. Tokens that
    were accepted but never seen are no part of the context that the head drafts from; nor is what
    stands before them.

    Parameters
    ----------
    head : that of the model whose hidden states are seen
    n_ctx : most tokens of the text that the model's cache holds
    p_min : a draft ends before a token whose step finds no more probable one than that
    temperature : of drawing tokens at random; 0: the most probable one
    seed : of the random numbers, 0 or more

    Attributes
    ----------
    confidences : float32 [n], of the last draft: the top token's probability at each step

    Raises
    ------
    UsageError : a number out of range, or no memory for that context
    """

    def __init__(
        self,
        head: MtpHead,
        n_ctx: int,
        *,
        p_min: float = 0.0,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        _check(p_min, temperature, seed)
        self.head = head
        self.n_ctx = n_ctx
        self.confidences = np.empty(0, np.float32)
        self._seed, self._is_drawn = seed, temperature > 0
        self._cache = KvCache(head.params, n_ctx)
        n_embd, n_features = head.params.n_embd, len(head.feature_layers)
        self._text = np.empty(n_ctx + 1, np.int32)
        # pages that no token touched take no memory
        self._hidden = np.empty((n_ctx, n_embd), np.float32)
        self._features = np.empty((n_features, n_ctx, n_embd), np.float32)
        self._turns = np.empty((n_ctx, 2, head.params.rope.n_rot // 2), np.float32)
        self._n_turns = 0
        self._plan = np.zeros(kernels.N_PLAN, np.int64)
        self._plan[kernels.N_DRAFT] = head.n_draft
        self._plan[kernels.EMBEDDING_TYPE] = head.embedding_type
        self._plan[kernels.TABLE_ROWS] = head.params.n_vocab if head.n_tables > 1 else 0
        self._plan[kernels.IS_NORMED] = head.is_normed
        self._plan[kernels.IS_DRAWN] = self._is_drawn
        inverse = 1 / max(temperature, _COLDEST) if self._is_drawn else 1.0
        self._odds = np.array([p_min, inverse, head.params.embd_scale], np.float32)
        self._lows = np.zeros((2, BATCH), np.int64)
        self._calls: dict[int, _Call] = {}
        self._out = _Out(head, 1, self._is_drawn)
        self.reset()

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the model whose input ``see`` wants."""
        return self.head.feature_layers

    @property
    def d2t(self) -> NDArray[np.int32]:
        """int32 [n_draft], ascending: the tokens that can be drafted."""
        return self.head.d2t

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """float32 [n, n_draft]: what the last draft's tokens were drawn from; else [0, n_draft]."""
        n = self.confidences.size if self._is_drawn else 0
        return (
            self._out.draft.q[:n, : self.head.n_draft]
            if n
            else np.empty((0, self.d2t.size), np.float32)
        )

    def proposals(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        """Ids int32 [n_draft] and probabilities float32 [n, n_draft] of the last draft's tokens.

        None where they were not drawn at random.
        """
        return (self.d2t, self.probabilities[:n]) if self._is_drawn else None

    def reset(self) -> None:
        """Forget the text, and begin the random numbers anew."""
        self._n = 0  # tokens of the text
        self._n_known = 0  # of them, those whose hidden states are known
        self._n_seen = 0  # hidden states after those, of tokens that may not stand
        self._restart(0)
        self.confidences = np.empty(0, np.float32)
        self._random = np.random.default_rng(self._seed)

    def _restart(self, start: int) -> None:
        """Let the context begin with the hidden state of position ``start``."""
        self._start = start
        self._n_cached = start + 1  # entries below are there
        self._lows[:] = start + 1

    def __len__(self) -> int:
        """Tokens of the text so far."""
        return self._n

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, and what was seen and not accepted.

        A text that is to go on begins with the token that no pass has seen: before the next call of
        ``generate``, keep what the model's cache holds.

        Raises
        ------
        UsageError : the text has fewer
        """
        if not 0 <= length <= self._n:
            raise UsageError(
                f"cannot keep {length} of {self._n} tokens", remedy="keep at most what there is"
            )
        self._n = length
        self._n_known = min(self._n_known, length)
        self._n_seen = 0
        if length < self._start:
            self._restart(length)
        self._n_cached = max(min(self._n_cached, length), self._start + 1)

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """Take what a pass of the model computed; see ``TrunkReader``."""
        n_outstanding = self._n - self._n_known
        if n_outstanding and not (n_outstanding == 1 and tokens[0] == self._text[self._n - 1]):
            self._restart(self._n)  # some were never seen
            self._n_known = self._n  # last: Ctrl-C before it leaves a text that is not drafted for
            self._n_seen = n_outstanding = 0
        if n_outstanding:
            self._n_seen = 0  # an earlier round that did not come to its end
        n = min(len(tokens), self.n_ctx - self._n_known)
        self._move(max(0, self._n_known + self._n_seen + n - self.n_ctx))
        rows = slice(self._n_known + self._n_seen, self._n_known + self._n_seen + n)
        self._hidden[rows] = hidden[:n]
        self._features[:, rows] = features[:, :n]
        self._n_seen += n

    def _move(self, n: int) -> None:
        """Forget the first ``n`` of what was seen: an earlier prompt that was broken off."""
        if n:
            start, stop = self._n_known, self._n_known + self._n_seen - n
            self._hidden[start:stop] = self._hidden[start + n : stop + n]
            self._features[:, start:stop] = self._features[:, start + n : stop + n]
            self._n_seen -= n

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens to the text; of what was seen, that is what stands.

        Raises
        ------
        InputMalformed : a token outside the vocabulary; nothing is appended
        UsageError : more tokens than the context and one
        """
        ids = np.asarray(tokens, np.int64).reshape(-1)
        self._check_tokens(ids)
        n_new = ids.size
        is_round = self._n > self._n_known
        if self._n_seen and is_round:
            self._n_known += min(n_new, self._n_seen)
        elif self._n_seen >= n_new:
            self._move(self._n_seen - n_new)
            self._n_known += n_new
        self._n_seen = 0
        self._text[self._n : self._n + n_new] = ids
        self._n += n_new
        # A draft takes in the few tokens that came since the last one. Were a whole prompt among
        # them, it would seem to take long, and a pacer would not ask for another.
        self._take_in(_FEW if is_round or n_new == 1 else 1)

    def _take_in(self, least: int) -> None:
        """Make the entries of all tokens whose hidden states are known, if ``least`` wait."""
        # the token after a full context has no entry
        stop = min(self._n, self._n_known + 1, self.n_ctx)
        if stop - self._n_cached < least:
            return
        while self._n_cached < stop:
            n = min(BATCH, stop - self._n_cached)
            self._run(self._n_cached, n, 0)
            self._n_cached += n

    def _check_tokens(self, ids: NDArray[np.int64]) -> None:
        n_vocab = self.head.params.n_vocab
        if ids.size and (ids.min() < 0 or ids.max() >= n_vocab):
            raise InputMalformed(
                f"a token outside the vocabulary of {n_vocab}",
                remedy="name the vocabulary that the ids belong to",
            )
        if self._n + ids.size > self._text.size:
            raise UsageError(
                f"a text of {self._n + ids.size} tokens does not fit into a context of "
                f"{self.n_ctx}",
                remedy="give a larger context",
            )

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """Up to ``n_max`` tokens that may follow the text.

        Fewer where a step is not sure enough, the chain of heads is shorter, or the context ends;
        none where the last hidden state is not known.

        Returns
        -------
        int32 [n], valid until the next call
        """
        n = min(n_max, self.n_ctx - self._n + 1)
        if self.head.n_heads > 1:
            n = min(n, self.head.n_heads)
        if n < 1 or self._n_known != self._n - 1 or self._n < self._start + 2:
            self.confidences = np.empty(0, np.float32)
            return np.empty(0, np.int32)
        first = min(self._n_cached, self._n - 1)
        n_drafted = self._run(first, self._n - first, n)
        self._n_cached = self._n
        self.confidences = self._out.draft.confidences[:n_drafted].copy()
        return self._out.draft.tokens[:n_drafted]

    def _run(self, first: int, n_true: int, n_steps: int) -> int:
        """Make entries ``first`` to first + n_true - 1, and draft; returns how many tokens."""
        self._turn(first + n_true + n_steps)
        if n_steps > self._out.n_most:
            self._out = _Out(self.head, max(n_steps, 2 * self._out.n_most), self._is_drawn)
            self._calls.clear()
        if self._is_drawn:
            self._out.draft.uniforms[:n_steps] = self._random.random(n_steps)
        n_rows = max(n_true, self.head.n_heads)
        call = self._call(_FEW if n_rows <= _FEW else max(n_rows, BATCH))
        plan = self._plan
        plan[kernels.FIRST], plan[kernels.N_TRUE], plan[kernels.N_STEPS] = first, n_true, n_steps
        plan[kernels.N_DRAFTED] = 0
        call.sync[:] = 0
        self.head.model.workers.run(kernels.run_draft, *call.arguments)
        return int(plan[kernels.N_DRAFTED])

    def _turn(self, n: int) -> None:
        """Have the turns of the first ``n`` positions, at most all."""
        n = min(n, self.n_ctx)
        if n > self._n_turns:
            n = min(n + _TURNS_AHEAD, self.n_ctx)
            positions = np.arange(self._n_turns, n, dtype=np.int64)
            # blocks of a head see the whole text, as global layers do
            self._turns[self._n_turns : n] = self.head.model.rope.turns(positions)[0]
            self._n_turns = n

    def _call(self, n_rows: int) -> _Call:
        if n_rows not in self._calls:
            self._calls[n_rows] = _Call(self, n_rows)
        return self._calls[n_rows]


class _Out:
    """Where up to ``n_most`` drafted tokens go, and what they were drawn from."""

    def __init__(self, head: MtpHead, n_most: int, is_drawn: bool) -> None:
        self.n_most = n_most
        self.draft = kernels.Draft(
            np.zeros(n_most, np.int32),
            np.zeros(n_most, np.float32),
            np.zeros(n_most, np.float64),
            np.zeros((n_most, _padded(head.n_draft)) if is_drawn else (1, 0), np.float32),
        )


class _Call:
    """The buffers of passes of up to ``n_rows`` tokens, and all arguments of the kernel."""

    def __init__(self, drafter: MtpDrafter, n_rows: int) -> None:
        head = drafter.head
        model, params = head.model, head.params
        scratch = Scratch(params, n_rows, drafter.n_ctx, model.n_threads)
        self.sync = scratch.sync
        sizes = sizes_of(params)
        sizes[N_BLOCK] = tokens_of_block(params)
        n_logits = _padded(head.n_draft)
        n_blocks = -(-n_logits // kernels.BLOCK)
        n_wide = (2 + len(head.feature_layers)) * params.n_embd

        def floats(*shape: int) -> NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        kinds = np.zeros(head.n_heads, np.int64)
        self.arguments = (
            scratch.sync,
            kernels.Heads(
                Layers(head.arena, head.slots, kinds, model.reals),
                model.layers(),
                head.embeddings,
                head.d2t,
            ),
            drafter._plan,
            drafter._odds,
            sizes,
            kernels.Text(
                drafter._text,
                drafter._hidden,
                drafter._features,
                drafter._turns,
                drafter._lows,
                np.arange(drafter.n_ctx, dtype=np.int64),
            ),
            drafter._out.draft,
            kernels.Room(
                floats(head.n_heads, params.n_embd),
                floats(n_rows, params.n_embd),
                activations(n_rows, n_wide),
                floats(1, n_logits),
                kernels.Choice(
                    floats(n_logits), floats(n_blocks), floats(2, n_blocks), np.zeros(1, np.int64)
                ),
            ),
            Cache(drafter._cache.keys, drafter._cache.values),
            scratch.buffers,
            captures_of(params, None, 0)[1],
        )


def _padded(n: int) -> int:
    return -(-n // ROW_GRAIN) * ROW_GRAIN


def _check(p_min: float, temperature: float, seed: int) -> None:
    if not 0 <= p_min <= 1:
        raise UsageError(f"a least probability of {p_min}", remedy="give 0 to 1")
    if not 0 <= temperature < np.inf:
        raise UsageError(f"a draft temperature of {temperature}", remedy="give 0 or more")
    if seed < 0:
        raise UsageError(f"a seed of {seed}", remedy="give 0 or more")
