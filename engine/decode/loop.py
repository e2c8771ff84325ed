"""One text in the making: the state of ``generate`` and its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Generic, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..interrupts import Interrupts
from ..transformer.model import Taps
from .acceptance import AcceptRule, Verdict
from .generation import Generation, Round, StopReason
from .pacer import Pacer, n_alike
from .protocols import (
    ConfidentDrafter,
    Drafter,
    SourcedDrafter,
    TargetCache,
    TargetModel,
    TargetPass,
    TextStop,
    TrunkReader,
)
from .sampling import Sampler

Cache = TypeVar("Cache", bound=TargetCache)


class _Wanted(TypedDict, total=False):
    """What is asked of a pass besides logits."""

    positions: NDArray[np.int64]
    taps: Taps
    all_hidden: bool


@dataclass
class Loop(Generic[Cache]):
    """One text in the making.

    Attributes
    ----------
    reader : reads what passes compute; None: nothing does
    done : what there is so far
    kept : tokens of the cache that belong to the text; what is above is a draft that may not stand
    begins : slot of the prompt's first token
    positions : int64 [n], of the prompt's tokens; None: positions are slots
    fresh : ids of this round, and how many of the first of them come from the draft
    logits : float32 [n_rows, n_vocab] of the last pass over the prompt
    """

    model: TargetModel[Cache]
    cache: Cache
    sampler: Sampler
    n_predict: int
    stop: AbstractSet[int]
    stop_text: TextStop | None
    drafter: Drafter | None
    reader: TrunkReader | None
    sources: SourcedDrafter | None
    confident: ConfidentDrafter | None
    draft_max: int
    pacer: Pacer | None
    accept_rule: AcceptRule
    on_tokens: Callable[[list[int], int], None] | None
    on_round: Callable[[Round], None] | None
    first_logits: bool
    interrupts: Interrupts
    done: Generation
    kept: int
    begins: int = 0
    positions: NDArray[np.int64] | None = None
    fresh: Verdict = field(default_factory=lambda: Verdict([], 0))
    logits: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def prefill(
        self,
        prompt: NDArray[np.int32],
        n_batch: int,
        on_prefill: Callable[[int, int], None] | None,
    ) -> None:
        """Evaluate the prompt; ``logits`` are its last token's."""
        started_ns = perf_counter_ns()
        for start in range(0, prompt.size, n_batch):
            batch = prompt[start : start + n_batch]
            is_last = start + batch.size == prompt.size
            passed = self._forward(batch, "last" if is_last else "none")
            self.logits = passed.logits
            self.done.learn_ns += self._see(batch, passed)
            if on_prefill is not None:
                on_prefill(start + batch.size, prompt.size)
        self.done.prefill_ns = perf_counter_ns() - started_ns - self.done.learn_ns

    def first(self, prompt: NDArray[np.int32], started_ns: int) -> None:
        """Take the prompt into the text, and the first token from its logits."""
        self.interrupts.held = True
        done = self.done
        learning_ns = perf_counter_ns()
        if self.drafter is not None:
            self.drafter.accept(prompt)
        done.learn_ns += perf_counter_ns() - learning_ns
        if self.pacer is not None:
            self.pacer.begin()
        self.sampler.accept_all(prompt.tolist())
        self.kept += prompt.size
        done.prompt_tokens = prompt.size
        if self.n_predict:
            if self.first_logits:
                done.first_logits = self.logits[-1].copy()
            self._append(self._verdict(self.logits, ()))
            done.learn_ns, done.draft_ns = done.learn_ns + done.draft_ns, 0  # before decoding
            done.first_token_ns = perf_counter_ns() - started_ns

    def hand_over(self) -> StopReason | None:
        """Tell of the round's tokens, and why the text ends here; None: it goes on."""
        if self.on_tokens is not None and self.fresh.tokens:
            started_ns = perf_counter_ns()
            self.on_tokens(*self.fresh)
            self.done.emit_ns += perf_counter_ns() - started_ns
        self.interrupts.deliver()
        tokens = self.done.tokens
        if self.stop_text is not None and self.stop_text.found is not None:
            self.done.stop_string = self.stop_text.found
            return "stop"
        if tokens and tokens[-1] in self.stop:
            return "eog"
        if 0 <= self.n_predict <= len(tokens):
            return "length"
        # the last token has yet to go into the cache
        return "context" if self.kept >= self.cache.n_ctx else None

    def round(self) -> None:
        """Draft, verify, append what stands."""
        done = self.done
        draft, draft_ns = self._draft()
        n = self._n_to_verify(len(draft))
        verified = draft[:n]
        batch = np.array([done.tokens[-1], *verified], np.int32)
        started_ns = perf_counter_ns()
        passed = self._forward(batch, "all")
        self.interrupts.held = True  # until hand_over
        verdict = self._verdict(passed.logits, verified)
        verify_ns = perf_counter_ns() - started_ns
        done.draft_ns += self._see(batch, passed)
        self.kept += len(verdict.tokens)
        self.cache.truncate(self.kept)
        self._append(verdict)
        done.n_rounds += 1
        done.n_drafted += n
        done.n_accepted += verdict.n_from_draft
        done.drafted_by_position[:n] += 1
        done.accepted_by_position[: verdict.n_from_draft] += 1
        done.draft_ns += draft_ns or 0
        done.verify_ns += verify_ns
        if self.pacer is not None:
            self.pacer.observe(draft, n, verdict.tokens, verify_ns=verify_ns, draft_ns=draft_ns)
        if self.on_round is not None:
            n_stand = n_alike(verified, verdict.tokens)
            self.on_round(Round(draft, n, n_stand, verdict.tokens, verify_ns, draft_ns))

    def _verdict(self, logits: NDArray[np.float32], draft: Sequence[int]) -> Verdict:
        """What the round adds; after the token that completes a stop string nothing counts."""
        tokens, n_from_draft = self.accept_rule(self.sampler, logits, draft, self.stop)
        if self.stop_text is not None:
            tokens = tokens[: self.stop_text.n_until_stop(tokens)]
        return Verdict(tokens, min(n_from_draft, len(tokens)))

    def _draft(self) -> tuple[list[int], int | None]:
        """Drafted tokens and the time they took; None: the drafter was not asked."""
        room = min(self.draft_max, self.cache.n_ctx - self.kept - 1)
        if self.n_predict >= 0:
            room = min(room, self.n_predict - len(self.done.tokens) - 1)
        if self.drafter is None or room < 1:
            return [], None
        started_ns = perf_counter_ns()
        ask, n_asked = self._ask(self.drafter, room)
        self.done.draft_ns += perf_counter_ns() - started_ns
        if n_asked < 1:
            return [], None
        started_ns = perf_counter_ns()
        drafted = ask(n_asked)
        draft_ns = perf_counter_ns() - started_ns
        return _sound(drafted, n_asked, self.logits.shape[-1]), draft_ns

    def _ask(self, drafter: Drafter, room: int) -> tuple[Callable[[int], NDArray[np.int32]], int]:
        """Whom to ask for a draft, and for how many tokens."""
        if self.pacer is None:
            return drafter.draft, room
        if self.sources is not None:
            origin, n_asked = self.pacer.choose(room, self.sources.offers())
            return partial(self.sources.draft_from, origin), n_asked
        return drafter.draft, self.pacer.n_to_draft(room)

    def _n_to_verify(self, n_drafted: int) -> int:
        if self.pacer is None:
            return n_drafted
        if n_drafted and self.confident is not None:
            confidences = self.confident.confidences[:n_drafted].tolist()
            return self.pacer.n_to_verify(n_drafted, confidences)
        return self.pacer.n_to_verify(n_drafted)

    def _forward(
        self, batch: NDArray[np.int32], rows: Literal["last", "all", "none"]
    ) -> TargetPass:
        wanted: _Wanted = {}
        if self.positions is not None:
            wanted["positions"] = self._positions_of(self.positions, batch.size)
        if self.reader is not None:
            wanted["taps"] = Taps(hidden_layers=self.reader.feature_layers)
            wanted["all_hidden"] = True
        return self.model.forward(batch, self.cache, rows=rows, **wanted)

    def _positions_of(self, of_prompt: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Positions of the next ``n`` tokens, int64 [n]."""
        at = np.arange(n, dtype=np.int64) + (self.cache.length - self.begins)
        last = of_prompt.size - 1
        return of_prompt[np.minimum(at, last)] + np.maximum(at - last, 0)

    def _see(self, batch: NDArray[np.int32], passed: TargetPass) -> int:
        """Show the reader what a pass computed; returns the time it took."""
        if self.reader is None:
            return 0
        started_ns = perf_counter_ns()
        assert passed.all_hidden is not None
        assert passed.taps is not None
        self.reader.see(batch, passed.all_hidden, passed.taps.hidden)
        return perf_counter_ns() - started_ns

    def _append(self, verdict: Verdict) -> None:
        """Tokens into the text; the accept rule has told the sampler."""
        self.fresh = verdict
        self.done.tokens += verdict.tokens
        if self.drafter is not None:
            started_ns = perf_counter_ns()
            self.drafter.accept(verdict.tokens)
            self.done.draft_ns += perf_counter_ns() - started_ns


def _sound(drafted: NDArray[np.int32], n_max: int, n_vocab: int) -> list[int]:
    """A copy of a draft, up to the first id that is none."""
    draft = []
    for token in np.asarray(drafted).reshape(-1)[:n_max].tolist():
        if not 0 <= token < n_vocab:
            break
        draft.append(int(token))
    return draft
