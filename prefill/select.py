"""What of a prompt to keep within a budget of tokens, by the scores of its tokens.

First all that is mandatory; then chunks of the document, the best first, each at once with the
rest of the sentences or lines that it cuts, or of the words where no sentence ends near or its
end does not fit: half of a passage answers nothing, and what waits for its other half finds the
budget spent. What is sought may go on after a sentence, so a chunk is worth half of its left
neighbour, at least. Of equal chunks the first wins; one that is worth nothing is not taken, though
there be room: it would cost the target time, and say nothing.

Where scores or budget leave no sound choice, the answer is ``Refused``, for a prefill in full.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import UsageError
from .defaults import KEEP, MIN_TOKENS
from .prompt.paragraphs import SENTENCE_END
from .prompt.parts import CHUNK, PromptParts
from .prompt.spans import TokenSpans
from .scorers.scores import Scores
from .select_kernels import NEIGHBOUR_SHARE, keep_chunks, sum_chunks, weigh_chunks

MANDATORY_MOST = 0.6  # of the budget

_SENTENCE_MOST, _WORD_MOST = CHUNK, 8  # tokens that are added on a side
_FLAT = 1e-6

# Where a line ends, or a sentence, with what closes after it; and the bytes they begin with.
_END = re.compile(f"(?<!\\n)\\n+|{SENTENCE_END}".encode())
_BEGINS_END = np.isin(np.arange(256), list(b"\n.!?\xe2\xe3\xef"))
_IS_BLANK = np.isin(np.arange(256), list(b" \t\n\v\f\r"))


class Reason(IntEnum):
    """Why a token is kept."""

    MANDATORY = 1
    PICKED = 2  # its chunk's score
    NEIGHBOUR = 3  # the score of the chunk on its left
    WIDENED = 4  # to end a word, a sentence or a line


class Refusal(StrEnum):
    """What speaks against dropping anything."""

    UNPLACED = "unplaced"  # it is not known where question and document are
    SHORT = "short"
    NOT_FINITE = "not-finite"
    NO_QUESTION = "no-question"
    NO_DOCUMENT = "no-document"
    MANDATORY = "mandatory"
    FLAT = "flat"


@dataclass(frozen=True)
class Refused:
    """Nothing may be dropped: prefill in full.

    Attributes
    ----------
    kind : what speaks against it.
    reason : the same in words; one line.
    """

    kind: Refusal
    reason: str


@dataclass(frozen=True, eq=False)
class Selection:
    """Tokens of a prompt to keep.

    Attributes
    ----------
    kept : int32 [n_kept], ascending.
    reasons : uint8 [n_kept], a ``Reason`` each.
    n_tokens : of the whole prompt.
    budget : tokens that might have been kept.
    n_document : kept tokens that were not mandatory.
    mass_kept : their share of all scores of the document, 0 to 1.
    """

    kept: NDArray[np.int32]
    reasons: NDArray[np.uint8]
    n_tokens: int
    budget: int
    n_document: int
    mass_kept: float


def select(
    parts: PromptParts,
    scores: Scores,
    *,
    keep: float = KEEP,
    chunk: int = CHUNK,
    min_tokens: int = MIN_TOKENS,
    neighbours: bool = True,
    widen: bool = True,
) -> Selection | Refused:
    """Choose what to keep of a prompt.

    Parameters
    ----------
    keep : share of the prompt's tokens that may be kept, above 0, at most 1; mandatory tokens
        count. Never is more kept than ``round(keep * n)``.
    chunk : tokens that are kept or dropped together.
    min_tokens : shorter prompts are refused.
    neighbours : let a chunk be worth a half of its left neighbour, at least.
    widen : to words, sentences and lines.

    Raises
    ------
    UsageError : ``keep`` is not in range.
    ValueError : the scores are not those of this prompt.
    """
    if not 0 < keep <= 1:
        raise UsageError(
            f"a share of {keep} of a prompt cannot be kept",
            remedy="give a share above 0, and at most 1",
        )
    if scores.values.shape != (parts.n,):
        raise ValueError(f"{scores.values.shape} scores for {parts.n} tokens")
    budget = round(keep * parts.n)
    refused = _refuse_prompt(parts, scores, min_tokens)
    if refused is not None:
        return refused
    reason = np.where(parts.is_document, 0, Reason.MANDATORY).astype(np.uint8)
    if budget == parts.n > 0:
        reason[parts.is_document] = Reason.PICKED
        return _selection(parts, scores, reason, budget)
    chunks = parts.chunks(chunk)
    sums = np.empty(len(chunks))
    sum_chunks(scores.values, chunks, sums)
    refused = _refuse_budget(parts, budget, sums / np.maximum(1, chunks[:, 1] - chunks[:, 0]))
    if refused is not None:
        return refused
    _pick(parts, chunks, sums, budget - parts.n_mandatory, neighbours, widen, reason)
    return _selection(parts, scores, reason, budget)


def _refuse_prompt(parts: PromptParts, scores: Scores, min_tokens: int) -> Refused | None:
    """What speaks against the prompt or its scores, whatever the budget."""
    if parts.problem:
        return Refused(Refusal.UNPLACED, parts.problem)
    if parts.n < min_tokens:
        return Refused(
            Refusal.SHORT,
            f"the prompt has {parts.n} tokens, and to drop some pays from {min_tokens} on",
        )
    n_bad = int(np.count_nonzero(~np.isfinite(scores.values[parts.is_document])))
    if n_bad:
        return Refused(
            Refusal.NOT_FINITE,
            f"{n_bad} of {parts.n_document} scores of '{scores.scorer}' are not finite",
        )
    return None


def _refuse_budget(parts: PromptParts, budget: int, means: NDArray[np.float64]) -> Refused | None:
    """What speaks against a choice by the chunks' scores, float64 [n_chunks], a token."""
    if not parts.n_document:
        return Refused(Refusal.NO_DOCUMENT, "the prompt holds nothing that may be dropped")
    if parts.question[0] == parts.question[1]:
        return Refused(Refusal.NO_QUESTION, "the prompt asks no question")
    if parts.n_mandatory > MANDATORY_MOST * budget:
        percent = math.ceil(100 * parts.n_mandatory / MANDATORY_MOST / parts.n)
        advice = f"; to keep {percent / 100:g} would do" if percent < 100 else ""
        return Refused(
            Refusal.MANDATORY,
            f"question, system and template take {parts.n_mandatory} of {budget} tokens that may "
            f"be kept, more than {MANDATORY_MOST:.0%}{advice}",
        )
    most = float(np.abs(means).max())
    if most == 0 or (means.size > 1 and float(means.max() - means.min()) <= _FLAT * most):
        return Refused(Refusal.FLAT, "no part of the document scores above any other")
    return None


