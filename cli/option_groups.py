"""Options that belong together as one parameter of a command: a dataclass, a field an option.

Typer knows a command by its signature, one parameter an option; a command with fifty of them can
not be read. ``spread`` shows Typer the fields, and gives the command the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

Work = Callable[[], None]


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
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _options(groups[parameter.name])
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


def _options(group: Any) -> list[Parameter]:
    """The fields of a group as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    """A field's default; ``Parameter.empty``: the option has to be given."""
    return Parameter.empty if field.default is MISSING else field.default
