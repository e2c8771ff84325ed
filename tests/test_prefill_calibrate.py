"""Calibration: prompts whose needles are known, what heads keep of them, which heads are chosen."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from conftest import Done
from draftsmith.engine.errors import ExitStatus, UsageError
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.transformer.model import load_model
from draftsmith.prefill.calibration import calibrate, search
from draftsmith.prefill.calibration import texts as calibrate_texts
from draftsmith.prefill.calibration.calibrate import (
    KEEPS,
    KEYED,
    KINDS,
    PARAPHRASE,
    SEMANTIC,
    Findings,
    Question,
    Seen,
    Trials,
    candidates,
    look,
    questions,
    value,
)
from draftsmith.prefill.calibration.calibrate_kernels import count_kept
from draftsmith.prefill.needles import texts as niah_texts
from draftsmith.prefill.needles.niah import Haystack
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.attention import AttentionRule, AttentionScorer, Head
from draftsmith.prefill.scorers.calibration_file import read_calibration
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.scorers.scores import Scores
from draftsmith.prefill.select import Selection, select

Run = Callable[..., Done]

TEXT = "".join(f"The dog number {i} jumps over the lazy cat. " for i in range(1500))
SMALL = {**toy_model.SMALL, "d_head": 32, "n_layers": 3}
DOCUMENTED = Path(__file__).parent.parent / "docs" / "prefill-calibrate.md"
COMMON = {
    *("the", "a", "an", "of", "on", "in", "to", "for", "was", "is", "his", "her", "did", "he"),
    *("who", "what", "which", "where", "when", "with", "from", "at", "not", "and", "because"),
    *("by", "while", "our", "their", "after", "up", "has", "can", "that", "down", "she", "does"),
    *("it", "had", "into", "how", "why", "do", "out", "were", "as", "been", "s"),
}


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toys")
    toy_model.write_model(folder / "toy.gguf", "llama", seed=3, **SMALL, n_ctx=4096)
    (folder / "hay.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def tokenizer(toys: Path) -> Tokenizer:
    return load_tokenizer(toys / "toy.gguf")


def questions_of(tokenizer: Tokenizer, **changes: Any) -> list[Question]:
    def count(*pieces: str) -> int:
        return 4 + sum(tokenizer.encode(piece).size for piece in pieces)

    settings = {"n_documents": 4, "context": 2000, "seed": 0, **changes}
    return questions(Haystack(TEXT, tokenizer), count, **settings)


# --- prompts --------------------------------------------------------------------------------------


def test_texts() -> None:
    """A semantic question that words answer, or one that quality is measured by; a name in both."""
    facts = calibrate_texts.FACTS
    assert len(set(facts)) == len({fact for fact, _ in facts}) == 48
    assert not {fact for fact, _ in facts} & {fact.sentence for fact in niah_texts.FACTS}
    for fact, question in facts:
        words, asked = (
            {word for word in re.findall(r"[a-z]+", text.lower()) if word not in COMMON}
            for text in (fact, question)
        )
        assert not words & asked, fact
    keys = [key for key, _ in calibrate_texts.PAIRS]
    assert len(set(keys)) == len(keys) == 32
    assert all(key not in other for key, other in calibrate_texts.PAIRS)
    for sentence, asked, reworded in calibrate_texts.TEMPLATES:
        told, same, others = (
            set(re.findall(r"[a-z]+", text.lower())) - COMMON - {"key", "number"}
            for text in (sentence, asked, reworded)
        )
        assert told & same
        assert not told & others


def test_questions(tokenizer: Tokenizer) -> None:
    """A needle that is not there, or twice; a prompt that is too long; a kind that is missing."""
    asked = questions_of(tokenizer)
    assert asked == questions_of(tokenizer)
    assert asked != questions_of(tokenizer, seed=1)
    assert len({one.document for one in asked}) == 4
    counts = {kind: sum(one.kind == kind for one in asked) for kind in KINDS}
    assert counts == {SEMANTIC: 16, PARAPHRASE: 8, KEYED: 8}
    for one in asked:
        assert one.document.count(one.needle) == 1
        assert not re.search(r"[{}]", one.document + one.question)
        parts = PromptParts.of_document(one.document, one.question, tokenizer)
        assert 1400 < parts.n <= 2000
        keys = [key for key, _ in calibrate_texts.PAIRS if key in one.needle]
        if one.kind != SEMANTIC:
            assert (keys[0] in one.question) is (one.kind == KEYED)
    assert len({one.question.split(":")[0] for one in asked}) > 10  # other words, other frames


def test_halves_share_nothing(tokenizer: Tokenizer) -> None:
    """Facts or documents that chose the heads, and praise them afterwards."""
    asked = questions_of(tokenizer, n_documents=8)
    halves = [[one for one in asked if one.fold == fold] for fold in (0, 1)]
    documents, needles = ([{getattr(one, name) for one in half} for half in halves]
                          for name in ("document", "needle"))  # fmt: skip
    assert not documents[0] & documents[1]
    assert not needles[0] & needles[1]
    keys = [
        {key for key, _ in calibrate_texts.PAIRS for one in half if key in one.needle}
        for half in halves
    ]
    assert keys[0]
    assert not keys[0] & keys[1]


def test_no_room(tokenizer: Tokenizer) -> None:
    """A document of needles alone."""
    with pytest.raises(UsageError, match="has no room for a haystack"):
        questions_of(tokenizer, context=200)


# --- what is seen ---------------------------------------------------------------------------------


def test_look(toys: Path, tokenizer: Tokenizer) -> None:
    """Masses of one head taken for another's; a needle in the wrong chunk."""
    heads = candidates(2, 2)
    assert len(heads) == len(set(heads)) == 2 * 2 * 2 * 2
    model = load_model(toys / "toy.gguf", n_threads=1)
    words = LexicalScorer(tokenizer)
    try:
        for question in questions_of(tokenizer)[::7]:
            parts = PromptParts.of_document(question.document, question.question, tokenizer)
            rule = AttentionRule(heads, window=64)
            seen = look(question, parts, AttentionScorer(model, rule), words)
            assert seen.masses.shape == (len(heads), len(seen.chunks))
            assert seen.masses.sum(axis=1) == pytest.approx(1, abs=1e-4)
            assert seen.words.sum() == pytest.approx(1, abs=1e-4)
            for i in (0, 5, 15):
                alone = AttentionScorer(model, replace(rule, heads=(heads[i],))).score(parts)
                sums = [alone.values[a:b].sum() for a, b in seen.chunks]
                assert seen.masses[i] == pytest.approx(np.array(sums), abs=1e-5)
            assert parts.spans is not None
            first, last = seen.needle[0], seen.needle[-1]
            assert seen.needle.tolist() == list(range(first, last + 1))
            tokens = np.arange(seen.chunks[first, 0], seen.chunks[last, 1], dtype=np.int32)
            assert question.needle.encode() in parts.spans.text_of(tokens)[0]
            cuts = [(seen.chunks[first, 1], seen.chunks[last, 1])]
            cuts.append((seen.chunks[first, 0], seen.chunks[last, 0]))
            for a, b in cuts:
                less = np.arange(a, b, dtype=np.int32)
                assert question.needle.encode() not in b"".join(parts.spans.text_of(less))
    finally:
        model.close()


