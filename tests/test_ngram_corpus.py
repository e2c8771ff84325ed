"""Corpus: what counts as an input, what its text is, and what each bad input is told."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import threading
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.errors import (
    DraftsmithError,
    InputHasNoText,
    InputMalformed,
    InputUnreadable,
    UsageError,
)
from draftsmith.ngram.corpus import ids as corpus_ids
from draftsmith.ngram.corpus import store as corpus_store
from draftsmith.ngram.corpus.decode import (
    drop_last_newline,
    json_line_texts,
    process_escapes,
    repair_utf8,
)
from draftsmith.ngram.corpus.documents import Corpus, open_corpus
from hypothesis import given
from hypothesis import strategies as st

BLOCK_SIZES = [1, 2, 3, 7, 64, 1 << 20]
COMPRESSORS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def texts(corpus: Corpus) -> list[bytes]:
    """Take every document whole, and check what is promised of each block."""
    found = []
    for document in corpus.documents():
        assert document.blocks is not None
        blocks = list(document.blocks)
        assert all(blocks), "an empty block"
        for block in blocks:
            block.decode("utf-8", "strict")
        found.append(b"".join(blocks))
    return found


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def one_line(error: pytest.ExceptionInfo[DraftsmithError], *parts: str) -> None:
    message = str(error.value)
    assert message.isprintable(), "a message of more than one line"
    assert error.value.remedy
    for part in parts:
        assert part in message


def write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def open_files_below(folder: Path) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(folder))]


# --- text: UTF-8, final newline, escapes ---------------------------------------------------------

MIXED = (
    "A\r\né€😀 plain \ufffd\n".encode()
    + b"\xff\xe2\x82 \xf0\x9f\x98\xed\xa0\x80\xc3\n\xf4\x90z\xe2"
)


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
def test_text_is_python_replace_decoding_for_any_block_size(
    tmp_path: Path, block_bytes: int
) -> None:
    """A character cut by a block border is replaced, or an invalid one is counted twice."""
    path = write(tmp_path / "a.txt", MIXED)
    corpus = open_corpus([path], block_bytes=block_bytes)
    expected = MIXED.decode("utf-8", "replace")
    assert texts(corpus) == [expected.encode()]
    assert corpus.stats.n_invalid_utf8 == expected.count("\ufffd") - 1
    assert corpus.stats.invalid_by_file == {path: expected.count("\ufffd") - 1}
    assert corpus.stats.n_bytes == len(expected.encode())
    assert corpus.bytes_read == corpus.total_bytes == len(MIXED)


UTF8_LIKE = st.lists(
    st.sampled_from(
        [b"a", b"\n", "é".encode(), "€".encode(), "😀".encode(), "\ufffd".encode()]
        + [bytes([b]) for b in b"\x80\xa0\xbf\xc0\xc3\xe0\xe2\xed\xef\xf0\xf4\xf5\xff\xbd"]
    ),
    max_size=30,
).map(b"".join)


@given(UTF8_LIKE, st.lists(st.integers(0, 200), max_size=8))
def test_repair_equals_python_for_any_cut(data: bytes, cuts: list[int]) -> None:
    """The count or the text of a repair depends on where the blocks end."""
    counts: list[int] = []
    repaired = list(repair_utf8(cut(data, cuts), counts.append))
    expected = data.decode("utf-8", "replace")
    assert b"".join(repaired) == expected.encode()
    assert sum(counts) == expected.count("\ufffd") - data.count("\ufffd".encode())
    assert all(block.decode() for block in repaired)


def test_only_files_with_invalid_sequences_are_counted_as_such(tmp_path: Path) -> None:
    """A warning names a clean file, or counts one bad file once for each of its sequences."""
    good = write(tmp_path / "good.txt", "é\ufffd".encode())
    bad = write(tmp_path / "bad.txt", b"\xff\xff")
    corpus = open_corpus([good, bad, good])
    texts(corpus)
    assert (corpus.stats.n_invalid_files, corpus.stats.n_invalid_utf8) == (1, 2)
    assert corpus.stats.n_documents == 3


def test_byte_order_mark_and_windows_newlines_stay(tmp_path: Path) -> None:
    """Text is changed silently, so that its tokens differ from llama.cpp's."""
    data = b"\xef\xbb\xbfa\r\nb\r\n"
    assert texts(open_corpus([write(tmp_path / "a.txt", data)])) == [data[:-1]]


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\n\n", b"a", b"a\n", b"a\n\n\n", b"\na\r\n", b"\n" * 64]
)
def test_one_final_newline_is_dropped(tmp_path: Path, data: bytes, block_bytes: int) -> None:
    """All final newlines go, or none when it falls on a block border, or one inside the text."""
    path = write(tmp_path / "a.txt", data)
    assert texts(open_corpus([path], block_bytes=block_bytes)) == [data.removesuffix(b"\n")]
    kept = open_corpus([path], block_bytes=block_bytes, strip_newline=False)
    assert texts(kept) == [data]


