"""Read the metadata of a GGUF file: its keys and values, and where its tensors lie.

Every length and every count is checked against what is left of the file before it is used, so a
truncated or hostile file costs neither memory nor time. An array of strings is copied as one
block, with offsets into it: a vocabulary of 49,000 tokens and its merges take some 50 ms.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    REMEDY_CONVERT,
    REMEDY_DAMAGED,
    InputUnreadable,
    ModelDamaged,
    ModelNotGguf,
    ModelUnsupported,
)
from ..plain_file import open_plain
from .other_files import HEAD_BYTES, kind_of_bytes

MAGIC = b"GGUF"
KNOWN_VERSIONS = (2, 3)

# Where a file that goes with a model says which: the fingerprint of its vocabulary, in hex.
TARGET_FINGERPRINT = "draftsmith.target.fingerprint"

# Value types, by their number in the file.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

# Far above any real file; a count beyond them is damage, not data.
MAX_PAIRS = 1 << 16
MAX_STRINGS = 1 << 24  # of a vocabulary
MAX_OTHER_STRINGS = 1 << 16  # of an array that nothing here asks for, such as a model's languages
MAX_TEXT_BYTES = 1 << 25  # of a string: a chat template, a grammar
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 4

_VOCABULARY = "tokenizer."
ALIGNMENT = 32  # of the tensors, where the file does not say
_MIN_TENSOR_INFO_BYTES = 24  # name length, number of dimensions, type, offset
_LATER_PART = re.compile(r"^(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.gguf$")

_DTYPES: dict[int, np.dtype] = {
    U8: np.dtype("<u1"),
    I8: np.dtype("<i1"),
    U16: np.dtype("<u2"),
    I16: np.dtype("<i2"),
    U32: np.dtype("<u4"),
    I32: np.dtype("<i4"),
    F32: np.dtype("<f4"),
    BOOL: np.dtype("<u1"),
    U64: np.dtype("<u8"),
    I64: np.dtype("<i8"),
    F64: np.dtype("<f8"),
}
_LENGTH = struct.Struct("<Q")

_T = TypeVar("_T")


class GgufStrings:
    """An array of strings as it lies in the file: each after its length, 8 bytes.

    Attributes
    ----------
    data : uint8 [n_bytes], all strings and lengths.
    start, stop : int64 [n_strings], where each string begins and ends in ``data``.
    """

    def __init__(
        self, data: NDArray[np.uint8], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> None:
        self.data, self.start, self.stop = data, start, stop

    @staticmethod
    def of(texts: Sequence[bytes]) -> GgufStrings:
        """The same array, made of ``texts``."""
        packed = b"".join(_LENGTH.pack(len(text)) + text for text in texts)
        stop = np.cumsum([_LENGTH.size + len(text) for text in texts], dtype=np.int64)
        start = stop - np.array([len(text) for text in texts], np.int64)
        return GgufStrings(np.frombuffer(packed, np.uint8), start, stop)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each string, int64 [n_strings]."""
        return self.stop - self.start

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.start[index] : self.stop[index]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        view = memoryview(self.data)
        for start, stop in zip(self.start.tolist(), self.stop.tolist(), strict=True):
            yield bytes(view[start:stop])


MetadataValue = str | int | float | bool | np.ndarray | GgufStrings


@dataclass(frozen=True)
class TensorInfo:
    """What a GGUF file says about a tensor; nothing of it is checked yet.

    Attributes
    ----------
    name : undecodable bytes replaced
    type : ggml's number of it
    dimensions : innermost first, as in the file
    offset : bytes from the start of the tensors' data
    """

    name: str
    type: int
    dimensions: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class GgufMetadata:
    """What a GGUF file says about itself, before its tensors.

    ``values`` maps a key to a str, int, float or bool, to an array of numbers, or to
    ``GgufStrings``. ``data_start`` is the byte at which the tensors' data starts.
    """

    path: Path
    version: int
    n_tensors: int
    values: dict[str, MetadataValue]
    tensors: tuple[TensorInfo, ...] = ()
    data_start: int = 0

    def text(self, key: str) -> str | None:
        """The string under ``key``, None without it; raises ModelDamaged for another type."""
        return self._typed(key, str, "a string")

    def flag(self, key: str) -> bool | None:
        """The truth value under ``key``, None without it; raises ModelDamaged for another type."""
        return self._typed(key, bool, "true or false")

    def integer(self, key: str) -> int | None:
        """The integer under ``key``, None without it; raises ModelDamaged for another type."""
        value = self._typed(key, int, "an integer")
        if isinstance(value, bool):
            raise self._of_other_type(key, "an integer")
        return value

    def real(self, key: str) -> float | None:
        """The float under ``key``, None without it; raises ModelDamaged for another type."""
        return self._typed(key, float, "a float")

    def strings(self, key: str) -> GgufStrings | None:
        """The strings under ``key``, None without it; raises ModelDamaged for another type."""
        return self._typed(key, GgufStrings, "an array of strings")

    def numbers(self, key: str) -> np.ndarray | None:
        """The numbers under ``key``, None without it; raises ModelDamaged for another type."""
        return self._typed(key, np.ndarray, "an array of numbers")

    def _typed(self, key: str, kind: type[_T], expected: str) -> _T | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise self._of_other_type(key, expected)
        return value

    def _of_other_type(self, key: str, expected: str) -> ModelDamaged:
        found = type(self.values[key]).__name__
        return ModelDamaged(
            f"{self.path}: '{key}' is of type {found}, expected {expected}",
            remedy=REMEDY_DAMAGED,
        )


