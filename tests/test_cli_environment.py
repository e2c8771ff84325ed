"""Variables of the environment: each stands for its option, in every command and mode of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import toy_model
from command_app import application, built_once
from conftest import Done
from draftsmith.cli.environment import named
from draftsmith.engine.errors import DraftsmithError, ExitStatus, UsageError

Cli = Callable[..., Done]
# Fixtures of command_app serve all tests here.
__all__ = ["built_once"]
pytestmark = pytest.mark.usefixtures("built_once")

# Each command in each of its modes, as far as options go: "{}" is the toy's folder.
MODES = {
    ("lookup-create", "plain"): "-f {}/doc.txt -lcs {}/out.lcs",
    ("lookup-create", "dask"): "-f {}/doc.txt -lcs {}/out.lcs --dask 127.0.0.1:1",
    ("lookup-stats", "plain"): "-f {}/doc.txt",
    ("lookup-stats", "drafter"): "-f {}/doc.txt --drafter suffix",
    ("lookup-stats", "advise"): "-f {}/doc.txt --drafter suffix --cost 1:1.0,2:1.1",
    ("lookup-run", "plain"): "-p abab --draft-fixed -s 1",
    ("lookup-run", "drafter"): "-p abab --draft-fixed -s 1 --drafter suffix",
    ("lookup-run", "compare"): "-p abab --compare -s 1",
    ("mtp-run", "plain"): "-p abab --drafter ngram --draft-fixed -s 1",
    ("mtp-run", "none"): "-p abab --drafter none -s 1",
    ("mtp-run", "compare"): "-p abab --compare -s 1",
    ("mtp-run", "suite"): "--suite -s 1",
    ("prefill-run", "plain"): "-f {}/doc.txt -p elephant? --raw --scorer lexical -s 1",
    ("prefill-run", "drafts"): "-f {}/doc.txt -p elephant? --raw --scorer lexical -s 1 "
    "--decode-drafter ngram --draft-fixed",
    ("prefill-run", "compare"): "-f {}/doc.txt -p elephant? --raw --scorer lexical -s 1 --compare",
    ("prefill-run", "niah"): "--niah --raw --scorer lexical",
    ("prefill-run", "calibrate"): "--calibrate --raw",
    ("prefill-niah", "plain"): "--raw --scorer lexical",
    ("prefill-calibrate", "plain"): "--raw",
}
# Those that run in a moment.
RUN = [
    *(("lookup-create", "plain"), ("lookup-stats", "plain"), ("lookup-stats", "drafter")),
    *(("lookup-run", "plain"), ("lookup-run", "drafter"), ("mtp-run", "plain")),
    *(("mtp-run", "none"), ("prefill-run", "plain"), ("prefill-run", "drafts")),
]
# What a value has to be like where not any number will do.
VALUES = {
    "--model": "{}/other.gguf",
    "--ctx-size": "512",
    "--predict": "5",
    "--chat-template-file": "{}/template.jinja",
    "--chat-template-kwargs": '{"x": 1}',
    "--reasoning": "off",
}
TEXT = "The dog jumps over the lazy fox and the cat. "
SHARES = ("--top-p", "--min-p", "--draft-p-min")


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and a text."""
    folder = tmp_path_factory.mktemp("toys")
    small = {**toy_model.SMALL, "n_ctx": 1024}
    toy_model.write_model(folder / "toy.gguf", "llama", seed=3, **small)
    toy_model.write_model(folder / "other.gguf", "llama", seed=4, **small)
    (folder / "doc.txt").write_text(TEXT * 30 + "An elephant came too. " + TEXT * 30)
    (folder / "template.jinja").write_text("{{ messages[-1].content }}")
    return folder


def read() -> Iterator[tuple[str, str, Any]]:
    """Yield (command, variable, parameter) of all that is read from the environment."""
    for name, command in application().commands.items():
        for parameter in command.params:
            variables = parameter.envvar or []
            for variable in [variables] if isinstance(variables, str) else variables:
                yield name, variable, parameter


def value_of(parameter: Any, toys: Path) -> str:
    """A value that is not the default."""
    for flag, value in VALUES.items():
        if flag in parameter.opts:
            return value.replace("{}/", f"{toys}/")
    return "0.5" if any(flag in SHARES for flag in parameter.opts) else "2"


def typed(parameter: Any, value: str) -> list[str]:
    return [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], value]


def line_of(mode: tuple[str, str], toys: Path) -> list[str]:
    """The command line of a mode; the model, which the environment may set, is left out."""
    return [mode[0], *MODES[mode].replace("{}", str(toys)).split()]


MODEL = ["-m", "{}/toy.gguf"]


def asked(args: list[str]) -> Any:
    """What a command line asks for: the request that its work is called with."""
    work = application()(args=args, prog_name="draftsmith", standalone_mode=False)
    while isinstance(work, partial) and isinstance(work.args[0], partial):
        work = work.args[0]
    return work.func, work.args[0]


def test_every_variable_is_tried() -> None:
    """A command that begins to read variables, and that no mode stands for."""
    assert {name for name, _, _ in read()} <= {command for command, _ in MODES}
    assert len(list(read())) > 40