@given(st.lists(st.sampled_from([b"\n", b"a"]), max_size=9), st.lists(st.integers(0, 9)))
def test_final_newline_for_any_cut(parts: list[bytes], cuts: list[int]) -> None:
    """A held newline is lost or doubled at a block border."""
    data = b"".join(parts)
    assert b"".join(drop_last_newline(cut(data, cuts))) == data.removesuffix(b"\n")


def plain_escapes(text: bytes) -> bytes:
    """Process escapes a byte at a time: strtol over the two bytes after ``\\x`` and all."""
    letters = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}
    out, at = b"", 0
    while at < len(text):
        here, after = text[at : at + 1], text[at + 1 : at + 2]
        if here != b"\\" or not after:
            out, at = out + here, at + 1
        elif after in letters:
            out, at = out + letters[after], at + 2
        else:
            first, second = text[at + 2 : at + 3], text[at + 3 : at + 4]
            hexadecimal = b"0123456789abcdefABCDEF"
            ok = first and second and second in hexadecimal
            if after == b"x" and ok and first in hexadecimal + b" \t\n\v\f\r+-":
                out, at = out + bytes([int(first + second, 16) % 256]), at + 4
            else:
                out, at = out + here + after, at + 2
    return out


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb"a\nb\rc\td\'e\"f\\g", b"a\nb\rc\td'e\"f\\g"),
        (rb"\x41\x7a\xC3\xa9", "Az\u00e9".encode()),
        (rb"\q\a\0\u0041 \N", rb"\q\a\0\u0041 \N"),
        (rb"\x4", rb"\x4"),
        (rb"\x", rb"\x"),
        (rb"\xg1 \x1g \x0x", rb"\xg1 \x1g \x0x"),
        (rb"\x 4\x+4\x-1", b"\x04\x04\xff"),
        (b"end\\", b"end\\"),
        (rb"\\n \\\n \\\\x41", b"\\n \\\n \\\\x41"),
        (rb"\x\n\x4\n", b"\\x\n\\x4\n"),
        (rb"\x5cn", rb"\n"),
    ],
)
def test_escapes_by_hand(written: bytes, meant: bytes) -> None:
    """An escape means something else than it does to llama.cpp."""
    assert b"".join(process_escapes([written])) == meant == plain_escapes(written)
    assert b"".join(process_escapes([bytes([b]) for b in written])) == meant


