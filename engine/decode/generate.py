"""The loop that generates a text: prefill, then rounds of draft, one forward pass, acceptance.

One loop serves every drafter and plain decoding. Greedy, or with the same seed, the text is the
same for all of them: a draft only changes how many tokens one pass of the model yields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UsageError
from ..interrupts import Interrupts
from ..transformer.model import Pass, Taps
from .acceptance import AcceptRule, Verdict, match_samples
from .pacer import Pacer
from .sampling import Sampler

UNLIMITED = -1

StopReason = Literal["length", "eog", "stop", "context", "interrupted"]


class TargetCache(Protocol):
    """What the loop needs of a KV cache."""

    @property
    def n_ctx(self) -> int:
        """Most tokens it can hold."""

    @property
    def length(self) -> int:
        """Tokens it holds."""

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""


Cache = TypeVar("Cache", bound=TargetCache)
CacheOfModel = TypeVar("CacheOfModel", bound=TargetCache, contravariant=True)


class TargetPass(Protocol):
    """What the loop needs of the result of a forward pass."""

    @property
    def logits(self) -> NDArray[np.float32]:
        """[n_rows, n_vocab]; valid until the next pass."""


class TargetModel(Protocol[CacheOfModel]):
    """What the loop needs of a model."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        cache: CacheOfModel,
        *,
        rows: Literal["last", "all", "none"] = "last",
    ) -> TargetPass:
        """Evaluate tokens [n] behind those of the cache, and append them to it; logits of rows."""


class Drafter(Protocol):
    """Guesses how a text goes on. It holds the text that the loop tells it of."""

    def draft(self, n_max: int) -> NDArray[np.int32]:
        """Up to ``n_max`` tokens that may follow; what is more, or no token, is cut off.

        The array may be overwritten by the next call.
        """

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        """Append tokens to the text: first the prompt, then what each round yields."""

    def reset(self) -> None:
        """Forget the text. The loop itself never asks for it."""


class TextStop(Protocol):
    """What looks for stop strings in a text, token by token: ``stop_strings.StopStream``."""

    @property
    def found(self) -> str | None:
        """The one that ended the text; None: none did so far."""

    def n_until_stop(self, ids: Sequence[int]) -> int | None:
        """How many of the next ``ids`` belong to the text, the one that completes a stop string
        included; None: all."""


@runtime_checkable
class TrunkReader(Protocol):
    """A drafter that drafts from what the model's layers computed, besides the text.

    ``see`` comes behind every forward pass of the loop: each batch of the prompt, each round.
    What was seen does not stand before ``accept`` says so:

    - The batches of a prompt are seen one after the other; then the whole prompt is accepted, and
      then the first token of the model's, which no pass has seen.
    - A round is draft, see, accept. Its batch is the last token of the text and behind it what is
      verified of the draft. When n tokens are accepted, its first n rows belong to the text, and
      the last of the n tokens is seen in the next round.

    A prompt whose evaluation did not come to its end is never accepted, nor is a round that was
    interrupted. As the cache does, a text that goes on begins with the token that no pass has seen.
    """

    @property
    def feature_layers(self) -> Sequence[int]:
        """Layers of the model whose input ``see`` wants."""

    def see(
        self,
        tokens: NDArray[np.int32],
        hidden: NDArray[np.float32],
        features: NDArray[np.float32],
    ) -> None:
        """Take what a pass computed for all of its tokens; the arrays are the reader's own.

        Parameters
        ----------
        tokens : int32 [n]
        hidden : float32 [n, n_embd], before the last norm
        features : float32 [len(feature_layers), n, n_embd]
        """


@runtime_checkable
class ConfidentDrafter(Protocol):
    """A drafter that knows how sure it is of each token."""

    @property
    def confidences(self) -> NDArray[np.float32]:
        """[n] of 0 to 1, of the tokens of the last draft; empty: nothing is known of them."""


