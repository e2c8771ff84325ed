"""Rules of acceptance: the verdict's parts, and whether the text has the model's distribution.

The model is a table: its logits depend on the last two tokens, so how often a token follows each
pair tells all about the distribution of texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import numpy as np
import pytest
from draftsmith.engine.decode.acceptance import (
    AcceptRule,
    ProposalSource,
    RejectSamples,
    Verdict,
    match_samples,
)
from draftsmith.engine.decode.generate import generate
from draftsmith.engine.decode.pacer import Pacer
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import ModelDamaged
from numpy.typing import NDArray

N_VOCAB = 8
START = [0, 1]
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
# repeat_last_n is 2, so that the pair that a token follows is all that is penalised
CHAIN = {"top_k": 7, "top_p": 0.97, "min_p": 0.02, "repeat_penalty": 1.5, "repeat_last_n": 2}
TABLE = np.random.default_rng(5).normal(0, 1, (N_VOCAB, N_VOCAB, N_VOCAB)).astype(np.float32)
# of p-values: seeds are fixed, so a test that passes once does so always
UNLIKELY, IMPOSSIBLE = 1e-3, 1e-9


class TableCache:
    """Holds the tokens themselves."""

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


class TablePass:
    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits


class TableModel:
    """Logits by the last two tokens."""

    def forward(
        self,
        tokens: NDArray[np.int32],
        cache: TableCache,
        *,
        rows: Literal["last", "all", "none"] = "last",
    ) -> TablePass:
        cache.tokens += tokens.tolist()
        n = len(tokens) if rows == "all" else 1
        end = cache.tokens[-n - 1 :]
        return TablePass(TABLE[end[:-1], end[1:]])


class Oracle:
    """Drafts always as many tokens as asked for, from a table of its own, and knows the text."""

    def __init__(self) -> None:
        self.pair = (0, 0)
        self.pairs: list[tuple[int, int]] = []  # before each drafted token
        self.drafted: list[int] = []

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        for token in tokens:
            self.pair = (self.pair[1], int(token))

    def reset(self) -> None:
        raise AssertionError("a text that goes on would be forgotten")

    def draft(self, n_max: int) -> NDArray[np.int32]:
        first, second = self.pair
        self.drafted = drafted = []
        self.pairs = []
        for _ in range(n_max):
            self.pairs.append((first, second))
            drafted.append(self.next(first, second))
            first, second = second, drafted[-1]
        return np.array(drafted, np.int32)

    def next(self, first: int, second: int) -> int:
        raise NotImplementedError


class Guesser(Oracle):
    """Drafts what a table says, no chance about it."""

    def __init__(self, table: NDArray[np.int64]) -> None:
        super().__init__()
        self.table = table.tolist()

    def next(self, first: int, second: int) -> int:
        return int(self.table[first][second])


class Gambler(Oracle):
    """Draws from q [N_VOCAB, N_VOCAB, n_draft], probabilities of ``ids``."""

    def __init__(self, q: NDArray[np.float64], ids: Sequence[int] = range(N_VOCAB)) -> None:
        super().__init__()
        self.ids = np.array(ids, np.int32)
        self.q = (q / q.sum(axis=-1, keepdims=True)).astype(np.float32)
        self.cumulated = q.cumsum(axis=-1) / q.sum(axis=-1, keepdims=True)
        self.stream = np.random.Generator(np.random.PCG64(7))

    def next(self, first: int, second: int) -> int:
        place = self.cumulated[first, second].searchsorted(self.stream.random(), "right")
        return int(self.ids[place])

    def proposals(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        firsts, seconds = zip(*self.pairs[:n], strict=True)
        return self.ids, self.q[list(firsts), list(seconds)]


def good() -> Gambler:
    noise = np.random.default_rng(1).normal(0, 0.4, TABLE.shape)
    return Gambler(np.exp(TABLE + noise))


def poor() -> Gambler:
    return Gambler(np.random.default_rng(2).random(TABLE.shape) ** 3)


def adversary() -> Gambler:
    """Bets most on what is least likely, and cannot draw some tokens at all."""
    return Gambler(np.exp(-3 * TABLE[:, :, [0, 2, 3, 5, 6]]), [0, 2, 3, 5, 6])


def likeliest() -> Guesser:
    return Guesser(TABLE.argmax(axis=-1))


def least_likely() -> Guesser:
    return Guesser(TABLE.argmin(axis=-1))


def sampler_of(temperature: float, **changes: float) -> Sampler:
    params = {"temperature": temperature, "seed": 11, **OFF, **changes}
    return Sampler(SamplingParams(**params))  # type: ignore[arg-type]


def text_of(
    n_tokens: int,
    rule: AcceptRule,
    drafter: Oracle | None,
    temperature: float,
    pacer: Pacer | None = None,
    **changes: float,
) -> list[int]:
    return generate(
        TableModel(),
        TableCache(n_tokens + 9),
        START,
        sampler=sampler_of(temperature, **changes),
        n_predict=n_tokens,
        drafter=drafter,
        draft_max=3,
        pacer=pacer,
        accept_rule=rule,
    ).tokens


def p_value(text: Sequence[int], temperature: float, **changes: float) -> float:
    """How likely it is that a text of the model is as far from what was to be expected.

    Pearson's chi-square over what follows each pair of tokens; tokens expected fewer than 5 times
    are counted as one. Its tail is that of Wilson and Hilferty.
    """
    all_tokens = np.array([*START, *text])
    counts = np.zeros(TABLE.shape)
    np.add.at(counts, (all_tokens[:-2], all_tokens[1:-1], all_tokens[2:]), 1)
    statistic, freedom = 0.0, 0
    for first, second in np.ndindex(N_VOCAB, N_VOCAB):
        sampler = sampler_of(temperature, **changes)
        sampler.accept_all((first, second))
        ids, p = sampler.probabilities(TABLE[first, second])
        seen = counts[first, second]
        if seen.sum() > seen[ids].sum():
            return 0.0  # a token that cannot be
        expected, seen = seen.sum() * p, seen[ids]
        rare = expected < 5
        cells = list(zip(seen[~rare], expected[~rare], strict=True))
        if expected[rare].sum():
            cells.append((seen[rare].sum(), expected[rare].sum()))
        statistic += sum((count - mean) ** 2 / mean for count, mean in cells)
        freedom += max(0, len(cells) - 1)
    spread = 2 / (9 * freedom)
    return math.erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


DRAFTERS: dict[str, Callable[[], Oracle]] = {
    make.__name__: make for make in (good, poor, adversary, likeliest, least_likely)
}


def source_of(drafter: Oracle) -> ProposalSource | None:
    return drafter if isinstance(drafter, Gambler) else None


def p_value_of(
    rule: Callable[[ProposalSource | None], AcceptRule],
    name: str,
    n_tokens: int,
    temperature: float,
    **changes: Any,
) -> float:
    drafter = DRAFTERS[name]()
    text = text_of(n_tokens, rule(source_of(drafter)), drafter, temperature, **changes)
    return p_value(text, temperature, **changes)


def rejection(source: ProposalSource | None) -> RejectSamples:
    return RejectSamples(source, 11)  # the sampler's seed too: the streams differ


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("name", ["good", "poor", "adversary", "likeliest"])
def test_rejection_has_the_models_distribution(name: str, temperature: float) -> None:
    """A text that the drafter bends its way, be it by little."""
    assert p_value_of(rejection, name, 100_000, temperature) > UNLIKELY


@pytest.mark.parametrize("changes", [{}, CHAIN], ids=["all", "chain"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_in_short(name: str, changes: dict[str, float]) -> None:
    """A residual of the wrong row, a bonus token of the wrong distribution, random numbers used
    twice, a token that the filters or the penalty rule out."""
    assert p_value_of(rejection, name, 4_000, 0.7, **changes) > UNLIKELY


class AcceptAlways(RejectSamples):
    """Broken: what was drafted stands."""

    def _settle(self, ids, p, drafted, q):  # type: ignore[no-untyped-def]
        return drafted


class ResampleFromAll(RejectSamples):
    """Broken: in place of a token that falls comes one of p, not of what p has over q."""

    def _settle(self, ids, p, drafted, q):  # type: ignore[no-untyped-def]
        if super()._settle(ids, p, drafted, q) == drafted:
            return drafted
        return self._drawn(ids, p)


class ForgetTheDraft(RejectSamples):
    """Broken: the drafter draws, the rule takes its tokens for certain ones."""

    def __init__(self, source: ProposalSource | None, seed: int) -> None:
        super().__init__(None, seed)


@pytest.mark.parametrize("rule", [AcceptAlways, ResampleFromAll])
@pytest.mark.parametrize("name", ["good", "poor", "adversary"])
def test_broken_rules_are_found_out(rule: type[RejectSamples], name: str) -> None:
    """A chi-square test that lets anything pass."""
    assert p_value_of(lambda source: rule(source, 11), name, 10_000, 0.7) < IMPOSSIBLE


def test_drawn_tokens_may_be_taken_for_certain_ones() -> None:
    """A rule for certain tokens that holds only for some of them: it does for any draft that does
    not depend on the draws to come, only with fewer accepted."""
    assert p_value_of(lambda source: ForgetTheDraft(source, 11), "good", 6_000, 0.7) > UNLIKELY


class Picker(Pacer):
    """Verifies drafted tokens up to the first that is 3 or more, it or the one before each."""

    def __init__(self, drafter: Oracle, *, cherries: bool) -> None:
        super().__init__(3)
        self.drafter, self.cherries = drafter, cherries

    def n_to_draft(self, room: int) -> int:
        return min(room, 3)

    def n_to_verify(self, n_drafted: int, confidences: Sequence[float] = ()) -> int:
        tokens = self.drafter.drafted
        if not self.cherries:
            tokens = [self.drafter.pair[1], *tokens]
        return [*(token > 2 for token in tokens[:n_drafted]), True].index(True)


def test_lengths_by_what_was_drawn_spoil_the_distribution() -> None:
    """A pacer that may drop drawn tokens for what they are; one that need not even look at the
    text."""
    drafter = poor()
    rule = RejectSamples(drafter, 11)
    for cherries in (False, True):
        text = text_of(6_000, rule, drafter, 0.7, Picker(drafter, cherries=cherries))
        p = p_value(text, 0.7)
        assert p < IMPOSSIBLE if cherries else p > UNLIKELY


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_matching_gives_plain_decodings_text(temperature: float) -> None:
    """A draft that changes a sample."""
    plain = text_of(400, match_samples, None, temperature)
    for name in DRAFTERS:
        assert text_of(400, match_samples, DRAFTERS[name](), temperature) == plain
    greedy = text_of(50, match_samples, None, 0)
    for name in DRAFTERS:
        drafter = DRAFTERS[name]()
        assert text_of(50, RejectSamples(source_of(drafter), 1), drafter, 0) == greedy


def test_the_better_the_drafter_the_more_stands() -> None:
    """An exact rule that accepts less than it may: the sum of the smaller of p and q."""
    drafter = Gambler(np.exp(TABLE / 0.7))
    tokens: list[int] = []

    def rule(
        sampler: Sampler, logits: NDArray[np.float32], draft: Sequence[int], stop: AbstractSet[int]
    ) -> Verdict:
        verdict = inner(sampler, logits, draft, stop)
        tokens.append(verdict.n_from_draft - len(draft))
        return verdict

    inner = RejectSamples(drafter, 3)
    text_of(400, rule, drafter, 0.7)
    assert set(tokens) == {0}  # q is p, but for rounding


def test_same_seed_same_text() -> None:
    """A stream that is shared, or seeded by the clock; a reset that keeps something."""

    def text(rule: RejectSamples, seed: int) -> list[int]:
        drafter = Guesser(TABLE.argmax(axis=-1))
        return text_of(60, rule, drafter, 0.7, seed=seed)

    rule = RejectSamples(None, 4)
    first = text(rule, 1)
    assert text(rule, 1) != first
    rule.reset()
    assert text(rule, 2) == first
    assert text(RejectSamples(None, 5), 1) != first


class Fixed:
    """A source that says what it is told to."""

    def __init__(self, ids: Sequence[int], *rows: Sequence[float]) -> None:
        self.ids, self.rows = np.array(ids, np.int32), np.array(rows, np.float32)

    def proposals(self, n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        return (self.ids, self.rows[:n]) if self.ids.size else None


def verdicts(
    source: ProposalSource | None,
    rows: NDArray[np.float32],
    draft: Sequence[int],
    stop: AbstractSet[int] = frozenset(),
    n: int = 40,
) -> set[tuple[tuple[int, ...], int]]:
    """All that comes out in n rounds."""
    rule = RejectSamples(source, 1)
    came = set()
    for _ in range(n):
        tokens, n_from_draft = rule(sampler_of(1.0), rows[: len(draft) + 1], draft, stop)
        came.add((tuple(tokens), n_from_draft))
    return came


# Of a model that says 2, 3, 4, 5: draft, tokens that end a text, the verdict's parts.
VERDICTS: list[tuple[list[int], set[int], list[int], int]] = [
    ([], set(), [2], 0),
    ([1, 3, 4], set(), [2], 0),
    ([2, 3, 0], set(), [2, 3, 4], 2),
    ([2, 3, 4], set(), [2, 3, 4, 5], 3),
    ([2, 3, 4], {4}, [2, 3, 4], 3),
    ([2, 3, 4], {3}, [2, 3], 2),
    ([2, 3, 4], {5}, [2, 3, 4, 5], 3),
    ([1, 3, 4], {2}, [2], 0),
]


def test_a_rule_that_matches() -> None:
    """The verdict's parts: what is drafted, what is the model's own, where the text ends."""
    rows = np.full((4, 6), -9, np.float32)
    rows[[0, 1, 2, 3], [2, 3, 4, 5]] = 9
    for draft, stop, tokens, n_from_draft in VERDICTS:
        sampler = sampler_of(0.0)
        verdict = match_samples(sampler, rows[: len(draft) + 1], draft, stop)
        assert verdict == (tokens, n_from_draft)


def test_the_verdicts_parts() -> None:
    """What is drafted, what is the model's own, where the text ends."""
    rows = np.full((4, 6), -200, np.float32)
    rows[[0, 1, 2, 3], [2, 3, 4, 5]] = 9
    for draft, stop, tokens, n_from_draft in VERDICTS:
        for source in (None, Fixed([]), Fixed(range(5), *[[0.2] * 5] * 3)):
            assert verdicts(source, rows, draft, stop) == {(tuple(tokens), n_from_draft)}


