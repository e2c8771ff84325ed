"""Options that the environment sets: what an error says of them, which nobody has typed.

llama.cpp's variables (LLAMA_ARG_...) stand for options here as there. They are set once and for
all tools, so a command ignores one where its option does not apply; where the value itself is
wrong, or does not fit to the rest, the error has to say where it came from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

from ..engine.errors import DraftsmithError
from .options import is_typed

Work = Callable[[], None]


@dataclass(frozen=True)
class Given:
    """A value of the environment, and the names of the option that it stands for."""

    value: str
    flags: tuple[str, ...]


def is_of_environment(context: typer.Context, name: str | None) -> bool:
    """Whether the environment says a parameter, and the command line does not."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name == "ENVIRONMENT"


def variable_of(parameter: Any) -> str | None:
    """Return the variable that sets a parameter; None: none that is set."""
    names = parameter.envvar or ()
    names = [names] if isinstance(names, str) else names
    return next((name for name in names if os.environ.get(name)), None)


class Command(TyperCommand):
    """A command whose errors name the variables that took part in them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See Typer's command; callbacks of options raise errors of ours."""
        try:
            return super().parse_args(ctx, args)
        except DraftsmithError as error:
            raise named(error, _given(ctx)) from None

    def invoke(self, ctx: Any) -> Any:
        """See Typer's command; what the command returns is work to be done later."""
        given = _given(ctx)
        return partial(_do, _do(partial(super().invoke, ctx), given), given)


def _do(work: Callable[[], Any], given: Mapping[str, Given]) -> Any:
    try:
        return work()
    except DraftsmithError as error:
        raise named(error, given) from None


def _given(context: typer.Context) -> dict[str, Given]:
    """Return what the environment says, by variable."""
    found = {}
    for parameter in context.command.params:
        variable = variable_of(parameter)
        if variable is not None and is_of_environment(context, parameter.name):
            found[variable] = Given(os.environ[variable], tuple(parameter.opts))
    return found


def named(error: DraftsmithError, given: Mapping[str, Given]) -> DraftsmithError:
    """Add to an error's message the variables whose options or values it speaks of."""
    text = str(error)
    notes = [
        f"{variable}={one.value} sets {one.flags[0]}"
        for variable, one in given.items()
        if any(_speaks_of(text, flag) for flag in one.flags)
        or (not one.value.isdecimal() and one.value in text)
    ]
    if notes:
        error.message += f" ({', '.join(notes)})"
    return error


def _speaks_of(text: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def describe_parameter(error: Any) -> str | None:
    """Return what a complaint about a value calls the value's option; None: as Typer does.

    Typer names the variable whether it was set or not.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None or not parameter.opts:
        return None
    flags = " / ".join(repr(flag) for flag in parameter.opts)
    if is_of_environment(context, parameter.name):
        return f"{variable_of(parameter)}, which sets {flags}"
    return flags if parameter.envvar and is_typed(context, parameter.name) else None
