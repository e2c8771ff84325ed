"""What a source's drafts are worth, from what became of them."""

from __future__ import annotations

import math
import random

import pytest
from draftsmith.engine.decode.track_record import TrackRecord, yields


def test_acceptance_by_position() -> None:
    """Positions mixed up; a position that nothing is known of taken for another than the one
    before it."""
    record = TrackRecord(4)
    assert record.acceptances(4) == pytest.approx([0.7] * 4)
    rng = random.Random(1)
    for _ in range(300):
        record.score(0, rng.random() < 0.9, None)
        record.score(1, rng.random() < 0.2, None)
    first, second, *others = record.acceptances(4)
    assert first == pytest.approx(0.9, abs=0.12)
    assert second == pytest.approx(0.2, abs=0.12)
    assert others == pytest.approx([second] * 2)


def test_confidences_are_calibrated() -> None:
    """A drafter that is too sure believed for ever; the first token's worth taken for others'."""
    record = TrackRecord(4)
    assert record.calibrated([0.3, 0.9]) == pytest.approx([0.3, 0.9])
    rng = random.Random(1)
    for _ in range(2000):
        for position in (0, 2):
            confidence = rng.random()
            hit = rng.random() < confidence ** (2 if position else 1)
            record.score(position, hit, confidence)
    confidences = [0.15, 0.45, 0.65, 0.91]
    for position, power in ((0, 1), (1, 2), (3, 2)):
        told = [record.calibrated([1.0] * position + [c])[position] for c in confidences]
        assert told == pytest.approx([c**power for c in confidences], abs=0.15)
    assert record.calibrated([0.0, 1.0]) == pytest.approx([0, 1], abs=0.05)


def test_a_source_that_is_passed_over() -> None:
    """A source written off for ever, or forgotten at once."""
    record, fresh = TrackRecord(3), TrackRecord(3)
    for _ in range(200):
        record.score(0, False, None)
    low = record.acceptances(1)[0]
    assert low < 0.01
    for _ in range(10):
        record.pass_over()
    assert record.acceptances(1)[0] < 0.1
    for _ in range(1000):
        record.pass_over()
    assert record.acceptances(3) == pytest.approx(fresh.acceptances(3), abs=0.02)


def test_what_drafts_are_worth() -> None:
    """A draft's unlikely tail paid for, where it can be cut; a draft that ended early thought to
    be as long as was asked for."""
    record = TrackRecord(3)
    prices = [0.0, 0.1, 0.4, 0.8]
    assert not record.is_confident
    record.remember([0.9, 0.1, 0.9], 3, prices)  # a single token: cut there
    assert record.is_confident
    assert record.worth == pytest.approx([0.8, 0.8, 0.8])
    record.remember([], 3, prices)
    assert record.worth == pytest.approx([0.4, 0.4, 0.4])
    assert record.lengths == pytest.approx([0.5, 1.0, 1.5])


def test_a_source_that_never_hits() -> None:
    """A division by an acceptance that has become too small for a number."""
    record = TrackRecord(3)
    for _ in range(20_000):
        record.score(0, False, 0.5)
    assert record.acceptances(1) == [0]
    record.remember([0.5], 1, [0.0] * 4)
    assert record.worth == pytest.approx([0.5] * 3)


def test_times() -> None:
    """A first draft that compiles taken for what drafts cost; a hiccup believed."""
    record = TrackRecord(4)
    assert (record.draft_ns, record.first_draft) == (math.inf, 1)
    record.time(1, 10**9)
    assert record.first_draft == 3
    record.time(3, 3000)
    assert (record.draft_ns, record.first_draft) == (1000, None)
    record.time(4, 10**9)
    assert record.draft_ns < 1400
    record.time(0, 500)
    assert record.draft_ns < 1300


def test_yields() -> None:
    """The model's own token forgotten, or counted where the draft falls."""
    assert yields([]) == [1]
    assert yields([0.5, 0.5, 0]) == [1, 1.5, 1.75, 1.75]
