"""Kernels that cut UTF-8 text into the pieces that byte-level BPE merges within.

Two families: the pattern of GPT-2 (with what other pre-tokenizers isolate before it) and that of
Llama 3. Both are written out by hand, as the regular expressions in the docstrings read; every
character is looked up in a class table (``unicode_classes``): 0 beyond the end, 1 other, 2 letter,
3 number, 4 whitespace, 5 isolated.

A fragment is a stretch of text between special tokens: no piece crosses its border and no
look-ahead sees beyond it. Pieces are ``piece_start``, ``piece_stop`` (int64, byte offsets); a
special token stands among them as a piece with ``piece_stop`` = -1 - id.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Called by kernels alone: without wrappers for Python a helper compiles faster.
_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_END, _OTHER, _LETTER, _NUMBER, _WHITESPACE = 0, 1, 2, 3, 4
_SPACE, _NEWLINE, _RETURN, _APOSTROPHE = 0x20, 0x0A, 0x0D, 0x27
_REPLACEMENT = 0xFFFD


@_helper
def _wide_class_at(text, at, stop, classes):
    """Class of the character of several bytes at ``at``, and its size; U+FFFD where malformed."""
    first = np.int64(text[at])
    code_point, size = np.int64(_REPLACEMENT), 1
    if 0xC0 <= first < 0xE0 and at + 1 < stop:
        code_point, size = first & 0x1F, 2
    elif 0xE0 <= first < 0xF0 and at + 2 < stop:
        code_point, size = first & 0x0F, 3
    elif 0xF0 <= first < 0xF5 and at + 3 < stop:
        code_point, size = first & 0x07, 4
    for i in range(1, size):
        code_point = (code_point << 6) | (np.int64(text[at + i]) & 0x3F)
    if code_point >= classes.size:
        code_point, size = np.int64(_REPLACEMENT), 1
    return np.int64(classes[code_point]), size


@_helper
def _class_at(text, at, stop, classes):
    """Class of the character at byte ``at``, and its size; (0, 0) at ``stop``."""
    if at >= stop:
        return np.int64(_END), 0
    if text[at] < 0x80:
        return np.int64(classes[text[at]]), 1
    return _wide_class_at(text, at, stop, classes)


@_helper
def _run_end(text, at, stop, classes, wanted):
    """End of the run of characters of class ``wanted`` that begins at ``at``."""
    kind, size = _class_at(text, at, stop, classes)
    while kind == wanted:
        at += size
        kind, size = _class_at(text, at, stop, classes)
    return at


@_helper
def _short_run_end(text, at, stop, classes, wanted, longest):
    """End of the run of class ``wanted`` at ``at``, or of its first ``longest`` characters."""
    kind, size = _class_at(text, at, stop, classes)
    while kind == wanted and longest > 0:
        at += size
        longest -= 1
        kind, size = _class_at(text, at, stop, classes)
    return at


@_helper
def _contraction_size(text, at, stop, lower_mask):
    """Bytes of 's 't 'm 'd 're 've 'll at ``at``, or 0. ``lower_mask`` 0x20 ignores the case."""
    if text[at] != _APOSTROPHE or at + 1 >= stop:
        return 0
    first = np.int64(text[at + 1]) | lower_mask
    if first == 0x73 or first == 0x74 or first == 0x6D or first == 0x64:  # s t m d
        return 2
    if at + 2 >= stop:
        return 0
    second = np.int64(text[at + 2]) | lower_mask
    if (first == 0x72 or first == 0x76) and second == 0x65:  # re ve
        return 3
    if first == 0x6C and second == 0x6C:  # ll
        return 3
    return 0


@_helper
def _whitespace_end(text, at, stop, classes, isolated):
    """End of the whitespace piece at ``at``: \\s+(?!\\S)|\\s+

    The last character of a run is left to what follows, if anything does.
    """
    last, count = at, 0
    kind, size = _class_at(text, at, stop, classes)
    while kind == _WHITESPACE:
        last = at
        count += 1
        at += size
        kind, size = _class_at(text, at, stop, classes)
    if count > 1 and kind != _END and kind != isolated:
        return last
    return at


@_helper
def _gpt2_piece_end(text, at, stop, classes, isolated):
    """End of the piece at ``at`` by GPT-2's pattern:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

    The text ends for it at a character of class ``isolated``.
    """
    size = _contraction_size(text, at, stop, 0)
    if size > 0:
        return at + size
    begin = at + 1 if text[at] == _SPACE else at
    kind, size = _class_at(text, begin, stop, classes)
    if kind in (_WHITESPACE, _END, isolated):
        return _whitespace_end(text, at, stop, classes, isolated)
    return _run_end(text, begin, stop, classes, kind)


@_helper
def _newline_end(text, at, stop, classes):
    """End of \\s*[\\r\\n]+ at ``at``: after the last line break of the whitespace; 0 without."""
    end = 0
    kind, size = _class_at(text, at, stop, classes)
    while kind == _WHITESPACE:
        if text[at] == _NEWLINE or text[at] == _RETURN:
            end = at + 1
        at += size
        kind, size = _class_at(text, at, stop, classes)
    return end


