"""Find which heads of a model retrieve, by questions whose place in a text is known.

Three things tie question and needle: the same words, another name that only knowledge gives, or
meaning alone. Words find the first without any model, so heads are judged by what they add to
words, as the scorer "fused" does, and meaning weighs most. Documents and facts are halved: heads
that are chosen by one half are tried on the other, since of a thousand heads some fit any half by
chance. Of the depths, the cheapest that holds is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..needles.niah import Haystack, hide, no_room, tokens_of
from ..prompt.parts import PromptParts
from ..scorers.attention import AttentionScorer, Head, Reduce
from ..scorers.lexical import LexicalScorer
from . import texts
from .calibrate_kernels import count_kept

KEYED, PARAPHRASE, SEMANTIC = "keyed", "paraphrase", "semantic"
KINDS = (SEMANTIC, PARAPHRASE, KEYED)
KEEPS = (0.1, 0.2)
WEIGHTS = {SEMANTIC: 4, PARAPHRASE: 1, KEYED: 1}

# Of a recall by weight, 0 to 1: what another head has to add, and what a cheaper depth may lack.
LEAST_GAIN, MOST_LOSS = 0.02, 0.03
# Sets of heads grow by one of so many that are best alone.
_N_BEST = 64
_TIE = 1e-3  # ties go to the head that says it most clearly
_N_SEMANTIC, _N_PAIRS, _N_DISTRACTORS = 4, 2, 1
_MARGIN = 16

# By kind, the share of needles that are kept whole at each of KEEPS.
Recall = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Question:
    """A prompt whose answer's place is known.

    Attributes
    ----------
    kind : one of ``KINDS``
    fold : 0 or 1, the half of documents and facts that it is of
    document, question : the prompt
    needle : what has to be kept of the document; it stands there once
    """

    kind: str
    fold: int
    document: str
    question: str
    needle: str


@dataclass(frozen=True, eq=False)
class Seen:
    """What heads and words say about a prompt.

    Attributes
    ----------
    kind, fold : of the question
    n : tokens of the prompt
    chunks : int32 [n_chunks, 2]
    needle : int64 [n_needle], chunks that hold some of the needle
    n_left : for each of ``KEEPS``, tokens of the document that may be kept
    words : float32 [n_chunks], scores by words, which sum to 1 or are all 0
    masses : float32 [n_heads, n_chunks], the same by each head
    """

    kind: str
    fold: int
    n: int
    chunks: NDArray[np.int32]
    needle: NDArray[np.int64]
    n_left: tuple[int, ...]
    words: NDArray[np.float32]
    masses: NDArray[np.float32]


@dataclass(frozen=True)
class Depth:
    """What so many layers find, together with words.

    Attributes
    ----------
    n_layers : layers that run; heads are looked at up to the one after them
    heads : chosen by all prompts
    in_sample : of these, on the prompts that they were chosen by
    held_out : of those chosen by one half, on the other
    """

    n_layers: int
    heads: tuple[Head, ...]
    in_sample: Recall
    held_out: Recall


@dataclass(frozen=True)
class Findings:
    """What a calibration has found.

    Attributes
    ----------
    n_prompts : by kind
    words : recall of words without any head
    depths : ascending
    chosen : the cheapest of them that holds; None: none adds to words
    alone : the best heads without words, and without one another, best first
    """

    n_prompts: Mapping[str, int]
    words: Recall
    depths: tuple[Depth, ...]
    chosen: Depth | None
    alone: tuple[tuple[Head, Recall], ...]


def candidates(n_layers: int, n_head: int) -> tuple[Head, ...]:
    """All heads of the first layers, before RoPE and after it, by maximum and mean."""
    ways: tuple[Reduce, ...] = ("max", "mean")
    return tuple(
        Head(layer, head, rope, reduce)
        for layer in range(n_layers)
        for head in range(n_head)
        for rope in (True, False)
        for reduce in ways
    )


def questions(
    haystack: Haystack,
    count: Callable[[str, str, str], int],
    *,
    n_documents: int,
    context: int,
    seed: int,
) -> list[Question]:
    """Make prompts: documents from all over a haystack, with needles of all kinds in each.

    Parameters
    ----------
    count : see ``Probes``
    n_documents : half of them for each fold
    context : most tokens of a prompt

    Raises
    ------
    UsageError : a context that is too short for what is to be hidden
    """
    rng = np.random.default_rng([seed, context, n_documents])
    pairs, facts = [_halves(len(pool), rng) for pool in (texts.PAIRS, texts.FACTS)]
    found: list[Question] = []
    for number in range(n_documents):
        fold, turn = number % 2, number // 2
        n_pairs = _N_PAIRS + _N_DISTRACTORS
        some_pairs = [texts.PAIRS[i] for i in _some(pairs[fold], turn, n_pairs)]
        some_facts = [texts.FACTS[i] for i in _some(facts[fold], turn, _N_SEMANTIC)]
        place = (number + rng.random()) / n_documents
        found += _of_document(
            haystack, count, context, some_pairs, some_facts, fold, turn, place, rng
        )
    return found


def _halves(n: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    order = rng.permutation(n).tolist()
    return order[: n // 2], order[n // 2 :]


def _some(pool: Sequence[int], turn: int, n: int) -> list[int]:
    return [pool[(turn * n + i) % len(pool)] for i in range(n)]


def _of_document(
    haystack: Haystack,
    count: Callable[[str, str, str], int],
    context: int,
    pairs: Sequence[tuple[str, str]],
    facts: Sequence[tuple[str, str]],
    fold: int,
    turn: int,
    place: float,
    rng: np.random.Generator,
) -> Iterator[Question]:
    """The questions about one document."""
    sentence, asked, reworded = texts.TEMPLATES[turn % len(texts.TEMPLATES)]
    needles = [sentence.format(key=key, number=rng.integers(10_000, 100_000)) for key, _ in pairs]
    hidden = [*needles, *(fact for fact, _ in facts)]
    told = [(SEMANTIC, question, fact) for fact, question in facts]
    for (key, other), needle in zip(pairs[:_N_PAIRS], needles, strict=False):
        told.append((KEYED, asked.format(key=key), needle))
        told.append((PARAPHRASE, reworded.format(key=other), needle))
    framed = [
        (kind, texts.FRAMES[(turn + i) % len(texts.FRAMES)].format(question=question), needle)
        for i, (kind, question, needle) in enumerate(told)
    ]
    longest = max((question for _, question, _ in framed), key=len)
    room = context - _MARGIN - 2 * len(hidden) - count(" ".join(hidden), longest, "")
    sentences, sizes = haystack.sentences(max(0, room), place)
    if len(sentences) < 2:
        raise no_room(context, room)
    document = hide(sentences, sizes, hidden, 0.02 + 0.96 * rng.random(len(hidden)))
    return (Question(kind, fold, document, question, needle) for kind, question, needle in framed)


def look(
    question: Question, parts: PromptParts, scorer: AttentionScorer, words: LexicalScorer
) -> Seen:
    """Score a prompt by all heads of a scorer's rule, in one pass.

    Parameters
    ----------
    parts : of the question's document and text
    """
    assert parts.spans is not None
    chunks = parts.chunks()
    tokens = tokens_of(question.needle, parts.spans)
    needle = np.unique(np.searchsorted(chunks[:, 0], tokens, "right") - 1)
    return Seen(
        kind=question.kind,
        fold=question.fold,
        n=parts.n,
        chunks=chunks,
        needle=needle.astype(np.int64),
        n_left=tuple(round(keep * parts.n) - parts.n_mandatory for keep in KEEPS),
        words=_masses(words.score(parts).values[None], chunks)[0],
        masses=_masses(scorer.channels(parts), chunks),
    )


def _masses(values: NDArray[np.float32], chunks: NDArray[np.int32]) -> NDArray[np.float32]:
    """The sum of each chunk, float32 [n_ways, n_chunks], of all that a way says about chunks.

    A way that says nothing, or nothing finite, has 0 everywhere.
    """
    sums = np.stack([values[:, a:b].sum(axis=1, dtype=np.float64) for a, b in chunks], axis=1)
    sums[~np.isfinite(sums).all(axis=1)] = 0
    totals = sums.sum(axis=1, keepdims=True)
    masses: NDArray[np.float32] = (sums / np.where(totals > 0, totals, 1)).astype(np.float32)
    return masses


class Trials:
    """Tries heads on prompts that all heads have seen.

    Parameters
    ----------
    seen : of the prompts, one or more of each kind and fold
    heads : in the order of their masses
    """

    def __init__(self, seen: Sequence[Seen], heads: Sequence[Head]) -> None:
        self._seen = list(seen)
        self._heads = list(heads)
        self._layers = np.array([head.layer for head in heads])
        self._kinds = np.array([one.kind for one in seen])
        self._folds = np.array([one.fold for one in seen])
        clearness = [_fused(one, ())[:, one.needle].sum(axis=1) for one in seen]
        self._clearness = np.stack(clearness)

    def find(self, *, n_most: int = 3, n_alone: int = 10) -> Findings:
        """Choose heads at each depth, and the depth.

        Parameters
        ----------
        n_most : heads that are looked at together
        n_alone : heads to tell about on their own
        """
        everywhere = np.ones(len(self._seen), np.bool_)
        depths = []
        for layer in sorted(set(self._layers.tolist())):
            chosen = self._choose(everywhere, layer, n_most)
            tried = np.zeros((len(self._seen), len(KEEPS)))
            for fold in (0, 1):
                here = self._folds == fold
                tried[here] = self._kept(self._choose(~here, layer, n_most))[here]
            heads = tuple(sorted(self._heads[i] for i in chosen))
            recalls = self._recall(self._kept(chosen)), self._recall(tried)
            depths.append(Depth(layer, heads, *recalls))
        words = self._recall(_each(self._seen, lambda one: one.words[None])[:, :, 0])
        held = [value(depth.held_out) for depth in depths]
        best = max(held)
        chosen_depth = None
        if best >= value(words) + LEAST_GAIN:
            chosen_depth = next(
                depth for depth, got in zip(depths, held, strict=True) if got >= best - MOST_LOSS
            )
        return Findings(
            n_prompts={kind: int((self._kinds == kind).sum()) for kind in KINDS},
            words=words,
            depths=tuple(depths),
            chosen=chosen_depth,
            alone=self._alone(n_alone),
        )

    def _choose(self, which: NDArray[np.bool_], layer: int, n_most: int) -> tuple[int, ...]:
        """Heads up to a layer that keep most together on some prompts, the best one first."""
        near = np.flatnonzero(self._layers <= layer)
        singly = self._values((), near, which)
        order = near[np.argsort(-singly, kind="stable")[:_N_BEST]]
        chosen: tuple[int, ...] = (int(order[0]),)
        best = float(singly.max())
        while len(chosen) < n_most:
            others = np.setdiff1d(order, chosen)
            if not others.size:
                break
            values = self._values(chosen, others, which)
            if values.max() < best + LEAST_GAIN:
                break
            best = float(values.max())
            chosen = (*chosen, int(others[values.argmax()]))
        return chosen

    def _values(
        self, base: tuple[int, ...], among: NDArray[np.int64], which: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """How good each head is on some prompts, added to others; float64 [n_among]."""
        kept = self._with_each(base, among)[which].mean(axis=1)
        total = np.zeros(among.size)
        for kind, weight in WEIGHTS.items():
            of_kind = self._kinds[which] == kind
            total += weight * kept[of_kind].mean(axis=0)
        clearness = self._clearness[which][:, among].mean(axis=0)
        values: NDArray[np.float64] = total / sum(WEIGHTS.values()) + _TIE * clearness
        return values

    def _with_each(self, base: tuple[int, ...], among: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whether needles are kept by words, ``base`` and each head: [n_prompts, n_keeps, n]."""
        if base:
            return _each(self._seen, lambda one: _fused(one, base)[among])
        return self._with_one[:, :, among]

    @cached_property
    def _with_one(self) -> NDArray[np.float64]:
        """Whether needles are kept by words and each head: [n_prompts, n_keeps, n_heads]."""
        return _each(self._seen, lambda one: _fused(one, ()))

    def _kept(self, chosen: tuple[int, ...]) -> NDArray[np.float64]:
        """Whether needles are kept by words and some heads, float64 [n_prompts, n_keeps]."""
        base, last = chosen[:-1], np.array(chosen[-1:])
        return self._with_each(base, last)[:, :, 0]

    def _recall(self, kept: NDArray[np.float64]) -> Recall:
        return {kind: tuple(kept[self._kinds == kind].mean(axis=0).tolist()) for kind in KINDS}

    def _alone(self, n: int) -> tuple[tuple[Head, Recall], ...]:
        kept = _each(self._seen, lambda one: one.masses)
        recalls = [self._recall(kept[:, :, i]) for i in range(len(self._heads))]
        order = sorted(range(len(recalls)), key=lambda i: (-value(recalls[i]), i))
        return tuple((self._heads[i], recalls[i]) for i in order[:n])


