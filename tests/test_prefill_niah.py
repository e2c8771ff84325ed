"""Needles in haystacks: prompts whose answer is in them, what counts as kept and as right."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from conftest import Done
from draftsmith.cli.output import Table
from draftsmith.cli.plot import draw
from draftsmith.cli.prefill import niah as niah_run
from draftsmith.cli.prefill.niah_report import figure_of, tables_of
from draftsmith.engine.errors import ExitStatus, InputTooShort, InputUnreadable, UsageError
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.prefill.needles import figures, niah
from draftsmith.prefill.needles import texts as niah_texts
from draftsmith.prefill.needles.code import CODE_KINDS, source_parts
from draftsmith.prefill.needles.figures import JudgedAnswer, record_of
from draftsmith.prefill.needles.niah import (
    CODE,
    COMMON,
    KINDS,
    VERSES,
    Haystack,
    Probe,
    Probes,
    needles_kept,
    recall,
)
from draftsmith.prefill.pipeline import Choice, whole
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.scorers.scores import Scores
from draftsmith.prefill.select import Selection

Run = Callable[..., Done]

SENTENCES = [f"The dog number {i} jumps over the lazy fox. " for i in range(400)]
TEXT = "".join(SENTENCES)
SMALL = {**toy_model.SMALL, "d_head": 32, "n_layers": 2}
DOCUMENTED = Path(__file__).parent.parent / "docs" / "prefill-niah.md"


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toys")
    toy_model.write_model(folder / "toy.gguf", "llama", seed=3, **SMALL, n_ctx=4096)
    toy_model.write_model(folder / "short.gguf", "llama", seed=3, **SMALL, n_ctx=700)
    (folder / "hay.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="session")
def tokenizer(toys: Path) -> Tokenizer:
    return load_tokenizer(toys / "toy.gguf")


@pytest.fixture(scope="session")
def haystack(tokenizer: Tokenizer) -> Haystack:
    return Haystack(TEXT, tokenizer)


@pytest.fixture
def probes(haystack: Haystack, tokenizer: Tokenizer) -> Probes:
    return probes_of(haystack, tokenizer)


def probes_of(haystack: Haystack, tokenizer: Tokenizer, seed: int = 0) -> Probes:
    def count(*pieces: str) -> int:
        return 10 + sum(tokenizer.encode(piece).size for piece in pieces)

    return Probes(haystack, count, seed)


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_prompt_holds_what_it_asks_for(
    probes: Probes, tokenizer: Tokenizer, kind: str, depth: float
) -> None:
    """A needle that is not there, or twice; an answer that the needles do not give."""
    for turn in range(4):
        probe = probes.make(kind, 2000, depth, turn)
        n = sum(
            tokenizer.encode(text).size
            for text in (probe.document, probe.question, probe.answer_begin)
        )
        assert 0.7 * 2000 < n + probe.n_predict <= 2000
        assert all(probe.document.count(needle) == 1 for needle in probe.needles)
        if kind == COMMON:
            assert not probe.needles
        else:
            said = " ".join(probe.needles)
            assert recall(probe, said) == 1
            rest = probe.document
            for needle in probe.needles:
                rest = rest.replace(needle, "")
            # Other verses may say it, too: a ram is not in one place alone.
            assert kind == VERSES or recall(probe, rest) == 0
        assert recall(probe, probe.question + probe.answer_begin) == 0
        assert not re.search(r"[{}]", probe.question + probe.answer_begin + probe.document)


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_depth(probes: Probes, depth: float) -> None:
    """A needle at another depth than the map says."""
    for turn in range(3):
        probe = probes.make("keyed", 3000, depth, turn)
        found = probe.document.index(probe.needles[0]) / (
            len(probe.document) - len(probe.needles[0])
        )
        assert found == pytest.approx(depth, abs=0.02)


def test_needles_stand_between_sentences(probes: Probes) -> None:
    """A needle inside a word or a sentence, or one that runs into its neighbour."""
    probe = probes.make("multi-key", 2000, 0.5, 0)
    known = {*map(str.strip, SENTENCES)}
    others = [s for s in re.split(r"(?<=\.) ", probe.document) if s.strip() not in known]
    assert len(others) == 9
    assert all(re.fullmatch(r"The special magic number for \w+ is \d{5}\.", s) for s in others)
    assert "  " not in probe.document


def test_other_facts_are_hidden_as_well(probes: Probes) -> None:
    """A needle that is found by being hidden; one that stands there twice."""
    for turn in range(24):
        probe = probes.make("semantic-distractors", 2000, 0.5, turn)
        hidden = [fact for fact in niah_texts.FACTS if fact.sentence in probe.document]
        assert len(hidden) == 8
        (needle,) = probe.needles
        assert needle == probes.make("semantic", 2000, 0.5, turn).needles[0]
        assert [fact.question for fact in hidden if fact.sentence == needle] == [probe.question]


def test_the_same_seed_gives_the_same_prompts(haystack: Haystack, tokenizer: Tokenizer) -> None:
    """A comparison of scorers over different prompts; turns that are all the same prompt."""
    one, other, third = (probes_of(haystack, tokenizer, seed) for seed in (1, 1, 2))
    for kind in KINDS:
        assert one.make(kind, 1500, 0.5, 0) == other.make(kind, 1500, 0.5, 0)
        turns = {one.make(kind, 1500, 0.5, turn).document for turn in range(6)}
        assert len(turns) == 6
    assert one.make("keyed", 1500, 0.5, 0) != third.make("keyed", 1500, 0.5, 0)


def test_what_ties_question_and_needle(probes: Probes) -> None:
    """A paraphrase that names the city, so that words alone find it."""
    for turn in range(6):
        probe = probes.make("paraphrase", 1000, 0.5, turn)
        ((city, country),) = [pair for pair in niah_texts.CAPITALS if pair[0] in probe.needles[0]]
        assert city not in probe.question
        assert country in probe.question
        keyed = probes.make("keyed", 1000, 0.5, turn)
        assert keyed.needles[0].split("for ")[1].split(" is")[0] in keyed.question


def test_facts_share_no_word_with_their_questions() -> None:
    """A semantic question that overlap of words answers."""
    common = {
        *("the", "a", "an", "of", "on", "in", "to", "for", "was", "is", "his", "her", "did", "he"),
        *("who", "what", "which", "where", "when", "with", "from", "at", "not", "and", "because"),
        *("by", "while", "our", "their", "after", "up", "has", "can", "that", "down", "she"),
    }
    assert len(set(niah_texts.FACTS)) == 24
    for fact in niah_texts.FACTS:
        words, asked = (
            {word for word in re.findall(r"[a-z]+", text.lower()) if word not in common}
            for text in (fact.sentence, fact.question)
        )
        assert not words & asked, fact
        assert fact.answer.lower() in fact.sentence.lower()
        assert fact.answer.lower() not in fact.question.lower()


def test_hops_are_in_order(probes: Probes) -> None:
    """A variable that is used before it is set."""
    for turn in range(5):
        probe = probes.make("variables", 2000, 0.2, turn)
        places = [probe.document.index(needle) for needle in probe.needles]
        assert places == sorted(places)
        names = probe.expected
        assert probe.needles[1:] == tuple(f"VAR {b} = VAR {a}." for a, b in pairwise(names))


def test_common_words_are_the_most_common(probes: Probes) -> None:
    """A question whose answer is wrong."""
    for context in (1000, 3000):
        probe = probes.make(COMMON, context, 0.0, 0)
        words = re.findall(r"[a-z]+", probe.document)
        counts = {word: words.count(word) for word in set(words)}
        best = sorted(counts, key=lambda word: -counts[word])
        assert set(best[:5]) == set(probe.expected)
        assert counts[best[4]] > 4 * counts[best[5]]


def test_verses_are_where_they_are_said_to_be(probes: Probes) -> None:
    """A question about a passage that the text lacks, or has twice; one that gives its answer."""
    text = niah.bundled_text()
    for turn, verse in enumerate(niah_texts.VERSES):
        assert text.count(verse.sentence) == 1, verse
        assert not re.search(r"[.!?]\s|\n", verse.sentence), verse
        assert verse.answer.lower() in verse.sentence.lower(), verse
        probe = probes.make(VERSES, 1500, 0.0, turn)
        assert probe.needles == (verse.sentence,)
        assert recall(probe, verse.question) == 0
    with pytest.raises(UsageError, match="the text that is asked about has"):
        probes.make(VERSES, 10_000_000, 0.5, 0)


@pytest.mark.parametrize("kind", [VERSES, CODE])
@pytest.mark.parametrize("depth", [0.0, 0.4, 1.0])
def test_depth_in_a_text_of_its_own(probes: Probes, kind: str, depth: float) -> None:
    """A text that always begins at the same place, or with what is asked for."""
    for turn in range(3):
        probe = probes.make(kind, 3000, depth, turn)
        found = probe.document.index(probe.needles[0])
        assert found / len(probe.document) == pytest.approx(depth, abs=0.06)


def test_a_made_up_source_file(probes: Probes) -> None:
    """Code that does not compile; a name that stands for two things; one kind asked for alone."""
    parts = source_parts(np.random.default_rng(1))
    assert {part.kind for part in parts} == set(CODE_KINDS)
    names = [name for part in parts for name in re.findall(r"\w+_\w+_\w+", part.text)]
    assert len({name.lower() for name in names}) == len(names)
    asked = set()
    for turn in range(3):
        probe = probes.make(CODE, 1500, 0.5, turn)
        compile(probe.document, "made-up.py", "exec")
        asked.add(probe.question.split()[1])
        assert re.search(r"\w+_\w+_\w+", probe.question)[0] in probe.needles[0]  # type: ignore[index]
    assert len(asked) > 1


def test_refused_prompts(probes: Probes, tokenizer: Tokenizer) -> None:
    """A prompt without a haystack; an endless loop over an empty one."""
    with pytest.raises(UsageError, match="no kind of question is called 'easy'"):
        probes.make("easy", 1000, 0.5, 0)
    for kind in ("keyed", "multi-value", COMMON, VERSES, CODE):
        with pytest.raises(UsageError, match="has no room for"):
            probes.make(kind, 130, 0.5, 0)
    for text in ("", "word", "no end of a sentence"):
        with pytest.raises(InputTooShort, match="no two sentences"):
            Haystack(text, tokenizer)


def test_a_short_haystack_is_repeated(tokenizer: Tokenizer) -> None:
    """A prompt that is shorter than its context, or no end of it."""
    haystack = Haystack("One is here. Two is there. Three is not.", tokenizer)
    probe = probes_of(haystack, tokenizer).make("keyed", 800, 0.5, 0)
    assert probe.document.count("Two is there.") > 20


def test_the_bundled_haystack(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not installed, is too large, or holds labels of verses."""
    assert niah.BUNDLED.stat().st_size < 200_000
    text = niah.bundled_text()
    assert text.isascii()
    assert not re.search(r"\w\d+:\d+", text)
    assert len(text) > 300_000
    monkeypatch.setattr(niah, "BUNDLED", Path("nowhere"))
    with pytest.raises(InputUnreadable, match="missing from this installation"):
        niah.bundled_text()