@runtime_checkable
class SourcedDrafter(Protocol):
    """A drafter of several sources, which differ in what a draft costs and how often it stands.

    Where there is a pacer it takes the choice; ``draft`` chooses by itself.
    """

    def offers(self) -> Sequence[str]:
        """1 or more sources that would give the next draft, the preferred first; takes no time."""

    def draft_from(self, origin: str, n_max: int) -> NDArray[np.int32]:
        """As ``draft``, from one of what was offered."""


@dataclass
class Generation:
    """What one call of ``generate`` came to: counters and nanoseconds.

    Attributes
    ----------
    prompt_tokens : of the prompt, those in the cache: all, or none where prefill was interrupted
    tokens : what was generated, and handed to ``on_tokens``; an end-of-generation token included
    stop_reason : "length": n_predict tokens are there; "eog": the last token ends the text;
        "stop": it completes a stop string; "context": the next token would not fit;
        "interrupted": KeyboardInterrupt
    stop_string : the one that ended the text; None: something else did
    n_rounds : forward passes of decoding; the first token comes from the prefill and needs none
    n_drafted, n_accepted : tokens of drafts that were evaluated, and those that stand
    drafted_by_position, accepted_by_position : int64 [draft_max, or n_ctx if less], likewise
    first_token_ns : from the call to the first token; None: there is none
    prefill_ns : forward passes over the prompt
    learn_ns : the drafter's taking in the prompt and the first token
    decode_ns : all that comes after the first token
    draft_ns, verify_ns, emit_ns : of decode_ns, the drafter, choosing it included; forward passes
        and sampling; on_tokens
    """

    drafted_by_position: NDArray[np.int64]
    accepted_by_position: NDArray[np.int64]
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    stop_reason: StopReason = "interrupted"
    stop_string: str | None = None
    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    first_token_ns: int | None = None
    prefill_ns: int = 0
    learn_ns: int = 0
    decode_ns: int = 0
    draft_ns: int = 0
    verify_ns: int = 0
    emit_ns: int = 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Tokens of the prompt a second; None: nothing was evaluated."""
        return self.prompt_tokens / self.prefill_ns * 1e9 if self.prompt_tokens else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first a second; None: there is none."""
        return self._n_decoded / self.decode_ns * 1e9 if self._n_decoded else None

    @property
    def acceptance(self) -> float | None:
        """Share of drafted tokens that stand; None: none was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens that a pass of decoding yields; None: there was no pass."""
        return self._n_decoded / self.n_rounds if self.n_rounds else None

    @property
    def _n_decoded(self) -> int:
        return max(0, len(self.tokens) - 1)


