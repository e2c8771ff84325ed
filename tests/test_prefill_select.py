"""The selection against its oracle: budgets at their edges, and everything that is refused."""

from __future__ import annotations

import random
import tracemalloc
from itertools import accumulate, pairwise

import naive_prefill as naive
import numpy as np
import pytest
from draftsmith.engine.errors import UsageError
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.prompt.spans import TokenSpans, is_border
from draftsmith.prefill.scorers.scores import Scores, document_mass
from draftsmith.prefill.select import (
    MANDATORY_MOST,
    Reason,
    Refusal,
    Refused,
    Selection,
    select,
    sentence_borders,
    word_borders,
)
from numpy.typing import NDArray

PIECES = ["The", " fox", " lea", "ps", ".", " And", " 42", "!)", "\n", "  ", "\n\n", " e\u0301"]
PIECES += ["\u4f60", "\u597d", "\u3002", "\U0001f600", "\u2026", '."', "?\u201d", " \ud55c", "x"]
EDGES = [0, 1, 31, 32, 33, 63, 64, 65, 1000, 4096, 32768]
SELECTORS = [(True, True), (True, False), (False, True), (False, False)]


def text_spans(rng: random.Random, n: int) -> TokenSpans:
    """Some text in ``n`` tokens; now and then a character in parts, or a token without bytes."""
    pieces: list[bytes] = []
    share = rng.choice([1.0, 0.2, 0.03])  # or one word for long, so that no border is near
    while len(pieces) < n:
        piece = (rng.choice(PIECES) if rng.random() < share else "x").encode()
        cut = rng.randrange(len(piece)) if rng.random() < 0.1 else 0
        pieces += [piece[:cut], piece[cut:]] if cut or rng.random() < 0.02 else [piece]
    joined = b"".join(pieces[:n])
    text = joined.decode("utf-8", "ignore").encode()  # the end may be a part of a character
    ends = np.array([0, *accumulate(map(len, pieces[:n]))], np.int64).clip(max=len(text))
    return TokenSpans(text, ends[:-1], ends[1:])