@given(
    st.lists(st.sampled_from([bytes([b]) for b in b"\\\\\\xxn4fF -+\ng'\xc3"]), max_size=24),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_escapes_for_any_cut(parts: list[bytes], cuts: list[int]) -> None:
    """An escape over a block border is missed, or a backslash is taken twice."""
    data = b"".join(parts)
    assert b"".join(process_escapes(cut(data, cuts))) == plain_escapes(data)


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
def test_newline_goes_before_escapes_and_repair_comes_after(
    tmp_path: Path, block_bytes: int
) -> None:
    r"""A written ``\n`` at the end is dropped, or ``\xFF`` hands invalid UTF-8 on."""
    path = write(tmp_path / "a.txt", rb"\xC3\xA9\xff\n" + b"\n")
    corpus = open_corpus([path], escape=True, block_bytes=block_bytes)
    assert texts(corpus) == ["é\ufffd\n".encode()]
    assert corpus.stats.n_invalid_utf8 == 1
    off = open_corpus([path], block_bytes=block_bytes)
    assert texts(off) == [rb"\xC3\xA9\xff\n"]


# --- inputs: files, folders, patterns, stdin, pipes ----------------------------------------------


def test_order_and_repeats_are_the_users(tmp_path: Path) -> None:
    """Documents are sorted or made unique, so that counts are not what was asked for."""
    b, a = write(tmp_path / "b.txt", b"B"), write(tmp_path / "a.txt", b"A")
    corpus = open_corpus([b, a, b])
    assert texts(corpus) == [b"B", b"A", b"B"]
    assert corpus.total_bytes == 3


def test_empty_file_is_a_document(tmp_path: Path) -> None:
    """An empty file shifts the document numbers, or yields an empty block."""
    corpus = open_corpus([write(tmp_path / "a.txt", b""), write(tmp_path / "b.txt", b"b")])
    assert texts(corpus) == [b"", b"b"]
    assert corpus.stats.n_documents == 2


def test_folder_gives_its_text_sorted(tmp_path: Path) -> None:
    """Folder order depends on the file system, or hidden and binary files are counted."""
    write(tmp_path / "d" / "z.txt", b"z")
    write(tmp_path / "d" / "sub" / "a.md", b"a")
    write(tmp_path / "d" / "m.txt.gz", gzip.compress(b"m"))
    write(tmp_path / "d" / ".hidden", b"no")
    write(tmp_path / "d" / ".git" / "config", b"no")
    image = write(tmp_path / "d" / "image", b"PNG\0data")
    packed = write(tmp_path / "d" / "packed.gz", gzip.compress(b"a\0b"))
    archive = write(tmp_path / "d" / "x.zip", b"PK")
    ids = write(tmp_path / "d" / "ids.npy", b"")
    os.mkfifo(tmp_path / "d" / "pipe")
    corpus = open_corpus([str(tmp_path / "d")])
    assert texts(corpus) == [b"m", b"a", b"z"]
    assert set(corpus.left_out) == {image, packed, archive, ids, str(tmp_path / "d" / "pipe")}


def test_folder_without_text_is_told(tmp_path: Path) -> None:
    """A folder of binaries makes an empty cache without a word."""
    write(tmp_path / "d" / "image", b"PNG\0data")
    with pytest.raises(InputHasNoText) as error:
        open_corpus([str(tmp_path / "d")])
    one_line(error, str(tmp_path / "d"), "zero byte")


def test_folder_with_field_takes_json_lines_only(tmp_path: Path) -> None:
    """A README beside the data stops a run over a folder of JSON lines."""
    write(tmp_path / "README.md", b"about")
    write(tmp_path / "b.ndjson", b'{"t": "b"}\n')
    write(tmp_path / "a.jsonl.xz", lzma.compress(b'{"t": "a"}\n'))
    corpus = open_corpus([str(tmp_path)], field="t")
    assert texts(corpus) == [b"a", b"b"]
    assert corpus.left_out == (str(tmp_path / "README.md"),)
    write(tmp_path / "only" / "a.txt", b"a")
    with pytest.raises(InputHasNoText) as error:
        open_corpus([str(tmp_path / "only")], field="t")
    one_line(error, "JSON lines")


def test_folder_with_json_lines_needs_a_field(tmp_path: Path) -> None:
    """JSON syntax is counted as text, or the file is passed over silently."""
    write(tmp_path / "a.txt", b"a")
    write(tmp_path / "b.jsonl", b'{"t": "b"}\n')
    with pytest.raises(InputMalformed) as error:
        open_corpus([str(tmp_path)])
    one_line(error, "b.jsonl", "--field")


def test_patterns(tmp_path: Path) -> None:
    """``**`` stays in one folder, a folder that matches stops the run, or order varies."""
    write(tmp_path / "b.txt", b"b")
    write(tmp_path / "deep" / "er" / "a.txt", b"a")
    write(tmp_path / "deep" / "n.md", b"n")
    assert texts(open_corpus([str(tmp_path / "*.txt")])) == [b"b"]
    assert texts(open_corpus([str(tmp_path / "**" / "*.txt")])) == [b"b", b"a"]
    assert texts(open_corpus([str(tmp_path / "**")])) == [b"b", b"a", b"n"]


def test_pattern_without_match_is_told(tmp_path: Path) -> None:
    """A pattern that matches nothing, or only folders, gives an empty corpus."""
    (tmp_path / "folder").mkdir()
    for pattern in ("*.txt", "*"):
        with pytest.raises(InputHasNoText) as error:
            open_corpus([str(tmp_path / pattern)])
        one_line(error, pattern)


def test_existing_name_is_not_a_pattern(tmp_path: Path) -> None:
    """A file called ``notes[1].txt`` cannot be named."""
    path = write(tmp_path / "notes[1].txt", b"one")
    write(tmp_path / "notes1.txt", b"other")
    assert texts(open_corpus([path])) == [b"one"]


@pytest.mark.parametrize("name", ["no such.txt", "", "a\0b", "line\nbreak.txt", "\udcff.txt"])
def test_missing_path_is_found_before_anything_is_read(tmp_path: Path, name: str) -> None:
    """A typing error in the last of many inputs shows after an hour, or as a traceback."""
    good = write(tmp_path / "a.txt", b"a")
    with pytest.raises(InputUnreadable) as error:
        open_corpus([good, str(tmp_path / name) if name else name])
    one_line(error)


def test_no_input_is_a_usage_error() -> None:
    """No input at all is told as an empty one."""
    with pytest.raises(UsageError):
        open_corpus([])
    with pytest.raises(UsageError):
        open_corpus(["-"], field="")


def test_unreadable_file_and_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may not be read gives a traceback, or is skipped inside a folder."""
    path = write(tmp_path / "d" / "a.txt", b"a")

    def refuse(name: str, *_: object) -> object:
        raise PermissionError(13, "Permission denied", name)

    with monkeypatch.context() as patch:
        patch.setattr("draftsmith.ngram.corpus.store.open", refuse, raising=False)
        for named in (path, str(tmp_path / "d")):
            with pytest.raises(InputUnreadable) as error:
                open_corpus([named])
            one_line(error, "a.txt", "permission denied", "chmod")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(InputUnreadable) as error:
            open_corpus([str(tmp_path / "d")])
        one_line(error, str(tmp_path / "d"), "permission denied")


@pytest.mark.parametrize(
    "name", ["m.gguf", "a.zip", "a.tar.gz", "a.tar.zst", "ids.npy.gz", "a.parquet.gz", "A.ZIP"]
)
def test_foreign_formats_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """A model or an archive named by mistake is tokenised as mojibake."""
    with pytest.raises(InputUnreadable) as error:
        open_corpus([write(tmp_path / name, b"GGUF")])
    one_line(error, name)


def test_special_files_are_refused_and_never_waited_for() -> None:
    """/dev/zero is read for ever."""
    with pytest.raises(InputUnreadable) as error:
        open_corpus(["/dev/zero"])
    one_line(error, "/dev/zero")


def test_named_pipe_is_read(tmp_path: Path) -> None:
    """Process substitution, ``-f <(zstd -dc a.zst)``, is refused or opened twice."""
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    corpus = open_corpus([path])
    assert corpus.total_bytes is None
    writer = threading.Thread(target=lambda: Path(path).write_bytes(b"piped\n"))
    writer.start()
    assert texts(corpus) == [b"piped"]
    writer.join()
    with pytest.raises(UsageError):
        open_corpus([path, path])


def test_named_pipe_without_a_writer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would wait for ever, without a word, for a pipe that nothing writes into."""
    monkeypatch.setattr(corpus_store, "_WRITER_S", 0.05)
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    n_threads = threading.active_count()
    with pytest.raises(InputUnreadable, match="nothing writes into") as refused:
        texts(open_corpus([path]))
    assert "start the program" in refused.value.remedy
    assert threading.active_count() <= n_threads  # the one that waited has ended


def test_stdin_is_read_as_bytes_and_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input is decoded by the locale, or closed under the caller."""
    stdin = io.TextIOWrapper(io.BytesIO(b"\xffstd\r\n"), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stdin)
    corpus = open_corpus(["-", write(tmp_path / "a.txt", b"a")])
    assert corpus.total_bytes is None
    assert texts(corpus) == ["\ufffdstd\r".encode(), b"a"]
    assert corpus.bytes_read == 7
    assert not stdin.closed


def test_stdin_twice_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ``-`` is an empty document, and ``<&-`` a traceback."""
    with pytest.raises(UsageError) as usage:
        open_corpus(["-", "-"])
    one_line(usage, "standard input")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputUnreadable) as error:
        texts(open_corpus(["-"]))
    one_line(error, "standard input")