def test_what_is_kept_is_what_a_selection_keeps() -> None:
    """A recall that no selection would have: ties, neighbours, chunks of nothing, a short end."""
    rng = np.random.default_rng(4)
    n = 700
    parts = PromptParts(np.arange(n, dtype=np.int32), (680, 695), ((5, 670),))
    chunks = parts.chunks()
    n_kept = 0
    for turn in range(60):
        steps = (2, 4, 1000)[turn % 3]
        masses = np.floor(rng.random((5, len(chunks))) * steps).astype(np.float32)
        masses *= rng.random((5, len(chunks))) < (0.2, 0.9)[turn % 2]
        masses[:, 3] += 1  # none is flat
        first = int(rng.integers(0, len(chunks) - 1))
        needle = np.arange(first, first + 1 + turn % 2, dtype=np.int64)
        kept = np.empty(5, np.uint8)
        budget = round(0.3 * n)
        count_kept(masses, chunks, budget - parts.n_mandatory, needle, np.empty(n, np.uint8), kept)
        for way in range(5):
            values = np.zeros(n, np.float32)
            values[chunks[:, 0]] = masses[way]
            scores = Scores("test", values, np.empty(0, np.int32))
            found = select(parts, scores, keep=0.3, min_tokens=0, widen=False)
            assert isinstance(found, Selection)
            tokens = np.concatenate([np.arange(*chunks[i]) for i in needle])
            assert kept[way] == np.isin(tokens, found.kept).all()
        n_kept += int(kept.sum())
    assert 30 < n_kept < 250


