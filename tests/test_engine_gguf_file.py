"""The metadata reader: equal to gguf's on sound files, never surprised by unsound ones."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from draftsmith.engine.errors import (
    DraftsmithError,
    InputUnreadable,
    ModelDamaged,
    ModelNotGguf,
    ModelUnsupported,
)
from draftsmith.engine.gguf import file as gguf_file
from draftsmith.engine.gguf.file import GgufStrings, read_metadata
from toy_gguf import KINDS, write_toy

U32, STRING, ARRAY = gguf_file.U32, gguf_file.STRING, gguf_file.ARRAY


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def array(item_type: int, n: int, items: bytes) -> bytes:
    return struct.pack("<IQ", item_type, n) + items


def header(n_pairs: int, *, n_tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs)


# One value of every type, and arrays of numbers, truth values and strings.
PAIRS = [
    pair("u8", gguf_file.U8, b"\xff"),
    pair("i8", gguf_file.I8, b"\xff"),
    pair("u16", gguf_file.U16, b"\xff\xff"),
    pair("i16", gguf_file.I16, b"\xff\xff"),
    pair("u32", U32, b"\xff\xff\xff\xff"),
    pair("i32", gguf_file.I32, b"\xff\xff\xff\xff"),
    pair("f32", gguf_file.F32, struct.pack("<f", 1.5)),
    pair("bool", gguf_file.BOOL, b"\x01"),
    pair("string", STRING, text("h\u00e9llo")),
    pair("u64", gguf_file.U64, b"\xff" * 8),
    pair("i64", gguf_file.I64, b"\xff" * 8),
    pair("f64", gguf_file.F64, struct.pack("<d", -2.25)),
    pair("array.i32", ARRAY, array(gguf_file.I32, 3, struct.pack("<3i", 1, -2, 3))),
    pair("array.bool", ARRAY, array(gguf_file.BOOL, 2, b"\x00\x01")),
    pair("array.string", ARRAY, array(STRING, 3, text("a") + text("") + text("\u00fc"))),
    pair("array.none", ARRAY, array(STRING, 0, b"")),
]
SOUND = header(len(PAIRS)) + b"".join(PAIRS)


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Write bytes to a file and return its path."""

    def write_file(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write_file


def test_value_types_are_those_of_gguf() -> None:
    """A wrong number for a type, which would read another file's values as garbage."""
    names = "UINT8 INT8 UINT16 INT16 UINT32 INT32 FLOAT32 BOOL STRING ARRAY UINT64 INT64 FLOAT64"
    ours = (
        gguf_file.U8, gguf_file.I8, gguf_file.U16, gguf_file.I16, gguf_file.U32, gguf_file.I32,
        gguf_file.F32, gguf_file.BOOL, gguf_file.STRING, gguf_file.ARRAY, gguf_file.U64,
        gguf_file.I64, gguf_file.F64,
    )  # fmt: skip
    assert [gguf.GGUFValueType[name].value for name in names.split()] == list(ours)


def test_reads_every_type(write) -> None:  # type: ignore[no-untyped-def]
    """A value of some type that comes out signed, shifted or of another kind."""
    values = read_metadata(write(SOUND)).values
    strings = values.pop("array.string")
    assert list(strings) == [b"a", b"", "\u00fc".encode()]
    assert strings[2] == "\u00fc".encode()
    assert list(values.pop("array.none")) == []
    assert values.pop("array.i32").tolist() == [1, -2, 3]
    assert values.pop("array.bool").tolist() == [False, True]
    assert values == {
        "u8": 255, "i8": -1, "u16": 65535, "i16": -1, "u32": 2**32 - 1, "i32": -1, "f32": 1.5,
        "bool": True, "string": "h\u00e9llo", "u64": 2**64 - 1, "i64": -1, "f64": -2.25,
    }  # fmt: skip
    assert values["bool"] is True


@pytest.mark.parametrize("kind", KINDS)
def test_equals_gguf_reader(tmp_path: Path, kind: str) -> None:
    """A key or a value that gguf's own reader sees otherwise."""
    path = write_toy(tmp_path / "toy.gguf", kind, weights=True)
    ours = read_metadata(path)
    theirs = gguf.GGUFReader(path)
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert set(ours.values) == set(fields)
    for key, field in fields.items():
        value = ours.values[key]
        if isinstance(value, GgufStrings):
            assert [item.decode() for item in value] == field.contents(), key
        elif isinstance(value, np.ndarray):
            assert value.tolist() == field.contents(), key
        else:
            assert value == field.contents(), key
    assert (ours.version, ours.n_tensors) == (3, len(theirs.tensors))


def test_strings_pack_as_the_file_does(write) -> None:  # type: ignore[no-untyped-def]
    """A fingerprint that depends on where the strings came from."""
    read = read_metadata(write(SOUND)).values["array.string"]
    made = GgufStrings.of([b"a", b"", "\u00fc".encode()])
    assert read.data.tobytes() == made.data.tobytes()
    assert list(made) == list(read)
    assert list(GgufStrings.of([])) == []


def test_truncated_at_every_byte(write) -> None:  # type: ignore[no-untyped-def]
    """A traceback, or half of a vocabulary, from a file that ends too early."""
    for n_bytes in range(len(SOUND)):
        expected = ModelNotGguf if n_bytes < 4 else ModelDamaged
        with pytest.raises(expected) as caught:
            read_metadata(write(SOUND[:n_bytes]))
        assert "\n" not in str(caught.value)


def test_truncated_behind_the_metadata(tmp_path: Path) -> None:
    """Half a download used as a model because its vocabulary is whole."""
    path = write_toy(tmp_path / "toy.gguf", "smollm", weights=True)
    whole, tensors = path.read_bytes(), gguf.GGUFReader(path).tensors
    last = max(tensor.data_offset for tensor in tensors)
    for n_bytes in (last + 1, last, last // 2 * 2 - 64, min(t.data_offset for t in tensors)):
        path.write_bytes(whole[:n_bytes])
        if n_bytes > last:
            read_metadata(path)
            continue
        with pytest.raises(ModelDamaged, match=f"ends at byte {n_bytes}"):
            read_metadata(path)
    info = text("t") + struct.pack("<I", 5) + bytes(8 * 5 + 12)
    path.write_bytes(header(0, n_tensors=1) + info)
    with pytest.raises(ModelDamaged, match="5 dimensions"):
        read_metadata(path)


def test_flipped_anywhere(write) -> None:  # type: ignore[no-untyped-def]
    """A traceback or an allocation of gigabytes from one damaged byte."""
    for place in range(len(SOUND)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(SOUND)
            data[place] ^= flip
            with suppress(DraftsmithError):
                read_metadata(write(bytes(data)))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (header(2**40), "keys announced"),
        (header(0, n_tensors=2**62), "tensors announced"),
        (header(1) + struct.pack("<Q", 2**63), "the file ends at byte 32"),
        (header(1) + pair("k", STRING, struct.pack("<Q", 2**64 - 1)), "key 1 of 1 ('k')"),
        (
            header(1) + pair("k", ARRAY, array(STRING, 2**60, b"")),
            "an array of 1152921504606846976",
        ),
        (header(1) + pair("k", ARRAY, array(gguf_file.F64, 2**61, b"")), "more bytes expected"),
        (header(1) + pair("k", ARRAY, array(ARRAY, 1, array(U32, 0, b""))), "array of arrays"),
        (header(1) + pair("k", 13, b"\0" * 8), "unknown value type 13"),
        (header(1) + pair("k", ARRAY, array(99, 1, b"\0" * 8)), "unknown value type 99"),
        (header(2) + pair("k", U32, b"\0" * 4) * 2, "the key stands twice"),
        (header(1) + pair("", U32, b"\0" * 4), "an empty or unprintable key"),
        (header(1) + pair(b"\xff\xfe", U32, b"\0" * 4), "a key that is not UTF-8"),
    ],
)
def test_absurd_claims(write, data: bytes, found: str) -> None:  # type: ignore[no-untyped-def]
    """A count or a type that is believed before it is checked."""
    with pytest.raises(ModelDamaged) as caught:
        read_metadata(write(data))
    assert found in caught.value.message
    assert "model.gguf" in caught.value.message


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(0, version=1), "version 1"),
        (header(0, version=4), "version 4"),
    ],
)
def test_other_versions(write, data: bytes, found: str) -> None:  # type: ignore[no-untyped-def]
    """A version that is read as if it were a known one."""
    with pytest.raises(ModelUnsupported) as caught:
        read_metadata(write(data))
    assert found in caught.value.message


