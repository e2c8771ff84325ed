"""From a request to an answer: what is kept, when all is, and what the target then computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine import host
from draftsmith.engine.decode.generation import Generation
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.errors import InputMalformed, InputUnreadable, UsageError
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.transformer.model import Model, load_model
from draftsmith.prefill.meter import Meter
from draftsmith.prefill.pipeline import (
    SCORE,
    SELECT,
    Choice,
    Settings,
    choose,
    share_that_fits,
    whole,
)
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.attention import AttentionRule, AttentionScorer, Head
from draftsmith.prefill.scorers.blocksparse import BlockRule
from draftsmith.prefill.scorers.calibration_file import (
    Calibration,
    calibration_text,
    find_calibration,
    read_calibration,
)
from draftsmith.prefill.scorers.fused import FusedScorer
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.scorers.one_pass import Begun, OnePassScorer
from draftsmith.prefill.scorers.other_tokenizer import OtherTokenizerScorer
from draftsmith.prefill.scorers.scores import Scorer, Scores
from draftsmith.prefill.scorers.windows import Windows
from draftsmith.prefill.select import Refusal, Refused, Selection
from draftsmith.prefill.target import FIRST_TOKEN, PREFILL, answer, first_token_kl
from toy_gguf import write_toy
from toy_model import SMALL, write_model

DOCUMENT = " ".join(f"The dog number {i} jumps over the lazy fox and the cat." for i in range(60))
NEEDLE = " They said that the quick brown text is fun."
QUESTION = "What is fun?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    write_model(path, "llama", **SMALL, d_head=32, n_layers=3)
    model = load_model(path, n_threads=1)
    yield model
    model.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "toy.gguf"
    return load_tokenizer(write_model(path, "llama", **SMALL))


@pytest.fixture(scope="module")
def parts(tokenizer: Tokenizer) -> PromptParts:
    text = DOCUMENT[:1500] + NEEDLE + DOCUMENT[1500:]
    return PromptParts.of_document(text, QUESTION, tokenizer)


class CountingScorer:
    """Gives what it is told to, and counts."""

    name = "counting"

    def __init__(self, values: Any = None) -> None:
        self.values = values
        self.n_calls = 0

    def score(self, parts: PromptParts) -> Scores:
        self.n_calls += 1
        values = np.arange(parts.n) if self.values is None else self.values
        values = np.broadcast_to(np.asarray(values, np.float32), parts.n).copy()
        return Scores(self.name, values, np.empty(0, np.int32))

    def open(self) -> AbstractContextManager[Scorer]:
        return nullcontext(self)


def choice_of(
    parts: PromptParts, scorer: Any = None, n_room: int = 4096, **settings: Any
) -> Choice:
    scorer = scorer or CountingScorer()
    opened = scorer.open if isinstance(scorer, CountingScorer) else lambda: nullcontext(scorer)
    settings = {"keep": 0.2, "min_tokens": 100, **settings}
    return choose(parts, opened, Settings(**settings), n_room, Meter())


def answer_of(model: Model, choice: Choice, n: int = 12, **settings: Any) -> Generation:
    cache = model.new_cache(choice.kept.size + n)
    sampler = Sampler(SamplingParams(temperature=0.0))
    return answer(model, cache, choice, sampler=sampler, n_predict=n, **settings)


# --- choosing -------------------------------------------------------------------------------------


def test_keeps_what_scores(parts: PromptParts, tokenizer: Tokenizer) -> None:
    """Ids of other places than those that were chosen, or scores that choose nothing."""
    choice = choice_of(parts, LexicalScorer(tokenizer))
    assert isinstance(choice.outcome, Selection)
    assert choice.kept.size <= round(0.2 * parts.n)
    assert (choice.ids == parts.ids[choice.outcome.kept]).all()
    assert choice.positions is None
    assert NEEDLE in tokenizer.decode(choice.ids)
    assert QUESTION in tokenizer.decode(choice.ids)


def test_original_positions_are_places(parts: PromptParts) -> None:
    """Positions one after the other where those of the whole prompt are wanted."""
    choice = choice_of(parts, positions="original")
    assert choice.positions is not None
    assert choice.positions.dtype == np.int64
    assert choice.positions.tolist() == choice.kept.tolist()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"question": (0, 0)}, Refusal.NO_QUESTION),
        ({"document": ()}, Refusal.NO_DOCUMENT),
        ({"problem": "lost"}, Refusal.UNPLACED),
        ({"document": ((20, 60),)}, Refusal.MANDATORY),
    ],
)
def test_what_no_score_could_change_is_not_scored(
    parts: PromptParts, changes: dict[str, Any], kind: Refusal
) -> None:
    """Seconds of scoring before it is said that all is kept."""
    scorer = CountingScorer()
    choice = choice_of(replace(parts, **changes), scorer)
    assert isinstance(choice.outcome, Refused)
    assert choice.outcome.kind is kind
    assert (choice.is_whole, scorer.n_calls, choice.scores) == (True, 0, None)


def test_short_prompts_are_not_scored(parts: PromptParts, tokenizer: Tokenizer) -> None:
    """A prompt below the length where it pays, or than a chunk, that is cut all the same."""
    scorer = CountingScorer()
    for short in (parts, PromptParts.of_document("a b c", "c?", tokenizer)):
        choice = choice_of(short, scorer, min_tokens=parts.n + 1)
        assert isinstance(choice.outcome, Refused)
        assert choice.outcome.kind is Refusal.SHORT
        assert choice.is_whole
    assert scorer.n_calls == 0
    assert choice_of(parts, scorer, min_tokens=parts.n).scores is not None


@pytest.mark.parametrize(
    ("values", "kind"), [(np.nan, Refusal.NOT_FINITE), (0.0, Refusal.FLAT), (1.0, Refusal.FLAT)]
)
def test_scores_that_leave_no_choice(parts: PromptParts, values: float, kind: Refusal) -> None:
    """Numbers that say nothing, taken for a choice."""
    scorer = CountingScorer(values)
    choice = choice_of(parts, scorer)
    assert isinstance(choice.outcome, Refused)
    assert choice.outcome.kind is kind
    assert choice.is_whole
    assert scorer.n_calls == 1
    assert choice.positions is None


def test_nothing_may_be_dropped_and_all_does_not_fit(parts: PromptParts) -> None:
    """A prompt cut off at the context's end, without a word."""
    with pytest.raises(UsageError, match="room for 300, and none can be dropped"):
        choice_of(parts, CountingScorer(np.nan), n_room=300)
    with pytest.raises(UsageError, match="asks no question"):
        choice_of(replace(parts, question=(0, 0)), n_room=300)


