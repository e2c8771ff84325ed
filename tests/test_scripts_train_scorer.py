"""Texts, data and training of a scorer, at a small setting: the training needs torch."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import load_model
from draftsmith.prefill.calibration import texts as calibrate_texts
from draftsmith.prefill.needles import texts as niah_texts
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.projection import read_projection
from draftsmith.prefill.scorers.trained import TrainedScorer
from test_prefill_calibrate import COMMON
from toy_model import SMALL, write_model

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
DOCUMENTS, HELD = 6, 2
# Lexicographer file and wider term of nouns for each slot of a frame.
SLOTS = {"p": (18, "worker"), "a": (5, "beast"), "t": (6, "tool"), "f": (13, "dish"),
         "l": (6, "structure"), "c": (6, "furniture")}  # fmt: skip
LETTERS = "bcdfghjklm"


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("scorer_texts")


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    """Ten nouns a slot and one name, in WordNet's formats."""
    data, index = ["  1 a licence"], ["  1 a licence"]
    wider, number = "", 0

    def add(file: int, words: list[str], pointer: str, gloss: str) -> str:
        nonlocal number
        number += 1
        told = " ".join(f"{word} 0" for word in words)
        links = f"001 {pointer} n 0000" if pointer else "000"
        data.append(f"{number:08} {file:02} n {len(words):02x} {told} {links} | {gloss}")
        index.append(f"{words[0]} n 1 1 @ 1 1 {number:08}")
        return f"{number:08}"

    for slot, (file, name) in SLOTS.items():
        wider = add(file, [name], "", "a wide term")
        for letter in LETTERS:
            add(file, [f"{slot}o{letter}", f"x{letter}{slot}"], f"@ {wider}", f"a {letter} of use")
    add(18, ["Zorro"], f"@i {wider}", "a masked rider of old films (1919-1998)")
    for name, lines in (("data.noun", data), ("index.noun", index)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def words_of(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z]+", text.lower()) if word not in COMMON}


def test_facts(texts: Any) -> None:
    """Facts or names that quality is measured by; a question that words answer."""
    facts = texts.TEXTS["facts"] + texts.TEXTS["more_facts"]
    assert len({sentence for sentence, _ in facts}) == len(facts) > 300
    measured = {fact.sentence for fact in niah_texts.FACTS} | {s for s, _ in calibrate_texts.FACTS}
    asked = {fact.question for fact in niah_texts.FACTS} | {q for _, q in calibrate_texts.FACTS}
    assert not measured & {sentence for sentence, _ in facts}
    assert not asked & {question for _, question in facts}
    shared = [fact for fact in facts if words_of(fact[0]) & words_of(fact[1])]
    assert len(shared) < 0.05 * len(facts)  # of words such as "since" and "than"
    forms = {form for template in calibrate_texts.TEMPLATES for form in template}
    assert not forms & {form for template in texts.TEXTS["templates"] for form in template}


def test_nouns(texts: Any, wordnet: Path) -> None:
    """A format read wrongly; a noun that is called by itself, or in both halves."""
    nouns = texts.Nouns(wordnet, lambda word: 1)
    for slot, (_, name) in SLOTS.items():
        pools = nouns.pools[slot]
        assert not set(pools[texts.TRAIN]) & set(pools[texts.DEV])
        assert {f"{slot}o{letter}" for letter in LETTERS} <= {*pools["train"], *pools["dev"]}
        rng = random.Random(0)
        others = {nouns.other(f"{slot}ob", rng) for _ in range(50)}
        assert others == {f"xb{slot}", name, "b of use"}
    assert nouns.names() == [("Zorro", "the masked rider of old films")]


def test_what_is_drawn(texts: Any, wordnet: Path) -> None:
    """A slot left open; halves that share a sentence; a name that quality is measured by."""
    nouns = texts.Nouns(wordnet, lambda word: 1)
    drawn = {}
    for half in (texts.TRAIN, texts.DEV):
        source, rng = texts.Source(half, nouns), random.Random(1)
        drawn[half] = [told for _ in range(40) for told in source.draw(rng)]
    for told in (*drawn["train"], *drawn["dev"]):
        asked = " ".join(question for _, question in told.questions)
        assert not re.search(r"[<>{}]", told.sentence + asked)
        assert told.questions
        if told.questions[0][0] != texts.SEMANTIC:
            assert not texts.MEASURED & set(re.findall(r"\w+", told.sentence))
    sentences = [{told.sentence for told in some} for some in drawn.values()]
    assert not sentences[0] & sentences[1]
    kinds = {kind for told in drawn["train"] for kind, _ in told.questions}
    assert kinds == {"semantic", "paraphrase", "keyed"}


@pytest.mark.slow
def test_training_writes_a_scorer(tmp_path: Path) -> None:
    """A gradient that leads nowhere, data made twice, a file that scores otherwise than in
    training."""
    pytest.importorskip("torch")
    model_path = write_model(tmp_path / "toy.gguf", "llama", **SMALL, d_head=32, n_layers=3,
                             n_ctx=4096)  # fmt: skip
    output = tmp_path / "scorer.gguf"
    args = ("-m", model_path, "--data", tmp_path / "data", "-o", output, "--layers", 1, "--rank",
            16, "--question-layers", 0, 2, "--collect-layers", 0, 1, 2, "--documents", DOCUMENTS,
            "--held", HELD, "--epochs", 6, "--lr", 0.01, "--drop", 0.1)  # fmt: skip
    shown = [run(*args), run(*args)]
    assert [f"{half}: {n} of {n}" in shown[0] for half, n in (("train", 6), ("dev", 2))] == [
        True
    ] * 2
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", shown[0])]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert shown[0].count("held out") == shown[1].count("held out") > 3
    p = read_projection(output)
    assert (p.document_layers, p.question_layers, p.block) == ((1,), (0, 2), 8)
    model = load_model(model_path, n_threads=1)
    tokenizer = load_tokenizer(model_path)
    try:
        assert p.fits(tokenizer.fingerprint.hex(), model.params)
        path = min((tmp_path / "data" / "dev").glob("*.npz"))
        with np.load(path) as file:
            states = file["document"][:, 1].astype(np.float32)
            keys = p.keys(states)
            assert np.isfinite(keys).all()
            assert np.linalg.norm(keys, axis=1) == pytest.approx(1, abs=1e-5)
        parts = PromptParts.of_document("The dog sleeps. " * 90, "Who sleeps?", tokenizer)
        scores = TrainedScorer(model, p).score(parts)
        assert scores.values.sum() == pytest.approx(1, abs=0.05)
    finally:
        model.close()


def run(*args: Any) -> str:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "train_scorer.py", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