def test_version_2_reads_like_3(write) -> None:  # type: ignore[no-untyped-def]
    """An older file, of the same layout, refused."""
    assert read_metadata(write(header(1, version=2) + PAIRS[0])).values == {"u8": 255}


@pytest.mark.parametrize("data", [b"", b"GG", b"PK\x03\x04 a zip file", b"ggml" * 10])
def test_not_a_gguf(write, data: bytes) -> None:  # type: ignore[no-untyped-def]
    """A message about damage where the file is simply another one."""
    with pytest.raises(ModelNotGguf):
        read_metadata(write(data))


def test_outlives_the_file(write) -> None:  # type: ignore[no-untyped-def]
    """A vocabulary that changes, or a crash, when the model file is written anew meanwhile."""
    path = write(SOUND)
    metadata = read_metadata(path)
    path.write_bytes(b"")
    assert list(metadata.values["array.string"]) == [b"a", b"", "\u00fc".encode()]
    assert metadata.values["array.i32"].tolist() == [1, -2, 3]


def test_unreadable(tmp_path: Path) -> None:
    """A traceback for a path that is missing or a folder."""
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(InputUnreadable) as caught:
            read_metadata(path)
        assert str(path) in caught.value.message


def split_part(part: int) -> bytes:
    return header(2) + (
        pair("split.no", gguf_file.U16, struct.pack("<H", part))
        + pair("split.count", gguf_file.U16, struct.pack("<H", 3))
    )