def parts_of(
    n_document: int, n_before: int = 3, n_behind: int = 9, *, seed: int = 0, n_parts: int = 1
) -> PromptParts:
    """A prompt of one document, or of several with a token between two."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, n_document), n_parts - 1)) if n_parts > 1 else []
    edges = [0, *cuts, n_document]
    document = tuple(
        (n_before + a + i, n_before + b + i) for i, (a, b) in enumerate(pairwise(edges)) if a < b
    )
    n = n_before + n_document + max(0, len(cuts)) + n_behind
    ids = np.arange(n, dtype=np.int32)
    question = (n - n_behind, max(n - n_behind, n - 4))
    return PromptParts(ids, question, document, text_spans(rng, n))


def scores_of(values: object) -> Scores:
    return Scores("test", np.asarray(values, np.float32), np.empty(0, np.int32))


def some_scores(parts: PromptParts, seed: int, *, steps: int = 0) -> Scores:
    """Random scores; with ``steps`` only so many different ones, so that chunks are equal."""
    values = np.random.default_rng(seed).random(parts.n)
    return scores_of(np.floor(values * steps) if steps else values)


def chosen(parts: PromptParts, scores: Scores, **options: object) -> Selection:
    found = select(parts, scores, **({"min_tokens": 0} | options))  # type: ignore[arg-type]
    assert isinstance(found, Selection), found
    return found


def refused(parts: PromptParts, scores: Scores, **options: object) -> Refused:
    found = select(parts, scores, **({"min_tokens": 0} | options))  # type: ignore[arg-type]
    assert isinstance(found, Refused)
    assert found.reason
    assert "\n" not in found.reason
    return found


def reasons_of(found: Selection) -> dict[int, str]:
    names = [Reason(value).name for value in found.reasons.tolist()]
    return dict(zip(found.kept.tolist(), names, strict=True))


def expected(
    parts: PromptParts, scores: Scores, budget: int, *, neighbours: bool, widen: bool
) -> dict[int, str]:
    assert parts.spans is not None
    # With room for all, all is kept, whatever it scores.
    values = [float(value) if budget < parts.n else 1.0 for value in scores.values]
    spans = list(zip(parts.spans.start.tolist(), parts.spans.stop.tolist(), strict=True))
    text = parts.spans.text
    borders = [
        (naive.sentence_borders(text.decode(), spans), 32),
        (naive.word_borders(text, spans), 8),
    ]
    share = 0.5 if neighbours else 0.0
    begins = [is_border(text, start) for start, _ in spans]
    borders = borders if widen else []
    return naive.pick(parts.n, parts.document, values, budget, 32, share, borders, begins)


@pytest.mark.parametrize("n_document", EDGES)
@pytest.mark.parametrize("keep", [0.05, 0.1, 0.37, 0.9, 1.0])
def test_budget_and_mandatory_hold(n_document: int, keep: float) -> None:
    """A token too many, one of the question lost, an index twice; where chunks do not come out."""
    for seed in range(3):
        parts = parts_of(n_document, seed=seed)
        scores = some_scores(parts, seed, steps=(0, 2, 7)[seed])
        found = select(parts, scores, keep=keep, min_tokens=0)
        budget = round(keep * parts.n)
        if isinstance(found, Refused):
            assert not n_document or parts.n_mandatory > MANDATORY_MOST * budget or n_document < 99
            continue
        assert found.kept.dtype == np.int32
        assert (np.diff(found.kept) > 0).all()
        assert found.kept.size <= found.budget == budget
        assert np.isin(np.flatnonzero(~parts.is_document), found.kept).all()
        assert found.n_document == parts.is_document[found.kept].sum()
        is_mandatory = found.reasons == Reason.MANDATORY
        assert (is_mandatory == ~parts.is_document[found.kept]).all()
        if n_document > 1000:  # and the budget is used
            assert found.kept.size > budget - 32


@pytest.mark.parametrize("n_document", [1, 31, 32, 33, 63, 64, 65, 200, 531])
@pytest.mark.parametrize(("neighbours", "widen"), SELECTORS)
def test_equals_the_oracle(n_document: int, neighbours: bool, widen: bool) -> None:
    """A chunk in the wrong order, a neighbour across two documents, a border off by one."""
    options = {"neighbours": neighbours, "widen": widen}
    n_seen = 0
    for seed in range(12):
        parts = parts_of(n_document, seed=seed, n_parts=1 + seed % 3 if n_document > 5 else 1)
        scores = some_scores(parts, seed, steps=(0, 2, 5)[seed % 3])
        for keep in (0.15, 0.3, 0.62, 0.97):
            found = select(parts, scores, keep=keep, min_tokens=0, **options)  # type: ignore[arg-type]
            if isinstance(found, Refused):
                continue
            n_seen += 1
            assert reasons_of(found) == expected(parts, scores, found.budget, **options)
    assert n_seen > 0 or n_document == 1


def test_borders_equal_the_oracle() -> None:
    """A full stop inside a number, a line that ends twice, a quote that closes after its stop."""
    for seed in range(40):
        spans = text_spans(random.Random(seed), 80)
        pairs = list(zip(spans.start.tolist(), spans.stop.tolist(), strict=True))
        text = spans.text.decode()
        assert sentence_borders(spans).tolist() == naive.sentence_borders(text, pairs)
        assert word_borders(spans).tolist() == naive.word_borders(spans.text, pairs)


def test_widening_ends_the_sentence() -> None:
    """A sentence that is cut although there is room for its end; or one word of the next."""
    words = ["a"] * 6 + [" b"] * 40 + ["."] + [" c"] * 300 + ["\n"]
    ends = np.cumsum([len(word) for word in words])
    spans = TokenSpans("".join(words).encode(), ends - [len(word) for word in words], ends)
    n = len(words)
    parts = PromptParts(np.zeros(n, np.int32), (n - 1, n), ((2, n - 1),), spans)
    values = np.zeros(n)
    values[3] = 1
    found = chosen(parts, scores_of(values), keep=50 / n, neighbours=False)
    assert found.kept.tolist() == [*range(47), n - 1]  # " c" begins another
    assert [*reasons_of(found).values()].count("WIDENED") == 47 - 34
    without = chosen(parts, scores_of(values), keep=50 / n, neighbours=False, widen=False)
    assert without.kept.tolist() == [*range(34), n - 1]
    cramped = chosen(parts, scores_of(values), keep=40 / n, neighbours=False)
    assert cramped.kept.tolist() == without.kept.tolist()  # a part of it would be no better


def test_equal_chunks_go_by_their_place() -> None:
    """An order that depends on the sort."""
    parts = parts_of(32 * 40)
    values = np.ones(parts.n)
    values[3 + 32 * 30] = 2  # one is better than the rest, or they were flat
    found = chosen(parts, scores_of(values), keep=0.2, widen=False, neighbours=False)
    picked = found.kept[found.reasons == Reason.PICKED]
    n_chunks = (found.budget - parts.n_mandatory) // 32
    assert picked.tolist() == [*range(3, 3 + 32 * (n_chunks - 1)), *range(963, 995)]


def test_chunks_that_score_nothing_are_not_taken() -> None:
    """The document's beginning, which no one asked for, as large as the budget; and its time."""
    parts = parts_of(4000)
    values = np.zeros(parts.n)
    values[[3 + 32 * 50, 3 + 32 * 70]] = [2.0, 1.0]
    found = chosen(parts, scores_of(values), keep=0.5, widen=False)
    chunks = [50, 51, 70, 71]
    expected = [3 + 32 * chunk + i for chunk in chunks for i in range(32)]
    assert found.kept[found.reasons != Reason.MANDATORY].tolist() == expected
    assert found.budget > 10 * found.n_document
    values[3 + 32 * 20] = -1.0  # whoever scores so has no nothing
    below = chosen(parts, scores_of(values), keep=0.5, widen=False)
    assert reasons_of(below)[3 + 32 * 20] == "PICKED"


