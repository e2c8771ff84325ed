"""Documents with hidden sentences, as a model's first layers see them: data to train a scorer on.

A document takes one pass, and each question about it another one that does not see it, as with
``prefill.trained``. A file holds, for one document and its questions one after the other:
    document float16 [n, n_layers, n_embd]   what goes into some layers, divided by its root mean
    question float16 [n_asked, n_layers, n_embd]                                          square
    spans    int32   [n_questions, 2]        tokens of each question, of n_asked
    needle   int32   [n_questions, 2]        tokens of the sentence that answers, of n
    words    float32 [n_questions, n_chunks] what words say about chunks; sums to 1 or 0
    left     int32   [n_questions, n_keeps]  tokens of the document that may be kept
    kind     str     [n_questions]
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.tokens.tokenizer import Tokenizer
from draftsmith.engine.transformer.model import Model
from draftsmith.prefill.calibration.calibrate import KEEPS
from draftsmith.prefill.needles.niah import Haystack, hide, tokens_of
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.scorers.trained import HEAD, states_of
from scorer_texts import DEV, TRAIN, Source, Told

# Tokens of a document, about: many short ones teach most, and a share of a long one is measured.
CONTEXTS = {TRAIN: (640, 896, 1280), DEV: (2048,)}
_LEAST, _AROUND = 200, 80


@dataclass(frozen=True)
class Sight:
    """What is looked at of a model.

    Attributes
    ----------
    document_layers, question_layers : whose inputs are wanted, ascending
    window, n_sink : tokens that a token of the document sees, itself included; first ones besides
    """

    document_layers: tuple[int, ...]
    question_layers: tuple[int, ...]
    window: int = 256
    n_sink: int = 4


class Collector:
    """Makes documents and looks at them.

    Parameters
    ----------
    haystacks : texts to hide in
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        haystacks: Sequence[Haystack],
        source: Source,
        sight: Sight,
    ) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template
        self._haystacks, self._source, self._sight = haystacks, source, sight
        self._words = LexicalScorer(tokenizer)

    def document(self, rng: random.Random) -> tuple[str, list[tuple[str, str, str]]]:
        """A text, and (kind, question, needle) of each question about it."""
        haystack = rng.choice(self._haystacks)
        while True:
            told = self._source.draw(rng)
            hidden = [one.sentence for one in told]
            n_hidden = sum(self._tokenizer.encode(sentence).size for sentence in hidden)
            room = max(_LEAST, rng.choice(CONTEXTS[self._source.half]) - n_hidden - _AROUND)
            sentences, sizes = haystack.sentences(room, rng.random())
            depths = np.array([0.01 + 0.98 * rng.random() for _ in hidden])
            text = hide(sentences, sizes, hidden, depths) if sentences else ""
            if all(text.count(sentence) == 1 for sentence in hidden):
                return text, asked_of(told)

    def look(self, text: str, asked: Sequence[tuple[str, str, str]]) -> dict[str, np.ndarray]:
        """The arrays of a file."""
        prompts = [self._parts(text, question) for _, question, _ in asked]
        start, stop = prompts[0].document[0]
        ids = prompts[0].ids[:stop]
        same = [i for i, one in enumerate(prompts) if np.array_equal(one.ids[:stop], ids)]
        asked, prompts = [asked[i] for i in same], [prompts[i] for i in same]
        sight = self._sight
        states = states_of(self._model, ids, sight.document_layers, window=sight.window,
                           n_sink=sight.n_sink)[start:]  # fmt: skip
        questions = [self._question(one) for one in prompts]
        stops = np.cumsum([len(one) for one in questions])
        needles = [tokens_of(needle, one.spans) - start
                   for (_, _, needle), one in zip(asked, prompts, strict=True)]  # fmt: skip
        return {
            "document": self._packed([states], sight.document_layers),
            "question": self._packed(questions, sight.question_layers),
            "spans": np.stack([np.append(0, stops[:-1]), stops], 1).astype(np.int32),
            "needle": np.array([(one[0], one[-1] + 1) for one in needles], np.int32),
            "words": np.stack([self._masses(one) for one in prompts]),
            "left": np.array(
                [[round(keep * one.n) - one.n_mandatory for keep in KEEPS] for one in prompts],
                np.int32,
            ),
            "kind": np.array([kind for kind, _, _ in asked]),
        }

    def _parts(self, text: str, question: str) -> PromptParts:
        return PromptParts.of_document(text, question, self._tokenizer, self._template)

    def _question(self, parts: PromptParts) -> np.ndarray:
        first, stop = parts.question
        head = parts.ids[: min(HEAD, parts.document[0][0])]
        ids = np.concatenate((head, parts.ids[first:stop]))
        return states_of(self._model, ids, self._sight.question_layers)[head.size :]

    def _packed(self, states: Sequence[np.ndarray], layers: tuple[int, ...]) -> np.ndarray:
        rows = np.concatenate(states).astype(np.float16)
        return rows.reshape(len(rows), len(layers), -1)

    def _masses(self, parts: PromptParts) -> np.ndarray:
        values = self._words.score(parts).values
        sums = np.array([values[a:b].sum() for a, b in parts.chunks()], np.float32)
        return sums / (sums.sum() or 1)


def asked_of(told: Sequence[Told]) -> list[tuple[str, str, str]]:
    """(kind, question, needle) of all questions."""
    return [(kind, question, one.sentence) for one in told for kind, question in one.questions]


def collect(
    folder: Path,
    collector: Collector,
    n_documents: int,
    seed: int,
    on_document: Callable[[int], None],
) -> None:
    """Write so many files; those that are there already are left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n_documents):
        path = folder / f"{seed:03}-{i:05}.npz"
        if not path.exists():
            found = collector.look(*collector.document(random.Random(f"{seed} {i}")))
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                np.savez(file, **found)
            os.replace(part, path)
        on_document(i + 1)