@_helper
def _llama3_piece_end(text, at, stop, classes, longest_number):
    """End of the piece at ``at`` by Llama 3's pattern, with its N as ``longest_number``:

    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,N}|
     ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+
    """
    size = _contraction_size(text, at, stop, 0x20)
    if size > 0:
        return at + size
    kind, size = _class_at(text, at, stop, classes)
    if kind == _NUMBER:
        return _short_run_end(text, at, stop, classes, kind, longest_number)
    if kind == _LETTER:
        return _run_end(text, at, stop, classes, kind)
    next_kind, _ = _class_at(text, at + size, stop, classes)
    is_line_break = text[at] == _NEWLINE or text[at] == _RETURN
    if next_kind == _LETTER and not is_line_break:
        return _run_end(text, at + size, stop, classes, next_kind)
    begin = at
    if text[at] == _SPACE:
        begin, kind = at + 1, next_kind
    if kind == _OTHER:
        end = _run_end(text, begin, stop, classes, kind)
        while end < stop and (text[end] == _NEWLINE or text[end] == _RETURN):
            end += 1
        return end
    end = _newline_end(text, at, stop, classes)
    return end if end > 0 else _whitespace_end(text, at, stop, classes, _END)


@njit(cache=True, nogil=True)
def split_gpt2(
    text,
    fragment_start,
    fragment_stop,
    fragment_token,
    classes,
    isolated,
    longest_isolated,
    piece_start,
    piece_stop,
):
    """Cut fragments into pieces by GPT-2's pattern, after isolating one class; return how many.

    Parameters
    ----------
    text : uint8 [n_bytes], UTF-8.
    fragment_start, fragment_stop : int64 [n_fragments], byte offsets, ascending.
    fragment_token : int64 [n_fragments], the id of a special token, -1 for text.
    classes : uint8 [0x110000], class of each code point.
    isolated : int64, class that is cut out before the pattern sees the text; 0 for none.
    longest_isolated : int64, characters of that class in one piece at most.
    piece_start, piece_stop : int64 [n_bytes + n_fragments], out.
    """
    n_pieces = 0
    for fragment in range(fragment_start.size):
        if fragment_token[fragment] >= 0:
            piece_start[n_pieces] = 0
            piece_stop[n_pieces] = -1 - fragment_token[fragment]
            n_pieces += 1
            continue
        at, stop = fragment_start[fragment], fragment_stop[fragment]
        while at < stop:
            kind, _ = _class_at(text, at, stop, classes)
            if kind == isolated:
                end = _short_run_end(text, at, stop, classes, kind, longest_isolated)
            else:
                end = _gpt2_piece_end(text, at, stop, classes, isolated)
            piece_start[n_pieces], piece_stop[n_pieces] = at, end
            n_pieces += 1
            at = end
    return n_pieces


@njit(cache=True, nogil=True)
def group_digits(text, start, stop, classes, piece_start, piece_stop):
    """Cut pieces of numbers once more: \\p{N}+, then [0-9][0-9][0-9], each isolated.

    A piece of numbers of GPT-2's pattern loses its space, and three digits in a row stand alone;
    return the number of pieces.

    Parameters
    ----------
    start, stop : int64 [n], pieces of ``split_gpt2``.
    piece_start, piece_stop : int64 [n_bytes + n_fragments], out.
    """
    n_pieces = 0
    for piece in range(start.size):
        pending, end = start[piece], stop[piece]
        at = end
        if end >= 0:
            begin = pending + 1 if text[pending] == _SPACE else pending
            kind, _ = _class_at(text, begin, end, classes)
            at = begin if kind == _NUMBER else end
            if pending < begin < end and kind == _NUMBER:
                piece_start[n_pieces], piece_stop[n_pieces] = pending, begin
                n_pieces += 1
                pending = begin
        while at < end:
            n_digits = 0
            while n_digits < 3 and at + n_digits < end and 0x30 <= text[at + n_digits] <= 0x39:
                n_digits += 1
            if n_digits < 3:
                _, size = _class_at(text, at, end, classes)
                at += size
                continue
            if pending < at:
                piece_start[n_pieces], piece_stop[n_pieces] = pending, at
                n_pieces += 1
            piece_start[n_pieces], piece_stop[n_pieces] = at, at + 3
            n_pieces += 1
            at += 3
            pending = at
        if pending < end or end < 0:
            piece_start[n_pieces], piece_stop[n_pieces] = pending, end
            n_pieces += 1
    return n_pieces


@njit(cache=True, nogil=True)
def split_llama3(
    text,
    fragment_start,
    fragment_stop,
    fragment_token,
    classes,
    longest_number,
    piece_start,
    piece_stop,
):
    """Cut fragments into pieces by Llama 3's pattern; return how many.

    ``longest_number`` (int64) is how many digits a piece may hold: 3, or 1 for Qwen2. All else
    as for ``split_gpt2``.
    """
    n_pieces = 0
    for fragment in range(fragment_start.size):
        if fragment_token[fragment] >= 0:
            piece_start[n_pieces] = 0
            piece_stop[n_pieces] = -1 - fragment_token[fragment]
            n_pieces += 1
            continue
        at, stop = fragment_start[fragment], fragment_stop[fragment]
        while at < stop:
            end = _llama3_piece_end(text, at, stop, classes, longest_number)
            piece_start[n_pieces], piece_stop[n_pieces] = at, end
            n_pieces += 1
            at = end
    return n_pieces


@njit(cache=True, nogil=True)
def last_class_change(text, low, high, classes):
    """Last offset in low..high-1 that ends a run of letters or of numbers; -1 without one.

    There a piece ends whatever stands around it: no pattern joins a letter (or a number) with a
    following character of another class, and none looks back. ``high`` must leave room for a
    whole character in ``text`` (uint8 [n_bytes]); ``low`` is at least 1.
    """
    at = high - 1
    while at >= low:
        if (text[at] & 0xC0) != 0x80:
            before = at - 1
            while before > 0 and at - before < 4 and (text[before] & 0xC0) == 0x80:
                before -= 1
            kind, _ = _class_at(text, before, at, classes)
            if kind in (_LETTER, _NUMBER):
                next_kind, _ = _class_at(text, at, text.size, classes)
                if next_kind != kind:
                    return at
        at -= 1
    return -1
