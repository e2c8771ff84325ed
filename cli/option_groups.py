"""Options that belong together as one parameter of a command: a dataclass, a field an option.

Typer knows a command by its signature, one parameter an option; a command with fifty of them can
not be read. ``spread`` shows Typer the fields, and gives the command the group.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

Work = Callable[[], None]
# ``Annotated[Group, HIDDEN]``: the group's options work, and help does not list them.
HIDDEN = "hidden"


def spread(command: Callable[..., Work]) -> Callable[..., Work]:
    """Let Typer see the fields of a command's option groups as parameters of their own.

    Parameters
    ----------
    command : each parameter is an option (``Annotated[..., typer.Option(...)]``), the
        ``typer.Context``, or a dataclass whose fields are options; a field's default is the
        option's, and stands nowhere else

    Returns
    -------
    what ``app.command()`` takes; options come in the order of parameters and fields
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    hidden = set()
    for name, hint in hints.items():
        kind, *more = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if is_dataclass(kind):
            groups[name] = kind
            hidden |= {name} if HIDDEN in more else set()
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name], is_hidden=parameter.name in hidden)
        else:
            parameters.append(
                parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            )

    @wraps(command)
    def spread_command(**values: Any) -> Work:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return command(**values)

    shown: Any = spread_command
    del shown.__wrapped__  # whose signature would be taken
    shown.__signature__ = Signature(parameters)
    shown.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread_command


def _options(group: Any, *, is_hidden: bool) -> list[Parameter]:
    """The fields of a group as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=_hidden(hints[field.name]) if is_hidden else hints[field.name],
        )
        for field in fields(group)
    ]


def _hidden(hint: Any) -> Any:
    """An option's annotation, for an option that help does not list."""
    kind, option = get_args(hint)
    option = copy(option)
    option.hidden = True
    return Annotated[kind, option]


def _default(field: Field[Any]) -> Any:
    """A field's default; ``Parameter.empty``: the option has to be given."""
    return Parameter.empty if field.default is MISSING else field.default
