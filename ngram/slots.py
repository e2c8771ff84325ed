"""The arrays of drafters, allocated for a number of tokens to come; see slot_kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..engine.errors import UsageError
from .slot_kernels import (
    ENDS,
    EXACT,
    KEYS,
    KIND,
    MILLION,
    N_PARAMS,
    N_VARS,
    N_VOCAB,
    PARTS,
    ROOM,
    ROOM_ALL,
    Bank,
)
from .spec import DrafterSpec, Key, Setting

# Positions and stamps are int32, and stamps go on over all texts.
TOKENS_MAX = 2**30


class Room(NamedTuple):
    """What slots must hold.

    Attributes
    ----------
    n_text : tokens of the longest text, its prompt included
    n_all : tokens of all texts together, for what outlives a text
    n_vocab : ids are below it
    """

    n_text: int
    n_all: int
    n_vocab: int


class Sizes(NamedTuple):
    """Elements of a slot's arrays, and up to eight numbers by which its kernels part them."""

    table: int = 0
    nodes: int = 0
    words: int = 0
    parts: tuple[int, ...] = ()


# By the name of the kind: sizes for a setting, whether it is llama.cpp's own form, and the room.
SIZES: dict[str, Callable[[Setting, bool, Room], Sizes]] = {}


def power_of_two(n: int) -> int:
    """The least power of two from 16 up that is not below ``n``."""
    return 1 << max(4, (n - 1).bit_length())


def make_bank(spec: DrafterSpec, room: Room, ends: Sequence[int] = ()) -> Bank:
    """Slots that know nothing yet, one for each drafter of the row.

    ``ends``: ids that end a generation; the first four count.

    Raises
    ------
    UsageError : more tokens than can be numbered
    """
    if room.n_all > TOKENS_MAX:
        raise UsageError(
            f"{room.n_all} tokens in all, a replay numbers up to {TOKENS_MAX}",
            remedy="give fewer conversations at a time, or reset between them",
        )
    k = len(spec.names)
    params = np.zeros((k, N_PARAMS), np.int64)
    params[:, ENDS:PARTS] = -1
    starts = np.zeros((3, k + 1), np.int64)
    for i, setting in enumerate(spec.names):
        exact = spec.upstream_exact and setting.kind.has_exact
        values = [_whole(key, setting.params[key.name]) for key in setting.kind.keys]
        params[i, KIND] = setting.kind.code
        params[i, EXACT] = exact
        params[i, KEYS : KEYS + len(values)] = values
        params[i, ROOM], params[i, ROOM_ALL], params[i, N_VOCAB] = room
        params[i, ENDS : ENDS + len(ends[:4])] = ends[:4]
        *sizes, parts = SIZES[setting.name](setting, exact, room)
        starts[:, i + 1] = starts[:, i] + sizes
        params[i, PARTS : PARTS + len(parts)] = parts
    arrays = (np.zeros(int(n), dtype) for n, dtype in zip(starts[:, k], _TYPES, strict=True))
    return Bank(params, np.zeros((k, N_VARS), np.int64), *arrays, starts)


_TYPES = (np.int32, np.int32, np.int64)


def _whole(key: Key, value: int | float) -> int:
    """A key's value as kernels take it: fractions in millionths."""
    return int(value) if key.is_whole else round(value * MILLION)


def bank_bytes(bank: Bank) -> int:
    """Memory of the slots, whether touched or not."""
    return sum(int(array.nbytes) for array in bank)
