"""The sampler against an obvious one: Python floats, sorted lists, no shortcuts."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import ExitStatus, ModelDamaged, UsageError
from numpy.typing import NDArray

N_VOCAB = 60
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def obvious(
    logits: NDArray[np.float32], params: SamplingParams, text: list[int] | None = None
) -> dict[int, float]:
    """Token -> probability, the chain of llama.cpp word for word."""
    last_n = params.repeat_last_n
    recent = set(text or []) if last_n < 0 else set((text or [])[-last_n:] if last_n else [])
    values = [float(logit) for logit in logits]
    for token in recent:
        values[token] *= params.repeat_penalty if values[token] <= 0 else 1 / params.repeat_penalty
    tokens = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if params.temperature <= 0:
        return {tokens[0]: 1.0}
    if params.top_k > 0:
        tokens = tokens[: params.top_k]
    if params.top_p < 1:
        weights = [math.exp(values[token] - values[tokens[0]]) for token in tokens]
        share, n = 0.0, 0
        while n < 1 or share < params.top_p:
            share += weights[n] / sum(weights)
            n += 1
        tokens = tokens[:n]
    if params.min_p > 0:
        least = values[tokens[0]] + math.log(min(1, params.min_p))
        tokens = tokens[:1] + [token for token in tokens[1:] if values[token] >= least]
    weights = [
        math.exp((values[token] - values[tokens[0]]) / params.temperature) for token in tokens
    ]
    return {token: weight / sum(weights) for token, weight in zip(tokens, weights, strict=True)}


def logits_of(seed: int, n: int = N_VOCAB, spread: float = 2.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, spread, n).astype(np.float32)


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.3, 0.8, 1.0, 1.7]),
        top_k=rng.choice([0, 1, 2, 5, 40, N_VOCAB - 1, N_VOCAB, 1000]),
        top_p=rng.choice([0.0, 0.2, 0.5, 0.95, 1.0]),
        min_p=rng.choice([0.0, 0.05, 0.3, 1.0, 2.0]),
        repeat_penalty=rng.choice([1.0, 1.3, 0.7]),
        repeat_last_n=rng.choice([-1, 0, 1, 3, 64]),
        seed=rng.randrange(10),
    )


@pytest.mark.parametrize("seed", range(200))
def test_the_chain_equals_the_obvious_one(seed: int) -> None:
    """A filter out of order, off by one, or renormalised wrongly; a penalty on the wrong window."""
    rng = random.Random(seed)
    params = random_params(rng)
    logits = logits_of(seed)
    text = [rng.randrange(N_VOCAB) for _ in range(rng.choice([0, 1, 5, 100]))]
    sampler = Sampler(params)
    sampler.accept_all(text)
    before = logits.copy()
    ids, p = sampler.probabilities(logits)
    assert np.array_equal(logits, before)
    ref = obvious(logits, params, text)
    assert (ids.dtype, p.dtype) == (np.int32, np.float64)
    assert sorted(ids.tolist()) == sorted(ref)
    # float32 exponentials there, float64 here
    assert p == pytest.approx([ref[token] for token in ids.tolist()], rel=2e-5)
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("n", [1, 2, 41, 320, 321, 5000])
def test_sizes_about_those_of_the_search(n: int) -> None:
    """A top-k search that overlooks the values past its last whole group."""
    for seed in range(5):
        logits = logits_of(seed, n)
        params = SamplingParams()
        ids, p = Sampler(params).probabilities(logits)
        ref = obvious(logits, params)
        assert dict(zip(ids.tolist(), p.tolist(), strict=True)) == pytest.approx(ref, rel=2e-5)


def test_lowest_id_wins_ties() -> None:
    """Ties settled by where a partial sort happens to leave them."""
    logits = np.zeros(1000, np.float32)
    logits[[700, 300]] = 5
    assert Sampler(SamplingParams(temperature=0)).sample(logits) == 300
    for top_k, kept in ((1, [300]), (2, [300, 700]), (5, [0, 1, 2, 300, 700])):
        params = SamplingParams(top_k=top_k, top_p=1, min_p=0)
        assert sorted(Sampler(params).probabilities(logits)[0].tolist()) == kept
    flat = np.zeros(10, np.float32)
    params = SamplingParams(top_k=0, top_p=0.35, min_p=0)
    assert Sampler(params).probabilities(flat)[0].tolist() == [0, 1, 2, 3]


def chi_square(counts: Counter[int], expected: dict[int, float], n_draws: int) -> float:
    """Statistic in standard deviations of a chi-square variable (Wilson and Hilferty)."""
    assert set(counts) <= set(expected)
    statistic = sum(
        (counts[token] - n_draws * p) ** 2 / (n_draws * p) for token, p in expected.items()
    )
    k = len(expected) - 1
    return float(((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k)))


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7},
        {"temperature": 1.5},
        {"temperature": 1.5, **OFF},
        {"temperature": 1.0, **OFF, "top_k": 7},
        {"temperature": 1.0, **OFF, "top_p": 0.8},
        {"temperature": 1.0, **OFF, "min_p": 0.2},
        {"temperature": 1.0, "repeat_penalty": 1.5},
    ],
    ids=str,
)
def test_draws_have_the_distribution(changes: dict[str, float]) -> None:
    """Weights cumulated wrongly, a first or last candidate that never comes, a draw thrown away."""
    params = SamplingParams(seed=1, **changes)  # type: ignore[arg-type]
    logits = logits_of(3, 12, spread=1)
    sampler = Sampler(params)
    text = [1, 5, 5]
    sampler.accept_all(text)
    n_draws = 6_000
    counts = Counter(sampler.sample(logits) for _ in range(n_draws))
    assert abs(chi_square(counts, obvious(logits, params, text), n_draws)) < 3.5
    other = SamplingParams(**{**changes, "temperature": 1.4 * params.temperature})  # type: ignore[arg-type]
    assert chi_square(counts, obvious(logits, other, text), n_draws) > 3.5


def test_one_number_a_token() -> None:
    """A stream that depends on how many candidates there were: it would part from the stream of
    the same text drafted."""
    certain = np.array([0, 50, 0, 0], np.float32)
    flat = np.zeros(4, np.float32)
    drawn = Sampler(SamplingParams(seed=5, **OFF))
    after_certain = Sampler(SamplingParams(seed=5, **OFF))
    second = [drawn.sample(flat) for _ in range(30)]
    for place, token in enumerate(second):
        assert (after_certain.sample(flat) if place % 2 else token) == token
        if not place % 2:
            assert after_certain.sample(certain) == 1
    asked = Sampler(SamplingParams(seed=5, **OFF))
    assert [(asked.probabilities(flat), asked.sample(flat))[1] for _ in range(30)] == second


def test_same_seed_same_tokens() -> None:
    """A stream that is shared, or seeded by the clock; a reset that keeps something."""
    rows = [logits_of(seed) for seed in range(40)]
    sampler = Sampler(SamplingParams(seed=7, repeat_penalty=1.3))

    def text() -> list[int]:
        tokens = []
        for row in rows:
            tokens.append(sampler.sample(row))
            sampler.accept(tokens[-1])
        return tokens

    first = text()
    assert text() != first
    sampler.reset()
    assert text() == first
    sampler = Sampler(SamplingParams(seed=8, repeat_penalty=1.3))
    assert text() != first


def test_penalty_goes_both_ways() -> None:
    """A division that makes a token of negative logit likelier."""
    logits = np.array([-1.0, -1.1, -5.0], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=1.5))
    assert sampler.sample(logits) == 0
    sampler.accept(0)
    assert sampler.sample(logits) == 1
    assert logits.tolist() == pytest.approx([-1.0, -1.1, -5.0])


def test_penalty_forgets() -> None:
    """A token that stays penalised when one of its two occurrences leaves the window, or after
    the last did."""
    logits = np.array([1.0, 0.9, -9, -9, -9], np.float32)
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=2, repeat_last_n=2))
    chosen = []
    for token in (0, 0, 2, 3, 4):
        sampler.accept(token)
        chosen.append(sampler.sample(logits))
    assert chosen == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-7, 1e30])
def test_extreme_temperatures(temperature: float) -> None:
    """0 / 0 in float32, or a warning about an overflow that is right."""
    logits = np.array([3, 1e20, 2, -np.inf, -3e38], np.float32)
    for changes in ({}, OFF):
        sampler = Sampler(SamplingParams(temperature=temperature, **changes))  # type: ignore[arg-type]
        tokens = {sampler.sample(logits) for _ in range(50)}
        assert tokens == {1} if temperature < 1 or not changes else 3 not in tokens


def test_what_is_ruled_out_is_not_drawn() -> None:
    """A token of weight 0 at the beginning or the end of the list that a draw lands on."""
    logits = np.full(9, -np.inf, np.float32)
    logits[[3, 5]] = 0, 1
    for changes in (OFF, {}, {"top_k": 0}, {**OFF, "top_k": 8}):
        sampler = Sampler(SamplingParams(**changes))  # type: ignore[arg-type]
        assert {sampler.sample(logits) for _ in range(200)} == {3, 5}


@pytest.mark.parametrize(
    "changes", [{"temperature": 0}, {}, OFF, {"top_k": 0}, {**OFF, "min_p": 1}]
)
@pytest.mark.parametrize(
    ("place", "value"), [(0, np.nan), (350, np.nan), (399, np.nan), (7, np.inf), (None, -np.inf)]
)
def test_damaged_logits(changes: dict[str, float], place: int | None, value: float) -> None:
    """NaN that compares with nothing, so that whatever token is chosen, for ever."""
    logits = logits_of(0, 400)
    logits[place] = value
    sampler = Sampler(SamplingParams(**changes))  # type: ignore[arg-type]
    sampler.accept_all(range(12))
    for ask in (sampler.sample, sampler.probabilities):
        with pytest.raises(ModelDamaged, match="after 12 tokens") as caught:
            ask(logits)
        assert caught.value.exit_status == ExitStatus.MODEL_DAMAGED


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": math.nan},
        {"min_p": -math.inf},
        {"repeat_penalty": 0},
        {"repeat_penalty": -1},
        {"repeat_penalty": math.nan},
        {"repeat_penalty": 1e-4},
        {"repeat_penalty": math.inf},
        {"repeat_last_n": -2},
        {"seed": -1},
    ],
    ids=str,
)
def test_refusals(changes: dict[str, float]) -> None:
    """An option that makes every logit NaN, blamed on the model later."""
    with pytest.raises(UsageError, match=next(iter(changes))):
        SamplingParams(**changes)  # type: ignore[arg-type]


class EndlessStream:
    """Gives one number, always."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(("value", "token"), [(0.0, 3), (math.nextafter(1, 0), 5)])
def test_the_ends_of_the_stream(value: float, token: int) -> None:
    """The first or the last token drawn though its weight is 0: once in 2 ** 53 draws."""
    logits = np.full(9, -np.inf, np.float32)
    logits[[3, 4, 5]] = 0
    sampler = Sampler(SamplingParams(**OFF))  # type: ignore[arg-type]
    sampler._stream = EndlessStream(value)  # type: ignore[assignment]
    assert sampler.sample(logits) == token
