"""Write engine/tokens/unicode_table.py: the class of every Unicode code point, as ranges.

Run by hand, when the Unicode version that the tokenizers follow changes::

    pip install unicodedata2==15.1.0
    python scripts/make_unicode_classes.py > engine/tokens/unicode_table.py

Python's own ``unicodedata`` will not do: its version changes with Python's, while llama.cpp
splits text by the tables of Unicode 15.1, whatever the platform.
"""

from __future__ import annotations

import sys
import textwrap

import unicodedata2

UNICODE_VERSION = "15.1.0"
N_CODE_POINTS = 0x110000

# White_Space (PropList.txt) is the separators and these controls.
CONTROL_WHITESPACE = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85}

HEADER = '''"""The class of every Unicode code point (version {version}), as ranges.

Written by scripts/make_unicode_classes.py; do not edit. Each item of ``RANGES`` is the first code
point of a range in hexadecimal, then the range's class: L letter, N number, M mark,
P punctuation, W whitespace (the White_Space property), - anything else. A range ends where the
next begins; the last one ends at 0x110000.
"""

UNICODE_VERSION = "{version}"

RANGES = """
{ranges}
"""
'''


def class_of(code_point: int) -> str:
    """Class letter of a code point, as the module's header describes."""
    major = unicodedata2.category(chr(code_point))[0]
    if major == "Z" or code_point in CONTROL_WHITESPACE:
        return "W"
    return major if major in "LNMP" else "-"


def main() -> int:
    """Print the module; return the exit status."""
    if unicodedata2.unidata_version != UNICODE_VERSION:
        print(f"unicodedata2 {UNICODE_VERSION} is needed", file=sys.stderr)
        return 1
    items, previous = [], ""
    for code_point in range(N_CODE_POINTS):
        name = class_of(code_point)
        if name != previous:
            items.append(f"{code_point:x}{name}")
            previous = name
    ranges = textwrap.fill(" ".join(items), width=98, break_on_hyphens=False)
    print(HEADER.format(version=UNICODE_VERSION, ranges=ranges), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
