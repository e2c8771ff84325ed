"""What --show-examples shows: the drafts of each row that won most, and that cost most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .rows import Row

if TYPE_CHECKING:
    import numpy as np

    from ...engine.tokens.tokenizer import Tokenizer
    from ...ngram.conversations.conversation import ReplayTexts
    from ...ngram.drafters.replay import Example

# Tokens shown before a draft, and of what the text says instead of its rejected part.
TOKENS_BEFORE = 12
TOKENS_BEHIND = 8


def examples_of(
    rows: Sequence[Row], texts: ReplayTexts, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Return the examples of all rows, each with its texts."""
    found = []
    for row in rows:
        for what, examples in (("longest", row.stats.longest), ("costliest", row.stats.costliest)):
            for example in examples:
                found.append(
                    {
                        "drafter": str(row.spec),
                        "upstream_exact": row.spec.upstream_exact,
                        "by": row.spec.names[example.drafter].name,
                        "what": what,
                        "n_drafted": int(example.drafted.size),
                        "n_accepted": example.accepted,
                    }
                    | _texts(example, texts, tokenizer)
                )
    return found


def _texts(example: Example, texts: ReplayTexts, tokenizer: Tokenizer) -> dict[str, str]:
    """Return what stands around a draft, and the two parts of it."""
    import numpy as np

    at, n = example.at, example.accepted
    turn = int(np.searchsorted(texts.turns[:, 0], at, side="right")) - 1
    start, stop = int(texts.prompts[turn]), int(texts.turns[turn, 1])
    behind = at + n
    return {
        "before": _text(texts.tokens[max(start, at - TOKENS_BEFORE) : at], tokenizer),
        "accepted": _text(example.drafted[:n], tokenizer),
        "rejected": _text(example.drafted[n:], tokenizer),
        "instead": _text(texts.tokens[behind : min(stop, behind + TOKENS_BEHIND)], tokenizer),
    }


def _text(tokens: np.ndarray, tokenizer: Tokenizer) -> str:
    from ...engine.tokens.detokenise import TextStream

    decoder = TextStream(tokenizer, special=True)
    return decoder.feed(tokens.tolist()) + decoder.finish()


def example_lines(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the examples for people: what was accepted in [ ], what was rejected in { }."""
    lines: list[str] = []
    title = None
    for example in examples:
        form = ", as llama.cpp has it" if example["upstream_exact"] else ""
        kind = "accepted" if example["what"] == "longest" else "rejected"
        most = f"{example['drafter']}{form}, most {kind}:"
        if most != title:
            lines += ["", most]
            title = most
        parts = f"…{example['before']}[{example['accepted']}]{{{example['rejected']}}}"
        lines.append(f"  {example['n_accepted']} of {example['n_drafted']}: {parts}")
        if example["rejected"]:
            lines.append(f"    the text: {example['instead']}…")
    return lines
