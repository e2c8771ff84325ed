"""Values that no option can have: each is refused by name, with one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from command_app import application, built_once
from conftest import Done
from draftsmith.engine.errors import ExitStatus

Cli = Callable[..., Done]
# Fixtures of command_app serve all tests here.
__all__ = ["built_once"]
pytestmark = pytest.mark.usefixtures("built_once")

# What each command needs beside the option that is tried.
NEEDED = {
    "lookup-create": ["-m", "m.gguf", "-f", "f.txt", "-lcs", "o.lcs"],
    "lookup-stats": ["-m", "m.gguf", "-f", "f.txt"],
    "lookup-run": ["-m", "m.gguf", "-p", "x"],
    "mtp-run": ["-m", "m.gguf", "-p", "x"],
    "prefill-run": ["-m", "m.gguf", "-f", "f.txt", "-p", "x"],
    "prefill-niah": ["-m", "m.gguf"],
    "prefill-calibrate": ["-m", "m.gguf"],
}
# Where an option counts in a mode of its own.
MODES = {
    "--context": ["prefill-run", "-m", "m.gguf", "--niah"],
    "--depths": ["prefill-run", "-m", "m.gguf", "--niah"],
    "--layers": ["prefill-run", "-m", "m.gguf", "--calibrate"],
    "--draft-max": ["prefill-run", *NEEDED["prefill-run"], "--decode-drafter", "ngram"],
}
# What values are called that are numbers.
NUMBERS = ("N", "K", "T", "P", "X", "SEED", "N,...", "K,...", "SHARE", "PERCENT,...", "SIZE")
BAD = ("nan", "inf", "-inf", "9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "x", "", "0x10", "-7")


def numeric() -> Iterator[tuple[str, list[str]]]:
    """Yield (command, names of the option) of all that takes numbers."""
    for name, command in application().commands.items():
        for parameter in command.params:
            if parameter.metavar in NUMBERS:
                yield name, parameter.opts


def test_all_numbers_are_found() -> None:
    """A sweep that tries nothing."""
    found = [(command, name) for command, names in numeric() for name in names]
    assert len(found) > 80
    for one in (("lookup-stats", "-c"), ("prefill-run", "--keep"), ("mtp-run", "--temp")):
        assert one in found
    assert {name for name, _ in found} <= set(NEEDED)


@pytest.mark.parametrize(
    ("command", "names"),
    [pytest.param(*one, id=f"{one[0]}{one[1][0]}") for one in numeric()],
)
def test_bad_numbers_are_refused(cli: Cli, command: str, names: list[str]) -> None:
    """An internal error, a NaN that goes on to the sampler, or a number that is cut to an int32."""
    line = [command, *NEEDED[command]]
    if command == "prefill-run":
        line = MODES.get(names[0], line)
    if command == "prefill-niah" and names[0] == "--draft-max":
        line += ["--decode-drafter", "ngram"]
    for value in BAD:
        done = cli(*line, names[0], value)
        assert done.status == ExitStatus.USAGE, (value[:20], done.stderr)
        assert any(name in done.error for name in names), value[:20]
        assert "m.gguf" not in done.error, value[:20]
        assert len(done.error) < 400, value[:20]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("lookup-stats", "-c"),
        ("lookup-stats", "--draft-max"),
        ("mtp-run", "--draft-max"),
        ("prefill-run", "--keep"),
        ("prefill-run", "--heads"),
        ("prefill-run", "--context"),
        ("prefill-run", "--depths"),
    ],
)
def test_endless_lists_are_refused(cli: Cli, command: str, option: str) -> None:
    """A row for each of a hundred thousand values: work of hours, by one slip."""
    line = [command, *NEEDED[command]] if command != "prefill-run" else MODES["--context"]
    many = ",".join(["0.5" if option == "--keep" else "1"] * 20_000)
    done = cli(*line, option, many)
    assert done.status == ExitStatus.USAGE
    assert f"{option} names 20000 values, more than 1000" in done.error


@pytest.mark.parametrize(
    "drafter",
    [
        *(
            "ngram-mod:n-max=" + "9" * 400,
            "ngram-mod:n-max=" + "9" * 5000,
            "suffix:min-token-prob=nan",
        ),
        *(
            "suffix:max-spec-factor=1e999",
            "ngram-mod:n-max=" + "1|" * 100_000 + "1",
            "ngram-mod:n-max=x",
        ),
    ],
)
@pytest.mark.parametrize("command", ["lookup-stats", "lookup-run"])
def test_bad_numbers_of_drafters(cli: Cli, command: str, drafter: str) -> None:
    """The same inside of --drafter."""
    done = cli(command, *NEEDED[command], "--drafter", drafter)
    assert done.status == ExitStatus.USAGE
    assert "--drafter" in done.error
    assert len(done.error) < 1000


@pytest.mark.parametrize(
    "cost",
    [
        *("1:nan", "1:inf", "nan:1", "1:" + "9" * 400, "9" * 400 + ":1", "1:1e400", "1:-1"),
        *("1:1," + "9" * 5000 + ":2", "1:1,2:x"),
    ],
)
def test_bad_numbers_of_costs(cli: Cli, cost: str) -> None:
    """The same inside of --cost."""
    done = cli("lookup-stats", *NEEDED["lookup-stats"], "--drafter", "suffix", "--cost", cost)
    assert done.status in (
        ExitStatus.USAGE,
        ExitStatus.INPUT_MALFORMED,
        ExitStatus.INPUT_UNREADABLE,
    )
    assert "--cost" in done.error
    assert "m.gguf" not in done.error


def test_lists_that_are_too_much_together(cli: Cli) -> None:
    """Three short lists that make millions of rows, or prompts that are all held in memory."""
    many = ",".join(map(str, range(200)))
    done = cli("lookup-stats", *NEEDED["lookup-stats"], "-c", many, "--draft-max", many)
    assert "the sweep names 40000 rows, more than 10000" in done.error
    grid = "|".join(map(str, range(1, 1001)))
    some = [
        f"--drafter=suffix:max-tree-depth={n},num-speculative-tokens={grid}" for n in range(2, 13)
    ]
    done = cli("lookup-stats", *NEEDED["lookup-stats"], *some)
    assert "--drafter names" in done.error
    done = cli(*MODES["--context"], "--repeat", "10000")
    assert "--niah names 250000 prompts, more than 10000" in done.error


def test_more_threads_than_a_machine_has_use_for(cli: Cli) -> None:
    """Thousands of threads that take all memory, or that the system refuses to start."""
    for command in ("lookup-create", "lookup-stats", "lookup-run", "mtp-run", "prefill-run"):
        done = cli(command, *NEEDED[command], "-t", "100000")
        assert done.status == ExitStatus.USAGE
        assert f"-t 100000: this machine runs {os.cpu_count()} thread" in done.error
