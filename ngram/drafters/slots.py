"""The arrays of drafters, allocated for a number of tokens to come; see slot_kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...engine.errors import UsageError
from ..cache.packed import VOCAB_MAX
from ..lookup.tables import context_sizes
from .gram_kernels import CELL
from .map_kernels import RECORD
from .mod_kernels import POOL
from .prompt_lookup_kernels import prompt_lookup_sizes
from .server_cache_kernels import STATE
from .server_map_kernels import KEY, MAP_CELLS
from .settings import DrafterSpec, Key, Setting
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
from .suffix_kernels import suffix_sizes

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


def power_of_two(n: int) -> int:
    """The least power of two from 16 up that is not below ``n``."""
    return 1 << max(4, (n - 1).bit_length())


def _index(n: int) -> int:
    """Elements of an index of ``n`` n-grams, at most two thirds full."""
    return CELL * power_of_two(n + n // 2)


def _simple(setting: Setting, exact: bool, room: Room) -> Sizes:
    return Sizes(table=_index(room.n_text))


def _map(setting: Setting, exact: bool, room: Room) -> Sizes:
    occurrences = _index(room.n_text)
    if not exact:
        return Sizes(table=occurrences, nodes=RECORD * room.n_text)
    # A draft makes a key at most; they outlive their text.
    key_index = power_of_two(2 * room.n_all)
    with_values = setting.name == "ngram-map-k4v"
    return Sizes(
        table=MAP_CELLS + key_index + with_values * occurrences,
        nodes=MAP_CELLS + KEY * room.n_all + with_values * room.n_text,
        parts=(key_index, room.n_all),
    )


def _mod(setting: Setting, exact: bool, room: Room) -> Sizes:
    if exact:
        return Sizes(table=2 * POOL)
    entries = power_of_two(room.n_all + room.n_all // 2)
    return Sizes(table=2 * entries, words=entries)


def _cache(setting: Setting, exact: bool, room: Room) -> Sizes:
    """Of llama.cpp's own form, too, the longest text is all that it ever learns.

    Raises
    ------
    UsageError : a vocabulary that no model has; an array goes over it
    """
    if room.n_vocab > VOCAB_MAX:
        raise UsageError(
            f"ngram-cache: a vocabulary of {room.n_vocab} tokens, it takes up to {VOCAB_MAX}",
            remedy="name the model that the ids belong to, or another drafter",
        )
    context = context_sizes(room.n_text)
    scratch = 5 * room.n_vocab + 64 if exact else 0  # for followers in libstdc++'s order
    return Sizes(
        table=context.n_index + room.n_vocab,
        nodes=STATE + context.n_nodes + context.n_edges + scratch,
        parts=context,
    )


def _prompt_lookup(setting: Setting, exact: bool, room: Room) -> Sizes:
    return Sizes(*prompt_lookup_sizes(room.n_text))  # type: ignore[no-untyped-call]


def _suffix(setting: Setting, exact: bool, room: Room) -> Sizes:
    return Sizes(*suffix_sizes(room.n_all))  # type: ignore[no-untyped-call]


# By the name of the kind: sizes for a setting, whether it is llama.cpp's own form, and the room.
SIZES: dict[str, Callable[[Setting, bool, Room], Sizes]] = {
    "ngram-simple": _simple,
    "ngram-map-k": _map,
    "ngram-map-k4v": _map,
    "ngram-mod": _mod,
    "ngram-cache": _cache,
    "suffix": _suffix,
    "prompt-lookup": _prompt_lookup,
    "vllm-ngram": _prompt_lookup,
}


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
    n_table, n_nodes, n_words = (int(n) for n in starts[:, k])
    return Bank(
        params=params,
        vars=np.zeros((k, N_VARS), np.int64),
        table=np.zeros(n_table, np.int32),
        nodes=np.zeros(n_nodes, np.int32),
        words=np.zeros(n_words, np.int64),
        starts=starts,
    )


def _whole(key: Key, value: int | float) -> int:
    """A key's value as kernels take it: fractions in millionths."""
    return int(value) if key.is_whole else round(value * MILLION)


def bank_bytes(bank: Bank) -> int:
    """Memory of the slots, whether touched or not."""
    return sum(int(array.nbytes) for array in bank)