# --- what is chosen -------------------------------------------------------------------------------

N_CHUNKS = 40
HEADS = tuple(Head(layer, head) for layer in range(6) for head in range(3))


def seen_of(
    skills: dict[tuple[int, int], Callable[[int, str], bool]], n_each: int = 10
) -> list[Seen]:
    """Prompts of all kinds; heads with a skill see the needle, words and the others something else.

    Parameters
    ----------
    skills : (layer, head) -> whether it sees the needle of a prompt, by its number and kind
    """
    rng = np.random.default_rng(7)
    found = []
    for kind in KINDS:
        for number in range(n_each):
            needle = 2 + int(rng.integers(N_CHUNKS - 4))
            masses = np.zeros((len(HEADS), N_CHUNKS), np.float32)
            for i, head in enumerate(HEADS):
                skill = skills.get((head.layer, head.head))
                hits = skill is not None and skill(number, kind)
                masses[i, needle if hits else (needle + 10) % N_CHUNKS] = 1
            words = np.zeros(N_CHUNKS, np.float32)
            words[needle if kind == KEYED else (needle + 20) % N_CHUNKS] = 0.2
            starts = np.arange(N_CHUNKS, dtype=np.int32) * 32
            found.append(
                Seen(
                    kind=kind,
                    fold=number % 2,
                    n=32 * N_CHUNKS,
                    chunks=np.stack([starts, starts + 32], axis=1),
                    needle=np.array([needle], np.int64),
                    n_left=(128, 256),
                    words=words,
                    masses=masses,
                )
            )
    return found


def found_of(*args: Any, **skills: Any) -> Findings:
    return Trials(seen_of(*args, **skills), HEADS).find()


def always(number: int, kind: str) -> bool:
    return True


def test_the_cheapest_depth_that_holds_is_taken() -> None:
    """A deep head for one prompt in ten more; a shallow one that finds half."""
    found = found_of(
        {
            (0, 1): lambda number, kind: kind == SEMANTIC and number < 4,
            (2, 1): lambda number, kind: kind != PARAPHRASE or number > 0,
            (5, 0): always,
        }
    )
    assert found.chosen is not None
    assert (found.chosen.n_layers, found.chosen.heads) == (2, (Head(2, 1),))
    assert [depth.n_layers for depth in found.depths] == list(range(6))
    assert found.chosen.held_out[SEMANTIC] == (1, 1)
    assert found.chosen.held_out[PARAPHRASE] == (0.9, 0.9)
    assert found.depths[0].held_out[SEMANTIC][0] < 0.7
    assert found.depths[5].heads == (Head(5, 0),)
    assert found.words == {SEMANTIC: (0, 0), PARAPHRASE: (0, 0), KEYED: (1, 1)}
    assert found.n_prompts == dict.fromkeys(KINDS, 10)


def test_meaning_weighs_most() -> None:
    """A head that matches words, or knows names, before one that understands."""
    found = found_of(
        {(1, 0): lambda number, kind: kind != SEMANTIC, (1, 2): lambda _, kind: kind == SEMANTIC}
    )
    assert found.alone[0][0] == Head(1, 2)
    assert found.chosen is not None
    assert found.chosen.heads == (Head(1, 0), Head(1, 2))  # and the other is added to it
    assert found.chosen.held_out[SEMANTIC] == found.chosen.held_out[PARAPHRASE] == (1, 1)


