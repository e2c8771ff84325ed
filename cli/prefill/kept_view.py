"""A prompt with what was kept; what was dropped is dim in a terminal, and a mark elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..generate.stream import Color

if TYPE_CHECKING:
    from ...prefill.pipeline import Choice

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def kept_pieces(choice: Choice) -> list[dict[str, Any]]:
    """Runs of kept tokens: "start" and "stop" in the prompt's tokens, and the "text"."""
    return [
        {"start": start, "stop": stop, "text": _text(choice, start, stop)}
        for start, stop, is_kept in _runs(choice)
        if is_kept
    ]


def show_kept(choice: Choice, color: Color) -> None:
    """Print the prompt on stderr."""
    from ..generate.stream import shown_safely

    is_terminal = sys.stderr.isatty()
    dims = color is Color.ON or (color is Color.AUTO and is_terminal)
    pieces = []
    for start, stop, is_kept in _runs(choice):
        text = _text(choice, start, stop)
        if is_terminal:
            text = shown_safely(text)
        if is_kept:
            pieces.append(text)
        elif dims:
            pieces.append(f"{DIM}{text}{PLAIN}")
        else:
            pieces.append(f"[... {stop - start} tokens ...]")
    sys.stderr.write("".join(pieces) + "\n\n")
    sys.stderr.flush()


def _runs(choice: Choice) -> list[tuple[int, int, bool]]:
    """First and after the last token of each run of kept or dropped ones."""
    import numpy as np

    is_kept = np.zeros(choice.parts.n, np.int8)
    is_kept[choice.kept] = 1
    borders = np.flatnonzero(np.diff(is_kept)) + 1
    starts = [0, *borders.tolist()]
    stops = [*borders.tolist(), choice.parts.n]
    return [(a, b, bool(is_kept[a])) for a, b in zip(starts, stops, strict=True) if a < b]


def _text(choice: Choice, start: int, stop: int) -> str:
    """What a run of tokens says; nothing is known of ids without a text."""
    spans = choice.parts.spans
    if spans is None:
        return f"[{stop - start} tokens]"
    text = spans.text[int(spans.start[start]) : int(spans.stop[stop - 1])]
    return text.decode("utf-8", "replace")