# --- compressed files ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_compressed_text_is_the_text(tmp_path: Path, suffix: str, block_bytes: int) -> None:
    """A second member is lost, or the final newline stays in a compressed file."""
    compress = COMPRESSORS[suffix]
    data = compress("né".encode()) + compress(b"xt\n")
    corpus = open_corpus([write(tmp_path / f"a.TXT{suffix}", data)], block_bytes=block_bytes)
    assert texts(corpus) == ["néxt".encode()]
    assert corpus.bytes_read == corpus.total_bytes == len(data)


NOISE = np.random.default_rng(5).integers(32, 127, 60_000, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_cut_compressed_file_is_told(tmp_path: Path, suffix: str) -> None:
    """Half a corpus is counted as the whole when a download broke off."""
    data = COMPRESSORS[suffix](NOISE)
    for n_bytes in (0, 1, 5, 20, len(data) // 2, len(data) - 1):
        path = write(tmp_path / f"a.txt{suffix}", data[:n_bytes])
        with pytest.raises(InputUnreadable) as error:
            texts(open_corpus([path], block_bytes=1000))
        one_line(error, f"a.txt{suffix}", "cut short")


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_damaged_compressed_file_is_told_at_any_place(tmp_path: Path, suffix: str) -> None:
    """A flipped byte gives a traceback of zlib or lzma, or text that never was."""
    data = bytearray(COMPRESSORS[suffix](NOISE))
    for place in (0, len(data) // 3, len(data) - 6):
        damaged = data.copy()
        damaged[place] ^= 0x55
        path = write(tmp_path / f"a.txt{suffix}", bytes(damaged))
        with pytest.raises(InputUnreadable) as error:
            texts(open_corpus([path], block_bytes=1000))
        one_line(error, f"a.txt{suffix}")


def test_text_under_a_compressed_name_is_told_at_once(tmp_path: Path) -> None:
    """A wrongly named file shows only when its turn comes."""
    for suffix in COMPRESSORS:
        with pytest.raises(InputUnreadable):
            open_corpus([write(tmp_path / f"a{suffix}", b"plain text, not compressed")])


def test_python_without_lzma_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python built without liblzma cannot even import the corpus, or gives a traceback."""
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(InputUnreadable) as error:
        open_corpus([write(tmp_path / "a.xz", lzma.compress(b"a"))])
    one_line(error, "lzma")


def test_compression_bomb_is_read_in_blocks(tmp_path: Path) -> None:
    """A small file that unpacks to gigabytes fills the memory."""
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"a" * 5_000_000))
    for document in open_corpus([path], block_bytes=1000).documents():
        assert document.blocks is not None
        assert max(map(len, document.blocks)) <= 1000


# --- JSON lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", BLOCK_SIZES)
def test_each_line_is_a_document(tmp_path: Path, block_bytes: int) -> None:
    """Lines run together, blank ones count, or a field's final newline is dropped."""
    data = (
        b'\xef\xbb\xbf{"t": "a\\n\xc3\xa9\\n"}\r\n\n  \n{"t": ""}\n{"x": 1, "t": "\\ud83d\\ude00"}'
    )
    path = write(tmp_path / "a.jsonl", data)
    corpus = open_corpus([path], field="t", block_bytes=block_bytes)
    assert texts(corpus) == ["a\né\n".encode(), b"", "😀".encode()]
    names = [d.name for d in open_corpus([path], field="t").documents()]
    assert names == [f"{path}:1", f"{path}:4", f"{path}:5"]
    assert corpus.stats.n_documents == 3
    assert corpus.stats.n_invalid_utf8 == 0
    assert corpus.bytes_read == corpus.total_bytes


def test_documents_of_json_lines_may_be_taken_later(tmp_path: Path) -> None:
    """A tokenizer that fetches documents ahead finds the earlier ones empty."""
    a = write(tmp_path / "a.jsonl", b'{"t": "a"}\n{"t": "b"}\n')
    documents = list(open_corpus([a, a], field="t").documents())
    assert [b"".join(d.blocks or ()) for d in reversed(documents)] == [b"b", b"a", b"b", b"a"]


def test_field_inside_a_field(tmp_path: Path) -> None:
    """Nested text cannot be named, or a dotted key is out of reach."""
    line = json.dumps({"m": {"c": {"t": "deep"}}, "m.k": "flat"}).encode()
    path = write(tmp_path / "a.jsonl", line)
    assert texts(open_corpus([path], field="m.c.t")) == [b"deep"]
    assert texts(open_corpus([path], field="m.k")) == [b"flat"]


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_other_names_and_compressed_json_lines(tmp_path: Path, suffix: str) -> None:
    """``c4.json.gz`` with --field is read as plain text."""
    data = COMPRESSORS.get(suffix, bytes)(b'{"t": "a"}\n{"t": "b"}\n')
    assert texts(open_corpus([write(tmp_path / f"c4.json{suffix}", data)], field="t")) == [
        b"a",
        b"b",
    ]


def test_escapes_work_in_fields(tmp_path: Path) -> None:
    """--escape is ignored without a word for JSON lines."""
    path = write(tmp_path / "a.jsonl", json.dumps({"t": r"a\nb"}).encode())
    assert texts(open_corpus([path], field="t", escape=True)) == [b"a\nb"]


def test_invalid_utf8_and_half_pairs_in_json_lines(tmp_path: Path) -> None:
    """A lone surrogate becomes invalid UTF-8 or a traceback, or a repair is not counted."""
    path = write(tmp_path / "a.jsonl", b'{"t": "\xff\\ud800\\ufffd"}\n')
    corpus = open_corpus([path], field="t")
    assert texts(corpus) == ["\ufffd\ufffd\ufffd".encode()]
    assert corpus.stats.invalid_by_file == {path: 2}


def test_json_lines_without_field(tmp_path: Path) -> None:
    """Braces and keys are counted as text."""
    for name in ("a.jsonl", "a.ndjson.gz", "A.JSONLINES"):
        with pytest.raises(InputMalformed) as error:
            open_corpus([write(tmp_path / name, b"")])
        one_line(error, name, "--field")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"plain text", "not JSON"),
        (b'{"t": "a"', "not JSON"),
        (b'{"t": "a"} {"t": "b"}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"t": ' + b"9" * 5000 + b"}", "digits"),
        (b"[1]", "a list"),
        (b"42", "a number"),
        (b'{"u": "a", "v\\n": 1}', "'u', 'v\\n'"),
        (b"{}", "no field"),
        (b'{"t": null}', "null"),
        (b'{"t": true}', "true or false"),
        (b'{"t": 1.5}', "a number"),
        (b'{"t": {"u": "a"}}', "an object"),
        (b'{"t": ["a"]}', "a list"),
    ],
)
def test_bad_line_is_named_by_its_number(tmp_path: Path, line: bytes, told: str) -> None:
    """The user has to search a million lines for the bad one, or is shown a traceback."""
    path = write(tmp_path / "a.jsonl", b'{"t": "fine"}\n\n' + line + b"\n")
    documents = open_corpus([path], field="t").documents()
    assert b"".join(next(documents).blocks or ()) == b"fine"
    with pytest.raises(InputMalformed) as error:
        next(documents)
    one_line(error, f"{path}:3", told, "--field")