def test_a_sentence_is_whole_before_the_next_is_picked() -> None:
    """A larger budget that keeps less of the best: its rest waits until the others are picked."""
    words = ([" A"] + [" b"] * 46 + ["."]) * 60  # 48 tokens a sentence, cut by every chunk
    ends = np.cumsum([len(word) for word in words])
    spans = TokenSpans("".join(words).encode(), ends - [len(word) for word in words], ends)
    n = len(words)
    parts = PromptParts(np.zeros(n, np.int32), (n - 1, n), ((0, n - 1),), spans)
    values = np.random.default_rng(3).random(n)
    values[32 * 20 + 20] = 99.0  # sentence 13 begins in the middle of chunk 19
    for keep in (0.03, 0.05, 0.1, 0.11, 0.12, 0.2, 0.3):
        found = chosen(parts, scores_of(values), keep=keep)
        assert np.isin(np.arange(48 * 13, 48 * 14), found.kept).all()


@pytest.mark.parametrize("n_tokens", [2, 20, 32])
def test_needle_across_a_border_is_whole(n_tokens: int) -> None:
    """What is sought lies on both sides of a chunk's end, and its second half is lost."""
    parts = parts_of(4000)
    rng = np.random.default_rng(5)
    n_cut = 0
    for chunk in range(2, 120, 7):
        needle = np.arange(n_tokens) + 3 + 32 * chunk - n_tokens // 2
        values = rng.random(parts.n) * 0.01
        values[needle[0]] = 5.0  # its key, which stands in front
        found = chosen(parts, scores_of(values))
        assert np.isin(needle, found.kept).all()
        assert found.kept.size <= found.budget
        alone = chosen(parts, scores_of(values), neighbours=False, widen=False)
        n_cut += not np.isin(needle, alone.kept).all()
    assert n_cut > 10  # the test would pass with no neighbours taken


