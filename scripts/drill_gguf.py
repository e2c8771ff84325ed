"""A GGUF file in parts that can be changed and put together again, for fault_drill.py."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

import gguf

ALIGNMENT = 32
STRING, ARRAY = 8, 9
VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
BLOCKS = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


@dataclass
class Pair:
    """A key and its value, all as bytes but for the value's type."""

    key: bytes
    type: int
    value: bytes


@dataclass
class Info:
    """A tensor; ``offset`` is what the file says, None for the truth."""

    name: bytes
    dimensions: list[int]
    type: int
    data: bytes
    offset: int | None = None


@dataclass
class File:
    """A GGUF file in parts; a count is what the file says, None for the truth."""

    pairs: list[Pair]
    infos: list[Info]
    n_pairs: int | None = None
    n_infos: int | None = None

    def pair(self, key: str) -> Pair | None:
        return next((pair for pair in self.pairs if pair.key == key.encode()), None)

    def info(self, end: str) -> Info | None:
        return next((info for info in self.infos if info.name.endswith(end.encode())), None)

    @property
    def architecture(self) -> str:
        pair = self.pair("general.architecture")
        return pair.value[8:].decode() if pair else ""

    def set(self, key: str, type: int, value: bytes) -> None:
        """Replace a value, or add one."""
        pair = self.pair(key)
        if pair is None:
            self.pairs.append(Pair(key.encode(), type, value))
        else:
            pair.type, pair.value = type, value

    def set_count(self, key: str, value: int) -> None:
        self.set(f"{self.architecture}.{key}", 4, struct.pack("<I", value % 2**32))


def take_apart(data: bytes) -> File:
    """The parts of a file that is as it should be."""
    at = 8

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return data[at - n : at]

    def number(n: int) -> int:
        return int.from_bytes(take(n), "little")

    def value(kind: int) -> bytes:
        start = at
        if kind == ARRAY:
            item, n = number(4), number(8)
            if item == STRING:
                for _ in range(n):
                    take(number(8))
            else:
                take(n * VALUE_BYTES[item])
        else:
            take(number(8) if kind == STRING else VALUE_BYTES[kind])
        return data[start:at]

    n_infos, n_pairs = number(8), number(8)
    pairs = []
    for _ in range(n_pairs):
        key, kind = take(number(8)), number(4)
        pairs.append(Pair(key, kind, value(kind)))
    infos = []
    for _ in range(n_infos):
        name = take(number(8))
        dimensions = [number(8) for _ in range(number(4))]
        infos.append(Info(name, dimensions, number(4), b"", number(8)))
    start = -(-at // ALIGNMENT) * ALIGNMENT
    for info in infos:
        first = start + (info.offset or 0)
        info.data, info.offset = data[first : first + n_bytes(info)], None
    return File(pairs, infos)


def n_bytes(info: Info) -> int:
    """Bytes of a tensor as its type and dimensions ask for."""
    items, size = BLOCKS[info.type]
    return prod(info.dimensions[1:]) * -(-info.dimensions[0] // items) * size


def put_together(file: File) -> bytes:
    """The bytes of the file, with whatever lies it has been given."""
    n_infos = len(file.infos) if file.n_infos is None else file.n_infos
    n_pairs = len(file.pairs) if file.n_pairs is None else file.n_pairs
    parts = [b"GGUF" + struct.pack("<IQQ", 3, n_infos, n_pairs)]
    for pair in file.pairs:
        parts += [text(pair.key), struct.pack("<I", pair.type), pair.value]
    at = 0
    for info in file.infos:
        n = len(info.dimensions)
        parts.append(text(info.name) + struct.pack(f"<I{n}Q", n, *info.dimensions))
        offset = at if info.offset is None else info.offset
        parts.append(struct.pack("<IQ", info.type, offset % 2**64))
        at += len(info.data) + -len(info.data) % ALIGNMENT
    head = b"".join(parts)
    data = [head, bytes(-len(head) % ALIGNMENT)]
    for info in file.infos:
        data += [info.data, bytes(-len(info.data) % ALIGNMENT)]
    if file.infos:
        data.pop()  # the last tensor ends the file
    return b"".join(data)


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw
