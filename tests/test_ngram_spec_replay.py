"""What a replay of drafters counts, over many texts and rows, and what it refuses."""

from __future__ import annotations

import random
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from cache_dicts import count_documents
from draftsmith.engine.errors import CacheBadToken, CacheUnsuitable, InputMalformed, UsageError
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.drafters.replay import ROWS_MOST, SpecStats, replay_all, replay_texts
from draftsmith.ngram.drafters.settings import parse_specs
from spec_streams import cut_into_turns, naive_rounds, passages

ROWS = (
    "ngram-simple:size-n=2|4,size-m=3|9",
    "ngram-map-k:size-n=3,size-m=6",
    "ngram-mod:n-match=2|3,n-min=1,n-max=5",
    "ngram-cache:draft-max=3",
    "suffix",
    "prompt-lookup+ngram-cache",
)
ALL = [spec for row in ROWS for spec in parse_specs(row)]


def talks(seed: int, n: int, n_vocab: int = 12) -> ReplayTexts:
    rng = random.Random(seed)
    return ReplayTexts.of(
        cut_into_turns(rng, passages(rng, rng.randint(20, 260), n_vocab), rng.randint(1, 4))
        for _ in range(n)
    )


def without_time(stats: SpecStats) -> list:
    """All that a replay counted, to be compared."""
    values = []
    for field in fields(stats):
        value = getattr(stats, field.name)
        if field.name in ("longest", "costliest"):
            value = [(e.at, e.drafted.tolist(), e.accepted, e.drafter) for e in value]
        if field.name != "draft_ns":
            values.append(value.tolist() if isinstance(value, np.ndarray) else value)
    return values


@pytest.mark.parametrize("carry", ["none", "conversation", "all"])
def test_what_is_counted(carry: str) -> None:
    """A round that is missing from one of the counts, or in the wrong place of it."""
    texts = talks(1, 9)
    (spec,) = parse_specs("ngram-map-k:size-n=2,size-m=6+ngram-mod:n-match=2,n-min=1,n-max=9")
    stats = replay_texts(texts, spec, n_vocab=12, carry=carry)
    rounds = naive_rounds(texts, spec, carry=carry)
    drafts = [one for one in rounds if one.n_drafted]
    assert stats.n_rounds == len(rounds) == stats.batches.sum()
    assert stats.n_drafts == len(drafts)
    assert stats.n_drafted == sum(one.n_drafted for one in rounds) == stats.drafted_at.sum()
    assert stats.n_accepted == sum(one.n_accepted for one in rounds) == stats.accepted_at.sum()
    for i in range(9):
        assert stats.drafted_at[i] == sum(one.n_drafted > i for one in rounds)
        assert stats.accepted_at[i] == sum(one.n_accepted > i for one in rounds)
    for who in range(2):
        its = [one for one in rounds if one.drafter == who]
        counts = [len(its), sum(d.n_drafted for d in its), sum(d.n_accepted for d in its)]
        assert stats.by_drafter[who].tolist() == counts
    for size in range(11):
        n = sum(one.n_drafted + 1 == size for one in rounds)
        assert stats.batches[:, size].sum() == n
    assert stats.by_row.shape == (9, 5)
    assert stats.by_row.sum(axis=0).tolist() == [
        texts.n_turns, texts.n_generated, stats.n_rounds, stats.n_drafted, stats.n_accepted,
    ]  # fmt: skip
    # Each token but a turn's first comes from a round: its own, or one of its draft.
    own = stats.n_rounds - stats.n_cut_rounds
    assert texts.n_generated - texts.n_turns == own + stats.n_accepted


def test_examples() -> None:
    """Drafts that are not the longest, or come from another place."""
    texts = talks(2, 30)
    (spec,) = parse_specs("ngram-simple:size-n=2,size-m=9+ngram-cache")
    stats = replay_texts(texts, spec, n_vocab=12)
    rounds = naive_rounds(texts, spec, carry="conversation")
    right = sorted((one.n_accepted for one in rounds), reverse=True)[:5]
    wrong = sorted((one.n_drafted - one.n_accepted for one in rounds), reverse=True)[:5]
    assert [one.accepted for one in stats.longest] == right
    assert [one.drafted.size - one.accepted for one in stats.costliest] == wrong
    for one in (*stats.longest, *stats.costliest):
        truth = texts.tokens[one.at : one.at + one.accepted]
        assert one.drafted[: one.accepted].tolist() == truth.tolist()
        assert one.drafter in (0, 1)


@pytest.mark.parametrize("carry", ["conversation", "all"])
def test_rows_on_threads(carry: str) -> None:
    """Rows that write into each other's arrays."""
    texts = talks(3, 40)
    alone = [replay_texts(texts, spec, n_vocab=12, carry=carry) for spec in ALL]
    together = replay_all(texts, ALL, n_vocab=12, carry=carry, n_threads=3)
    for one, other in zip(alone, together, strict=True):
        assert without_time(one) == without_time(other)


def test_conversations_know_nothing_of_each_other() -> None:
    """What one conversation taught, in the next."""
    texts = talks(4, 12)
    for spec in ALL:
        whole = replay_texts(texts, spec, n_vocab=12)
        parts = [replay_texts(ReplayTexts.of([c]), spec, n_vocab=12) for c in texts]
        assert whole.by_row.tolist() == [part.by_row[0].tolist() for part in parts]


