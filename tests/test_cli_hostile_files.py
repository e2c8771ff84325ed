"""Small files of a user's, whatever they hold: a result, or an error that the user can mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done
from draftsmith.cli import plot
from draftsmith.engine.errors import DraftsmithError, ExitStatus, InputMalformed
from draftsmith.mtp.suite import read_suite
from draftsmith.ngram.advice.curve_files import read_curve
from draftsmith.prefill.scorers.calibration_file import calibration_text, read_calibration
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CALIBRATION = {
    "schema": 1,
    "model": "toy",
    "vocabulary": "ab",
    "norms": "cd",
    "weights": "ef",
    "n_layers": 3,
    "n_embd": 64,
    "window": 64,
    "n_sink": 2,
    "heads": [{"layer": 2, "head": 1, "rope": False, "reduce": "mean"}],
}
SUITE = {"id": "a", "category": "x", "prompt": "p", "max_tokens": 3}
CHAT_SUITE = {"id": "a", "category": "x", "messages": [{"role": "user", "content": "x"}]}
BENCH = {"n_prompt": 2, "n_gen": 0, "n_batch": 8, "n_ubatch": 8, "avg_ns": 5, "samples_ns": [5]}
RUN = {"step_ms": {"1": 1.0, "2": 1.5}, "plain_tokens_per_s": 100.0}
FIGURES = {"figures": {"batch_1_ms": [1.0], "batch_2_ms": [1.5]}}
FIGURE = {
    "title": "t",
    "x_label": "x",
    "panels": [
        {"label": "y", "from_zero": True, "series": [{"name": "s", "points": [[1, 2], [2, None]]}]}
    ],
}


def described(path: Path) -> object:
    return plot.read_figure(str(path))


READERS: dict[str, tuple[Callable[[Path], object], list[dict[str, Any]]]] = {
    "calibration": (read_calibration, [CALIBRATION]),
    "suite": (read_suite, [SUITE, CHAT_SUITE]),
    "curve": (lambda path: read_curve(str(path)), [BENCH, RUN, FIGURES]),
    "figure": (described, [FIGURE]),
}

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([10**400, -(10**400), 2**63, 1e308, 5e-324, float("inf"), float("nan")]),
    st.floats(),
    st.sampled_from(["", "1", "x", "1e999", "9" * 400, "\ud800", "\0", "é" * 300, "max", "user"]),
    st.text(st.characters(), max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to each part of a value, itself included."""
    found = [place]
    if isinstance(value, dict):
        items: Any = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found += places(part, (*place, key))
    return found


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A value with another one at a place."""
    if not place:
        return new
    key, *rest = place
    parts = dict(value) if isinstance(value, dict) else list(value)
    parts[key] = changed(parts[key], tuple(rest), new)
    return parts


def attempt(reader: str, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    told = None
    try:
        READERS[reader][0](path)
    except DraftsmithError as error:
        told = error
    if told is not None:
        assert len(told.message) < 1000
        assert told.remedy


FUZZ = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("reader", READERS)
@FUZZ
@given(data=st.data())
def test_any_value_anywhere(reader: str, tmp_path: Path, data: st.DataObject) -> None:
    """The bug: "internal error (OverflowError)" for a number of 400 digits in --cost."""
    sound = data.draw(st.sampled_from(READERS[reader][1]))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places(sound)))
        sound = changed(sound, place, data.draw(VALUES))
    attempt(reader, tmp_path / "x", json.dumps(sound).encode())


RAW: dict[str, bytes] = {
    "deep list": b"[" * 200_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a number of 5000 digits": b'{"schema": ' + b"9" * 5000 + b"}",
    "a curve of 400 digits": b"batch,ms\n1," + b"9" * 400 + b"\n2,3\n",
    "a size of 5000 digits": b"batch,ms\n" + b"9" * 5000 + b",1\n",
    "a bench of 400 digits": b'[{"n_prompt": 1, "n_gen": 0, "n_batch": 1, "n_ubatch": 1, "avg_ns":'
    + b"9" * 400
    + b"}]",
    "a table of 400 digits": b"| test | t/s |\n| --- | --- |\n| pp1 | " + b"9" * 400 + b" |\n",
    "a table of 5000 digits": b"| test | t/s |\n| --- | --- |\n| pp" + b"9" * 5000 + b" | 1.0 |\n",
    "a batch key of 5000 digits": b'{"figures": {"batch_' + b"9" * 5000 + b'_ms": [1.0]}}',
    "a step of 5000 digits": b'{"step_ms": {"' + b"9" * 5000 + b'": 1.0}}',
    "a long field": b"batch,ms\n" + b"1" * 200_000 + b",1\n",
    "twice the key": json.dumps(CALIBRATION)[:-1].encode() + b', "n_layers": "x"}',
    "not UTF-8": b'{"schema": "\xff"}',
    "UTF-16": json.dumps(CALIBRATION).encode("utf-16"),
    "with a mark": b"\xef\xbb\xbf" + json.dumps(CALIBRATION).encode(),
    "NaN": b'{"step_ms": {"1": NaN, "2": Infinity}, "plain_tokens_per_s": -Infinity}',
    "nothing": b"",
    "null": b"null",
    "NULs": b"\0" * 1000,
    "control characters": b'{"id": "\x1b[2J", "category": "x", "prompt": "y"}',
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", RAW)
def test_texts(reader: str, name: str, tmp_path: Path) -> None:
    """The bug: RecursionError, OverflowError or ValueError that ends as "internal error"."""
    attempt(reader, tmp_path / "x", RAW[name])


@pytest.mark.parametrize("reader", READERS)
def test_sound_files(reader: str, tmp_path: Path) -> None:
    """Readers that refuse what they are for, so that the tests above show nothing."""
    read, sound = READERS[reader]
    for value in sound:
        path = tmp_path / "x"
        lines = [value | {"n_prompt": 1}, value] if value is BENCH else [value]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert read(path)


def test_whole_numbers_that_are_none(tmp_path: Path) -> None:
    """The bug: true counted as 1, or 1e400 as infinity, in a calibration."""
    for key, value in (("n_layers", True), ("window", 1e400), ("n_embd", 3.0), ("model", 3)):
        path = tmp_path / "x.json"
        path.write_text(json.dumps(CALIBRATION | {key: value}))
        if key == "model":
            assert read_calibration(path).model == "3"
            continue
        with pytest.raises(InputMalformed, match="is not a whole number"):
            read_calibration(path)


def test_a_calibration_comes_back_with_its_marks(tmp_path: Path) -> None:
    """Marks lost on the way: a calibration that is then given to any model of its size."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(CALIBRATION))
    assert json.loads(calibration_text(read_calibration(path))) == CALIBRATION


