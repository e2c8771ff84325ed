"""A source file that is made up: functions and constants that stand alone, and what to ask of them.

Names are drawn without any twice, and what a function calls is called nowhere else, so that each
question has one answer and one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

SOURCE_GAP = "\n\n"
CODE_KINDS = ("number", "call", "constant")

_VERBS = (
    *("align", "bundle", "clip", "drain", "escape", "flatten", "group", "hoist", "inspect"),
    *("join", "link", "mask", "nudge", "order", "pack", "query", "rotate", "split", "trim"),
)
_ADJECTIVES = (
    *("active", "broken", "central", "dense", "empty", "final", "global", "hidden", "idle"),
    *("latent", "mutable", "nested", "outer", "partial", "quiet", "remote", "sparse", "upper"),
)
_NOUNS = (
    *("anchor", "buffer", "column", "digest", "entry", "filter", "gauge", "header", "index"),
    *("journal", "ledger", "margin", "node", "offset", "packet", "queue", "record", "signal"),
)
_ARGUMENTS = ("value", "items", "source", "count", "state")
_NUMBER = '''\
def {name}({arg}):
    """{phrase}."""
    check({arg}, {small})
    return {answer}'''
_CALL = '''\
def {name}({arg}):
    """{phrase}."""
    if {arg} is None:
        {arg} = {small}
    return {answer}({arg})'''
_CONSTANT = "# What to {words}.\n{name} = {answer}"

_TEXTS = {"number": _NUMBER, "call": _CALL, "constant": _CONSTANT}
_QUESTIONS = {
    "number": "Which number does the function {name} return?",
    "call": "Which function does {name} call?",
    "constant": "What is the value of the constant {name}?",
}
_BEGINS = {
    "number": "The function {name} returns the number",
    "call": "The function {name} calls the function",
    "constant": "The value of the constant {name} is",
}


@dataclass(frozen=True)
class SourcePart:
    """A function or a constant.

    Attributes
    ----------
    kind : one of ``CODE_KINDS``: a number that is returned, a function that is called, a constant
    text : as it stands in the file, without blank lines around
    question, answer_begin, answer : what may be asked of it
    """

    kind: str
    text: str
    question: str
    answer_begin: str
    answer: str


def source_parts(rng: np.random.Generator) -> Sequence[SourcePart]:
    """Parts of a file, in order; more than 2,000, no two of them with a name in common."""
    phrases = list(product(_VERBS, _ADJECTIVES, _NOUNS))
    drawn = iter([phrases[i] for i in rng.permutation(len(phrases)).tolist()])
    kinds = rng.choice(CODE_KINDS, 2 * len(phrases) // 5, p=(0.4, 0.4, 0.2)).tolist()
    return [_part(kind, next(drawn), next(drawn), rng) for kind in kinds]


def _part(
    kind: str, phrase: tuple[str, ...], other: tuple[str, ...], rng: np.random.Generator
) -> SourcePart:
    name = "_".join(phrase)
    if kind == "constant":
        name = name.upper()
    answer = "_".join(other) if kind == "call" else str(rng.integers(10_000, 100_000))
    verb, adjective, noun = phrase
    text = _TEXTS[kind].format(
        name=name,
        arg=rng.choice(_ARGUMENTS),
        phrase=f"{verb.capitalize()} the {adjective} {noun}",
        words=f"{verb} of the {adjective} {noun}",
        small=rng.integers(2, 10),
        answer=answer,
    )
    question, begin = _QUESTIONS[kind].format(name=name), _BEGINS[kind].format(name=name)
    return SourcePart(kind, text, question, begin, answer)
