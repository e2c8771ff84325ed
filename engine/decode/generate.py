"""The loop that generates a text: prefill, then rounds of draft, one forward pass, acceptance.

One loop serves every drafter and plain decoding. Greedy, or with the same seed, the text is the
same for all of them: a draft only changes how many tokens one pass of the model yields.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from time import perf_counter_ns

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UsageError
from ..interrupts import Interrupts
from .acceptance import AcceptRule, match_samples
from .generation import Generation, Round
from .loop import Cache, Loop
from .pacer import Pacer
from .protocols import (
    ConfidentDrafter,
    Drafter,
    SourcedDrafter,
    TargetCache,
    TargetModel,
    TextStop,
    TrunkReader,
)
from .sampling import Sampler

UNLIMITED = -1


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
    reader: TrunkReader | None = None,
    on_tokens: Callable[[list[int], int], None] | None = None,
    on_round: Callable[[Round], None] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    n_batch: int = 512,
    positions: NDArray[np.int64] | None = None,
    first_logits: bool = False,
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
    reader : reads what the passes compute; default: the drafter, if it is a ``TrunkReader``
    draft_max : most tokens of a draft
    pacer : shortens drafts to what pays; None: always draft_max
    accept_rule : decides how much of a draft stands
    on_tokens : told the ids of each round, and how many of the first of them were drafted
    on_round : told of each round, when drafter and text have what stands of it
    on_prefill : told (tokens done, n) after each batch of the prompt
    n_batch : tokens of a batch
    positions : int64 [n], of the prompt's tokens, for RoPE; what is generated follows the last of
        them. Default: the tokens' slots in the cache. Needs an engine's ``Model``
    first_logits : keep the logits after the prompt

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
    if reader is None and drafter is not None and isinstance(drafter, TrunkReader):
        reader = drafter
    with Interrupts() as interrupts:
        loop = Loop(
            model=model,
            cache=cache,
            sampler=sampler,
            n_predict=n_predict,
            stop=stop,
            stop_text=stop_text,
            drafter=drafter,
            reader=reader,
            sources=drafter if isinstance(drafter, SourcedDrafter) else None,
            confident=drafter if isinstance(drafter, ConfidentDrafter) else None,
            draft_max=draft_max,
            pacer=pacer,
            accept_rule=accept_rule,
            on_tokens=on_tokens,
            on_round=on_round,
            first_logits=first_logits,
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