def test_the_budget_stays_inside_the_context(parts: PromptParts) -> None:
    """More kept than the context holds."""
    for n_room in (120, 200, 333, parts.n):
        choice = choice_of(parts, keep=0.9, n_room=n_room)
        assert isinstance(choice.outcome, Selection)
        assert choice.outcome.budget == min(n_room, round(0.9 * parts.n))
        assert choice.kept.size <= n_room
        assert choice.budget_cut == max(0, round(0.9 * parts.n) - n_room)
    with pytest.raises(UsageError, match="original positions reach up to"):
        choice_of(parts, positions="original", n_room=parts.n - 1)


def test_a_share_that_fits_for_every_length() -> None:
    """A budget that is one more than the room, by rounding."""
    for n in (1, 7, 1000, 31_999, 200_003):
        for n_room in (1, 3, 500, 8191):
            share, _ = share_that_fits(n, 1.0, n_room)
            assert round(share * n) == min(n, n_room)


def test_times_and_memory_of_stages(parts: PromptParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage without a time, or the peak of an earlier stage in a later one's place."""
    meter = Meter()
    with meter.stage("before"):
        taken = np.ones(80 << 20, np.uint8)
    del taken
    scorer = CountingScorer()
    choose(parts, scorer.open, Settings(min_tokens=100), 4096, meter)
    assert list(meter.seconds) == ["before", SELECT, SCORE]
    assert all(seconds > 0 for seconds in meter.seconds.values())
    assert host.peak_rss_bytes() >= meter.peak_bytes["before"]
    if host.restart_peak_rss():
        assert meter.peak_bytes["before"] - meter.peak_bytes[SCORE] > 60 << 20
    monkeypatch.setattr(host.Path, "write_text", _unwritable)
    assert not host.restart_peak_rss()
    with meter.stage("unknown"):
        pass
    assert meter.peak_bytes["unknown"] > 0


def _unwritable(*_: object) -> int:
    raise PermissionError


# --- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["repacked", "original"])
def test_all_kept_is_a_prefill_in_full(model: Model, parts: PromptParts, positions: str) -> None:
    """Positions, ids or slots that differ by one; scoring where nothing is to be chosen."""
    scorer = CountingScorer()
    choice = choice_of(parts, scorer, keep=1.0, positions=positions)
    assert scorer.n_calls == 0
    found = answer_of(model, choice)
    logits = model.forward(parts.ids, model.new_cache(parts.n)).logits
    assert found.first_logits is not None
    assert (found.first_logits == logits[-1]).all()
    assert found.tokens == answer_of(model, whole(parts)).tokens


def test_a_refusal_is_a_prefill_in_full(model: Model, parts: PromptParts) -> None:
    """A refusal that drops something."""
    refused = answer_of(model, choice_of(parts, CountingScorer(np.nan)))
    assert refused.tokens == answer_of(model, whole(parts)).tokens
    assert (refused.first_logits == answer_of(model, whole(parts)).first_logits).all()


def test_kept_tokens_alone_are_read(model: Model, parts: PromptParts) -> None:
    """Dropped tokens that are read all the same; original positions that are not used."""
    repacked, original = (
        answer_of(model, choice_of(parts, positions=positions))
        for positions in ("repacked", "original")
    )
    choice = choice_of(parts)
    assert repacked.prompt_tokens == choice.kept.size
    cache = model.new_cache(choice.kept.size)
    assert (model.forward(choice.ids, cache).logits[-1] == repacked.first_logits).all()
    cache = model.new_cache(choice.kept.size)
    places = choice.kept.astype(np.int64)
    logits = model.forward(choice.ids, cache, positions=places).logits
    assert (logits[-1] == original.first_logits).all()
    assert (original.first_logits != repacked.first_logits).any()


def test_text_behind_original_positions(model: Model, parts: PromptParts) -> None:
    """An answer whose tokens stand at other places than after the prompt's end."""
    choice = choice_of(parts, positions="original")
    run = answer_of(model, choice, n=6)
    ids = np.concatenate((choice.ids, run.tokens[:-1]))
    places = np.concatenate((choice.kept, parts.n + np.arange(5)))
    logits = model.forward(ids, model.new_cache(ids.size), rows="all", positions=places).logits
    assert logits[choice.kept.size - 1 :].argmax(axis=1).tolist() == run.tokens


def test_stages_of_the_target(model: Model, parts: PromptParts) -> None:
    """Time of the answer counted as the first token's."""
    meter, told = Meter(), []
    answer_of(model, choice_of(parts), meter=meter, on_tokens=lambda ids, n: told.append(ids))
    assert list(meter.seconds) == [PREFILL, FIRST_TOKEN, "decode"]
    assert len(told) == 12


def test_kl_of_the_first_token() -> None:
    """A sign or an order that is wrong; logits that are only shifted."""
    p, q = np.log(np.float32([0.5, 0.25, 0.25])), np.log(np.float32([0.25, 0.25, 0.5]))
    assert first_token_kl(p, p + 3) == pytest.approx(0, abs=1e-6)
    expected = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    assert first_token_kl(p, q) == pytest.approx(expected, rel=1e-5)
    skewed = np.log(np.float32([0.9, 0.05, 0.05]))
    assert first_token_kl(skewed, p) == pytest.approx(
        0.9 * np.log(1.8) + 0.1 * np.log(0.2), rel=1e-5
    )


# --- one pass -------------------------------------------------------------------------------------

DENSE = {"window": 0, "n_sink": 0}


def begun_of(model: Model, parts: PromptParts, rule: AttentionRule) -> tuple[Scores, Begun]:
    scorer = OnePassScorer(model, rule)
    scores = scorer.score(parts)
    begun = scorer.take()
    assert begun is not None
    assert scorer.take() is None
    return scores, begun


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("blocks", [None, BlockRule(alpha=0.0)])
def test_one_pass_over_all_is_a_prefill_in_full(
    model: Model, parts: PromptParts, layer: int, blocks: BlockRule | None
) -> None:
    """States of one layer given to another; keys in other slots; a layer left out."""
    rule = AttentionRule((Head(layer, 1),), blocks=blocks, **DENSE)
    scores, begun = begun_of(model, parts, rule)
    places = np.arange(parts.n)
    choice = replace(whole(parts), scores=scores, positions=places)
    cache = model.new_cache(parts.n + 12)
    sampler = Sampler(SamplingParams(temperature=0.0))
    found = answer(model, cache, choice, begun=begun, sampler=sampler, n_predict=12)
    full = answer_of(model, whole(parts))
    if blocks is None:
        assert (found.first_logits == full.first_logits).all()
    else:  # sums over blocks are not those over splits of 256
        np.testing.assert_allclose(found.first_logits, full.first_logits, atol=1e-2)  # type: ignore[arg-type]
    assert found.tokens == full.tokens
    assert found.prompt_tokens == parts.n


def test_one_pass_from_the_first_layer_is_two(model: Model, parts: PromptParts) -> None:
    """Kept tokens at other positions, or that see what was dropped."""
    scores, begun = begun_of(model, parts, AttentionRule((Head(0, 1),)))
    choice = replace(choice_of(parts, positions="original"), scores=scores)
    cache = model.new_cache(choice.kept.size + 12)
    sampler = Sampler(SamplingParams(temperature=0.0, repeat_penalty=1.3))
    found = answer(model, cache, choice, begun=begun, sampler=sampler, n_predict=12)
    cache = model.new_cache(choice.kept.size + 12)
    sampler = Sampler(SamplingParams(temperature=0.0, repeat_penalty=1.3))
    expected = answer(model, cache, choice, sampler=sampler, n_predict=12)
    assert (found.first_logits == expected.first_logits).all()
    assert found.tokens == expected.tokens


def test_one_pass_takes_over_what_was_scored(model: Model, parts: PromptParts) -> None:
    """Keys of kept tokens computed again, without what was dropped."""
    _, begun = begun_of(model, parts, AttentionRule((Head(2, 1),)))
    kept = np.array([0, 3, 17, 18, 40, parts.n - 2], np.int32)
    cache = model.new_cache(20)
    begun.finish(model, kept, cache)
    assert cache.length == kept.size
    for slot, place in enumerate(kept.tolist()):
        for layer in range(2):
            assert (
                cache.keys[layer, :, slot // 16, :, slot % 16]
                == begun.cache.keys[layer, :, place // 16, :, place % 16]
            ).all()
            assert (cache.values[layer, :, slot] == begun.cache.values[layer, :, place]).all()
        assert cache.values[2, :, slot].any()
    plain = AttentionScorer(model, AttentionRule((Head(2, 1),))).score(parts).values
    ours = OnePassScorer(model, AttentionRule((Head(2, 1),))).score(parts).values
    assert (plain == ours).all()


def test_one_pass_where_it_cannot_be(model: Model, parts: PromptParts) -> None:
    """States of a prompt whose question was moved; a head that misses the prompt's states."""
    asked_first = replace(parts, question=(5, 12), document=((20, parts.n - 1),))
    rule = AttentionRule((Head(1, 1),))
    for scorer, asked in (
        (OnePassScorer(model, rule), asked_first),
        (OnePassScorer(model, rule, windows=Windows(1024, 512, 64)), parts),
    ):
        assert scorer.score(asked).values.any()
        assert scorer.take() is None
    _, begun = begun_of(model, parts, rule)
    with pytest.raises(ValueError, match="original positions"):
        answer_of(model, choice_of(parts), begun=begun)


# --- scorers of several ---------------------------------------------------------------------------


def test_fused_is_the_mean_of_masses(parts: PromptParts) -> None:
    """A scorer of large numbers that drowns the other one."""
    first = CountingScorer(np.arange(parts.n) % 7 == 0)
    second = CountingScorer(1000.0 * (np.arange(parts.n) % 5 == 0))
    found = FusedScorer([first, second]).score(parts).values
    inside = parts.is_document
    expected = np.zeros(parts.n)
    for scorer in (first, second):
        values = np.where(inside, scorer.values, 0)
        expected += values / values.sum() / 2
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_fused_where_one_finds_nothing(parts: PromptParts) -> None:
    """A scorer without an opinion that spoils the other's; one that is not finite and is hidden."""
    one = CountingScorer(np.arange(parts.n) % 7 == 0)
    alone = choice_of(parts, one)
    fused = FusedScorer([one, CountingScorer(0.0)])
    assert choice_of(parts, fused).kept.tolist() == alone.kept.tolist()
    outcome = choice_of(parts, FusedScorer([one, CountingScorer(np.nan)])).outcome
    assert isinstance(outcome, Refused)
    assert outcome.kind is Refusal.NOT_FINITE


def test_another_tokenizer_s_scores(
    parts: PromptParts, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Scores at other bytes than they were given to; a drafter that gets the target's ids."""
    other = load_tokenizer(write_toy(tmp_path / "spm.gguf", "spm"))
    found = OtherTokenizerScorer(LexicalScorer(other), other).score(parts)
    assert found.values.shape == (parts.n,)
    own = LexicalScorer(tokenizer).score(parts)
    inside = parts.is_document
    best = int(np.argmax(np.convolve(np.where(inside, found.values, 0), np.ones(32), "same")))
    expected = int(np.argmax(np.convolve(np.where(inside, own.values, 0), np.ones(32), "same")))
    assert abs(best - expected) < 64
    assert {"tokenise", "score", "carry"} <= set(found.seconds)
    choice = choice_of(parts, OtherTokenizerScorer(LexicalScorer(other), other))
    assert NEEDLE in tokenizer.decode(choice.ids)


def test_longer_than_the_window(model: Model, tokenizer: Tokenizer) -> None:
    """A prompt beyond the context that cannot be read; kept tokens that are not re-packed."""
    text = DOCUMENT * 3 + NEEDLE + DOCUMENT
    parts = PromptParts.of_document(text, QUESTION, tokenizer)
    assert parts.n > model.params.n_ctx_train
    attention = AttentionScorer(model, AttentionRule((Head(1, 0), Head(2, 1))))
    scorer = FusedScorer([LexicalScorer(tokenizer), attention])
    choice = choice_of(parts, scorer, n_room=500, keep=0.5)
    assert choice.kept.size <= 500
    assert choice.budget_cut == round(0.5 * parts.n) - 500
    assert NEEDLE in tokenizer.decode(choice.ids)
    assert answer_of(model, choice).prompt_tokens == choice.kept.size


# --- calibrations ---------------------------------------------------------------------------------

RECORD: dict[str, Any] = {
    "schema": 1,
    "model": "toy",
    "vocabulary": "ab" * 32,
    "n_layers": 3,
    "n_embd": 64,
    "window": 64,
    "n_sink": 2,
    "heads": [{"layer": 2, "head": 1, "rope": False, "reduce": "mean"}],
}


def test_a_calibration_comes_back(tmp_path: Path) -> None:
    """A field lost on the way."""
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(RECORD))
    found = read_calibration(path)
    assert found == Calibration("toy", "ab" * 32, 3, 64, (Head(2, 1, False, "mean"),), 64, 2, path)
    assert json.loads(calibration_text(found)) == RECORD
    assert found.rule() == AttentionRule((Head(2, 1, False, "mean"),), window=64, n_sink=2)


def test_which_calibration_is_found(model: Model, tmp_path: Path) -> None:
    """Heads of a model of another size or vocabulary; a folder that is not there."""
    p = model.params
    fits = {"vocabulary": "cd" * 32, "n_layers": p.n_layers, "n_embd": p.n_embd}
    for name, changes in (("a", {"n_layers": 2}), ("b", {"vocabulary": "ee" * 32}), ("c", {})):
        record = RECORD | fits | changes | {"model": name, "heads": [RECORD["heads"][0]]}
        if name == "a":
            record["heads"] = [RECORD["heads"][0] | {"layer": 1}]
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    folders = [tmp_path / "none", tmp_path]
    found = find_calibration("cd" * 32, p, folders)
    assert found is not None
    assert found.model == "c"
    assert find_calibration("99" * 32, p, folders) is None


def test_the_shipped_calibration(smollm2: Path) -> None:
    """A fingerprint that is not the model's: the default scorer is lexical, and nobody notices."""
    from draftsmith.engine.gguf.file import read_metadata
    from draftsmith.engine.transformer.hparams import read_params
    from draftsmith.prefill.scorers.calibration_file import FOLDER

    metadata = read_metadata(smollm2)
    tokenizer = load_tokenizer(smollm2, metadata)
    params = read_params(metadata, tokenizer.n_vocab)
    found = find_calibration(tokenizer.fingerprint.hex(), params, [FOLDER])
    assert found is not None
    assert all(head.head < params.n_head for head in found.heads)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"heads": []},
        {"heads": [{"layer": 3, "head": 0, "rope": True, "reduce": "max"}]},
        {"heads": [{"layer": 0, "head": -1, "rope": True, "reduce": "max"}]},
        {"heads": [{"layer": 0, "head": 0, "rope": 1, "reduce": "max"}]},
        {"heads": [{"layer": 0, "head": 0, "rope": True, "reduce": "sum"}]},
        {"heads": [{"layer": 0, "head": 0, "rope": True}]},
        {"heads": {"layer": 0}},
        {"window": -1},
        {"n_embd": "64"},
        {"n_layers": True},
    ],
)
def test_refused_calibrations(changes: dict[str, Any], tmp_path: Path) -> None:
    """A file that ends in a traceback, or in other heads than it says."""
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(RECORD | changes))
    with pytest.raises(InputMalformed, match="holds no calibration"):
        read_calibration(path)


def test_unreadable_calibrations(tmp_path: Path) -> None:
    """A traceback for a file that is not there, no text, or no JSON."""
    with pytest.raises(InputUnreadable, match="No such file"):
        read_calibration(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputUnreadable, match="no text"):
        read_calibration(tmp_path / "bytes.json")
    for text in ("", "[1]", "3", "{"):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputMalformed):
            read_calibration(tmp_path / "other.json")