def test_a_neighbour_that_is_picked_has_a_neighbour_too() -> None:
    """A chunk that is worth as much by its neighbour as by itself, and hands nothing on."""
    parts = parts_of(4000)
    values = np.zeros(parts.n)
    values[[3 + 32 * 50, 3 + 32 * 51]] = [2.0, 1.0]
    found = chosen(parts, scores_of(values), widen=False)
    reasons = reasons_of(found)
    at = [reasons.get(3 + 32 * chunk) for chunk in (49, 50, 51, 52, 53)]
    assert at == [None, "PICKED", "PICKED", "NEIGHBOUR", None]


def test_all_is_kept() -> None:
    """A token lost, or a refusal, although the budget is all of the prompt."""
    for n_document in (1, 32, 33, 5000):
        parts = parts_of(n_document)
        for scores in (some_scores(parts, 1), scores_of(np.zeros(parts.n))):
            found = chosen(parts, scores, keep=1.0)
            assert found.kept.tolist() == list(range(parts.n))
            assert found.budget == parts.n
    assert chosen(parts, some_scores(parts, 1), keep=1.0).mass_kept == pytest.approx(1)


def test_mass_kept() -> None:
    """A share of the whole prompt's scores instead of the document's."""
    parts = parts_of(4000)
    values = np.ones(parts.n)
    values[:3] = 1e6
    values[100] = 1000
    found = chosen(parts, scores_of(values))
    assert found.mass_kept == pytest.approx((found.n_document + 999) / 4999, rel=1e-5)
    masses = document_mass(scores_of(values).values, parts)
    assert masses.sum() == pytest.approx(1, rel=1e-5)
    assert masses[~parts.is_document].sum() == 0
    assert not document_mass(np.zeros(parts.n, np.float32), parts).any()


# ---- refusals


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("keep", [0.1, 1.0])
def test_scores_that_are_not_finite(bad: float, keep: float) -> None:
    """A selection by whatever NaN sorts as."""
    parts = parts_of(2000)
    scores = some_scores(parts, 1)
    scores.values[[500, 600]] = bad
    found = refused(parts, scores, keep=keep)
    assert found.kind is Refusal.NOT_FINITE
    assert found.reason == "2 of 2000 scores of 'test' are not finite"


def test_scores_outside_the_document_mean_nothing() -> None:
    """A refusal for what no one asked about, or a choice by it."""
    parts = parts_of(2000)
    scores = some_scores(parts, 1)
    kept = chosen(parts, scores).kept
    scores.values[~parts.is_document] = np.nan
    assert chosen(parts, scores).kept.tolist() == kept.tolist()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-30])
def test_flat_scores(value: float) -> None:
    """The document's beginning, passed off as what the question asks for."""
    parts = parts_of(2001)
    found = refused(parts, scores_of(np.full(parts.n, value)))
    assert found.kind is Refusal.FLAT
    almost = np.full(parts.n, value, np.float64)
    almost[700] += max(1.0, abs(value))
    assert chosen(parts, scores_of(almost)).kept.size


def test_question_longer_than_the_budget() -> None:
    """A budget that is broken, or a question that is cut; and advice that does not help."""
    parts = parts_of(2000, n_behind=300)
    found = refused(parts, some_scores(parts, 1))
    assert found.kind is Refusal.MANDATORY
    assert found.reason.startswith("question, system and template take 303 of 230 tokens")
    advised = float(found.reason.rpartition("keep ")[2].split()[0])
    assert chosen(parts, some_scores(parts, 1), keep=advised).kept.size
    hopeless = parts_of(100, n_behind=300)
    assert "would do" not in refused(hopeless, some_scores(hopeless, 1), keep=0.5).reason