# --- what counts ----------------------------------------------------------------------------------


def probe_of(**changes: Any) -> Probe:
    fields: dict[str, Any] = {
        "kind": "keyed",
        "context": 100,
        "depth": 0.5,
        "document": TEXT[:2000] + "Paris is 12345. " + TEXT[2000:4000] + "Rome is 678.",
        "question": "What is Paris?",
        "answer_begin": "",
        "expected": ("12345",),
        "needles": ("Paris is 12345.", "Rome is 678."),
        "n_predict": 8,
    }
    return Probe(**{**fields, **changes})


@pytest.mark.parametrize(
    ("expected", "answer", "share"),
    [
        (("12345",), "It is 12345.", 1),
        (("12345",), "It is 123456.", 0),
        (("12345",), "It is 912345.", 0),
        (("12345", "678"), "12345 and 67", 0.5),
        (("12345", "678"), "678,12345", 1),
        (("soup",), "SOUP!", 1),
        (("balloon",), "It fears balloons.", 1),
        (("hail",), "Thailand", 0),
        (("VARAB",), "VARAB, VARAC", 1),
        (("a",), "", 0),
    ],
)
def test_recall(expected: tuple[str, ...], answer: str, share: float) -> None:
    """A number inside another taken for right, or a plural for wrong."""
    assert recall(probe_of(expected=expected), answer) == share


