"""``draftsmith prefill-niah``: hide needles in haystacks, and ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from ..engine.errors import UsageError
from . import options
from .chat_options import TemplateOptions
from .generate import options as run_options
from .prefill.options import (
    AskOptions,
    DecodeOptions,
    KeepOptions,
    NeedleOptions,
    Raw,
    ScoreOptions,
    parse_shares,
)
from .prefill.request import check_one_pass, request_of
from .prefill.work import run_niah

NAME = "prefill-niah"


def command(
    context: typer.Context,
    model: run_options.Model,
    needles: NeedleOptions,
    score: ScoreOptions,
    keep: KeepOptions,
    template: TemplateOptions,
    decode: DecodeOptions,
    run: run_options.RunOptions,
    shown: options.ResultOptions,
    repeat: Annotated[
        int,
        options.repeat_option("Prompts of each kind, context and depth."),
    ] = 1,
    raw: Raw = False,
    temperature: Annotated[float, run_options.temperature_option()] = 0.0,
) -> Callable[[], None]:
    """Measure the quality of speculative prefill with needles in haystacks.

    Hides facts in long texts and asks for them: are they kept, and are the answers right, with a
    part of the prompt read and with all of it? With several shares in --keep each prompt is scored
    once and answered by each.
    """
    run = run.with_seed()
    request = request_of(
        run.request(model, temperature),
        AskOptions(raw=raw).request(template, context),
        score,
        keep,
        parse_shares(keep.keep),
        decode,
        niah=needles.request(repeat, NAME),
        command=NAME,
        has_draft_max=options.is_typed(context, "draft_max"),
    )
    check_one_pass(request)
    if request.run.stop_texts:
        raise UsageError(f"{NAME} compares whole answers", remedy="leave out --stop")
    return partial(run_niah, request, shown.output)
