"""Kernels that cut text where no SPM merge can cross.

SPM merges characters over a whole text. But what it merges is always a token: where no token
holds two characters side by side, nothing is ever merged across them, and the text may be cut.
"""

from __future__ import annotations

from numba import njit

# Called by kernels alone: without wrappers for Python a helper compiles faster.
_helper = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_EMPTY = -1
_SPACE, _ESCAPED_SPACE = 0x20, 0xE29681


@_helper
def _size(text, at, stop):
    """Bytes of the character at ``at``, by its first one, as llama.cpp counts them."""
    lead = text[at]
    size = 1 if lead < 0xC0 else (2 if lead < 0xE0 else (3 if lead < 0xF0 else 4))
    return min(size, stop - at)


@_helper
def _character(text, at, size):
    """The bytes of a character as one number; a space as the character that stands for it."""
    if text[at] == _SPACE:
        return _ESCAPED_SPACE
    value = 0
    for i in range(size):
        value = (value << 8) | text[at + i]
    return value


@_helper
def _pair_place(pair_slot, left, right):
    """Slot of a pair, or the empty one where it belongs; Fibonacci hashing of the key."""
    key = (left << 32) | right
    mask = pair_slot.size - 1
    at = ((key * -0x61C8864680B583EB) >> 32) & mask
    while pair_slot[at] != key and pair_slot[at] != _EMPTY:
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def fill_joined_pairs(token_bytes, token_start, pair_slot):
    """Enter every pair of neighbours in a token into ``pair_slot``; return how many differ.

    Parameters
    ----------
    token_bytes : uint8 [n]; token_start : int64 [n_vocab + 1], where each token begins in it.
    pair_slot : int64 [power of 2], in and out, -1 if empty. The kernel gives up, and returns -1,
        when it is half full.
    """
    n_pairs = 0
    for token in range(token_start.size - 1):
        begin, stop = token_start[token], token_start[token + 1]
        at, left = begin, 0
        while at < stop:
            size = _size(token_bytes, at, stop)
            right = _character(token_bytes, at, size)
            place = _pair_place(pair_slot, left, right)
            if at > begin and pair_slot[place] == _EMPTY:
                pair_slot[place] = (left << 32) | right
                n_pairs += 1
                if 2 * n_pairs > pair_slot.size:
                    return -1
            left = right
            at += size
    return n_pairs


@njit(cache=True, nogil=True)
def split_spm(
    text, fragment_start, fragment_stop, fragment_token, pair_slot, piece_start, piece_stop
):
    """Cut fragments into pieces that no merge crosses; return how many.

    ``pair_slot`` as filled by ``fill_joined_pairs``; all else as for ``split_gpt2``, in
    split_kernels.
    """
    n_pieces = 0
    for fragment in range(fragment_start.size):
        if fragment_token[fragment] >= 0:
            piece_start[n_pieces] = 0
            piece_stop[n_pieces] = -1 - fragment_token[fragment]
            n_pieces += 1
            continue
        begin = at = fragment_start[fragment]
        stop = fragment_stop[fragment]
        left = 0
        while at < stop:
            size = _size(text, at, stop)
            right = _character(text, at, size)
            is_joined = pair_slot[_pair_place(pair_slot, left, right)] != _EMPTY
            if at > begin and not is_joined:
                piece_start[n_pieces], piece_stop[n_pieces] = begin, at
                n_pieces += 1
                begin = at
            left = right
            at += size
        if begin < stop:
            piece_start[n_pieces], piece_stop[n_pieces] = begin, stop
            n_pieces += 1
    return n_pieces


@njit(cache=True, nogil=True)
def last_unjoined(text, low, high, pair_slot):
    """Last offset in low..high-1 between two characters that no token joins; -1 without one.

    ``high`` must leave room for a whole character in ``text`` (uint8 [n_bytes]); ``low`` is at
    least 1.
    """
    at = high - 1
    while at >= low:
        if (text[at] & 0xC0) != 0x80:
            before = at - 1
            while before > 0 and at - before < 4 and (text[before] & 0xC0) == 0x80:
                before -= 1
            left = _character(text, before, at - before)
            right = _character(text, at, _size(text, at, text.size))
            if pair_slot[_pair_place(pair_slot, left, right)] == _EMPTY:
                return at
        at -= 1
    return -1