def _pick(
    parts: PromptParts,
    chunks: NDArray[np.int32],
    sums: NDArray[np.float64],
    n_left: int,
    neighbours: bool,
    widen: bool,
    reason: NDArray[np.uint8],
) -> None:
    """Spend ``n_left`` tokens on chunks with these sums of scores, and on what completes them."""
    worth = np.empty_like(sums)
    weigh_chunks(sums, chunks, NEIGHBOUR_SHARE if neighbours else 0.0, worth)
    order = np.argsort(-worth, kind="stable")
    why = np.where(worth > sums, Reason.NEIGHBOUR, Reason.PICKED).astype(np.uint8)
    sentences = words = np.empty(0, np.bool_)
    if widen and parts.spans is not None:
        sentences, words = sentence_borders(parts.spans), word_borders(parts.spans)
    keep_chunks(
        chunks,
        order[worth[order] != 0],
        why,
        sentences.view(np.uint8),
        words.view(np.uint8),
        (_SENTENCE_MOST, _WORD_MOST),
        int(Reason.WIDENED),
        n_left,
        reason,
    )


def word_borders(spans: TokenSpans) -> NDArray[np.bool_]:
    """Whether the text may be cut before each token, and at its end, without parting a word.

    bool [n + 1]. Scripts without spaces may be cut at any character.
    """
    text = np.frombuffer(spans.text + b" ", np.uint8)
    before = np.concatenate((text[-1:], text))  # before[i]: the byte before byte i
    at, is_blank = spans.start, _IS_BLANK
    found = is_blank[text[at]] | is_blank[before[at]] | (text[at] >= 0xE3)
    return np.append(found, True) & spans.begins_character


def sentence_borders(spans: TokenSpans) -> NDArray[np.bool_]:
    """Whether a sentence or a line has ended before each token, and at the end; bool [n + 1]."""
    found = np.zeros(spans.start.size + 1, np.bool_)
    places = np.flatnonzero(_BEGINS_END[np.frombuffer(spans.text, np.uint8)]).tolist()
    matches = [_END.match(spans.text, place) for place in places]
    ends = np.array([match.end() for match in matches if match], np.int64)
    found[np.searchsorted(spans.start, ends, "left")] = True
    found[-1] = True
    return found & spans.begins_character


def _selection(
    parts: PromptParts, scores: Scores, reason: NDArray[np.uint8], budget: int
) -> Selection:
    kept = np.flatnonzero(reason).astype(np.int32)
    values = scores.values.astype(np.float64)
    total = values[parts.is_document].sum()
    mass = values[(reason != 0) & parts.is_document].sum() / total if total > 0 else 0.0
    return Selection(
        kept=kept,
        reasons=reason[kept],
        n_tokens=parts.n,
        budget=budget,
        n_document=kept.size - parts.n_mandatory,
        mass_kept=float(mass),
    )