CHATS: dict[str, bytes] = {
    "deep": b"[" * 200_000,
    "a number of 5000 digits": b'[{"role": "user", "content": ' + b"9" * 5000 + b"}]",
    "names of the template": b'{"messages": [{"role": "user", "content": "x"}], "bos_token": 1}',
    "no text": b"\xff\xfe\xfa",
    "a number": b"3",
    "no role": b'[{"role": ["user"], "content": "x"}]',
}


@pytest.mark.parametrize("name", CHATS)
def test_conversations(name: str, cli: Callable[..., Done], tmp_path: Path, smollm2: Path) -> None:
    """The bug: RecursionError, or "multiple values for argument 'self'", as an internal error."""
    path = tmp_path / "chat.json"
    path.write_bytes(CHATS[name])
    done = cli("prefill-run", "-m", smollm2, "--chat-file", path, "-n", "1", "-c", "256")
    assert done.status not in (ExitStatus.OK, ExitStatus.INTERNAL), done.stderr
    assert done.error


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'[{"role": "user", "content": "\\ud800"}]', "warning: {}: halves of surrogate pairs"),
        (b'[{"role": "\\ud800", "content": "x"}]', "warning: {}: halves of surrogate pairs"),
        (b'{"messages": [{"role": "user", "content": "x"}], "self": 1}', "{}: not used: self"),
    ],
)
def test_what_a_conversation_holds_beside_text(
    data: bytes, said: str, cli: Callable[..., Done], tmp_path: Path, smollm2: Path
) -> None:
    """Half a character replaced, or a variable of nobody's left out, without a word."""
    path = tmp_path / "chat.json"
    path.write_bytes(data)
    done = cli("prefill-run", "-m", smollm2, "--chat-file", path, "-n", "1", "-c", "256")
    assert done.status == ExitStatus.OK, done.stderr
    assert said.format(path) in done.stderr


@pytest.mark.parametrize("reader", ["calibration", "suite", "figure"])
def test_keys_that_stand_twice(reader: str, tmp_path: Path) -> None:
    """The last of two values, taken without a word."""
    read, [sound, *_] = READERS[reader]
    path = tmp_path / "x"
    key = next(iter(sound))
    path.write_text(f'{{"{key}": 3, {json.dumps(sound)[1:]}')
    with pytest.raises(InputMalformed, match=f"the key '{key}' stands twice"):
        read(path)


def test_truth_values_in_a_curve(tmp_path: Path) -> None:
    """true counted as a pass over one token, or as a millisecond; a size of 1.5 as one of 1."""
    path = tmp_path / "x"
    for key, value in (("n_prompt", True), ("n_prompt", 1.5), ("avg_ns", True)):
        rows = [BENCH | {"n_prompt": 1, "samples_ns": []} | {key: value}, BENCH]
        path.write_text(json.dumps(rows))
        with pytest.raises(InputMalformed, match=r"no (whole )?number"):
            read_curve(str(path))
