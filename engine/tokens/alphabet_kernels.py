"""Kernel that undoes the byte alphabet of GPT-2.

Byte-level vocabularies spell each byte as a printable character: the 188 printable ones of
Latin-1 stand for themselves, the other 68 are U+0100 and on, in their order.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def spell_out(text, start, stop, byte_of, out, out_start, out_middle):
    """Turn strings of the alphabet into the bytes that they stand for.

    Parameters
    ----------
    text : uint8 [n]; start, stop : int64 [n_strings], UTF-8 strings in it.
    byte_of : int16 [0x144], byte that each code point stands for, -1 for none.
    out : uint8 [bytes of all strings], out.
    out_start : int64 [n_strings + 1], out, where each string's bytes begin in ``out``; a string
        with a character outside of the alphabet has none.
    out_middle : int64 [n_strings], out, where in ``out`` the string's only space would be, which
        leaves no byte itself; -1 without a space or with several, -2 with a character outside
        of the alphabet.
    """
    n_out = 0
    for i in range(start.size):
        out_start[i] = n_out
        middle, n_spaces = -1, 0
        at = start[i]
        while at < stop[i]:
            first = np.int64(text[at])
            code_point = first
            if first >= 0x80:
                code_point = 0x143 + 1
                if 0xC2 <= first <= 0xC5 and at + 1 < stop[i] and (text[at + 1] & 0xC0) == 0x80:
                    code_point = ((first & 0x1F) << 6) | (np.int64(text[at + 1]) & 0x3F)
                at += 1
            at += 1
            if code_point == 0x20:
                middle = n_out
                n_spaces += 1
            elif code_point > 0x143 or byte_of[code_point] < 0:
                n_spaces = -1
                break
            else:
                out[n_out] = byte_of[code_point]
                n_out += 1
        if n_spaces < 0:
            n_out = out_start[i]
            middle = -2
        out_middle[i] = middle if n_spaces <= 1 else -1
    out_start[start.size] = n_out
