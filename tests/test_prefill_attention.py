"""Scores by attention: every option against the naive one, windows of long prompts, bad numbers."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Load
from draftsmith.engine.errors import UsageError
from draftsmith.engine.transformer.layer_pass import LayerPass
from draftsmith.engine.transformer.model import Model, Taps
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.attention import AttentionRule, AttentionScorer, Head
from draftsmith.prefill.scorers.blocksparse import BlockRule
from draftsmith.prefill.scorers.other_projects import PUBLISHED, SpecPrefillScorer, published_scorer
from draftsmith.prefill.scorers.windows import Windows
from naive_attention import MaskedModel, pooled, weights_of, window_mask
from naive_model import Reals
from numpy.typing import NDArray
from toy_model import SMALL, write_model

N = 330
QUESTION = (300, 321)
DOCUMENT = ((10, 150), (160, 295))
HEADS = (
    Head(1, 2),
    Head(1, 2, reduce="mean"),
    Head(0, 3, rope=False),
    Head(2, 0, rope=False, reduce="mean"),
    Head(2, 1),
)


def parts_of(n: int = N, seed: int = 2, **changes: Any) -> PromptParts:
    ids = np.random.default_rng(seed).integers(0, 400, n).astype(np.int32)
    return replace(PromptParts(ids, QUESTION, DOCUMENT), **changes)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("toy") / "toy.gguf", "llama", "Q4_1", n_layers=4)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_model(path, "llama", **SMALL, d_head=32, n_layers=3)


Seen = dict[tuple[int, bool], tuple[Reals, Reals]]


def seen_of(model: Model, ids: NDArray[np.int32], **window: Any) -> Seen:
    """Queries and keys of all tokens, float64, of each layer and side."""
    way = LayerPass(model, ids, **window)
    found: Seen = {}
    for layer in range(model.params.n_layers):
        look = way.run((0, ids.size), (False, True))
        for rope in (False, True):
            queries, keys = look.queries[rope], look.keys[rope]
            found[layer, rope] = (queries.astype(np.float64), keys.astype(np.float64))
    return found


def naive_weights(
    model: Model,
    seen: Seen,
    layer: int,
    head: int,
    rope: bool,
    rows: NDArray[np.int64],
    **options: bool,
) -> Reals:
    p = model.params
    queries, keys = seen[layer, rope]
    kv_head = head // (p.n_head // p.n_head_kv)
    return weights_of(queries[rows, head], keys[:, kv_head], p.attn_scale, rows, **options)


def naive_channels(model: Model, rule: AttentionRule, ids: NDArray[np.int32]) -> list[Reals]:
    window = {"window": rule.window, "n_sink": rule.n_sink, "wide": QUESTION}
    seen = seen_of(model, ids, **window)
    found = []
    for head in rule.heads:
        weights = naive_weights(
            model, seen, head.layer, head.head, head.rope, np.arange(*QUESTION),
            is_softmax=rule.softmax,
        )  # fmt: skip
        channel = weights.max(axis=0) if head.reduce == "max" else weights.mean(axis=0)
        found.append(pooled(channel, rule.pool))
    return found


def of_document(values: Reals) -> Reals:
    mask = np.zeros(N, bool)
    for start, stop in DOCUMENT:
        mask[start:stop] = True
    full = np.zeros(N)
    full[: len(values)] = values
    return np.where(mask, full, 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 0},
        {"window": 30, "n_sink": 0},
        {"combine": "max"},
        {"normalise": False},
        {"pool": 5},
        {"softmax": False, "normalise": False, "pool": 3},
        {"normalise": False, "combine": "max", "pool": 13},
    ],
    ids=str,
)
def test_scores_are_the_naive_ones(options: dict[str, Any], toy: Path, load: Load) -> None:
    """The bug: a head, a side of RoPE, a reduction or an order of steps other than asked for."""
    rule = AttentionRule(HEADS, **options)
    model, parts = load(toy), parts_of()
    channels = [of_document(c) for c in naive_channels(model, rule, parts.ids[: QUESTION[1]])]
    if rule.normalise:
        channels = [channel / channel.sum() for channel in channels]
    want = np.max(channels, axis=0) if rule.combine == "max" else np.mean(channels, axis=0)
    if not rule.softmax:
        want = of_document(want - want[parts.is_document].min())
    found = AttentionScorer(model, rule).score(parts)
    assert found.values.dtype == np.float32
    np.testing.assert_allclose(found.values, want, rtol=1e-4, atol=1e-7)
    assert (found.query_rows == np.arange(*QUESTION)).all()
    assert found.n_layers == 2
    assert found.scorer == "attention"
    assert set(found.seconds) == {"layers", "weigh"}


def test_scores_are_those_of_the_naive_model(load: Load, tmp_path: Path) -> None:
    """The bug: what all of the above takes from the engine, wrong in the same way."""
    path = write_model(tmp_path / "toy.gguf", "llama", n_layers=3)
    rule = AttentionRule((Head(2, 1), Head(1, 2, rope=False, reduce="mean")), window=50)
    parts = parts_of()
    n = QUESTION[1]
    mask = window_mask(n, 50, 4, QUESTION)
    naive = MaskedModel(path, lambda *_: mask)
    trace = naive.trace(parts.ids[:n])
    rows = np.arange(*QUESTION)
    want = []
    for head, queries, keys in (
        (rule.heads[0], trace.turned_queries, trace.turned_keys),
        (rule.heads[1], trace.queries, trace.keys),
    ):
        q, k = queries[head.layer][rows, head.head], keys[head.layer][:, head.head // 2]
        weights = weights_of(q, k, naive.attention_scale, rows)
        channel = weights.max(axis=0) if head.reduce == "max" else weights.mean(axis=0)
        want.append(of_document(channel) / of_document(channel).sum())
    found = AttentionScorer(load(path), rule).score(parts).values
    np.testing.assert_allclose(found, np.mean(want, axis=0), rtol=0.03, atol=1e-5)


def test_only_the_layers_that_are_needed_run(
    toy: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: a whole scoring layer, or those after it, for nothing."""
    calls = []

    def spy(self: LayerPass, *args: Any, is_cut: bool, through: Any = LayerPass._through) -> Any:
        calls.append((self.layer, is_cut))
        return through(self, *args, is_cut=is_cut)

    monkeypatch.setattr(LayerPass, "_through", spy)
    told = []
    scorer = AttentionScorer(
        load(toy), AttentionRule((Head(2, 0),)), on_progress=lambda *done: told.append(done)
    )
    scorer.score(parts_of())
    assert calls == [(0, False), (1, False), (2, True)]
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("blocks", [None, BlockRule(size=16, alpha=0.9, n_local=1, n_full=0)])
def test_any_number_of_threads_scores_the_same(
    blocks: BlockRule | None, toy: Path, load: Load
) -> None:
    """The bug: scores that differ from run to run."""
    rule = AttentionRule(HEADS, blocks=blocks)
    found = [AttentionScorer(load(toy, n), rule).score(parts_of()).values for n in (1, 2, 3)]
    for values in found[1:]:
        assert (values.view(np.uint32) == found[0].view(np.uint32)).all()


