"""Cut special tokens out of a text, before anything else looks at it.

As llama.cpp does it: the longest token first, over all the text, then the next one in what is
left. That is not the same as the leftmost match: of overlapping tokens the longer one wins,
wherever it begins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import REMEDY_CONVERT, ModelDamaged
from .special_kernels import link_trie, mark_specials, touches_special
from .vocabulary import HIDDEN, Attribute, Vocabulary

_SPACES = b" \t\n\v\f\r"

# A kernel holds Ctrl-C back: of a long text it sees so much at a time.
_STEP_BYTES = 1 << 20

# Real vocabularies need some ten thousand; a hostile file would fill the memory with one token.
_NODES_MOST = 1 << 20

# Where a text is cut: first byte, byte after the last, and id of a special token or -1.
Fragment = tuple[int, int, int]


class SpecialTokens:
    """The special tokens of a vocabulary that are looked for in a text.

    Parameters
    ----------
    parse_special : without it only user-defined tokens are looked for.
    """

    def __init__(self, vocabulary: Vocabulary, *, parse_special: bool) -> None:
        self._ids = vocabulary.special_ids(parse_special=parse_special)
        self._texts = [vocabulary.tokens[token] for token in self._ids]
        attributes = vocabulary.attributes[self._ids]
        self._strips_left = (attributes & Attribute.STRIP_LEFT) != 0
        self._strips_right = (attributes & Attribute.STRIP_RIGHT) != 0
        self._strips = bool((self._strips_left | self._strips_right).any())
        self._is_hidden = (attributes & HIDDEN != 0).astype(np.uint8)
        self._begins = tuple({text[:2] for text in self._texts})
        self._root_child, self._node = _build_trie(self._texts)
        self._is_space = np.isin(np.arange(256), list(_SPACES)).tolist()
        self.longest = len(self._texts[0]) if self._texts else 0

    def partition(self, data: bytes) -> list[Fragment]:
        """Fragments of ``data``, in order; stripped whitespace belongs to none of them."""
        if not data:
            return []
        ranks = np.flatnonzero(self._present(data)).tolist() if self._ids else []
        if not ranks:
            return [(0, len(data), -1)]
        is_cut = bytearray(len(data))
        cuts: list[tuple[int, int, int, int, int]] = []
        for rank in ranks:
            self._cut_out(data, is_cut, rank, cuts)
        fragments: list[Fragment] = []
        start = 0
        for left, at, end, right, token in sorted(cuts):
            if start < left:
                fragments.append((start, left, -1))
            fragments.append((at, end, token))
            start = right
        if start < len(data):
            fragments.append((start, len(data), -1))
        return fragments

    def holds_control(self, data: bytes) -> bool:
        """Whether a control token is written out in ``data``."""
        if not any(begin in data for begin in self._begins):
            return False
        return bool((self._present(data) & self._is_hidden).any())

    def _present(self, data: bytes) -> NDArray[np.uint8]:
        """Which tokens are written out in ``data``: 1 or 0 for each."""
        is_present = np.zeros(len(self._ids), np.uint8)
        is_seen = np.zeros(len(self._node), np.uint8)
        text = np.frombuffer(data, np.uint8)
        place = 0
        for start in range(0, text.size, _STEP_BYTES):
            part = text[start : start + _STEP_BYTES]
            place = mark_specials(part, place, self._root_child, self._node, is_seen, is_present)
        return is_present

    def may_cut(self, text: NDArray[np.uint8], cut: int) -> bool:
        """Whether both sides of ``cut`` (above 0, below the end) are partitioned alike apart.

        ``text`` is uint8 [n_bytes] and shows ``longest`` bytes after the cut. Text, not a
        special token, stands before the cut then.
        """
        if not self._ids:
            return True
        if self._strips and (text[cut - 1] in _SPACES or text[cut] in _SPACES):
            return False
        return not touches_special(text, cut, self.longest, self._root_child, self._node)

    def _cut_out(
        self, data: bytes, is_cut: bytearray, rank: int, cuts: list[tuple[int, int, int, int, int]]
    ) -> None:
        """Cut every occurrence of one special token out of what is left of the text.

        ``is_cut`` says of each byte whether it is left (0), and a cut is (left, at, end, right,
        id): the token, and around it the blanks that go with it. What was cut out before is no
        shorter than this token: it covers an end of all that it overlaps.
        """
        text, token = self._texts[rank], self._ids[rank]
        at = data.find(text)
        while at >= 0:
            end = at + len(text)
            if is_cut[at] or is_cut[end - 1]:
                behind = is_cut.find(0, is_cut.find(1, at))
                at = data.find(text, behind) if behind >= 0 else -1
                continue
            left, right = at, end
            if self._strips_left[rank]:
                while left > 0 and not is_cut[left - 1] and self._is_space[data[left - 1]]:
                    left -= 1
            if self._strips_right[rank]:
                while right < len(data) and not is_cut[right] and self._is_space[data[right]]:
                    right += 1
            is_cut[left:right] = b"\1" * (right - left)
            cuts.append((left, at, end, right, token))
            at = data.find(text, right)


def _build_trie(texts: list[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """``root_child`` and ``node`` of special_kernels; a token's rank is its place in ``texts``.

    Raises
    ------
    ModelDamaged : the tokens are too many, or too long.
    """
    children: list[dict[int, int]] = [{}]
    rank_of, parent, depth = [-1], [0], [0]
    for rank, text in enumerate(texts):
        place = 0
        if len(children) + len(text) > _NODES_MOST:
            raise ModelDamaged(
                f"the vocabulary's special tokens hold more than {_NODES_MOST} bytes",
                remedy=REMEDY_CONVERT,
            )
        for byte in text:
            if byte not in children[place]:
                children[place][byte] = len(children)
                children.append({})
                rank_of.append(-1)
                parent.append(place)
                depth.append(depth[place] + 1)
            place = children[place][byte]
        rank_of[place] = rank
    node = np.full((len(children), 7), -1, np.int32)
    node[:, 3], node[:, 4], node[:, 5:] = rank_of, depth, 0
    for place, by_byte in enumerate(children):
        for byte, child in by_byte.items():
            node[child, 0], node[child, 2] = byte, node[place, 1]
            node[place, 1] = child
    root_child = np.full(256, -1, np.int32)
    root_child[list(children[0].keys())] = list(children[0].values())
    order = np.argsort(node[:, 4], kind="stable")[1:]
    link_trie(order, np.array(parent, np.int32), root_child, node)
    return root_child, node