def test_a_head_that_adds_nothing_is_not_taken() -> None:
    """Three heads where one says it all, and the others take their share of the mass."""
    found = found_of({(1, 0): always, (1, 1): always, (1, 2): always})
    assert found.chosen is not None
    assert found.chosen.heads == (Head(1, 0),)


def test_held_out_is_held_out() -> None:
    """Heads that fit one half by chance, and are told to fit both."""
    found = found_of(
        {
            (0, 0): lambda number, kind: number % 2 == 0,
            (0, 1): lambda number, kind: number % 2 == 1,
        }
    )
    first = found.depths[0]
    assert first.held_out[SEMANTIC] == (0, 0)
    assert value(first.in_sample) > 0.5


@pytest.mark.parametrize("fails", [lambda *_: False, lambda number, kind: kind == KEYED])
def test_no_head_adds_to_words(fails: Callable[[int, str], bool]) -> None:
    """A calibration that costs layers for what words find."""
    found = found_of({(1, 0): fails})
    assert found.chosen is None
    assert value(found.words) == pytest.approx(1 / 6)


def test_a_head_without_numbers_is_no_head() -> None:
    """NaN that sorts first, and is chosen."""
    seen = seen_of({(2, 0): always})
    values = np.full((2, 64), np.nan, np.float32)
    values[1] = 1
    masses = calibrate._masses(values, np.array([[0, 32], [32, 64]], np.int32))
    assert masses.tolist() == [[0, 0], [0.5, 0.5]]
    for one in seen:
        one.masses[0] = 0
    found = Trials(seen, HEADS).find()
    assert found.chosen is not None
    assert found.chosen.heads == (Head(2, 0),)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def run(cli: Run, toys: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calibrate the toy on two documents of dogs; its head 1.1 NoPE sees every needle."""
    monkeypatch.chdir(toys)
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))

    def look_well(*args: Any) -> Seen:
        seen = look(*args)
        heads: Sequence[Head] = args[2].rule.heads
        if Head(1, 1, False) in heads:
            masses = seen.masses[heads.index(Head(1, 1, False))]
            masses[:] = 0
            masses[seen.needle] = 1 / seen.needle.size
        return seen

    monkeypatch.setattr(search, "look", look_well)

    def call(*args: str | Path) -> Done:
        given = [str(arg) for arg in args]
        for name, default in (
            ("-m", "toy.gguf"),
            ("--haystack", "hay.txt"),
            ("--context", "1500"),
            ("--repeat", "2"),
        ):
            if name not in given:
                given += [name, default]
        return cli("prefill-run", "--calibrate", "--raw", "-t", "1", *given)

    return call


def test_keys(run: Run, tmp_path: Path) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = DOCUMENTED.read_text() + DOCUMENTED.with_name("prefill-run.md").read_text()
    record = run("--json", "--output", tmp_path / "found.json").record
    for key in {*record, *record["by_layers"][0], *record["heads_alone"][0]}:
        assert f"`{key}`" in documented, key
    assert record["calibration"] == str(tmp_path / "found.json")
    assert record["heads"] == ["L1H1 NoPE max"]
    assert record["n_layers_scored"] == 1
    assert record["keeps"] == list(KEEPS)
    assert record["n_prompts"] == {SEMANTIC: 8, PARAPHRASE: 4, KEYED: 4}
    assert [one["n_layers"] for one in record["by_layers"]] == [0, 1]
    assert [one["chosen"] for one in record["by_layers"]] == [False, True]
    assert all(len(shares) == 2 for shares in record["words"].values())
    assert record["n_heads"] == 2 * 4 * SMALL["n_head"]
    assert record["options"]["seed"] == 0
    found = read_calibration(tmp_path / "found.json")
    assert (found.heads, found.window, found.n_sink) == ((Head(1, 1, False),), 256, 4)
    assert not (tmp_path / "cache").exists()


def test_a_command_of_its_own(run: Run, cli: Run, tmp_path: Path) -> None:
    """Other heads by the other name, or a new name that nobody is told of."""
    old = run("--json", "--output", str(tmp_path / "old.json"))
    wanted = old.record["options"]
    own = cli(
        *("prefill-calibrate", "-m", "toy.gguf", "--raw", "-t", "1", "--json"),
        *("--haystack", str(wanted["haystack"]), "--context", str(wanted["context"])),
        *("--repeat", str(wanted["repeat"]), "--output", str(tmp_path / "own.json")),
        *(("--layers", str(wanted["layers"])) if wanted["layers"] else ()),
        *("--window", str(wanted["window"])),
    )
    assert "draftsmith prefill-calibrate" in old.stderr
    assert (own.status, own.record["command"]) == (0, "prefill-calibrate")
    assert (tmp_path / "own.json").read_bytes() == (tmp_path / "old.json").read_bytes()
    assert own.record["heads"] == old.record["heads"]


def test_later_calls_find_it(run: Run, cli: Run, tmp_path: Path) -> None:
    """A file that nobody looks for, or an older one that goes before it."""
    assert run("--window", "100").status == 0
    (path,) = (tmp_path / "cache" / "calibration").iterdir()
    args = ("-m", "toy.gguf", "-f", "hay.txt", "-p", "What jumps?", "-n", "1", "--raw", "--json")
    options = cli("prefill-run", *args, "-t", "1").record["options"]
    assert (options["heads"], options["window"]) == (["L1H1 NoPE max"], 100)
    assert run("--window", "200").status == 0
    assert list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text())["window"] == 200


def test_tables(run: Run, tmp_path: Path) -> None:
    """A table that does not say which row was taken, or what was held out."""
    done = run()
    for text in ("held out", "in sample", "semantic 10%", "keyed 20%", "1 layers *", "words alone"):
        assert text in done.stdout, text
    assert f"wrote {tmp_path}" in done.stderr


def test_no_head_is_found(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that makes later calls run layers for nothing; an old one that is lost for it."""
    path = tmp_path / "old.json"
    path.write_text("old")
    masses = calibrate._masses
    monkeypatch.setattr(search, "look", look)
    monkeypatch.setattr(
        calibrate,
        "_masses",
        lambda values, chunks: masses(values, chunks) * np.float32(len(values) == 1),
    )
    done = run("--output", path, "--json")
    assert "no head of the first 2 layers finds what words do not" in done.stderr
    assert done.record["calibration"] is done.record["n_layers_scored"] is None
    assert done.record["heads"] == []
    assert path.read_text() == "old"


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file by half of the prompts."""
    monkeypatch.setattr(search, "look", lambda *_: signal.raise_signal(signal.SIGINT))
    done = run("--output", tmp_path / "found.json")
    assert done.status == ExitStatus.INTERRUPTED
    assert not (tmp_path / "found.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--niah",), "--niah is not for --calibrate"),
        (("-p", "a"), "--calibrate brings its own prompts: -p"),
        (("--compare",), "--calibrate brings its own prompts: --compare"),
        (("--heads", "1.1"), "--heads is not for --calibrate"),
        (("--drafter", "toy.gguf"), "--scorer-model is not for --calibrate"),
        (("--depths", "10"), "--depths is not for --calibrate"),
        (("--memory-limit", "1G"), "--memory-limit is not for --calibrate"),
        (("--repeat", "1"), "--repeat 1: heads that one document chose"),
        (("--context", "1000,2000"), "--calibrate takes one length"),
        (("--context", "300"), "has no room for a haystack"),
        (("--output", "nowhere/found.json"), "the folder nowhere"),
        (("--haystack", "none.txt"), "none.txt"),
    ],
)
def test_refused_options(run: Run, args: tuple[str, ...], message: str) -> None:
    """Options that are ignored; minutes of work whose result can't be written."""
    done = run(*args)
    assert done.status not in (ExitStatus.OK, ExitStatus.INTERNAL), done.stderr
    assert done.stdout == ""
    assert message in done.error


@pytest.mark.parametrize("option", ["--layers", "--output"])
def test_options_of_calibrate_alone(cli: Run, toys: Path, option: str) -> None:
    """--calibrate forgotten, and a question answered instead."""
    done = cli("prefill-run", "-m", toys / "toy.gguf", "-f", "a", "-p", "b", option, "1")
    assert done.status == ExitStatus.USAGE
    assert f"{option} is for --calibrate" in done.error
