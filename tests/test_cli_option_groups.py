"""Option groups: a command's dataclasses, spread into options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated

import pytest
import typer
from draftsmith.cli.option_groups import HIDDEN, spread
from draftsmith.cli.options import is_typed
from typer.testing import CliRunner

CLI = Path(__file__).parent.parent / "cli"
COMMANDS = [path.stem for path in CLI.glob("*.py") if "def command(" in path.read_text()]


@dataclass(frozen=True)
class Size:
    """Options of a size."""

    width: Annotated[int, typer.Option("--width", envvar="TOY_WIDTH")]
    height: Annotated[int, typer.Option("--height", min=1)] = 2


seen: list[object] = []


def command(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name")],
    size: Size,
    loud: Annotated[bool, typer.Option("--loud")] = False,
) -> Callable[[], None]:
    """Do nothing."""
    seen.append((name, size, loud, is_typed(context, "width"), is_typed(context, "height")))
    return partial(seen.append, None)


@pytest.fixture
def app() -> typer.Typer:
    seen.clear()
    made = typer.Typer(rich_markup_mode=None)
    made.command()(spread(command))
    return made


def test_gives_the_command_its_groups(app: typer.Typer) -> None:
    """A field in the wrong group, and a default that stands twice."""
    result = CliRunner().invoke(app, ["--name", "a", "--width", "3", "--loud"])
    assert result.exit_code == 0, result.output
    assert seen[0] == ("a", Size(3, 2), True, True, False)


def test_reads_the_environment_and_bounds(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an option's Annotated says is lost on the way."""
    monkeypatch.setenv("TOY_WIDTH", "7")
    assert CliRunner().invoke(app, ["--name", "a"]).exit_code == 0
    assert seen[0] == ("a", Size(7, 2), False, False, False)
    assert CliRunner().invoke(app, ["--name", "a", "--height", "0"]).exit_code == 2


def test_asks_for_a_field_without_default(app: typer.Typer) -> None:
    """A required option that a group makes optional."""
    result = CliRunner().invoke(app, ["--name", "a"])
    assert result.exit_code == 2
    assert "--width" in result.output


def test_shows_options_in_their_order(app: typer.Typer) -> None:
    """A help that lists a group's options apart from where it stands."""
    text = CliRunner().invoke(app, ["--help"]).output
    places = [text.index(flag) for flag in ("--name", "--width", "--height", "--loud")]
    assert places == sorted(places)


def test_hides_a_group_that_still_works() -> None:
    """Options that are hidden by taking them away, or shown all the same."""

    def narrow(size: Annotated[Size, HIDDEN]) -> Callable[[], None]:
        """Do nothing."""
        return partial(seen.append, size)

    narrow.__annotations__ = {"size": Annotated[Size, HIDDEN], "return": Callable[[], None]}
    made = typer.Typer(rich_markup_mode=None)
    made.command()(spread(narrow))
    assert CliRunner().invoke(made, ["--width", "3"]).exit_code == 0
    assert "--width" not in CliRunner().invoke(made, ["--help"]).output


def test_commands_can_be_read() -> None:
    """A command of fifty parameters."""
    for name in COMMANDS:
        command = import_module(f"draftsmith.cli.{name}").command
        assert len(signature(command).parameters) <= 25, name
