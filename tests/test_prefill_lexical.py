"""The lexical scorer: its oracle, the needle that a question names, and how long it takes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import naive_prefill as naive
import numpy as np
import pytest
from draftsmith.engine.tokens.detokenise import token_piece
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.engine.tokens.vocabulary import SPECIAL
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.lexical import Folding, LexicalScorer
from draftsmith.prefill.scorers.scores import Scorer
from draftsmith.prefill.select import Refusal, Refused, Selection, select

GOLDEN = Path(__file__).parent / "golden"
CITIES = ["Paris", "Ouagadougou", "Lima", "Oslo", "Nairobi", "Quito", "Hanoi", "Accra"]
QUESTION = "What is the special magic number for {} mentioned in the text above?"


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """The tokenizer of SmolLM2."""
    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def prose() -> str:
    """Some 100,000 tokens of prose."""
    text = (GOLDEN / "kjv_test.txt").read_text(encoding="utf-8")
    return (text * (1 + 500_000 // len(text)))[:500_000]


def word_of(tokenizer: Tokenizer, token: int) -> str:
    if tokenizer.vocabulary.attributes[token] & SPECIAL:
        return ""
    piece = token_piece(tokenizer.vocabulary, token)
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return repr(piece.lstrip())
    return text.lstrip().casefold() if any(c.isalnum() for c in text) else ""


def with_needle(prose: str, n_tokens: int, needle: str, depth: float, rng: random.Random) -> str:
    """Prose of about ``n_tokens`` with a sentence put between two of its own."""
    start = rng.randrange(len(prose) - 6 * n_tokens)
    text = prose[start : start + 4 * n_tokens]
    at = text.find(". ", int(depth * (len(text) - 400))) + 1
    return text[:at] + needle + text[at:]


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_oracle(seed: int, real: Tokenizer, prose: str) -> None:
    """A word counted twice in a chunk, a rarity of all tokens instead of chunks, a lost case."""
    rng = random.Random(seed)
    ids = real.encode(prose[5000 * seed :][: rng.randrange(200, 4000)]).astype(np.int32)
    n = ids.size
    cuts = sorted(rng.sample(range(2, n - 1), 3))
    document = ((1, cuts[0]), (cuts[0] + 1, cuts[1]), (cuts[1], cuts[2]))
    parts = PromptParts(ids, (cuts[2], min(n, cuts[2] + 40)), document)
    chunk = (32, 32, 7)[seed % 3]
    scores = LexicalScorer(real, chunk=chunk).score(parts)
    words = [word_of(real, token) for token in ids.tolist()]
    asked = [words[token] for token in scores.query_rows.tolist()]
    expected = naive.overlap(words, asked, naive.chunks(document, chunk))
    np.testing.assert_allclose(scores.values, np.array(expected, np.float32), rtol=1e-6)
    assert scores.values.dtype == np.float32
    assert scores.values.any()


def test_what_is_one_word(real: Tokenizer) -> None:
    """A word at the beginning of a sentence that is another inside it; a mark taken for a word."""
    folding = Folding(real.vocabulary)
    ids = real.encode("number number Number NUMBER, , ? <|im_end|>\n number", add_special=False)
    types = folding.types(ids)
    texts = [token_piece(real.vocabulary, token).strip().lower() for token in ids.tolist()]
    for text, kind in zip(texts, types.tolist(), strict=True):
        assert (kind >= 0) == text.isalpha()
    same = {kind for text, kind in zip(texts, types.tolist(), strict=True) if text == b"number"}
    assert len(same) == 1
    again = Folding(real.vocabulary).types(ids[::-1])[::-1]
    assert (again >= 0).tolist() == (types >= 0).tolist()  # whatever came first
    korean = folding.types(real.encode("\ud55c\uad6d\uc5b4"))
    assert (korean >= 0).all()  # parts of characters


@pytest.mark.parametrize("n_tokens", [2000, 4000, 8000])
def test_finds_a_needle_that_is_named(n_tokens: int, real: Tokenizer, prose: str) -> None:
    """A needle lost at some depth, or after the end of a chunk; another city's taken for it."""
    rng = random.Random(n_tokens)
    scorer: Scorer = LexicalScorer(real)
    for trial in range(12):
        city = CITIES[trial % len(CITIES)]
        number = rng.randrange(10_000, 100_000)
        needle = f" The special magic number for {city} is {number}."
        document = with_needle(prose, n_tokens, needle, trial / 12, rng)
        other = rng.choice([name for name in CITIES if name != city])
        decoy = f". The special magic number for {other} is 12345. "
        document = document.replace(". ", decoy, 1)
        parts = PromptParts.of_document(document, QUESTION.format(city), real)
        found = select(parts, scorer.score(parts))
        assert isinstance(found, Selection)
        assert found.kept.size <= round(0.1 * parts.n)
        assert parts.spans is not None
        shown = b"".join(parts.spans.text_of(found.kept)).decode()
        assert needle in shown
        assert shown.endswith(QUESTION.format(city))


@pytest.mark.parametrize("question", ["", "  ", "???", "electric bicycles"])
def test_questions_without_a_shared_word(question: str, real: Tokenizer, prose: str) -> None:
    """The first chunks, passed off as an answer to nothing."""
    document = prose[:20_000]
    parts = PromptParts.of_document(document, question, real)
    scores = LexicalScorer(real).score(parts)
    found = select(parts, scores)
    assert isinstance(found, Refused)
    assert found.kind in (Refusal.NO_QUESTION, Refusal.FLAT)
    assert not scores.values.any()


def test_empty_prompts(real: Tokenizer) -> None:
    """A fault at no tokens, no document, no chunk."""
    scorer = LexicalScorer(real)
    nothing = PromptParts(np.empty(0, np.int32), (0, 0), ())
    assert scorer.score(nothing).values.shape == (0,)
    for document, question in (("", "Why?"), ("Because.", ""), ("Why not?", "Why?")):
        parts = PromptParts.of_document(document, question, real)
        assert scorer.score(parts).values.shape == (parts.n,)


def test_takes_no_time(real: Tokenizer, prose: str) -> None:
    """A Python loop over the tokens; 32,000 take some 2 ms, a hundred times that is the limit."""
    parts = PromptParts.of_document(prose[:130_000], QUESTION.format("Paris"), real)
    assert parts.n > 30_000
    scorer = LexicalScorer(real)
    scorer.score(parts)  # compiles, and looks the words up
    start = time.perf_counter()
    scores = scorer.score(parts)
    assert time.perf_counter() - start < 0.2
    assert 0 < scores.seconds["score"] < 0.2
    assert scores.n_layers == 0
    assert scores.scorer == "lexical"