class _Reader:
    """A position in the file, and reads that cannot pass its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        self._at = 0
        self.inside = "the header"  # what is being read, for messages
        self.key = ""  # whose value is being read

    def damaged(self, what: str) -> ModelDamaged:
        return ModelDamaged(
            f"{self.path}: {what}, in {self.inside} at byte {self._at}", remedy=REMEDY_DAMAGED
        )

    @property
    def at(self) -> int:
        return self._at

    @property
    def n_left(self) -> int:
        return len(self._data) - self._at

    def take(self, n_bytes: int) -> int:
        """Move past ``n_bytes`` and return where they start; raises ModelDamaged at the end."""
        if n_bytes > self.n_left:
            raise self.damaged(
                f"the file ends at byte {len(self._data)}, {n_bytes} more bytes expected"
            )
        start = self._at
        self._at += n_bytes
        return start

    def number(self, value_type: int) -> int | float | bool:
        dtype = _DTYPES[value_type]
        start = self.take(dtype.itemsize)
        value = np.frombuffer(self._data, dtype, 1, start)[0].item()
        return bool(value) if value_type == BOOL else value

    def count(self, value_type: int = U64) -> int:
        return int(self.number(value_type))

    def string(self) -> bytes:
        n_bytes = self.count()
        if self.n_left >= n_bytes > MAX_TEXT_BYTES:
            raise self.damaged(f"a string of {n_bytes} bytes, at most {MAX_TEXT_BYTES} expected")
        start = self.take(n_bytes)
        return self._data[start : start + n_bytes]

    def numbers(self, value_type: int, n: int) -> np.ndarray:
        dtype = _DTYPES[value_type]
        start = self.take(n * dtype.itemsize)
        values = np.frombuffer(self._data, dtype, n, start).copy()
        return values != 0 if value_type == BOOL else values

    def strings(self, n: int) -> GgufStrings:
        most = MAX_STRINGS if self.key.startswith(_VOCABULARY) else MAX_OTHER_STRINGS
        if n > min(most, self.n_left // _LENGTH.size):
            raise self.damaged(f"an array of {n} strings, at most {most} expected")
        first, end, data = self._at, len(self._data), self._data
        at = first
        stops = []
        last = end - _LENGTH.size
        unpack = _LENGTH.unpack_from  # this loop is most of the time that a vocabulary takes
        for _ in range(n):
            if at > last:
                break
            at += 8 + unpack(data, at)[0]
            stops.append(at)
        if len(stops) < n or at > end:
            raise self.damaged(f"the file ends at byte {end}, inside an array of {n} strings")
        self._at = at
        stop = np.array(stops, np.int64) - first
        start = np.concatenate(([0], stop[:-1]))[:n] + _LENGTH.size
        return GgufStrings(np.frombuffer(data[first:at], np.uint8), start, stop)

    def value(self) -> MetadataValue:
        value_type = self.count(U32)
        if value_type == STRING:
            return self.string().decode("utf-8", "replace")
        if value_type != ARRAY:
            self._check_type(value_type)
            return self.number(value_type)
        item_type, n = self.count(U32), self.count()
        if item_type == STRING:
            return self.strings(n)
        self._check_type(item_type)
        return self.numbers(item_type, n)

    def _check_type(self, value_type: int) -> None:
        if value_type == ARRAY:
            raise self.damaged("an array of arrays")
        if value_type not in _DTYPES:
            raise self.damaged(f"unknown value type {value_type}")


def read_metadata(path: Path | str, *, is_later_part: bool = False) -> GgufMetadata:
    """Read the metadata of a GGUF file.

    Nothing of what it returns depends on the file any more. ``is_later_part`` reads a part of a
    split model that is not its first.

    Raises
    ------
    InputUnreadable : the file is missing or cannot be read.
    ModelNotGguf : it does not begin as a GGUF file.
    ModelDamaged : it ends too early or contradicts itself; the message says where.
    ModelUnsupported : big-endian, of version 1 or of a version after 3, or a later part of a
        split model.
    """
    path = Path(path)
    with open_map(path) as data:
        metadata = _read(_Reader(path, data))
    if not is_later_part:
        _check_first_part(metadata)
    return metadata


def _read(reader: _Reader) -> GgufMetadata:
    version = _read_version(reader)
    n_tensors, n_pairs = reader.count(), reader.count()
    if n_tensors > min(MAX_TENSORS, reader.n_left // _MIN_TENSOR_INFO_BYTES):
        raise reader.damaged(f"{n_tensors} tensors announced, more than the file can hold")
    if n_pairs > MAX_PAIRS:
        raise reader.damaged(f"{n_pairs} keys announced, at most {MAX_PAIRS} expected")
    values: dict[str, MetadataValue] = {}
    for index in range(n_pairs):
        reader.inside = f"key {index + 1} of {n_pairs}"
        key = _read_key(reader)
        reader.inside = f"key {index + 1} of {n_pairs} ('{key}')"
        if key in values:
            raise reader.damaged("the key stands twice")
        reader.key = key
        values[key] = reader.value()
    metadata = GgufMetadata(reader.path, version, n_tensors, values)
    return _read_tensors(reader, metadata)


def _read_tensors(reader: _Reader, metadata: GgufMetadata) -> GgufMetadata:
    """Add the tensors; refuse a file that ends before the last begins: a download cut short.

    What a tensor's type says about its size is not known here, so that the end of the last one
    is not looked for (tensors.py does).
    """
    tensors = []
    for index in range(metadata.n_tensors):
        reader.inside = f"tensor {index + 1} of {metadata.n_tensors}"
        tensors.append(_read_tensor(reader))
    alignment = max(1, metadata.integer("general.alignment") or ALIGNMENT)
    start, n_bytes = -(-reader.at // alignment) * alignment, reader.at + reader.n_left
    last = max((tensor.offset for tensor in tensors if 0 not in tensor.dimensions), default=-1)
    if last >= 0 and start + last >= n_bytes:
        raise ModelDamaged(
            f"{reader.path}: the file ends at byte {n_bytes}, but its last tensor begins at byte "
            f"{start + last}",
            remedy=REMEDY_DAMAGED,
        )
    return replace(metadata, tensors=tuple(tensors), data_start=start)


def _read_tensor(reader: _Reader) -> TensorInfo:
    name = reader.string().decode("utf-8", "replace")
    n_dimensions = reader.count(U32)
    if n_dimensions > MAX_DIMENSIONS:
        raise reader.damaged(f"{n_dimensions} dimensions, at most {MAX_DIMENSIONS} expected")
    dimensions = tuple(reader.count() for _ in range(n_dimensions))
    return TensorInfo(name, reader.count(U32), dimensions, reader.count())


def open_map(path: Path) -> mmap.mmap:
    """Map a GGUF file, read-only.

    Raises
    ------
    InputUnreadable : the file is missing or cannot be read.
    ModelNotGguf : it does not begin as a GGUF file.
    """
    remedy = "check the path and its permissions"
    try:
        with open_plain(path, str(path), remedy=remedy) as file:
            head = file.read(HEAD_BYTES)
            if not head.startswith(MAGIC):
                kind = kind_of_bytes(head)
                raise ModelNotGguf(f"{path} is not a GGUF file: {kind.what}", remedy=kind.remedy)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputUnreadable(f"{path} can't be read ({reason})", remedy=remedy) from error


def _read_version(reader: _Reader) -> int:
    reader.take(len(MAGIC))
    version = reader.count(U32)
    if version in KNOWN_VERSIONS:
        return version
    if version & 0xFFFF == 0:
        found = "a big-endian GGUF file"
        remedy = "turn it with gguf_convert_endian.py of the gguf package"
    else:
        found, remedy = f"a GGUF file of version {version}", REMEDY_CONVERT
    raise ModelUnsupported(
        f"{reader.path} is {found}, expected little-endian, version 2 or 3", remedy=remedy
    )


def _read_key(reader: _Reader) -> str:
    key = reader.string()
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.damaged("a key that is not UTF-8") from error
    if not text or not text.isprintable():
        raise reader.damaged("an empty or unprintable key")
    return text


def _check_first_part(metadata: GgufMetadata) -> None:
    part, n_parts = metadata.integer("split.no"), metadata.integer("split.count")
    if not part or (n_parts is not None and n_parts < 2):
        return
    match = _LATER_PART.match(metadata.path.name)
    first = f"{match['stem']}-00001-of-{match['count']}.gguf" if match else "its first part"
    raise ModelUnsupported(
        f"{metadata.path} is part {part + 1} of a split model, which has no vocabulary",
        remedy=f"name {first}",
    )