def choice_without(parts: PromptParts, dropped: list[int]) -> Choice:
    kept = np.setdiff1d(np.arange(parts.n, dtype=np.int32), np.array(dropped, np.int32))
    reasons = np.ones(kept.size, np.uint8)
    return Choice(parts, None, Selection(kept, reasons, parts.n, parts.n, 0, 0.0), kept)


def test_needles_kept(tokenizer: Tokenizer) -> None:
    """A needle without its last digit that counts as kept."""
    probe = probe_of()
    parts = PromptParts.of_document(probe.document, probe.question, tokenizer)
    assert parts.spans is not None
    assert needles_kept(probe, whole(parts)) == 1
    assert needles_kept(probe, choice_without(parts, [3])) == 1
    at = parts.spans.text.index(b"12345.")
    for byte in (at, at + 4):
        (token,) = parts.spans.tokens_of(np.array([[byte, byte + 1]], np.int64)).tolist()
        assert needles_kept(probe, choice_without(parts, [token])) == 0.5
    assert needles_kept(probe_of(needles=()), whole(parts)) is None


def found_of(kind: str, context: int, depth: float, **changes: Any) -> JudgedAnswer:
    fields: dict[str, Any] = {
        "probe": probe_of(kind=kind, context=context, depth=depth),
        "keep": 0.2,
        "n_prompt": 100,
        "n_kept": 20,
        "is_refused": False,
        "kept": 1.0,
        "recall": 1.0,
        "recall_full": 0.5,
        "ttft_s": 1.0,
        "ttft_full_s": 4.0,
        "text": "a",
        "text_full": "b",
    }
    return JudgedAnswer(**{**fields, **changes})