def test_corners_of_the_numbers() -> None:
    """0 / 0, a draw from nothing, a draft of what can only be a mistake."""
    rows = np.zeros((2, 4), np.float32)
    rows[:, 3] = -np.inf
    every = {((token,), 0) for token in range(3)}
    accepted = {((1, token), 1) for token in range(3)}
    # q is p up to rounding, or twice it: nothing is left to draw from, or all stands
    for scale in (0.33333, 0.33334, 2.0):
        assert verdicts(Fixed([0, 1, 2], [scale] * 3), rows, [1]) == accepted
    # the draft's token has no probability there, or is none of its ids
    for source in (Fixed([0, 1, 2], [0.5, 0, 0.5]), Fixed([0, 2], [0.5, 0.5]), Fixed([0], [1])):
        assert verdicts(source, rows, [1], n=200) == (every - {((1,), 0)}) | accepted
    # p of the draft's token is 0
    for source in (Fixed([]), Fixed([1, 3], [0.5, 0.5]), Fixed([3], [1])):
        assert {tokens for tokens, n in verdicts(source, rows, [3], n=200)} <= {(0,), (1,), (2,)}


def test_nothing_is_left_but_rounding() -> None:
    """A draw from a residual that is 0 everywhere."""
    rule = RejectSamples(None, 1)
    ids, p = np.array([2, 5], np.int32), np.array([0.0, 1 - 2**-53])
    drawn = {rule._settle(ids, p, 2, (1.0, np.array([1.0, 1.0]))) for _ in range(20)}
    assert drawn == {5}


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_damaged_proposals(value: float) -> None:
    """NaN that compares with nothing: whatever was drafted falls, or stands."""
    rows = np.zeros((2, 4), np.float32)
    with pytest.raises(ModelDamaged, match="sum to"):
        verdicts(Fixed([0, 1], [value, value]), rows, [1])


@pytest.mark.parametrize("row", [0, 1])
def test_damaged_logits(row: int) -> None:
    """A draft that stands by NaN."""
    rows = np.zeros((2, 4), np.float32)
    rows[row] = math.nan
    for source in (None, Fixed(range(4), [0.25] * 4)):
        with pytest.raises(ModelDamaged, match="logits"):
            verdicts(source, rows, [1])
