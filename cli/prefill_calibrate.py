"""``draftsmith prefill-calibrate``: find which heads of a model retrieve, and write that down."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from . import options
from .chat_options import TemplateOptions
from .generate import options as run_options
from .prefill.calibrate import (
    CONTEXT,
    N_DOCUMENTS,
    WINDOW,
    CalibrateRequest,
    run_calibrate,
)
from .prefill.options import AskOptions, CalibrateOptions, Haystack, Raw

NAME = "prefill-calibrate"


def command(
    context: typer.Context,
    model: run_options.Model,
    found: CalibrateOptions,
    template: TemplateOptions,
    shown: options.ResultOptions,
    n_context: Annotated[
        str | None,
        typer.Option("--context", metavar="N", help=f"Tokens of a prompt; {CONTEXT} by default."),
    ] = None,
    repeat: Annotated[
        int | None,
        options.repeat_option(f"Documents to ask about; {N_DOCUMENTS} by default."),
    ] = None,
    haystack: Haystack = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            min=0,
            max=options.WHOLE_MOST,
            metavar="N",
            help=f"Tokens that a token of the document sees; {WINDOW} by default, 0: all before "
            "it.",
        ),
    ] = None,
    raw: Raw = False,
    seed: run_options.Seed = 0,
    threads: run_options.Threads = None,
) -> Callable[[], None]:
    """Find the heads of a model that retrieve, for prefill-run's scorers.

    Asks about facts hidden in texts, looks at what each head of the first layers attends to, and
    writes the best heads into a file that later calls find. Takes minutes.
    """
    run = run_options.RunOptions(seed=seed, threads=threads).with_seed()
    asked = CalibrateRequest.from_options(
        run.request(model, run_options.TEMPERATURE),
        template=AskOptions(raw=raw).request(template, context).template_options,
        repeat=repeat,
        context=n_context,
        haystack=haystack,
        n_layers=found.n_layers,
        window=window,
        output=found.output,
        command=NAME,
    )
    return partial(run_calibrate, asked, shown.output)