def test_figures() -> None:
    """A mean over cells that were not measured; half a needle that counts as one."""
    found = [
        found_of("keyed", 1000, 0.0),
        found_of("keyed", 1000, 0.0, kept=0.0, recall=0.0, recall_full=1.0, ttft_s=2.0),
        found_of("keyed", 2000, 0.0, recall_full=None, ttft_full_s=None, kept=0.5),
        found_of("common-words", 1000, 0.0, kept=None, recall=0.5, is_refused=True, ttft_s=4.0),
    ]
    record = record_of(found)
    assert record["n_prompts"] == 4
    assert record["n_refused"] == 1
    assert record["needle_kept"] == pytest.approx(1 / 3)
    assert record["recall_speculative"] == pytest.approx(2.5 / 4)
    assert record["recall_full"] == pytest.approx(2 / 3)
    assert record["right_speculative"] == 0.5
    assert record["right_full"] == pytest.approx(1 / 3)
    assert record["ttft_ratio"] == 2
    assert [kind["kind"] for kind in record["by_kind"]] == ["keyed", "common-words"]
    assert [cell["n_prompts"] for cell in record["cells"]] == [2, 1, 1]
    assert record["cells"][0]["ttft_ratio"] == 3
    assert record["cells"][1]["ttft_ratio"] is record["cells"][1]["recall_full"] is None
    for key in ("ttft_ratio", "recall_full", "recall_speculative"):
        assert all(key in one for one in (*record["by_kind"], *record["cells"]))
    tables = tables_of(record)
    assert [table.title for table in tables] == [
        "needles in haystacks", "needle kept", "answer right", "right in full"
    ]  # fmt: skip
    assert tables[1].rows == [
        ("keyed", "0%", "\u2592\u2592 50%", "\u00b7\u00b7 0%"),
        None,
        ("common-words", "0%", "-", "-"),
    ]