def test_later_part_names_the_first(write) -> None:  # type: ignore[no-untyped-def]
    """A later part that is refused without a word on which file to name."""
    with pytest.raises(ModelUnsupported) as caught:
        read_metadata(write(split_part(1), "big-00002-of-00003.gguf"))
    assert "big-00001-of-00003.gguf" in caught.value.remedy
    with pytest.raises(ModelUnsupported) as caught:
        read_metadata(write(split_part(2), "renamed.gguf"))
    assert "first part" in caught.value.remedy
    assert read_metadata(write(split_part(0), "big-00001-of-00003.gguf")).values["split.no"] == 0


def test_typed_access(write) -> None:  # type: ignore[no-untyped-def]
    """A value of another type than expected that goes on as it is."""
    metadata = read_metadata(write(SOUND))
    assert metadata.text("string") == "h\u00e9llo"
    assert metadata.flag("bool") is True
    assert metadata.integer("u16") == 65535
    assert metadata.text("absent") is None
    for read, key in (
        (metadata.text, "u8"),
        (metadata.flag, "u8"),
        (metadata.integer, "bool"),
        (metadata.integer, "f32"),
        (metadata.strings, "array.i32"),
        (metadata.numbers, "array.string"),
    ):
        with pytest.raises(ModelDamaged, match=key):
            read(key)


def test_strings_that_nobody_asked_for(write) -> None:  # type: ignore[no-untyped-def]
    """The bug: a head of 10 MB whose array of strings takes 6 GB; vocabularies have to stay."""
    n = gguf_file.MAX_OTHER_STRINGS
    for key, most in (("general.languages", n), ("tokenizer.ggml.tokens", 4 * n)):
        for count in (n, n + 1):
            path = write(header(1) + pair(key, ARRAY, array(STRING, count, text("") * count)))
            if count <= most:
                assert len(read_metadata(path).values[key]) == count  # type: ignore[arg-type]
            else:
                with pytest.raises(ModelDamaged, match=f"an array of {count} strings, at most {n}"):
                    read_metadata(path)


def test_a_long_string(write, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A text that takes four times its bytes: a gigabyte of it in a file of a gigabyte."""
    monkeypatch.setattr(gguf_file, "MAX_TEXT_BYTES", 10)
    assert read_metadata(write(header(1) + pair("a", STRING, text("x" * 10)))).text("a")
    with pytest.raises(ModelDamaged, match="a string of 11 bytes, at most 10 expected"):
        read_metadata(write(header(1) + pair("a", STRING, text("x" * 11))))