def test_missing_inner_field(tmp_path: Path) -> None:
    """A path through a text or a missing object gives a traceback."""
    path = write(tmp_path / "a.jsonl", b'{"m": "text"}\n')
    for field in ("m.c", "n.c", "m.", "."):
        with pytest.raises(InputMalformed) as error:
            texts(open_corpus([path], field=field))
        one_line(error, ":1", field)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_line_length_is_bounded(size: int) -> None:
    """A file without newlines is gathered in memory whole."""
    line = b'{"t": "' + b"a" * 91 + b'"}'
    data = line + b"\n" + line
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    assert len(list(json_line_texts(blocks, "t", "x", line_limit_bytes=100))) == 2
    with pytest.raises(InputMalformed) as error:
        list(json_line_texts([line[:50], b"\n", *blocks], "t", "x", line_limit_bytes=40))
    one_line(error, "x:1", "40 bytes")


# --- token ids -----------------------------------------------------------------------------------


def save(path: Path, array: object) -> str:
    np.save(path, np.asarray(array), allow_pickle=True)
    return str(path)


@pytest.mark.parametrize("dtype", ["<i4", ">i4", "i8", "u2", "u4", "u8", "i1"])
def test_ids_of_any_integer_type_that_fits(tmp_path: Path, dtype: str) -> None:
    """uint16 ids are refused, or big-endian ones read the wrong way round."""
    path = save(tmp_path / "a.npy", np.array([5, 0, 127], dtype=dtype))
    corpus = open_corpus([path], field="ignored for ids")
    (document,) = corpus.documents()
    assert document.blocks is None
    assert document.tokens is not None
    assert document.tokens.dtype == np.dtype("=i4")
    assert document.tokens.tolist() == [5, 0, 127]
    assert not document.tokens.flags.writeable
    assert corpus.stats.n_documents == 1
    assert corpus.bytes_read == corpus.total_bytes