def test_the_figure(tmp_path: Path) -> None:
    """A map turned on its side; a cell that was not measured drawn as nothing kept."""
    found = [
        found_of("keyed", context, depth, kept=kept)
        for context, depth, kept in ((1000, 0.0, 1.0), (1000, 1.0, 0.0), (2000, 0.0, 1.0))
    ]
    figure = figure_of(record_of(found))
    assert [heat.label for heat in figure.maps] == [
        "keyed: needle kept", "keyed: answer right", "keyed: right in full"
    ]  # fmt: skip
    assert figure.maps[0].columns == ["1,000", "2,000"]
    assert figure.maps[0].rows == ["0%", "100%"]
    assert figure.maps[0].values == [[1, 1], [0, None]]
    for name in ("a.png", "b.svg"):
        draw(figure, str(tmp_path / name))
        first = (tmp_path / name).read_bytes()
        draw(figure, str(tmp_path / name))
        assert first == (tmp_path / name).read_bytes()


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def run(cli: Run, toys: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Hide needles in a haystack of dogs, without a template, and let words find them."""
    monkeypatch.chdir(toys)

    def call(*args: str | Path) -> Done:
        given = [str(arg) for arg in args]
        for name, value in (
            ("-m", "toy.gguf"),
            ("--scorer", "lexical"),
            ("--haystack", "hay.txt"),
            ("--context", "1200"),
            ("--depths", "10,90"),
            ("--kinds", "keyed"),
            ("--keep", "0.25"),
        ):
            if name not in given:
                given += [name, value]
        return cli("prefill-run", "--niah", "--raw", "-t", "1", *given)

    return call


def test_keys(run: Run) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = DOCUMENTED.read_text() + DOCUMENTED.with_name("prefill-run.md").read_text()
    record = run("--kinds", "keyed,semantic", "--repeat", "2", "--json").record
    names = {*record, *record["by_kind"][0], *record["cells"][0], *record["prompts"][0]}
    for key in names:
        assert f"`{key}`" in documented, key
    assert record["n_prompts"] == 8 == len(record["prompts"])
    assert [kind["n_prompts"] for kind in record["by_kind"]] == [4, 4]
    assert len(record["cells"]) == 4
    assert record["by_kind"][0]["needle_kept"] == 1
    assert record["ttft_ratio"] > 0
    assert record["seed"] == 0
    assert record["options"]["temperature"] == 0
    assert record["options"]["niah"]["kinds"] == ["keyed", "semantic"]


def unmeasured(value: Any) -> Any:
    """A record without what a clock or a scale says."""
    if isinstance(value, dict):
        measured = ("host", "_ms", "_s", "_bytes", "_ratio", "_per_s", "_samples")
        return {k: unmeasured(v) for k, v in value.items() if not k.endswith(measured)}
    return [unmeasured(one) for one in value] if isinstance(value, list) else value


def test_a_command_of_its_own(run: Run, cli: Run) -> None:
    """Other figures by the other name, or a new name that nobody is told of."""
    old = run("--json")
    own = cli(
        *("prefill-niah", "-m", "toy.gguf", "--scorer", "lexical", "--haystack", "hay.txt"),
        *("--context", "1200", "--depths", "10,90", "--kinds", "keyed", "--keep", "0.25"),
        *("--raw", "-t", "1", "--json"),
    )
    assert "draftsmith prefill-niah" in old.stderr
    assert own.stderr == "" == run("-q", "--json").stderr
    assert own.record["command"] == "prefill-niah"
    names = {"command": "", "compile_seconds": 0}
    assert unmeasured(own.record) | names == unmeasured(old.record) | names


def test_what_was_right_in_full(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of one side counted for the other."""
    whole_texts = []

    def count(probe: Probe, text: str) -> float:
        whole_texts.append(text)
        return len(whole_texts) % 2

    monkeypatch.setattr(figures, "recall", count)
    record = run("--depths", "10", "--keep", "1", "--json").record
    assert (record["recall_speculative"], record["recall_full"]) == (1, 0)
    assert whole_texts[0] == whole_texts[1]


def test_several_shares(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares mixed up, or a prompt scored for each; a time without that of its scores."""
    scored = []
    score = LexicalScorer.score

    def count(self: LexicalScorer, parts: PromptParts) -> Scores:
        scored.append(parts.n)
        time.sleep(0.05)
        return score(self, parts)

    monkeypatch.setattr(LexicalScorer, "score", count)
    given = ("--depths", "10", "--kinds", "keyed,reworded", "--no-full", "--json")
    record = run("--keep", "0.2,0.4", *given).record
    assert len([n for n in scored if n > 1000]) == 2
    assert [one["keep"] for one in record["prompts"]] == [0.2, 0.4, 0.2, 0.4]
    assert [one["keep"] for one in record["by_keep"]] == [0.2, 0.4]
    assert [(one["kind"], one["keep"]) for one in record["by_kind"]] == [
        ("keyed", 0.2), ("keyed", 0.4), ("reworded", 0.2), ("reworded", 0.4)
    ]  # fmt: skip
    for one in record["by_kind"]:
        assert 0.5 * one["keep"] < one["kept_share"] < one["keep"] + 1e-3
        assert one["ttft_ms"] > 50
        alone = run("--keep", str(one["keep"]), *given).record
        of_kind = next(kind for kind in alone["by_kind"] if kind["kind"] == one["kind"])
        for key in ("needle_kept", "recall_speculative", "kept_share"):
            assert of_kind[key] == one[key]
    shown = run("--keep", "0.2,0.4", *given[:-1]).stdout
    for name in ("needle kept, --keep 0.2", "answer right, --keep 0.4"):
        assert name in shown


def test_in_full_is_left_out(run: Run) -> None:
    """Minutes of prefills in full that nobody asked for, or that cannot be."""
    record = run("--no-full", "--json").record
    assert record["recall_full"] is record["ttft_ratio"] is record["right_full"] is None
    longer = run("-m", "short.gguf", "--context", "600,1200", "--depths", "10", "--json").record
    assert [cell["recall_full"] is None for cell in longer["cells"]] == [False, True]


def test_prompts_and_answers_fit_the_context(run: Run) -> None:
    """A context that is just the model's, with no room for the answer."""
    record = run("-m", "short.gguf", "--context", "700", "--keep", "1", "--json").record
    assert record["n_prompts"] == 2
    assert record["recall_full"] is not None


def test_tables_and_notes(run: Run, tmp_path: Path) -> None:
    """A map that is not shown, or a figure that is not written."""
    done = run("--plot", tmp_path / "map.png", "--context", "1200,9000", "--no-full")
    for name in ("needles in haystacks", "needle kept", "answer right", "1,200", "9,000", "90%"):
        assert name in done.stdout
    assert "right in full" not in done.stdout.split("needle kept", 2)[2]
    assert "it is repeated" in done.stderr
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_a_haystack_of_any_size(
    run: Run, toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text refused, or held as a whole; another part of it each time; a folder's first file
    alone."""
    text = (toys / "hay.txt").read_text()
    folder = tmp_path / "hay"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"{name}{name}. " + text)
    monkeypatch.setattr(niah_run, "HAYSTACK_BYTES", len(text) // 2)
    args = ("--haystack", folder, "--json", "--no-full")
    one, other = run(*args, "-s", "3"), run(*args, "-s", "3")
    assert "are used, drawn by the seed 3" in one.stderr
    assert one.record["prompts"] == other.record["prompts"]
    starts = {
        run(*args, "-s", str(seed)).stderr.split("from byte ")[1].split()[0] for seed in range(6)
    }
    assert len(starts) > 2
    monkeypatch.setattr(niah_run, "HAYSTACK_BYTES", 10 * len(text))
    assert "are used" not in run(*args).stderr


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that loses hours of work."""
    ask = niah_run._ask
    calls = []

    def ask_and_interrupt(*args: Any) -> JudgedAnswer:
        calls.append(0)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return ask(*args)

    monkeypatch.setattr(niah_run, "_ask", ask_and_interrupt)
    done = run("--json", "-q")
    assert done.status == ExitStatus.INTERRUPTED
    assert done.record["n_prompts"] == 1
    assert done.record["interrupted"] is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--kinds", "keyed,easy"), "no kind of question is called 'easy'"),
        (("--context", "many"), "--context many"),
        (("--depths", "0,101"), "not a number from 0 to 100"),
        (("--context", "100"), "has no room for a haystack"),
        (("--plot", "map.pdf"), "neither a .png nor a .svg"),
        (("--haystack", "none.txt"), "none.txt"),
        (("-p", "a"), "--niah brings its own prompts: -p"),
        (("-f", "hay.txt"), "--niah brings its own prompts: -f"),
        (("--compare",), "--niah brings its own prompts: --compare"),
        (("--show-kept",), "--niah brings its own prompts: --show-kept"),
    ],
)
def test_refused_options(run: Run, args: tuple[str, ...], message: str) -> None:
    """Options that are ignored, or that end in a traceback."""
    done = run(*args)
    assert done.status in (ExitStatus.USAGE, ExitStatus.INPUT_UNREADABLE), done.stderr
    assert message in done.error


@pytest.mark.parametrize("option", ["--context", "--depths", "--kinds", "--haystack", "--plot"])
def test_options_of_niah_alone(cli: Run, toys: Path, option: str) -> None:
    """--niah forgotten, and a question answered instead."""
    done = cli("prefill-run", "-m", toys / "toy.gguf", "-f", "a", "-p", "b", option, "1")
    assert done.status == ExitStatus.USAGE
    assert f"{option} is for --niah" in done.error


def test_tables_are_tables() -> None:
    """A table without rows where nothing was asked in full."""
    record = record_of([found_of("keyed", 1000, 0.5, recall_full=None, ttft_full_s=None)])
    assert all(isinstance(table, Table) and any(table.rows) for table in tables_of(record))
