"""What --compare says of gains that its rounds do not explain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.cli.generate.noise import warn_of_noise
from draftsmith.cli.generate.report import _comparison, comparison_keys
from draftsmith.cli.output import Output
from draftsmith.engine.decode.comparison import Comparison
from draftsmith.engine.decode.generation import Generation
from draftsmith.engine.decode.noise import judge

MS = 1_000_000
# A pass over one token takes 10 ms, over 8 tokens 17 ms.
STEPS = {n: [(9 + n) * MS] * 3 for n in (1, 2, 4, 8)}


def run(n_tokens: int, ms: float, n_rounds: int, drafts: Sequence[int] = ()) -> Generation:
    """A generation of tokens after the first, with so many drafts of 1, 2, ... tokens or more."""
    reached = np.array([*drafts, 0], np.int64)
    return Generation(
        reached,
        np.zeros_like(reached),
        tokens=[0] * (n_tokens + 1),
        n_rounds=n_rounds,
        decode_ns=round(ms * MS),
        stop_reason="length",
    )


def compared(
    drafted_ms: Sequence[float], n_rounds: int = 50, drafts: Sequence[int] = (50, 50, 50)
) -> Comparison:
    """100 tokens, plain in 1 second, with drafts of three tokens in 50 rounds."""
    plain = [run(100, 1000, 100) for _ in drafted_ms]
    with_drafts = [run(100, ms, n_rounds, drafts) for ms in drafted_ms]
    return Comparison(run(0, 0, 0), with_drafts, plain, 10, STEPS)


def test_what_rounds_explain() -> None:
    """2 tokens a round, each a pass over 4 tokens, that takes 1.3 of one: 1.54 and no more."""
    assert judge(compared([650])).explained == pytest.approx(2 / 1.3)
    # half of the rounds drafted nothing
    verdict = judge(compared([650], drafts=(25, 25, 25)))
    assert verdict.explained == pytest.approx(2 / 1.15)
    # a size that was not timed is between its neighbours
    assert judge(compared([650], drafts=(50,) * 5)).explained == pytest.approx(2 / 1.5)


@pytest.mark.parametrize(
    ("ms", "drafts", "is_unexplained"),
    [
        (650, (50, 50, 50), False),
        (530, (50, 50, 50), False),  # within what timing two things at two times may do
        (510, (50, 50, 50), True),
        (480, (), False),  # 2 tokens a round: no ratio can be clearly above that
        (470, (), True),
        (1100, (), False),
    ],
)
def test_a_gain_beyond_that_is_noise(
    ms: float, drafts: tuple[int, ...], is_unexplained: bool
) -> None:
    """A ratio of 1.96 told as a gain, though the rounds come to 1.54 at most."""
    assert judge(compared([ms], drafts=drafts)).is_unexplained == is_unexplained


def test_nothing_drafted_explains_nothing() -> None:
    """A machine that got faster meanwhile: as many rounds as tokens, and a ratio of 1.25."""
    verdict = judge(compared([800], n_rounds=100, drafts=()))
    assert verdict.explained == 1
    assert verdict.is_unexplained
    assert not judge(compared([1200], n_rounds=100, drafts=())).is_unexplained


def test_passes_of_several_that_seem_cheaper_than_one() -> None:
    """A first pass that found the machine busy: a bound above the tokens of a round."""
    one = compared([600])
    steps = {1: [90 * MS, 80 * MS], 2: [10 * MS] * 2, 4: [10 * MS] * 2}
    verdict = judge(Comparison(one.prefill, one.drafted, one.plain, 10, steps))
    assert verdict.explained == pytest.approx(2)


def test_turns_that_disagree() -> None:
    """A median of 1.02 with turns on both sides of 1, told as if it were sure."""
    assert judge(compared([980, 1040, 970])).is_within_spread
    assert not judge(compared([980, 960, 970])).is_within_spread
    assert not judge(compared([1080, 1060, 1010])).is_within_spread


def test_a_text_of_one_token() -> None:
    """No round, and a division by zero."""
    one = Comparison(run(0, 0, 0), [run(0, 0, 0)], [run(0, 0, 0)], 1, STEPS)
    keys = comparison_keys(one)
    assert (keys["ratio_explained"], keys["gain_unexplained"]) == (None, False)


def told(capsys: pytest.CaptureFixture[str], ms: Sequence[float], quiet: bool = False) -> str:
    record: dict[str, Any] = {"decode_ms": ms[0], **comparison_keys(compared(ms))}
    warn_of_noise(record, Output(mode="table", quiet=quiet))
    return capsys.readouterr().err


def test_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A key in the record that nobody reads."""
    assert told(capsys, [650, 660, 670]) == ""
    wild = told(capsys, [500, 500, 500], quiet=True)
    assert wild.startswith("warning: a ratio of 2.000 is more than the 1.538 that the tokens")
    assert told(capsys, [100, 110, 120]).count("is more than the 1.538") == 1
    assert told(capsys, [100, 110, 120], quiet=True) == ""
    assert "faster with drafts and some without" in told(capsys, [980, 1040, 970])
    assert told(capsys, [980, 1040, 970], quiet=True) == ""


def test_keys_are_told() -> None:
    """Keys that no page names."""
    page = (Path(__file__).parent.parent / "docs" / "lookup-run.md").read_text()
    for key in comparison_keys(None):
        assert re.search(rf"`{key}`", page), key


def test_the_table_has_the_bound() -> None:
    """A bound in JSON alone."""
    record = {"identical": True, **comparison_keys(compared([650]))}
    assert ("of which rounds explain", "1.538", "at most") in _comparison(record).rows