@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_a_variable_is_its_option(
    mode: tuple[str, str], toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that ends a call which its option has no place in, that hides what was typed,
    or that is read in one mode and not in another."""
    base = line_of(mode, toys)
    for name, variable, parameter in read():
        if name != mode[0]:
            continue
        value = value_of(parameter, toys)
        model = [] if "-m" in parameter.opts else ["-m", str(toys / "toy.gguf")]
        line = [*base, *model]
        plain = asked([*line, "-m", str(toys / "toy.gguf")])
        wanted = None
        try:
            wanted = asked([*line, *typed(parameter, value)])
        except UsageError:  # it has no place here: the variable is for other calls
            wanted = plain
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert asked(line) == wanted, variable
            # what is typed goes before it
            patch.setenv(variable, "1")
            again = [*line, *typed(parameter, value)]
            try:
                assert asked(again) == wanted, variable
            except DraftsmithError:
                assert wanted == plain, variable


def without_chance(value: Any) -> Any:
    """A value without what depends on the machine's state."""
    return value if not isinstance(value, dict) else {**value, "max_memory": None}


@pytest.mark.parametrize("mode", RUN, ids="-".join)
def test_all_variables_at_once(
    mode: tuple[str, str], cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that says one thing, and a record that says another."""
    line = [*line_of(mode, toys), "--json"]
    options: list[str] = []
    values: dict[str, str] = {}
    for name, variable, parameter in read():
        if name != mode[0] or variable == "LLAMA_ARG_DRAFT_MAX":
            continue
        value = value_of(parameter, toys)
        values[variable] = value
        try:
            asked([*line, "-m", str(toys / "toy.gguf"), *typed(parameter, value)])
            options += typed(parameter, value)
        except UsageError:  # it has no place here
            pass
    with monkeypatch.context() as patch:
        for variable, value in values.items():
            patch.setenv(variable, value)
        by_environment = cli(*line)
    by_options = cli(*line, *options)
    assert (by_environment.status, by_options.status) == (0, 0), by_environment.stderr
    one, other = (
        done.record.get("rows", [done.record])[0] for done in (by_environment, by_options)
    )
    for key in ("options", "text", "tokens", "n_drafted", "n_accept", "n_ngrams", "n_input"):
        assert without_chance(one.get(key)) == without_chance(other.get(key)), key
    assert str(toys / "other.gguf") == one["options"]["model"]


@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_a_variable_without_sense_is_named(
    mode: tuple[str, str], cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error about an option that nobody has typed."""
    line = [*line_of(mode, toys), "-m", str(toys / "toy.gguf")]
    for name, variable, parameter in read():
        if name != mode[0] or "-m" in parameter.opts:
            continue
        for value in ("nonsense", "-17", "9" * 400):
            with monkeypatch.context() as patch:
                patch.setenv(variable, value)
                try:
                    asked(line)
                    continue  # not read here
                except Exception:
                    done = cli(*line)
            assert done.status in (ExitStatus.USAGE, ExitStatus.INPUT_UNREADABLE), done.stderr
            assert variable in done.error, value
            assert len(done.error) < 500


def test_prefill_runs_with_a_draft_length_of_the_environment(
    cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable for llama-server that makes plain prefill-run fail, even where it says 0."""
    line = [*line_of(("prefill-run", "plain"), toys), *("-m", str(toys / "toy.gguf"), "-n", "2")]
    for value in ("3", "0", "5000", "1,2"):
        monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", value)
        assert cli(*line, "--json").record["options"]["draft_max"] is None


def test_a_typed_draft_length_is_seen(
    cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that hides --draft-max, which --drafter refuses."""
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "3")
    line = [*line_of(("lookup-stats", "drafter"), toys), "-m", str(toys / "toy.gguf")]
    done = cli(*line, "--draft-max", "4")
    assert (done.status, "--drafter with --draft-max" in done.error) == (ExitStatus.USAGE, True)
    assert cli(*line, "--json").status == 0


def test_a_value_that_does_not_fit_is_traced(
    cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the work itself, deep inside, that speaks of an option of the environment."""
    line = ["lookup-run", "-m", toys / "toy.gguf", "-p", "ab"]
    monkeypatch.setenv("LLAMA_ARG_N_PREDICT", "99999")
    assert "(LLAMA_ARG_N_PREDICT=99999 sets -n)" in cli(*line).error
    assert "LLAMA_ARG" not in cli(*line, "-n", "99998").error
    monkeypatch.delenv("LLAMA_ARG_N_PREDICT")
    monkeypatch.setenv("LLAMA_ARG_MODEL", "/no/such.gguf")
    done = cli("lookup-run", "-p", "ab")
    assert "/no/such.gguf" in done.error
    assert "LLAMA_ARG_MODEL=" in done.error


def test_a_missing_option_names_its_variable(cli: Cli) -> None:
    """A message that no longer says how else the model may be named."""
    assert "LLAMA_ARG_MODEL" in cli("lookup-run", "-p", "x").error


def test_flags_are_whole_words() -> None:
    """-n found in --n-predict or in a file's name, and a note that has nothing to do with it."""
    from draftsmith.cli.environment import Given

    given = {"V": Given("12", ("-n",))}
    assert "V" not in str(named(UsageError("--n-predict and a-n", remedy="x-n"), given))
    assert "(V=12 sets -n)" in str(named(UsageError("less", remedy="give -n 5"), given))


def test_json_of_the_record_is_whole(cli: Cli, toys: Path) -> None:
    """The modes that these tests run fail, or print something else than a record."""
    done = cli(
        *line_of(("lookup-run", "plain"), toys), "-m", toys / "toy.gguf", "-n", "2", "--json"
    )
    assert json.loads(done.stdout)["n_predict"] <= 2
