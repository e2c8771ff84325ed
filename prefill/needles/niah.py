"""Needles in haystacks: prompts whose answers are known, and whose place in the text is, too.

Two things are asked of a prompt that was cut: is the needle still there, and is the answer right?
The kinds differ in what ties question and needle: the same words (keyed), a key alone (reworded),
knowledge (paraphrase), meaning (semantic); in how much looks like a needle; and in how many places
matter (as in RULER). Common words cannot be counted in a part of a text: that kind has to fail.
Nothing is hidden where a text itself is asked about: verses of the bundled one, and a source file
that is made up.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...engine.errors import InputTooShort, InputUnreadable, UsageError
from ...engine.tokens.tokenizer import Tokenizer
from ..pipeline import Choice
from ..prompt.spans import TokenSpans
from ..select import sentence_borders
from . import texts
from .code import CODE_KINDS, SOURCE_GAP, source_parts

BUNDLED = Path(__file__).with_name("haystack.txt.gz")
LEAST_CONTEXT = 256

_N_DISTRACTORS, _N_KEYS, _N_VALUES, _N_HOPS, _N_OTHER_FACTS = 3, 8, 4, 3, 7
_N_COMMON, _TIMES_COMMON = 5, 8
_SHORT, _LONG = 16, 48
_MARGIN = 8  # tokens of pieces together may be some more than their sum


@dataclass(frozen=True)
class Probe:
    """A prompt with a needle.

    Attributes
    ----------
    kind : one of ``KINDS``
    context : tokens that prompt and answer have at most
    depth : where the needle is, of the text, 0 to 1
    document, question : the prompt
    answer_begin : what the answer is to begin with; the scorer does not see it
    expected : what a right answer says
    needles : what has to be kept of the document, as it stands there, each once
    n_predict : tokens that an answer needs
    """

    kind: str
    context: int
    depth: float
    document: str
    question: str
    answer_begin: str
    expected: tuple[str, ...]
    needles: tuple[str, ...]
    n_predict: int


class Haystack:
    """A long text, cut at the ends of sentences.

    Parameters
    ----------
    text : repeated where a longer one is wanted

    Attributes
    ----------
    n_tokens : of the text
    tokenizer : of those tokens

    Raises
    ------
    InputTooShort : it has no two sentences
    """

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        raw = text.strip().encode() + b"\n"
        ids = tokenizer.encode(raw, add_special=False, parse_special=False)
        spans = TokenSpans.of(raw, ids, tokenizer)
        borders = np.flatnonzero(sentence_borders(spans))
        borders = borders[(borders > 0) & (borders < ids.size)]
        if borders.size < 2:
            raise InputTooShort(
                "the haystack has no two sentences", remedy="give a longer --haystack"
            )
        self._borders = np.concatenate(([0], borders, [ids.size]))
        starts = np.append(spans.start, len(raw))[self._borders]
        self._pieces = [raw[a:b] for a, b in pairwise(starts.tolist())]
        self.n_tokens = int(ids.size)
        self.tokenizer = tokenizer

    def sentences(self, n_tokens: int, place: float) -> tuple[list[str], list[int]]:
        """Sentences in order, of at most ``n_tokens``, and their tokens.

        Parameters
        ----------
        place : of the first one, 0 to below 1: of those that have as much text after them
        """
        last = int(np.searchsorted(self._borders, self.n_tokens - n_tokens, "right"))
        return self._from(int(place * max(1, last)), n_tokens)

    def around(self, passage: str, n_tokens: int, depth: float) -> list[str]:
        """Sentences of at most ``n_tokens``, with the one that holds a passage at a depth, 0 to 1.

        Before the first sentence stands the last one.

        Raises
        ------
        UsageError : the text is shorter than that
        ValueError : no sentence holds the passage
        """
        if n_tokens > self.n_tokens:
            raise UsageError(
                f"the text that is asked about has {self.n_tokens} tokens",
                remedy="give a smaller --context, or other --kinds",
            )
        wanted = passage.encode()
        at = next((i for i, piece in enumerate(self._pieces) if wanted in piece), -1)
        if at < 0:
            raise ValueError(f"no sentence holds {passage!r}")
        sizes = self._sizes
        left = depth * (n_tokens - sizes[at])
        while sizes[at - 1] <= left:
            at -= 1
            left -= sizes[at]
        return self._from(at, n_tokens)[0]

    @cached_property
    def _sizes(self) -> list[int]:
        sizes: list[int] = np.diff(self._borders).tolist()
        return sizes

    def _from(self, at: int, n_tokens: int) -> tuple[list[str], list[int]]:
        """Sentences from one on, of at most ``n_tokens``, and their tokens."""
        sizes, n_pieces = self._sizes, len(self._pieces)
        found: list[str] = []
        counts: list[int] = []
        while sizes[at % n_pieces] <= n_tokens:
            found.append(self._pieces[at % n_pieces].decode("utf-8", "replace"))
            counts.append(sizes[at % n_pieces])
            n_tokens -= counts[-1]
            at += 1
        return found, counts


def bundled_text() -> str:
    """The haystack that comes along: verses of the King James Bible.

    Raises
    ------
    InputUnreadable : this installation lacks the file
    """
    try:
        return gzip.decompress(BUNDLED.read_bytes()).decode()
    except OSError as error:
        raise InputUnreadable(
            f"the haystack is missing from this installation ({BUNDLED})",
            remedy="install draftsmith again, or name one with --haystack",
        ) from error


@dataclass(frozen=True)
class _Task:
    """What a kind of prompt hides and asks.

    Attributes
    ----------
    hidden : sentences to hide; the first at the depth, the others anywhere, or, if ``in_order``,
        after it
    needles : those that matter
    """

    hidden: tuple[str, ...]
    needles: tuple[str, ...]
    question: str
    answer_begin: str
    expected: tuple[str, ...]
    n_predict: int = _SHORT
    in_order: bool = False


def _number(rng: np.random.Generator) -> str:
    return str(rng.integers(10_000, 100_000))


def _cities(n: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    return [texts.CAPITALS[i] for i in rng.permutation(len(texts.CAPITALS))[:n]]


def _numbers_task(
    questions: Sequence[str], n_others: int
) -> Callable[[np.random.Generator, int], _Task]:
    """A number for a city, and other numbers for others."""

    def make(rng: np.random.Generator, turn: int) -> _Task:
        places = _cities(1 + n_others, rng)
        numbers = [_number(rng) for _ in places]
        hidden = tuple(
            texts.NEEDLE.format(city=city, number=number)
            for (city, _), number in zip(places, numbers, strict=True)
        )
        city, country = places[0]
        return _Task(
            hidden,
            hidden[:1],
            questions[turn % len(questions)].format(city=city, country=country),
            texts.ANSWER.format(city=city),
            (numbers[0],),
        )

    return make


def _facts_task(n_others: int) -> Callable[[np.random.Generator, int], _Task]:
    """A fact that is told in other words than it is asked for, each in turn, and other facts."""

    def make(rng: np.random.Generator, turn: int) -> _Task:
        asked = turn % len(texts.FACTS)
        drawn = rng.permutation(len(texts.FACTS)) if n_others else ()
        others = [i for i in drawn if i != asked][:n_others]
        fact = texts.FACTS[asked]
        hidden = (fact.sentence, *(texts.FACTS[i].sentence for i in others))
        return _Task(hidden, hidden[:1], fact.question, "", (fact.answer,), 2 * _SHORT)

    return make


def _many_values(rng: np.random.Generator, turn: int) -> _Task:
    ((city, _),) = _cities(1, rng)
    numbers = tuple(_number(rng) for _ in range(_N_VALUES))
    hidden = tuple(texts.NEEDLE.format(city=city, number=number) for number in numbers)
    return _Task(
        hidden,
        hidden,
        texts.MANY_VALUES.format(city=city),
        texts.MANY_ANSWER.format(city=city),
        numbers,
        _LONG,
    )


def _variables(rng: np.random.Generator, turn: int) -> _Task:
    letters = [chr(65 + i) for i in range(26)]
    names = ["".join(rng.choice(letters, 5)) for _ in range(_N_HOPS)]
    value = _number(rng)
    values = [value, *(f"VAR {name}" for name in names)]
    hidden = tuple(
        texts.VARIABLE.format(name=name, value=value)
        for name, value in zip(names, values, strict=False)
    )
    return _Task(
        hidden,
        hidden,
        texts.VARIABLES_QUESTION.format(value=value),
        texts.VARIABLES_ANSWER.format(value=value),
        tuple(names),
        _LONG,
        in_order=True,
    )


_TASKS: dict[str, Callable[[np.random.Generator, int], _Task]] = {
    "keyed": _numbers_task(texts.KEYED, 0),
    "reworded": _numbers_task(texts.REWORDED, 0),
    "paraphrase": _numbers_task(texts.PARAPHRASE, 0),
    "distractors": _numbers_task(texts.KEYED, _N_DISTRACTORS),
    "reworded-distractors": _numbers_task(texts.REWORDED, _N_DISTRACTORS),
    "paraphrase-distractors": _numbers_task(texts.PARAPHRASE, _N_DISTRACTORS),
    "semantic": _facts_task(0),
    "multi-key": _numbers_task(texts.KEYED, _N_KEYS),
    "multi-value": _many_values,
    "variables": _variables,
}
COMMON, VERSES, CODE, CROWDED = "common-words", "verses", "code", "semantic-distractors"
# Prompts are drawn by the place of their kind here, so that new ones come last.
KINDS = (*_TASKS, COMMON, VERSES, CODE, CROWDED)
_TASKS[CROWDED] = _facts_task(_N_OTHER_FACTS)


class Probes:
    """Makes prompts.

    Parameters
    ----------
    count : tokens of a prompt of (document, question, beginning of the answer)
    seed : of what is drawn: the same gives the same prompts
    """

    def __init__(
        self, haystack: Haystack, count: Callable[[str, str, str], int], seed: int
    ) -> None:
        self._haystack = haystack
        self._count = count
        self._seed = seed

    def make(self, kind: str, context: int, depth: float, turn: int) -> Probe:
        """A prompt that has, with its answer, at most ``context`` tokens.

        Parameters
        ----------
        depth : of the first needle, 0 to 1
        turn : another one of the same kind, context and depth

        Raises
        ------
        UsageError : no such kind, or a context that is too short for what is to be hidden
        """
        if kind not in KINDS:
            raise UsageError(
                f"no kind of question is called {kind!r}", remedy=f"give some of {', '.join(KINDS)}"
            )
        rng = np.random.default_rng(
            [self._seed, KINDS.index(kind), context, round(1000 * depth), turn]
        )
        if kind == COMMON:
            return self._common_words(context, rng)
        # The turn of a question depends on the depth, too: not all of a row ask the same.
        turn += round(7 * depth) * 5
        if kind == VERSES:
            return self._verses(context, depth, turn)
        if kind == CODE:
            return self._code(context, depth, rng, turn)
        task = _TASKS[kind](rng, turn)
        room = context - task.n_predict - _MARGIN
        room -= self._count(" ".join(task.hidden), task.question, task.answer_begin)
        sentences, sizes = self._haystack.sentences(
            max(0, room - 2 * len(task.hidden)), float(rng.random())
        )
        if context < LEAST_CONTEXT or len(sentences) < 2:
            raise no_room(context, room)
        depths = rng.random(len(task.hidden))
        if task.in_order:
            depths = np.sort(depth + depths * (1 - depth))
        depths[0] = depth
        return Probe(
            kind=kind,
            context=context,
            depth=depth,
            document=hide(sentences, sizes, task.hidden, depths),
            question=task.question,
            answer_begin=task.answer_begin,
            expected=task.expected,
            needles=task.needles,
            n_predict=task.n_predict,
        )

    def _common_words(self, context: int, rng: np.random.Generator) -> Probe:
        """A list of words of which a few are often there; there is no needle."""
        question = texts.COMMON_QUESTION.format(n=_N_COMMON)
        begin = texts.COMMON_ANSWER.format(n=_N_COMMON)
        words = rng.permutation(texts.COMMON_WORDS).tolist()
        common, others = words[:_N_COMMON], words[_N_COMMON:]

        def listed(n: int) -> str:
            pool = common * (_TIMES_COMMON * n) + others * n
            order = np.random.default_rng(n).permutation(len(pool))
            return " ".join(f"{i + 1}. {pool[j]}" for i, j in enumerate(order.tolist()))

        n, room = 1, context - _LONG - _MARGIN
        while self._count(listed(n + 1), question, begin) <= room:
            n += 1
        document = listed(n)
        if self._count(document, question, begin) > room:
            raise UsageError(
                f"a context of {context} tokens has no room for a list of words",
                remedy="give 1024 or more",
            )
        return Probe(
            kind=COMMON,
            context=context,
            depth=0.0,
            document=document,
            question=question,
            answer_begin=begin,
            expected=tuple(common),
            needles=(),
            n_predict=_LONG,
        )

    def _verses(self, context: int, depth: float, turn: int) -> Probe:
        """The bundled text, from a place that puts what is asked for at the depth."""
        verse = texts.VERSES[turn % len(texts.VERSES)]
        room = context - _SHORT - _MARGIN - self._count("", verse.question, "")
        if context < LEAST_CONTEXT:
            raise no_room(context, room)
        return Probe(
            kind=VERSES,
            context=context,
            depth=depth,
            document="".join(self._bundled.around(verse.sentence, room, depth)).strip(),
            question=verse.question,
            answer_begin="",
            expected=(verse.answer,),
            needles=(verse.sentence,),
            n_predict=_SHORT,
        )

    @cached_property
    def _bundled(self) -> Haystack:
        return Haystack(bundled_text(), self._haystack.tokenizer)

    def _code(self, context: int, depth: float, rng: np.random.Generator, turn: int) -> Probe:
        """A source file that is made up; of one of its parts is asked."""
        parts = source_parts(rng)
        asked = next(part for part in parts if part.kind == CODE_KINDS[turn % len(CODE_KINDS)])
        question, begin = asked.question, asked.answer_begin
        room = context - _SHORT - _MARGIN - self._count(asked.text, question, begin)
        around, sizes = [], []
        bare = self._count("", "", "")
        for part in parts:
            if part is asked:
                continue
            size = self._count(part.text + SOURCE_GAP, "", "") - bare + 1
            if size > room:
                break
            around.append(part.text)
            sizes.append(size)
            room -= size
        if context < LEAST_CONTEXT or len(around) < 2:
            raise no_room(context, room)
        around.insert(_places(sizes, [depth])[0], asked.text)
        return Probe(
            kind=CODE,
            context=context,
            depth=depth,
            document=SOURCE_GAP.join(around),
            question=question,
            answer_begin=begin,
            expected=(asked.answer,),
            needles=(asked.text,),
            n_predict=_SHORT,
        )


def no_room(context: int, room: int) -> UsageError:
    """The error for a context that lacks room; ``room`` is what it has, and may be below 0."""
    return UsageError(
        f"a context of {context} tokens has no room for a haystack",
        remedy=f"give {max(LEAST_CONTEXT, context - room + 128)} or more",
    )


def hide(
    sentences: Sequence[str],
    sizes: Sequence[int],
    hidden: Sequence[str],
    depths: NDArray[np.float64],
) -> str:
    """The sentences with others between them, each at the border that is nearest to its depth."""
    places = _places(sizes, depths.tolist())
    pieces = []
    for at in range(len(sentences) + 1):
        pieces += [text for text, place in zip(hidden, places, strict=True) if place == at]
        if at < len(sentences):
            pieces.append(sentences[at])
    joined = ""
    for piece in pieces:
        gap = "" if not joined or joined[-1].isspace() or piece[:1].isspace() else " "
        joined += gap + piece
    return joined.strip()


def _places(sizes: Sequence[int], depths: Sequence[float]) -> list[int]:
    """The border of pieces of these sizes that is nearest to each depth, the first one being 0."""
    borders = np.concatenate(([0], np.cumsum(sizes)))
    return [int(np.abs(borders - depth * borders[-1]).argmin()) for depth in depths]


def needles_kept(probe: Probe, choice: Choice) -> float | None:
    """Share of the needles of which every token was kept, 0 to 1; None: there is none to keep."""
    if not probe.needles:
        return None
    spans = choice.parts.spans
    if choice.is_whole or spans is None:
        return 1.0 if choice.is_whole else 0.0
    n_kept = 0
    for needle in probe.needles:
        tokens = tokens_of(needle, spans)
        n_kept += int(tokens.size > 0 and np.isin(tokens, choice.kept).all())
    return n_kept / len(probe.needles)


def tokens_of(needle: str, spans: TokenSpans) -> NDArray[np.int32]:
    """The tokens that a text has of a needle, int32 [n], where it stands first; none: nowhere."""
    raw = needle.encode()
    at = spans.text.find(raw)
    if at < 0:
        return np.empty(0, np.int32)
    return spans.tokens_of(np.array([[at, at + len(raw)]], np.int64))


def recall(probe: Probe, answer: str) -> float:
    """Share of what is expected that an answer says, as words of their own; 0 to 1.

    An ending such as a plural's may follow a word, but no digit a number.
    """
    found = 0
    for wanted in probe.expected:
        behind = r"(?!\d)" if wanted.isdecimal() else ""
        pattern = rf"(?<!\w){re.escape(wanted)}{behind}"
        found += bool(re.search(pattern, answer, re.IGNORECASE))
    return found / len(probe.expected)