@pytest.mark.parametrize("n_mandatory", [60, 61])
def test_mandatory_above_six_tenths_of_the_budget(n_mandatory: int) -> None:
    """A limit off by one."""
    parts = parts_of(1000 - n_mandatory, n_behind=n_mandatory - 3)
    found = select(parts, some_scores(parts, 1), min_tokens=0)
    assert isinstance(found, Refused) == (n_mandatory == 61)


def test_prompts_that_are_too_short() -> None:
    """A prompt that takes longer than in full."""
    parts = parts_of(1023 - 12)
    found = select(parts, some_scores(parts, 1))
    assert isinstance(found, Refused)
    assert found.kind is Refusal.SHORT
    assert "1023 tokens" in found.reason
    assert "1024" in found.reason
    parts = parts_of(1024 - 12)
    assert isinstance(select(parts, some_scores(parts, 1)), Selection)


def test_prompt_shorter_than_a_chunk() -> None:
    """A chunk that reaches beyond the document."""
    parts = parts_of(10, n_before=1, n_behind=5)
    assert refused(parts, some_scores(parts, 1), keep=0.5).kind is Refusal.MANDATORY
    found = chosen(parts, some_scores(parts, 1), keep=0.7, widen=False)
    assert found.kept.tolist() == [0, *range(11, 16)]  # all ten do not fit


def test_nothing_to_ask_or_to_drop() -> None:
    """A question of no tokens, which every chunk answers alike; a document of none."""
    parts = parts_of(2000)
    silent = PromptParts(parts.ids, (2003, 2003), parts.document, parts.spans)
    assert refused(silent, some_scores(parts, 1)).kind is Refusal.NO_QUESTION
    whole = PromptParts(parts.ids, (0, parts.n), (), parts.spans)
    assert refused(whole, some_scores(parts, 1)).kind is Refusal.NO_DOCUMENT
    lost = PromptParts(parts.ids, (0, 0), (), None, "it is not there")
    assert refused(lost, some_scores(parts, 1)) == Refused(Refusal.UNPLACED, "it is not there")
    empty = PromptParts(np.empty(0, np.int32), (0, 0), ())
    assert refused(empty, scores_of([])).kind is Refusal.NO_DOCUMENT


def test_a_prompt_without_a_text() -> None:
    """Widening that needs to know the words."""
    parts = parts_of(2000)
    # Of one byte each: where a text is known, no chunk begins inside a character.
    places = np.arange(parts.n)
    spans = TokenSpans(b"x" * parts.n, places, places + 1)
    parts = PromptParts(parts.ids, parts.question, parts.document, spans)
    bare = PromptParts(parts.ids, parts.question, parts.document)
    scores = some_scores(parts, 1)
    assert reasons_of(chosen(bare, scores)) == reasons_of(chosen(parts, scores, widen=False))


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, float("nan")])
def test_shares_out_of_range(keep: float) -> None:
    """A budget of nothing, or of more than there is."""
    parts = parts_of(2000)
    with pytest.raises(UsageError, match="above 0, and at most 1"):
        select(parts, some_scores(parts, 1), keep=keep)


def test_scores_of_another_prompt() -> None:
    """A scorer's fault that looks like a choice."""
    parts = parts_of(2000)
    with pytest.raises(ValueError, match="scores for 2012 tokens"):
        select(parts, scores_of(np.zeros(5)))


def test_a_long_prompt_in_bounded_memory() -> None:
    """Something of chunks times tokens, which 200,000 tokens would not leave room for."""
    parts = parts_of(200_000)
    scores = some_scores(parts, 1)
    chosen(parts, scores)  # compiled
    tracemalloc.start()
    try:
        found: NDArray[np.int32] = chosen(parts, scores).kept
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert found.size <= round(0.1 * parts.n)
