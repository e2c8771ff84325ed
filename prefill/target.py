"""The target's pass over what is kept of a prompt, and its answer after that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.decode.acceptance import AcceptRule, match_samples
from ..engine.decode.generate import generate
from ..engine.decode.generation import Generation
from ..engine.decode.protocols import Drafter, TrunkReader
from ..engine.decode.sampling import Sampler
from ..engine.transformer.kv_cache import KvCache
from ..engine.transformer.model import Model
from .meter import Meter
from .pipeline import Choice
from .scorers.one_pass import Begun

PREFILL, FIRST_TOKEN, DECODE = "target prefill", "first token", "decode"


def answer(
    model: Model,
    cache: KvCache,
    choice: Choice,
    *,
    sampler: Sampler,
    begun: Begun | None = None,
    drafter: Drafter | None = None,
    meter: Meter | None = None,
    accept_rule: AcceptRule = match_samples,
    on_tokens: Callable[[list[int], int], None] | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Generation:
    """Evaluate what is kept of a prompt, and generate after it; with the first logits.

    Parameters
    ----------
    cache : empty
    begun : the whole prompt after its first layers, for kept tokens to go on from there; their
        positions have to be the original ones, and the drafter no ``TrunkReader``
    meter : gets the stages "target prefill", "first token" and "decode"
    settings : of ``generate``

    Raises
    ------
    UsageError, ModelDamaged : see ``generate``
    """
    stages = _Stages(meter or Meter(), on_tokens, on_prefill)
    stages.meter.begin(PREFILL)
    started_ns = perf_counter_ns()
    n_before = 0
    try:
        if begun is not None:
            n_before = choice.kept.size - 1
            _go_on(model, cache, choice, begun, sampler, drafter)
        places = choice.places
        before_ns = perf_counter_ns() - started_ns
        run = generate(
            model,
            cache,
            choice.ids[n_before:],
            positions=None if places is None else places[n_before:],
            sampler=sampler,
            drafter=drafter,
            accept_rule=accept_rule,
            first_logits=True,
            on_tokens=stages.on_tokens,
            on_prefill=stages.on_prefill,
            **settings,
        )
    finally:
        stages.meter.end()
    run.prompt_tokens += n_before if run.prompt_tokens else 0
    run.prefill_ns += before_ns
    if run.first_token_ns is not None:
        run.first_token_ns += before_ns
    return run


def _go_on(
    model: Model,
    cache: KvCache,
    choice: Choice,
    begun: Begun,
    sampler: Sampler,
    drafter: Drafter | None,
) -> None:
    """All kept tokens but the last into the cache, and into the text of sampler and drafter."""
    if choice.positions is None or isinstance(drafter, TrunkReader):
        raise ValueError("one pass needs original positions, and a drafter that reads no states")
    before = choice.kept[:-1]
    if not before.size:
        return
    begun.finish(model, before, cache)
    ids = choice.parts.ids[before]
    sampler.accept_all(ids.tolist())
    if drafter is not None:
        drafter.accept(ids)


def first_token_kl(full: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """KL divergence of the first token's distribution from that of a prefill in full, in nats.

    Parameters
    ----------
    full, other : float32 [n_vocab], logits
    """
    p, q = _log_softmax(full), _log_softmax(other)
    return max(0.0, float(np.sum(np.exp(p) * (p - q))))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found


@dataclass
class _Stages:
    """Tells a meter how far a generation is."""

    meter: Meter
    then_tokens: Callable[[list[int], int], None] | None
    then_prefill: Callable[[int, int], None] | None
    has_begun: bool = False

    def on_prefill(self, done: int, total: int) -> None:
        if done == total:
            self.meter.begin(FIRST_TOKEN)
        if self.then_prefill is not None:
            self.then_prefill(done, total)

    def on_tokens(self, tokens: list[int], n_from_draft: int) -> None:
        if not self.has_begun:
            self.has_begun = True
            self.meter.begin(DECODE)
        if self.then_tokens is not None:
            self.then_tokens(tokens, n_from_draft)
