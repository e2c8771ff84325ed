"""UTF-16 and UTF-32 in a corpus: read by their mark, refused without it."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
from draftsmith.engine.errors import InputMalformed
from draftsmith.ngram.conversations.files import open_chats
from draftsmith.ngram.corpus.documents import Corpus, open_corpus
from draftsmith.ngram.corpus.encodings import as_utf8, may_be_text
from draftsmith.ngram.corpus.zstd import ZstdReader

ENCODINGS = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
TEXT = "Hello wörld, привет 日本 😀 \ufffd\r\n" * 40


def texts(corpus: Corpus) -> list[str]:
    return [b"".join(d.blocks or ()).decode() for d in corpus.documents()]


def decoded(data: bytes, size: int) -> tuple[str, int]:
    bad: list[int] = []
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(as_utf8(blocks, "x", bad.append)).decode(), sum(bad)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1 << 20])
def test_marked_text_for_any_cut(encoding: str, size: int) -> None:
    """A mark, a unit or a pair of surrogates that a block border cuts: other letters from there."""
    data = ("\ufeff" + TEXT).encode(encoding)
    assert decoded(data, size) == (TEXT, 0)
    assert decoded(data + b"a", size) == (TEXT + "\ufffd", 1)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_half_pairs_are_replaced_and_counted(size: int) -> None:
    """Half of a surrogate pair ends the run, or is no invalid sequence."""
    data = b"\xff\xfea\0\x3d\xd8b\0\0\xdcc\0\x3d\xd8"
    assert decoded(data, size) == ("a\ufffdb\ufffdc\ufffd", 3)
    beyond = b"\xff\xfe\0\0a\0\0\0\0\0\x11\0\0\xd8\0\0"
    assert decoded(beyond, size) == ("a\ufffd\ufffd", 2)


def test_only_a_mark() -> None:
    """A file of a mark and nothing else is no text of two letters."""
    for mark in (b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        assert decoded(mark, 1) == ("", 0)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "text",
    ["hi", "plain words and lines\n" * 900, "привет мир снова\n" * 900, "日本語 です\n" * 900],
)
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_unmarked_text_is_refused(encoding: str, text: str, size: int) -> None:
    """Letters with zeros between them are counted: drafts that are twice as good as the text's."""
    with pytest.raises(InputMalformed) as error:
        decoded(text.encode(encoding), size)
    assert encoding.upper().replace("-LE", "LE").replace("-BE", "BE") in error.value.message
    assert "iconv -f" in error.value.remedy


def test_zeros_that_come_later_are_found() -> None:
    """PowerShell's >> adds UTF-16 after a text that is none."""
    data = b"plain text of one byte a letter\n" * 4000 + "and then two\n".encode("utf-16-le") * 2000
    with pytest.raises(InputMalformed) as error:
        decoded(data, 1 << 20)
    assert "every second byte from byte 122880 on" in error.value.message


def test_few_zeros_are_no_encoding() -> None:
    """A text with a zero in it, as lists of names that end in one, is refused."""
    for data in (b"a\0b", b"a name\0another one\0x\0" * 50, b"x" * 9000 + b"\0\0", b""):
        assert decoded(data, 1 << 20)[0].encode() == data
    numbers = b"".join(i.to_bytes(4, "little") for i in range(0, 90_000, 7))
    assert not may_be_text(b"\x89DSNG\r\n\0" + numbers[:8000])
    assert may_be_text("wörds\n".encode("utf-16-le"))
    assert may_be_text("\ufeffwörds\n".encode("utf-16-be"))
    assert not may_be_text(b"\xff\xfea\0\0\0")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_files_of_every_kind(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark is looked for in plain files only, and not in packed ones, lines or standard input."""
    zstandard = pytest.importorskip("zstandard")
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack((TEXT + "\n").encode("utf-16")))
    assert texts(open_corpus([str(path)], block_bytes=7)) == [TEXT]
    assert texts(open_corpus([str(tmp_path)])) == [TEXT]
    lines = tmp_path / f"a.jsonl{suffix}"
    lines.write_bytes(pack('{"t": "é"}\r\n{"t": "b"}\r\n'.encode("utf-16")))
    assert texts(open_corpus([str(lines)], field="t")) == ["é", "b"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode("utf-16"))))
    assert texts(open_corpus(["-"])) == [TEXT.removesuffix("\n")]


def test_logs_too(tmp_path: Path) -> None:
    """PowerShell's > makes a log of UTF-16: every line was no JSON."""
    path = tmp_path / "log.jsonl"
    path.write_bytes('{"messages": [{"role": "user", "content": "é"}]}\n'.encode("utf-16"))
    ((_, chat),) = open_chats([str(path)]).chats()
    assert not isinstance(chat, str)
    path.write_bytes('{"messages": []}\n'.encode("utf-16-le"))
    with pytest.raises(InputMalformed, match="every second byte is 0"):
        list(open_chats([str(path)]).chats())


def test_invalid_bytes_are_counted_in_the_corpus(tmp_path: Path) -> None:
    """An odd byte at the end of UTF-16 is dropped without a word."""
    path = tmp_path / "a.txt"
    path.write_bytes("ab".encode("utf-16") + b"c")
    corpus = open_corpus([str(path)])
    assert texts(corpus) == ["ab\ufffd"]
    assert corpus.stats.invalid_by_file == {str(path): 1}


# --- zstd ----------------------------------------------------------------------------------------


def unpacked(data: bytes) -> bytes:
    reader = ZstdReader(io.BytesIO(data), "x")
    return b"".join(iter(lambda: reader.read(1 << 16), b""))


def test_frames_of_zstd() -> None:
    """The second frame of a file is lost, or one cut short taken for whole."""
    zstandard = pytest.importorskip("zstandard")
    pack = zstandard.ZstdCompressor().compress
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    assert unpacked(pack(b"a" * 99) + skippable + pack(b"b")) == b"a" * 99 + b"b"
    whole = pack(bytes(range(256)) * 300)
    for n in (1, 5, 20, len(whole) - 1):
        with pytest.raises(EOFError):
            unpacked(whole[:n])
        with pytest.raises(EOFError):
            unpacked(whole + whole[:n])
    with pytest.raises(zstandard.ZstdError):
        unpacked(whole + b"garbage")


def test_zstd_is_read_in_pieces() -> None:
    """A few kilobytes become gigabytes at once, or a window of 2 GB is made room for."""
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28))
    reader = ZstdReader(io.BytesIO(bomb), "x")
    n = 0
    while block := reader.read(1 << 16):
        n += len(block)
        assert len(reader._output) <= 64 << 20
    assert n == 1 << 28
    params = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    with pytest.raises(zstandard.ZstdError):
        unpacked(packer.compress(b"x") + packer.flush())