def value(recall: Recall) -> float:
    """A recall as one number, 0 to 1: kinds by their weight, and the mean over ``KEEPS``."""
    total = sum(weight * np.mean(recall[kind]) for kind, weight in WEIGHTS.items())
    return float(total / sum(WEIGHTS.values()))


def _fused(one: Seen, base: tuple[int, ...]) -> NDArray[np.float32]:
    """Masses by words together with ``base`` and each head, float32 [n_heads, n_chunks]."""
    others = one.masses[list(base)].sum(axis=0)
    together: NDArray[np.float32] = (one.masses + others) / np.float32(len(base) + 1)
    return (together + one.words) / np.float32(2)


def _each(
    seen: Sequence[Seen], masses_of: Callable[[Seen], NDArray[np.float32]]
) -> NDArray[np.float64]:
    """Whether each prompt's needle is kept by each way, float64 [n_prompts, n_keeps, n_ways]."""
    found = []
    for one in seen:
        masses = masses_of(one)
        kept = np.empty((len(KEEPS), len(masses)), np.uint8)
        reason = np.empty(one.n, np.uint8)
        for i, n_left in enumerate(one.n_left):
            count_kept(masses, one.chunks, n_left, one.needle, reason, kept[i])
        found.append(kept)
    return np.stack(found).astype(np.float64)
