"""One request to ``prefill-run``'s models: by what is kept of the prompt, or in full; timed from
the request's text to the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..generate.session import prefill_bar

if TYPE_CHECKING:
    from ...engine.decode.drafting import DraftArguments
    from ...engine.decode.generation import Generation
    from ...prefill.meter import Meter
    from ...prefill.pipeline import Choice, Settings
    from ...prefill.scorers.one_pass import Begun
    from ...prefill.scorers.scores import OpenScorer
    from ..generate.session import Target
    from ..generate.stream import TextPrinter
    from ..output import Output
    from .models import Models
    from .prompt import Ask


@dataclass(frozen=True)
class AnswerRequest:
    """How answers are generated.

    Attributes
    ----------
    n_predict : most tokens; -1: until the context is full
    draft_max : longest draft
    n_begin : tokens that the answer is to begin with
    """

    target: Target
    n_predict: int
    draft_max: int
    n_begin: int = 0

    @property
    def n_room(self) -> int:
        """Most tokens of a prompt that the context has room for; below 1: none fits."""
        return self.target.n_ctx - self.n_begin - max(0, self.n_predict - 1)


@dataclass(frozen=True)
class AskedOnce:
    """What became of a request.

    Attributes
    ----------
    run : the answer's generation, with its first logits
    ttft_s : from the request's text to the first token, loading left out; None: there is none
    load_s : loading of weights between the request and the answer
    one_pass : kept tokens went on from the layer where they were scored
    origins : origin -> (drafted, accepted) tokens by position
    """

    choice: Choice
    run: Generation
    meter: Meter
    text: str
    ttft_s: float | None
    load_s: float
    one_pass: bool
    origins: dict[str, tuple[list[int], list[int]]]


def ask_once(
    models: Models,
    ask: Ask,
    settings: Settings,
    request: AnswerRequest,
    printer: TextPrinter,
    out: Output,
    *,
    open_scorer: OpenScorer | None = None,
    on_choice: Callable[[Choice], None] = lambda choice: None,
) -> AskedOnce:
    """Choose what to keep, and answer.

    Parameters
    ----------
    open_scorer : None: that of the models
    on_choice : told before the answer; its time is nobody's

    Raises
    ------
    UsageError, ... : see ``prefill.pipeline.choose``
    """
    from ...prefill.meter import Meter
    from ...prefill.pipeline import TOKENISE, choose
    from ...prefill.select import Refused

    clock = _Clock(models)
    meter = Meter()
    with meter.stage(TOKENISE):
        parts = ask.parts()
    with out.busy("scoring the prompt"):
        choice = choose(parts, open_scorer or models.scoring, settings, request.n_room, meter)
    with clock.pause():
        on_choice(choice)
    begun = models.begun()
    if begun is not None and (begun.ids is not parts.ids or isinstance(choice.outcome, Refused)):
        begun = None
    choice = choice.beginning(ask.begin())
    return _answer(models, choice, request, printer, out, clock, meter, begun)


def ask_in_full(
    models: Models, ask: Ask, request: AnswerRequest, printer: TextPrinter, out: Output
) -> AskedOnce:
    """Answer after the whole prompt."""
    from ...prefill.meter import Meter
    from ...prefill.pipeline import TOKENISE, whole
    from ...prefill.prompt.parts import PromptParts

    clock = _Clock(models)
    meter = Meter()
    with meter.stage(TOKENISE):
        choice = whole(PromptParts(ask.ids(), (0, 0), ()))
    return _answer(models, choice.beginning(ask.begin()), request, printer, out, clock, meter)


class _Clock:
    """Seconds since it was made, loading apart."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._start, self._loaded = time.perf_counter(), models.load_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the block out."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    @property
    def load_s(self) -> float:
        return self._models.load_s - self._loaded

    @property
    def work_s(self) -> float:
        return time.perf_counter() - self._start - self.load_s


def _answer(
    models: Models,
    choice: Choice,
    request: AnswerRequest,
    printer: TextPrinter,
    out: Output,
    clock: _Clock,
    meter: Meter,
    begun: Begun | None = None,
) -> AskedOnce:
    from ...engine.decode.sampling import Sampler
    from ...prefill.target import answer

    session = models.session()
    drafters = models.drafters
    drafting: DraftArguments = {}
    if drafters is not None:
        drafting = drafters.begin(request.draft_max).arguments
    before_s = clock.work_s
    target = request.target
    with prefill_bar(out) as on_prefill:
        found = answer(
            session.model,
            session.cache,
            choice,
            begun=begun,
            meter=meter,
            sampler=Sampler(target.sampling),
            n_predict=_n_predict(request, choice),
            stop=target.stop,
            stop_text=target.stop_stream(),
            on_tokens=printer.add,
            on_prefill=on_prefill,
            n_batch=target.n_batch,
            **drafting,
        )
    printer.finish()
    first_ns = found.first_token_ns
    return AskedOnce(
        choice=choice,
        run=found,
        meter=meter,
        text=printer.text,
        ttft_s=None if first_ns is None else before_s + first_ns / 1e9,
        load_s=clock.load_s,
        one_pass=begun is not None,
        origins={} if drafters is None else drafters.origins(),
    )


def _n_predict(request: AnswerRequest, choice: Choice) -> int:
    """Most tokens; original positions end with the context, though the cache has room left."""
    if choice.positions is None or request.n_predict >= 0:
        return request.n_predict
    return max(1, request.target.n_ctx - choice.parts.n + 1)
