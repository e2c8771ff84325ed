"""Fixtures of the whole suite: the command line in-process, and the small real model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from draftsmith.cli.generate import stream
from draftsmith.cli.main import main
from draftsmith.engine.errors import ModelUnknown
from draftsmith.engine.models import resolve_model
from draftsmith.engine.transformer.model import Model, load_model

Load = Callable[..., Model]
GOLDEN = Path(__file__).parent / "golden"
# Settings of the person who runs the tests must not change what is tested.
FOREIGN = ("LLAMA_ARG_", "DRAFTSMITH_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # as a shell starts what it runs in the background; processes that tests send Ctrl-C to
    # would inherit that, and wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Done:
    """What one command line came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object on stdout, which has to be all of it."""
        record = json.loads(self.stdout)
        assert isinstance(record, dict)
        return record

    @property
    def error(self) -> str:
        """The error line, which has to be the last one, and the only one of its kind."""
        lines = self.stderr.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.stderr
        assert "Traceback" not in self.stderr
        return lines[-1]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command line in this process: cli("lookup-stats", "-m", ...) -> Done."""

    def run(*args: str | Path) -> Done:
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Done(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF of SmolLM2-135M-Instruct in the cache folder; its absence is a failure."""
    try:
        return resolve_model("smollm2")
    except ModelUnknown as error:
        pytest.fail(str(error))


@pytest.fixture
def golden() -> Path:
    """The folder of recorded texts and results."""
    return GOLDEN


@pytest.fixture
def load() -> Iterator[Load]:
    """``load_model``, on one thread, closed afterwards."""
    models = []

    def run(path: Path, n_threads: int = 1) -> Model:
        models.append(load_model(path, n_threads=n_threads))
        return models[-1]

    yield run
    for model in models:
        model.close()


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """interrupt_after(n): from now on Ctrl-C comes with a text's n-th token, and each after it."""
    add = stream.TextPrinter.add

    def set_up(n_tokens: int) -> None:
        def add_and_interrupt(printer: stream.TextPrinter, ids: list[int], n: int) -> None:
            add(printer, ids, n)
            if len(printer.tokens) >= n_tokens:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(stream.TextPrinter, "add", add_and_interrupt)

    return set_up