def test_progress_comes_to_its_end() -> None:
    """A bar that runs over, or stops half way."""
    texts = talks(5, 20)
    seen: list[tuple[int, int]] = []
    replay_all(
        texts, ALL, n_vocab=12, n_threads=2, on_progress=lambda done, of: seen.append((done, of))
    )
    assert {of for _, of in seen} == {len(ALL) * texts.tokens.size}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_an_error_of_progress_ends_all_rows() -> None:
    """Ctrl-C that waits for the last row."""

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay_all(talks(6, 5), ALL, n_vocab=12, on_progress=stop)


def test_no_conversations() -> None:
    """A division by none."""
    stats = replay_texts(ReplayTexts.of([]), ALL[0], n_vocab=12)
    assert (stats.n_rounds, stats.n_turns, stats.accept) == (0, 0, None)
    assert stats.tokens_per_round is stats.mean_accepted_length is stats.us_per_token is None


def test_turns_of_one_token() -> None:
    """A round without a token that is still to come."""
    turns = np.array([[1, 2], [2, 3], [5, 6]], np.int64)
    talk = Conversation(np.arange(6, dtype=np.int32), turns, np.zeros(3, np.int64))
    for spec in ALL:
        stats = replay_texts(ReplayTexts.of([talk]), spec, n_vocab=12)
        assert (stats.n_rounds, stats.n_generated) == (0, 3)


def test_what_is_refused() -> None:
    """Ids that kernels would take for places."""
    texts = talks(7, 2)
    (cache_spec,) = parse_specs("ngram-cache")
    with pytest.raises(InputMalformed):
        replay_texts(texts, ALL[0], n_vocab=11)
    negative = ReplayTexts.of_text(np.array([1, -1, 2], np.int32))
    with pytest.raises(InputMalformed):
        replay_texts(negative, ALL[0], n_vocab=11)
    with pytest.raises(UsageError, match="vocabulary"):
        replay_texts(texts, cache_spec, n_vocab=2**31 - 1)
    with pytest.raises(CacheBadToken):
        replay_texts(
            texts, cache_spec, n_vocab=12, static=count_documents([[90, 91] * 4], n_vocab=100)
        )
    unigrams = count_documents([[1, 2] * 4], orders=[1], n_vocab=12)
    with pytest.raises(CacheUnsuitable):
        replay_texts(texts, cache_spec, n_vocab=12, static=unigrams)


def test_many_short_conversations() -> None:
    """Arrays that are cleared as a whole for each of them, or counted for each of them."""
    n = 100_000
    rng = np.random.default_rng(8)
    short = rng.integers(0, 50, (n, 8)).astype(np.int32)
    long = np.array(passages(random.Random(8), 30_000, 50), np.int32)
    starts = np.append(np.arange(n + 1) * 8, n * 8 + long.size)
    turns = np.stack([starts[:-1] + 4, starts[1:]], axis=1)
    texts = ReplayTexts(
        np.concatenate([short.reshape(-1), long]), starts, turns, starts[:-1], np.arange(n + 2)
    )
    specs = [*ALL, *parse_specs("ngram-map-k4v:size-n=1,size-m=2", upstream_exact=True)]
    specs += parse_specs("ngram-mod:n-match=1,n-min=0", upstream_exact=True)
    for carry in ("conversation", "all"):
        begin = time.thread_time()
        done = replay_all(texts, specs, n_vocab=50, n_threads=1, carry=carry)
        assert time.thread_time() - begin < 4 * len(specs)
        for stats in done:
            assert stats.n_turns == n + 1
            assert stats.by_row.shape == (ROWS_MOST, 5)
            assert stats.by_row[:, 1].sum() == texts.n_generated


CASES = Path(__file__).parent / "golden" / "cases"


def figures_of(case: str, drafter: str, **limits: int) -> tuple[int, int, int]:
    """Drafts, drafted and accepted tokens of a text of ids."""
    texts = ReplayTexts.of_text(np.load(CASES / case))
    (spec,) = parse_specs(drafter)
    stats = replay_texts(texts, spec, n_vocab=49152, **limits)
    return stats.n_drafts, stats.n_drafted, stats.n_accepted


def test_drafts_past_the_end_of_a_text() -> None:
    """A draft that is cut where the text ends, which no server knows beforehand.

    18 tokens are left, and 30 drafted. The last of the 18 ends the generation: the model's own.
    """
    drafter = "ngram-simple:size-n=2,size-m=48"
    assert figures_of("end_cut.npy", drafter) == (1, 30, 17)
    # with n_predict a server knows: one token of each round is the model's own
    assert figures_of("end_cut.npy", drafter, n_predict=49) == (1, 17, 17)
    assert figures_of("end_cut.npy", drafter, n_ctx=40) == (1, 7, 7)


@pytest.mark.parametrize(
    ("case", "figures"),
    [("k4v_first_is_other.npy", (5, 20, 15)), ("k4v_latest_is_other.npy", (5, 17, 13))],
)
def test_favourite_of_the_continuations(case: str, figures: tuple[int, int, int]) -> None:
    """The first or the latest continuation of an n-gram is drafted, and not the favourite."""
    assert figures_of(case, "ngram-map-k4v:size-n=2,size-m=4") == figures
