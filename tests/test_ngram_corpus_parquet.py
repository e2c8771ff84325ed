"""Parquet: rows as documents and as conversations; and the extras that are not installed."""

from __future__ import annotations

import io
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done
from draftsmith.engine.chat.messages import Chat
from draftsmith.engine.errors import ExitStatus, InputMalformed, InputUnreadable
from draftsmith.ngram.conversations.files import open_chats
from draftsmith.ngram.corpus import parquet as corpus_parquet
from draftsmith.ngram.corpus.documents import Corpus, open_corpus
from draftsmith.ngram.corpus.find import find_sources
from draftsmith.ngram.corpus.parquet import parquet_rows

Cli = Callable[..., Done]


def texts(corpus: Corpus) -> list[bytes]:
    return [b"".join(document.blocks or ()) for document in corpus.documents()]


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    stream = io.BytesIO()
    pq.write_table(pyarrow.Table.from_pylist(rows), stream, **options)
    return stream.getvalue()


ROWS = [{"t": f"text é {i}\n", "u": i, "m": {"c": "x" * i}} for i in range(300)]


def test_rows_are_documents(tmp_path: Path) -> None:
    """A row is lost at the border of a row group, or nulls are texts, or errors."""
    path = tmp_path / "a.parquet"
    rows = [*ROWS, {"t": None, "u": 1, "m": None}, {"t": "", "u": None, "m": {"c": None}}]
    path.write_bytes(parquet(rows, row_group_size=70))
    corpus = open_corpus([str(path)], field="t", block_bytes=4)
    assert texts(corpus) == [row["t"].encode() for row in ROWS] + [b""]
    assert (corpus.stats.n_null, corpus.stats.n_documents) == (1, 301)
    assert corpus.bytes_read == corpus.total_bytes
    corpus = open_corpus([str(path)], field="m.c")
    assert texts(corpus) == [row["m"]["c"].encode() for row in ROWS]
    assert corpus.stats.n_null == 2
    corpus = open_corpus([str(path)], field="t")
    names = [document.name for document in corpus.documents()]
    assert names[:2] == [f"{path}[1]", f"{path}[2]"]
    assert names[-1] == f"{path}[302]"


def test_column_that_is_not_there(tmp_path: Path) -> None:
    """A typing error gives a traceback of pyarrow's, or an empty corpus."""
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(ROWS))
    with pytest.raises(InputMalformed, match=r"no column 'x'; the file has 't', 'u', 'm'"):
        texts(open_corpus([str(path)], field="x"))
    with pytest.raises(InputMalformed, match=r"\[1\]: the field 'u' is a number"):
        texts(open_corpus([str(path)], field="u"))
    with pytest.raises(InputMalformed, match="no column is named") as error:
        open_corpus([str(path)])
    assert "--field" in error.value.remedy
    assert "--chat" in error.value.remedy


def test_damaged_parquet(tmp_path: Path) -> None:
    """A file cut short, or another under its name, is an internal error."""
    whole = parquet(ROWS, compression="zstd")
    path = tmp_path / "a.parquet"
    flipped = bytearray(whole)
    flipped[60:90] = bytes(30)
    for data in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2], b"text " * 99, bytes(flipped)):
        path.write_bytes(data)
        with pytest.raises(InputUnreadable, match="Parquet"):
            texts(open_corpus([str(path)], field="t"))
    (tmp_path / "b.jsonl").write_text('{"t": "b"}\n')
    corpus = open_corpus([str(tmp_path)], field="t")
    assert texts(corpus) == [b"b"]
    assert corpus.stats.skipped[0].path == str(path)


def test_folders(tmp_path: Path) -> None:
    """A folder of Parquet files is one without text."""
    (tmp_path / "a.parquet").write_bytes(parquet(ROWS[:2]))
    (tmp_path / "b.jsonl").write_text('{"t": "b"}\n')
    assert texts(open_corpus([str(tmp_path)], field="t")) == [
        b"text \xc3\xa9 0\n",
        b"text \xc3\xa9 1\n",
        b"b",
    ]
    (tmp_path / "b.jsonl").rename(tmp_path / "b.txt")
    corpus = open_corpus([str(tmp_path)], is_text=True)
    assert len(texts(corpus)) == 1
    assert corpus.left_out == (str(tmp_path / "a.parquet"),)


def test_rows_are_conversations(tmp_path: Path) -> None:
    """A data set of chats as Hugging Face stores it is refused."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet([{"messages": chat, "n": 1}, {"messages": None, "n": 2}] * 2))
    found = list(open_chats([str(path)]).chats())
    assert [place for place, _ in found] == [f"{path}[{i}]" for i in (1, 2, 3, 4)]
    assert [isinstance(one, Chat) for _, one in found] == [True, False, True, False]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("a.txt.zst", "zstandard", "zstd"), ("a.parquet", "pyarrow", "parquet")],
)
def test_extra_that_is_not_installed(
    name: str,
    package: str,
    extra: str,
    cli: Cli,
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback, or a file that is passed over, where only a package is missing."""
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / name
    path.write_bytes(b"(\xb5/\xfd and so on" if extra == "zstd" else b"PAR1")
    out = tmp_path / "out"
    for more in (("--field", "t"), ("--chat",)):
        done = cli("lookup-create", "-m", "smollm2", "-f", path, "-lcs", out, *more)
        assert done.status == ExitStatus.INPUT_UNREADABLE
        assert f"pip install 'draftsmith[{extra}]'" in done.error
        assert package in done.error
    (tmp_path / "b.jsonl").write_text('{"t": "b b b b"}\n')
    if extra == "zstd":
        path.rename(tmp_path / "a.jsonl.zst")
    done = cli("lookup-create", "-m", "smollm2", "-f", tmp_path, "-lcs", out, "--field", "t")
    assert done.status == 0
    assert f"the package {package}, which is not installed" in done.stderr


@pytest.mark.parametrize("is_nested", [False, True])
def test_text_that_many_rows_share(
    is_nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 900 bytes becomes gigabytes: its dictionary's one text, in each row at once."""
    monkeypatch.setattr(corpus_parquet, "_MOST_ROWS_BYTES", 4 << 20)
    text = "x" * (1 << 20)
    value: Any = [{"c": text}] if is_nested else text
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet([{"t": value}] * 200, write_statistics=False, compression="zstd"))
    assert path.stat().st_size < 10_000
    ((source,), _) = find_sources([str(path)], "t")
    tracemalloc.start()
    try:
        assert sum(row["t"] == value for _, row, _ in parquet_rows(source, "t")) == 200
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_texts_in_lists_that_are_packed_at_first_only(tmp_path: Path) -> None:
    """Writers stop packing where a dictionary grows too large: such a row group is refused."""
    rows = [{"m": [{"c": f"{i:05}" * 200}, {"c": "b"}]} for i in range(3000)]
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(rows, dictionary_pagesize_limit=100_000, row_group_size=2000))
    ((source,), _) = find_sources([str(path)], "m")
    assert [row for _, row, _ in parquet_rows(source, None)] == rows
