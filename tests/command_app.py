"""The commands and what they take, as Typer has them; built once, for that takes its time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import typer
from draftsmith.cli.main import build_app


@cache
def application() -> Any:
    """The application of all commands."""
    return typer.main.get_command(build_app())


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each command line of a test use that application."""
    app = application()
    monkeypatch.setattr("draftsmith.cli.main.build_app", lambda: app)