def test_no_ids_is_an_empty_document(tmp_path: Path) -> None:
    """An empty array cannot be mapped, or has no least id."""
    (document,) = open_corpus([save(tmp_path / "a.npy", np.zeros(0, np.int32))]).documents()
    assert document.tokens is not None
    assert document.tokens.shape == (0,)


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros(3, np.float32), "float32"),
        (np.zeros(3, bool), "bool"),
        (np.zeros((2, 2), np.int32), "(2, 2)"),
        (np.int32(5), "()"),
        (np.zeros(2, [("a", "i4")]), "shape"),
        (np.array(["a"]), "<U1"),
        (np.array([{"a": 1}], dtype=object), "not a whole .npy"),
    ],
)
def test_wrong_arrays_are_refused_at_once(tmp_path: Path, array: object, told: str) -> None:
    """Floats are cut to ids, rows run together, or a pickle is executed."""
    with pytest.raises(InputMalformed) as error:
        open_corpus([save(tmp_path / "a.npy", array)])
    one_line(error, "a.npy", told, "int32")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.array([1, 2, -1], np.int32), "-1 at position 2"),
        (np.array([1, 2**31], np.int64), "2147483648 at position 1"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 at position 0"),
    ],
)
def test_ids_out_of_range_are_refused(
    tmp_path: Path, array: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id wraps to another one, or a negative one reaches the kernels."""
    monkeypatch.setattr(corpus_ids, "_IDS_BLOCK", 2)
    with pytest.raises(InputMalformed) as error:
        list(open_corpus([save(tmp_path / "a.npy", array)]).documents())
    one_line(error, told)


def test_npy_file_cut_or_flipped_anywhere_in_its_header(tmp_path: Path) -> None:
    """A header that lies about the size maps past the end, or numpy's own error gets out."""
    good = Path(save(tmp_path / "a.npy", np.arange(40, dtype=np.int32))).read_bytes()
    bad = tmp_path / "b.npy"
    for n_bytes in range(len(good)):
        with pytest.raises(InputMalformed):
            open_corpus([write(bad, good[:n_bytes])])
    with pytest.raises(InputMalformed):
        open_corpus([write(bad, good + b"\0\0\0\0")])
    for shape in (b"(400,), ", b"(-4,), ", b"(4.5,), ", b"((40,),)", b"(9**9,), ", b"(" * 90):
        with pytest.raises(InputMalformed):
            open_corpus([write(bad, good.replace(b"(40,), ", shape))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about headers that Python 2 wrote
        for place in range(128):
            for flip in (0x01, 0x20, 0x80):
                damaged = bytearray(good)
                damaged[place] ^= flip
                try:
                    list(open_corpus([write(bad, bytes(damaged))]).documents())
                except DraftsmithError as refused:
                    assert str(refused).isprintable()  # noqa: PT017 (some flips are harmless)


# --- files that change, and files left open ------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.npy"])
def test_file_that_vanishes_or_changes_later(tmp_path: Path, name: str) -> None:
    """A file that was there at the start gives a traceback when its turn comes."""
    first = write(tmp_path / "first.txt", b"first")
    path = tmp_path / name
    save(tmp_path / "ids.npy", np.arange(9, dtype=np.int32))
    data = (tmp_path / "ids.npy").read_bytes()
    for change in (path.unlink, lambda: path.write_bytes(data + b"more")):
        path.write_bytes(data)
        documents = open_corpus([first, str(path)]).documents()
        next(documents)
        change()
        with pytest.raises(InputUnreadable) as error:
            list(next(documents).blocks or ())
        one_line(error, name)


def test_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """A text that another program is still writing is counted up to some chance point."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab" * 10_000)
    (document,) = open_corpus([str(path)], block_bytes=100).documents()
    assert document.blocks is not None
    next(document.blocks)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputUnreadable) as error:
        list(document.blocks)
    one_line(error, "changed")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_are_closed_also_when_the_reader_stops_early(tmp_path: Path) -> None:
    """A corpus of many files runs out of file descriptors."""
    a = write(tmp_path / "a.txt", b"a" * 1000)
    g = write(tmp_path / "g.gz", gzip.compress(NOISE))
    j = write(tmp_path / "j.jsonl", b'{"t": "a"}\n' * 100)
    corpus = open_corpus([a, g], block_bytes=10)
    assert open_files_below(tmp_path) == []
    for document in corpus.documents():
        assert document.blocks is not None
        next(document.blocks)
        assert open_files_below(tmp_path) == [document.name]
        document.blocks.close()  # type: ignore[attr-defined]
        assert open_files_below(tmp_path) == []
    lines = open_corpus([j], field="t", block_bytes=10).documents()
    next(lines)
    assert open_files_below(tmp_path) == [j]
    del lines
    assert open_files_below(tmp_path) == []
    documents = open_corpus([a], block_bytes=10).documents()
    next(next(documents).blocks or iter(()))
    del documents
    assert open_files_below(tmp_path) == []


@pytest.mark.parametrize("n", [0, 1, 9, 10, 11, 35])
def test_blocks_of_ids(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids lost at a block's edge, or no block at all for a document without ids."""
    monkeypatch.setattr(corpus_ids, "_IDS_BLOCK", 10)
    np.save(tmp_path / "ids.npy", np.arange(n, dtype=np.int32))
    (document,) = open_corpus([str(tmp_path / "ids.npy")]).documents()
    assert document.tokens is not None
    blocks = [block.copy() for block in corpus_ids.id_blocks(document.tokens)]
    assert len(blocks) == max(1, -(-n // 10))
    assert np.concatenate(blocks).tolist() == list(range(n))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")
def test_mapped_ids_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    """Memory as large as the largest .npy file."""

    def mapped_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssFile:")[1].split()[0]) * 1024

    np.save(tmp_path / "ids.npy", np.ones(16 << 20, np.int32))
    before = mapped_bytes()
    (document,) = open_corpus([str(tmp_path / "ids.npy")]).documents()
    assert document.tokens is not None
    for block in corpus_ids.id_blocks(document.tokens):
        assert block.max() == 1
        assert mapped_bytes() - before < 24 << 20