def test_all_blocks_score_as_dense_attention(toy: Path, load: Load) -> None:
    """The bug: block-sparse scores of other heads or layers than the same rule's with a window."""
    model, parts = load(toy), parts_of()
    dense = AttentionScorer(model, AttentionRule(HEADS, window=0)).score(parts)
    every = AttentionScorer(model, AttentionRule(HEADS, blocks=BlockRule(alpha=0.0))).score(parts)
    assert (every.values == dense.values).all()
    assert every.scorer == "blocksparse"
    few = AttentionRule(HEADS, blocks=BlockRule(16, 1.0, n_sink=0, n_local=1, n_full=0))
    assert (AttentionScorer(model, few).score(parts).values != dense.values).any()


# --------------------------------------------------------------------------------------------------
# Long prompts


def test_a_window_scores_as_the_same_text_alone(toy: Path, load: Load) -> None:
    """The bug: positions that go on from the window before, or keys that it left behind."""
    model = load(toy)
    rule = AttentionRule(HEADS, window=100)
    n = 1500
    parts = parts_of(n, question=(1460, 1480), document=((70, 1455),))
    windows = Windows(512, 512, 0)
    whole = AttentionScorer(model, rule, windows=windows).channels(parts)
    room = 512 - 64 - 20
    n_windows = -(-1385 // room)
    step = -(-1385 // n_windows)
    for at in range(70, 1455, step):
        stop = min(at + step, 1455)
        ids = np.concatenate((parts.ids[:64], parts.ids[at:stop], parts.ids[1460:1480]))
        end = ids.size - 20
        alone = PromptParts(ids, (end, end + 20), ((64, end),))
        found = AttentionScorer(model, rule).channels(alone)
        assert (found[:, 64:end] == whole[:, at:stop]).all()


def test_overlapping_windows_take_the_better_score(toy: Path, load: Load) -> None:
    """The bug: the end of one window scored by the next alone, or the sum of both."""
    model = load(toy)
    rule = AttentionRule((Head(1, 2),), window=100)
    parts = parts_of(900, question=(870, 890), document=((70, 868),))
    scorer = AttentionScorer(model, rule, windows=Windows(512, 512, 64))
    whole = scorer.channels(parts)[0]
    step = -(-(798 - 64) // 3)
    found = np.zeros((3, 900), np.float32)
    for i, at in enumerate((70, 70 + step, 70 + 2 * step)):
        stop = min(at + step + 64, 868)
        ids = np.concatenate((parts.ids[:64], parts.ids[at:stop], parts.ids[870:890]))
        end = ids.size - 20
        alone = PromptParts(ids, (end, end + 20), ((64, end),))
        found[i, at:stop] = AttentionScorer(model, rule).channels(alone)[0, 64:end]
    assert (whole[70:868] == found.max(axis=0)[70:868]).all()
    assert ((found > 0).sum(axis=0) == 2).sum() == 2 * 64


@pytest.mark.parametrize("blocks", [None, BlockRule()])
def test_memory_does_not_grow_with_the_prompt(
    blocks: BlockRule | None, small: Path, load: Load
) -> None:
    """The bug: keys of all windows held, or one text of 200K tokens."""
    model = load(small, n_threads=2)
    rule = AttentionRule((Head(1, 0), Head(1, 1, rope=False)), blocks=blocks)
    scorer = AttentionScorer(model, rule, windows=Windows(4096, 4096, 128))
    peaks = []
    for n in (10_000, 200_000):
        parts = parts_of(n, question=(n - 30, n - 5), document=((20, n - 40),))
        tracemalloc.start()
        values = scorer.score(parts).values
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.isfinite(values).all()
        assert (values[parts.is_document] > 0).all()
        assert values.sum() == pytest.approx(1, abs=1e-3)
    # what grows: places, channels and scores, some bytes a token
    assert peaks[1] - peaks[0] < 64 * 200_000
    assert peaks[1] < 64e6


def test_windows_fit_the_model(toy: Path, load: Load) -> None:
    """The bug: a model that reads beyond what it was trained on, unasked."""
    assert AttentionScorer(load(toy), AttentionRule(HEADS)).windows == Windows(4096, 4096, 128)


# --------------------------------------------------------------------------------------------------
# What cannot be scored


@pytest.mark.parametrize("changes", [{"question": (300, 300)}, {"document": ()}])
def test_nothing_to_score_scores_nothing(changes: dict[str, Any], toy: Path, load: Load) -> None:
    """The bug: a crash for an empty question or document."""
    found = AttentionScorer(load(toy), AttentionRule(HEADS)).score(parts_of(**changes))
    assert (found.values == 0).all()
    assert found.values.shape == (N,)


@pytest.mark.parametrize("rule", [AttentionRule(HEADS), AttentionRule(HEADS, combine="max")])
@pytest.mark.parametrize("softmax", [True, False])
def test_numbers_that_are_none_stay_so(
    rule: AttentionRule, softmax: bool, load: Load, tmp_path: Path
) -> None:
    """The bug: NaN that a maximum or a softmax turns into a score, and so into a selection."""
    huge = np.full(256, 3e38, np.float32)  # infinite after the norm, and NaN after a product
    path = write_model(tmp_path / "toy.gguf", n_layers=3, tensors={"blk.1.attn_norm.weight": huge})
    scorer = AttentionScorer(load(path), replace(rule, softmax=softmax))
    with np.errstate(all="ignore"):
        values = scorer.score(parts_of()).values
    assert not np.isfinite(values[parts_of().is_document]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["queries", "keys"])
@pytest.mark.parametrize("softmax", [True, False])
def test_a_single_bad_number_spoils_all(
    bad: float, what: str, softmax: bool, toy: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug: one NaN, which an exponential or a comparison swallows."""

    def peek(self: LayerPass, *args: Any, through: Any = LayerPass.peek) -> Any:
        look = through(self, *args)
        getattr(look, what)[True][5] = bad
        return look

    monkeypatch.setattr(LayerPass, "peek", peek)
    scorer = AttentionScorer(load(toy), AttentionRule((Head(2, 0),), softmax=softmax))
    with np.errstate(all="ignore"):
        values = scorer.score(parts_of()).values
    assert not np.isfinite(values[parts_of().is_document]).any()


@pytest.mark.parametrize("head", [Head(4, 0), Head(0, 4), Head(-1, 0), Head(0, -1)])
def test_heads_that_are_not_there_are_refused(head: Head, toy: Path, load: Load) -> None:
    """The bug: another head's queries, or memory after the last."""
    with pytest.raises(UsageError, match=f"no head {head.head} in layer {head.layer}"):
        AttentionScorer(load(toy), AttentionRule((head,)))


@pytest.mark.parametrize(
    "wrong",
    [{"heads": ()}, {"window": -1}, {"n_sink": -1}, {"n_last": -1}, {"pool": 0}, {"pool": 4}],
)
def test_rules_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """The bug: a window that lies ahead, or an average that is not around its token."""
    with pytest.raises(UsageError) as caught:
        AttentionRule(**{"heads": HEADS, **wrong})
    assert caught.value.remedy


# --------------------------------------------------------------------------------------------------
# Published scorers


def scores_of(name: str, model: Model, parts: PromptParts) -> NDArray[np.float32]:
    return published_scorer(name, model).score(parts).values


def test_pflash_is_the_naive_one(toy: Path, load: Load) -> None:
    """The bug: the mean before the maximum; keys after RoPE; queries of the question."""
    model, parts = load(toy), parts_of()
    seen, rows = seen_of(model, parts.ids), np.arange(N - 8, N)
    best = np.zeros((8, N))
    for layer in range(4):
        for head in range(4):
            best = np.maximum(best, naive_weights(model, seen, layer, head, False, rows))
    want = of_document(pooled(best.mean(axis=0), 13))
    np.testing.assert_allclose(scores_of("pflash", model, parts), want, rtol=1e-4, atol=1e-7)


def test_lucebox_is_the_naive_one(toy: Path, load: Load) -> None:
    """The bug: another layer than the middle one, or queries of the template's suffix."""
    model, parts = load(toy), parts_of()
    seen = seen_of(model, parts.ids[: QUESTION[1]])
    rows = np.arange(*QUESTION)
    weights = [naive_weights(model, seen, 2, head, False, rows).mean(axis=0) for head in range(4)]
    want = of_document(np.mean(weights, axis=0))
    np.testing.assert_allclose(scores_of("lucebox", model, parts), want, rtol=1e-4, atol=1e-7)


def test_gemfilter_is_the_naive_one(toy: Path, load: Load) -> None:
    """The bug: a softmax, or the question's last token in place of the prompt's."""
    model, parts = load(toy), parts_of()
    seen, rows = seen_of(model, parts.ids), np.array([N - 1])
    products = [
        naive_weights(model, seen, 1, head, True, rows, is_softmax=False)[0] for head in range(4)
    ]
    total = pooled(np.mean(products, axis=0), 5)
    want = of_document(total - total[parts.is_document].min())
    np.testing.assert_allclose(scores_of("gemfilter", model, parts), want, rtol=1e-4, atol=1e-5)


def test_specprefill_is_the_naive_one(toy: Path, load: Load) -> None:
    """The bug: queries of the prompt; generated keys among those seen; the maximum pooled."""
    model, parts = load(toy), parts_of()
    n_ahead = 3
    ids = parts.ids.astype(np.int64)
    for _ in range(n_ahead):
        logits = model.forward(ids, model.new_cache(ids.size)).logits
        ids = np.append(ids, logits[-1].argmax())
    taps = model.forward(ids, model.new_cache(ids.size), taps=Taps(query_layers=range(4))).taps
    assert taps is not None
    best = np.zeros((n_ahead, N))
    highs = np.full(n_ahead, N - 1)
    for layer in range(4):
        for head in range(4):
            q = taps.queries[layer, 1, N:, head].astype(np.float64)
            k = taps.keys[layer, 1, :N, head // 2].astype(np.float16).astype(np.float64)
            weights = weights_of(q, k, model.params.attn_scale, highs)
            best = np.maximum(best, [pooled(row, 13) for row in weights])
    want = of_document(best.mean(axis=0))
    found = SpecPrefillScorer(model, n_ahead=n_ahead).score(parts)
    np.testing.assert_allclose(found.values, want, rtol=1e-4, atol=1e-7)
    assert found.query_rows.size == 0
    assert found.n_layers == 3


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_scorers_read_long_and_odd_prompts(name: str, small: Path, load: Load) -> None:
    """The bug: a crash where the document ends the prompt, or where there is no question."""
    model = load(small, n_threads=2)
    windows = Windows(512, 512, 64)
    for parts in (
        parts_of(2000, question=(1960, 1980), document=((10, 1950),)),
        parts_of(2000, question=(5, 20), document=((30, 2000),)),
        parts_of(N, question=(300, 300)),
        parts_of(N, document=()),
    ):
        scorer = published_scorer(name, model, windows=windows)
        found = scorer.score(parts)
        assert found.scorer == scorer.name == name
        assert np.isfinite(found.values).all()
        assert (found.values[~parts.is_document] == 0).all()
        if parts.n_document and parts.question[0] < parts.question[1]:
            assert len(set(found.values[parts.is_document])) > 100


def test_unknown_names_are_refused(small: Path, load: Load) -> None:
    """The bug: a misspelt scorer that falls back to another."""
    model = load(small)
    with pytest.raises(UsageError, match="'pflush'"):
        published_scorer("pflush", model)
    with pytest.raises(UsageError, match="0 tokens"):
        SpecPrefillScorer(model, n_ahead=0)
