"""Class tables for the splitters: one byte a code point, small enough to stay in cache for ASCII.

The classes follow the Unicode version that llama.cpp follows (see ``unicode_table``), not the one
of the running Python.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from .unicode_table import RANGES

N_CODE_POINTS = 0x110000

# Class codes of the splitter kernels. 0 is what a kernel reads beyond the end of a segment.
OTHER, LETTER, NUMBER, WHITESPACE, ISOLATED = 1, 2, 3, 4, 5

# ASCII symbols that the "default" pre-tokenizer isolates together with punctuation; of ASCII's
# symbols only the grave accent stays out.
_ISOLATED_SYMBOLS = b"$+<=>^|~"


@cache
def _range_classes() -> tuple[NDArray[np.int64], list[str]]:
    items = RANGES.split()
    start = np.array([int(item[:-1], 16) for item in items] + [N_CODE_POINTS], np.int64)
    return np.diff(start), [item[-1] for item in items]


def class_table(
    *, marks_are_letters: bool = False, isolate_punctuation: bool = False
) -> NDArray[np.uint8]:
    """Class of every code point, uint8 [0x110000].

    Parameters
    ----------
    marks_are_letters : combining marks continue a word (qwen35); otherwise they are OTHER.
    isolate_punctuation : punctuation and most ASCII symbols are ISOLATED (default); otherwise
        they are OTHER.
    """
    code = {
        "L": LETTER,
        "N": NUMBER,
        "W": WHITESPACE,
        "M": LETTER if marks_are_letters else OTHER,
        "P": ISOLATED if isolate_punctuation else OTHER,
        "-": OTHER,
    }
    size, names = _range_classes()
    table = np.repeat(np.array([code[name] for name in names], np.uint8), size)
    if isolate_punctuation:
        table[list(_ISOLATED_SYMBOLS)] = ISOLATED
    return table