def generate(
    model: TargetModel[Cache],
    cache: Cache,
    prompt: ArrayLike,
    *,
    sampler: Sampler,
    n_predict: int,
    stop: AbstractSet[int] = frozenset(),
    stop_text: TextStop | None = None,
    drafter: Drafter | None = None,
    draft_max: int = 0,
    pacer: Pacer | None = None,
    accept_rule: AcceptRule = match_samples,
    on_tokens: Callable[[list[int], int], None] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    n_batch: int = 512,
    positions: NDArray[np.int64] | None = None,
) -> Generation:
    """Continue a text until it ends, is long enough, or fills the context.

    ``cache``, ``drafter`` and ``sampler`` may hold a text already; the prompt is appended to it.
    Afterwards, whatever happened, the cache holds that text, the prompt and all tokens generated
    but the last, which no pass has seen yet; a text that goes on begins with that one. A prompt
    whose evaluation did not come to its end is taken out of the cache again.

    Parameters
    ----------
    prompt : int32 [n], 1 or more tokens
    n_predict : most tokens to generate; -1: until the text ends or the context is full
    stop : tokens that end the text
    stop_text : stop strings that end the text, none of it seen yet; None: there are none
    drafter : one that is a ``TrunkReader`` needs an engine's ``Model``
    draft_max : most tokens of a draft
    pacer : shortens drafts to what pays; None: always draft_max
    accept_rule : decides how much of a draft stands
    on_tokens : told the ids of each round, and how many of the first of them were drafted
    on_prefill : told (tokens done, n) after each batch of the prompt
    n_batch : tokens of a batch
    positions : int64 [n], of the prompt's tokens, for RoPE; what is generated follows the last of
        them. Default: the tokens' slots in the cache. Needs an engine's ``Model``

    Raises
    ------
    UsageError : an empty prompt, one longer than the context, or a number out of range
    ModelDamaged : logits that are not finite
    """
    started_ns = perf_counter_ns()
    ids = np.array(prompt, np.int32).reshape(-1)
    if positions is not None and positions.shape != ids.shape:
        raise ValueError(f"{positions.size} positions for {ids.size} tokens")
    _check(cache, ids.size, n_predict, draft_max, n_batch)
    draft_max = min(draft_max, cache.n_ctx)
    with Interrupts() as interrupts:
        loop = _Loop(
            model=model,
            cache=cache,
            sampler=sampler,
            n_predict=n_predict,
            stop=stop,
            stop_text=stop_text,
            drafter=drafter,
            reader=drafter if isinstance(drafter, TrunkReader) else None,
            sources=drafter if isinstance(drafter, SourcedDrafter) else None,
            confident=drafter if isinstance(drafter, ConfidentDrafter) else None,
            draft_max=draft_max,
            pacer=pacer,
            accept_rule=accept_rule,
            on_tokens=on_tokens,
            interrupts=interrupts,
            done=Generation(np.zeros(draft_max, np.int64), np.zeros(draft_max, np.int64)),
            kept=cache.length,
            begins=cache.length,
            positions=positions,
        )
        try:
            loop.prefill(ids, n_batch, on_prefill)
            loop.first(ids, started_ns)
            decoding_ns = perf_counter_ns()
            try:
                while (reason := loop.hand_over()) is None:
                    loop.round()
            finally:
                loop.done.decode_ns = perf_counter_ns() - decoding_ns
            loop.done.stop_reason = reason
        except KeyboardInterrupt:
            pass  # "interrupted" is what it says until it ends otherwise
        finally:
            interrupts.held = True
            cache.truncate(min(cache.length, loop.kept))
        if interrupts.take():
            loop.done.stop_reason = "interrupted"
    return loop.done


def _check(cache: TargetCache, n_prompt: int, n_predict: int, draft_max: int, n_batch: int) -> None:
    if not n_prompt:
        raise UsageError("the prompt holds no token", remedy="give a prompt of one or more")
    if n_prompt > cache.n_ctx - cache.length:
        held = f", which holds {cache.length} already," if cache.length else ""
        raise UsageError(
            f"a prompt of {n_prompt} tokens does not fit into a context of {cache.n_ctx}{held}",
            remedy="give a larger -c or a shorter prompt",
        )
    if n_predict < UNLIMITED:
        raise UsageError(
            f"{n_predict} tokens to generate", remedy="give 0 or more, or -1 for no limit"
        )
    if draft_max < 0:
        raise UsageError(f"draft_max {draft_max} is below 0", remedy="give 0 or more")
    if n_batch < 1:
        raise UsageError(f"a batch of {n_batch} tokens holds nothing", remedy="give 1 or more")


@dataclass
class _Loop(Generic[Cache]):
    """One text in the making.

    Attributes
    ----------
    reader : the drafter, if it is one
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

    def _verdict(self, logits: NDArray[np.float32], draft: Sequence[int]) -> Verdict:
        """What the round adds; behind the token that completes a stop string nothing counts."""
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
        if self.reader is None and self.positions is None:
            return self.model.forward(batch, self.cache, rows=rows)
        model: Any = self.model  # more than a TargetModel
        more: dict[str, Any] = {}
        if self.positions is not None:
            more["positions"] = self._positions_of(self.positions, batch.size)
        if self.reader is not None:
            more |= {"taps": Taps(hidden_layers=self.reader.feature_layers), "all_hidden": True}
        return cast(Pass, model.forward(batch, self.cache, rows=rows, **more))

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
        done = cast(Pass, passed)
        assert done.all_hidden is not None
        assert done.taps is not None
        self.reader.see(batch, done.all_hidden, done.taps.hidden)
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
