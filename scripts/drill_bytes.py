"""Damage to any file, of which fault_drill.py's mutants are made."""

from __future__ import annotations

import random
import struct

NUMBERS = (
    0,
    1,
    2,
    3,
    255,
    256,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def mutate(data: bytes, rng: random.Random, *, n_first: int = 2500) -> bytes:
    """One damage of a random kind; half of them in the first bytes: lengths and offsets."""
    changed = bytearray(data)
    at = rng.randrange(len(data))
    if rng.random() < 0.5:
        at = rng.randrange(min(len(data), n_first))
    kind = rng.randrange(7)
    if kind == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[at : at + 4] = rng.randbytes(4)
    elif kind == 2:
        number = struct.pack("<Q", rng.choice(NUMBERS))[: rng.choice((1, 2, 4, 8))]
        at -= at % len(number)
        changed[at : at + len(number)] = number
    elif kind == 3:
        del changed[at:]
    elif kind == 4:
        changed += rng.randbytes(rng.randrange(1, 200))
    elif kind == 5:
        del changed[at : at + rng.randrange(1, 64)]
    else:
        size = rng.choice((4, 8, 20, 48, 64, 256))
        to = rng.randrange(len(data))
        changed[at : at + size], changed[to : to + size] = (
            data[to : to + size],
            data[at : at + size],
        )
    return bytes(changed)
