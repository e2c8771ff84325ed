"""What is at fault in a folder is skipped and named; what is named itself ends the run."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Done
from draftsmith.engine.errors import (
    DraftsmithError,
    ExitStatus,
    InputMalformed,
    InputUnreadable,
    WordTooLong,
)
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.corpus import documents as corpus_module
from draftsmith.ngram.corpus.documents import Corpus, open_corpus
from draftsmith.ngram.corpus.stats import SKIPPED_SHOWN
from draftsmith.ngram.corpus.tokens import document_tokens

Cli = Callable[..., Done]
TEXT = b"the cat sat on the mat, the cat sat on the hat\n"


def texts(corpus: Corpus) -> list[bytes]:
    return [b"".join(document.blocks or ()) for document in corpus.documents()]


def link(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def unreadable(path: Path) -> None:
    path.symlink_to(path)  # a loop: an error for root, too


def damaged(path: Path) -> None:
    path.write_bytes(gzip.compress(TEXT * 50)[:-9])


def half_zero(path: Path) -> None:
    path.write_bytes(TEXT.decode().encode("utf-16-le"))


def records(path: Path) -> None:
    path.write_bytes(b'{"t": "a"}\n{"t": "b"}\n')


FAULTS = [
    ("b.txt", link, "no such file", InputUnreadable),
    ("b.txt", unreadable, "symbolic links", InputUnreadable),
    ("b.txt.gz", damaged, "cut short .gz data", InputUnreadable),
    ("b.txt", half_zero, "every second byte is 0", InputMalformed),
    ("b.txt", records, "holds JSON", InputMalformed),
]


@pytest.mark.parametrize(("name", "make", "told", "kind"), FAULTS)
def test_fault_in_a_folder_is_skipped(
    name: str,
    make: Callable[[Path], None],
    told: str,
    kind: type[DraftsmithError],
    tmp_path: Path,
) -> None:
    """One bad file of 100,000 ends an hour's run; or it is missing without a word."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.txt").write_bytes(TEXT)
    (folder / "c.txt").write_bytes(TEXT)
    bad = folder / name
    make(bad)
    for named in (str(folder), str(folder / "*")):
        corpus = open_corpus([named])
        assert texts(corpus) == [TEXT[:-1]] * 2
        assert corpus.stats.n_skipped == 1
        ((path, reason),) = corpus.stats.skipped
        assert path == str(bad)
        assert told in reason
        assert str(bad) not in reason
        with pytest.raises(kind, match=r"b\.txt"):
            texts(open_corpus([named], strict=True))
    with pytest.raises(kind, match=r"b\.txt"):
        texts(open_corpus([str(bad)]))


def test_file_that_vanishes_is_skipped(tmp_path: Path) -> None:
    """A folder that somebody works in: a file goes between the listing and its turn."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(TEXT)
    corpus = open_corpus([str(tmp_path)])
    (tmp_path / "b.txt").unlink()
    assert texts(corpus) == [TEXT[:-1]] * 2
    assert [os.path.basename(one.path) for one in corpus.stats.skipped] == ["b.txt"]


@pytest.mark.parametrize("size", [100, 5 << 20])
def test_nothing_of_a_damaged_file_is_counted(size: int, tmp_path: Path) -> None:
    """The first half of a damaged file is in the counts, so that no two runs agree."""
    (tmp_path / "a.txt").write_bytes(TEXT)
    text = np.random.default_rng(1).integers(97, 122, size, np.uint8).tobytes()
    whole = gzip.compress(text, 1)
    (tmp_path / "b.gz").write_bytes(whole[:-5])
    (tmp_path / "c.gz").write_bytes(whole)
    corpus = open_corpus([str(tmp_path)])
    assert texts(corpus) == [TEXT[:-1], text]
    assert corpus.stats.n_bytes == len(TEXT) - 1 + len(text)
    assert corpus.stats.n_documents == 2
    assert corpus.stats.n_skipped == 1


def test_one_word_that_is_too_long(smollm2: Path, tmp_path: Path) -> None:
    """One file of base64 without a line break ends the run; its begin is counted."""
    (tmp_path / "a.txt").write_bytes(TEXT)
    (tmp_path / "b.txt").write_bytes(b"some words first\n" * 9000 + b"x" * (5 << 20))
    (tmp_path / "c.txt").write_bytes(b"word " * (1 << 20))  # as long, and fine
    (tmp_path / "d.jsonl").write_bytes(b'{"t": "%s"}\n{"t": "a b"}\n' % (b"y" * (5 << 20)))
    tokenizer = load_tokenizer(smollm2)
    corpus = open_corpus([str(tmp_path)], is_text=False, field="t")
    documents = list(document_tokens(corpus.documents(tokenizer.check_words), tokenizer, 1))
    assert len(documents) == 1
    assert corpus.stats.skipped[0].path == f"{tmp_path / 'd.jsonl'}:1"
    (tmp_path / "d.jsonl").unlink()
    corpus = open_corpus([str(tmp_path)])
    seen = {n for n, _, _ in document_tokens(corpus.documents(tokenizer.check_words), tokenizer, 2)}
    assert seen == {0, 1}
    assert corpus.stats.n_bytes == len(TEXT) - 1 + (5 << 20)
    assert "as one word" in corpus.stats.skipped[0].reason
    corpus = open_corpus([str(tmp_path / "b.txt")])
    with pytest.raises(WordTooLong, match=r"b\.txt"):
        list(document_tokens(corpus.documents(tokenizer.check_words), tokenizer, 1))


def test_bad_line_in_a_folder_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad line in a folder of logs ends the run, or takes the lines after it along."""
    lines = [b'{"t": "a"}', b"no JSON", b'{"u": 1}', b'{"t": "%s"}' % (b"x" * 200), b'{"t": "b"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    corpus = open_corpus([str(tmp_path)], field="t")
    assert texts(corpus) == [b"a", b"x" * 200, b"b"]
    places = [one.path.removeprefix(str(tmp_path / "a.jsonl")) for one in corpus.stats.skipped]
    assert places == [":2", ":3"]
    with pytest.raises(InputMalformed, match=":2"):
        texts(open_corpus([str(tmp_path)], field="t", strict=True))
    monkeypatch.setattr(corpus_module, "HELD_BYTES", 10)  # read twice
    assert texts(open_corpus([str(tmp_path)], field="t")) == [b"a", b"x" * 200, b"b"]


def test_list_of_what_was_skipped_is_bounded(tmp_path: Path) -> None:
    """A folder of dangling links fills memory and the screen."""
    (tmp_path / "a.txt").write_bytes(TEXT)
    for i in range(SKIPPED_SHOWN + 5):
        link(tmp_path / f"b{i}.txt")
    corpus = open_corpus([str(tmp_path)])
    assert len(texts(corpus)) == 1
    assert corpus.stats.n_skipped == SKIPPED_SHOWN + 5
    assert len(corpus.stats.skipped) == SKIPPED_SHOWN


def test_nothing_but_faults(tmp_path: Path) -> None:
    """A folder of which all is at fault ends as one without text, the reason unsaid."""
    link(tmp_path / "b.txt")
    for named in (str(tmp_path), str(tmp_path / "*")):
        with pytest.raises(InputUnreadable, match=r"b\.txt"):
            open_corpus([named])


@pytest.mark.parametrize("command", ["lookup-create", "lookup-stats"])
def test_commands_name_what_they_skipped(
    cli: Cli, command: str, smollm2: Path, tmp_path: Path
) -> None:
    """A folder with a.txt and a dangling link b.txt: status 3 and no cache."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.txt").write_bytes(TEXT * 40)
    link(folder / "b.txt")
    damaged(folder / "c.gz")
    out = ("-lcs", tmp_path / "out.lcs") if command == "lookup-create" else ("-c", "256")
    done = cli(command, "-m", "smollm2", "-f", folder, *out, "--json")
    assert done.status == ExitStatus.OK, done.stderr
    assert done.record["n_skipped"] == 2
    assert [one.split(": ")[0] for one in done.record["skipped"]] == [
        str(folder / "b.txt"),
        str(folder / "c.gz"),
    ]
    for name in ("b.txt", "c.gz"):
        assert f"skipped {folder / name}" in done.stderr
    assert "2 in folders could not be read and were skipped" in done.stderr
    done = cli(command, "-m", "smollm2", "-f", folder, *out, "--json", "--strict")
    assert done.status == ExitStatus.INPUT_UNREADABLE
    assert "b.txt" in done.error
    done = cli(command, "-m", "smollm2", "-f", folder / "b.txt", *out, "--json")
    assert done.status == ExitStatus.INPUT_UNREADABLE


# --- JSON where a text is expected ---------------------------------------------------------------


def test_list_of_strings_is_documents(tmp_path: Path) -> None:
    """Quotes and commas of a JSON list are counted, and n-grams span its texts."""
    strings = ["one é\n", "", "two", "\ud800 half"]
    for name in ("a.json", "a.txt"):
        for data in (
            json.dumps(strings),
            json.dumps(strings, indent=1),
            " \n" + json.dumps(strings),
        ):
            (tmp_path / name).write_text(data)
            corpus = open_corpus([str(tmp_path / name)], block_bytes=5)
            assert texts(corpus) == ["one é\n".encode(), b"", b"two", "\ufffd half".encode()]
            assert corpus.stats.n_documents == 4
    long = ["word " * 20_000] * 3
    (tmp_path / "a.json").write_text(json.dumps(long))
    assert texts(open_corpus([str(tmp_path / "a.json")])) == [long[0].encode()] * 3
    assert texts(open_corpus([str(tmp_path / "a.json")], is_text=True)) == [
        json.dumps(long).encode()
    ]
    (tmp_path / "a.json").write_text('["' + "a" * 70_000 + '", 1]')
    with pytest.raises(InputMalformed, match=r"a.json\[2\]"):
        texts(open_corpus([str(tmp_path / "a.json")], block_bytes=1000))


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize(
    "data",
    [
        '{"t": "a"}\n{"t": "b"}\n',
        json.dumps([{"t": "a"}, {"t": "b"}], indent=1),
        json.dumps([{"t": "a" * 99}] * 2000),
        json.dumps(CHAT),
        json.dumps(CHAT, indent=1),
        json.dumps(CHAT["messages"]),
        json.dumps([CHAT] * 2000, indent=1),
        '{"x": 1, "messages": [' + '{"role": "user", "content": "a"},' * 3000,
    ],
)
def test_logs_are_not_counted_as_text(data: str, tmp_path: Path) -> None:
    """A log is counted with its braces and keys, which every line repeats: splendid drafts."""
    for name in ("log.txt", "log.json", "log"):
        (tmp_path / name).write_text(data)
        with pytest.raises(InputMalformed) as error:
            texts(open_corpus([str(tmp_path / name)]))
        for option in ("--chat", "--field", "--text"):
            assert option in error.value.remedy
        assert texts(open_corpus([str(tmp_path / name)], is_text=True))[0] == data.rstrip().encode()


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[section]\nkey = 1\n",
        json.dumps({"services": [{"name": "a"}]}, indent=2),
        json.dumps({"services": [{"name": "a"}]}),
        "[1, 2, 3]",
        "[]",
        "{}",
        '["a" is a list\n',
        "{ int x; }\n{ int y; }\n",
        "[[1], [2]]",
        "[" * 5000,
        "  \n" * 40_000 + "words",
    ],
)
def test_what_happens_to_be_json_is_text(data: str, tmp_path: Path) -> None:
    """A file of settings, or of a program, in a corpus of code is refused."""
    path = tmp_path / "a"
    path.write_text(data)
    assert texts(open_corpus([str(path)], strip_newline=False)) == [data.encode()]


def test_field_of_a_list_of_records(tmp_path: Path) -> None:
    """--field on a file that is one JSON list: its first line is no object."""
    records = [{"m": {"t": "a"}}, {"m": {"t": "b\n"}}]
    path = tmp_path / "a.json"
    for data in (json.dumps(records), json.dumps(records, indent=1)):
        path.write_text("\ufeff" + data)
        assert texts(open_corpus([str(path)], field="m.t", block_bytes=3)) == [b"a", b"b\n"]
    path.write_text(json.dumps([*records, {"u": 1}]))
    with pytest.raises(InputMalformed, match=r"a.json\[3\].*no field"):
        texts(open_corpus([str(path)], field="m.t"))
    path.write_text(json.dumps(records)[:-4])
    with pytest.raises(InputMalformed, match="not JSON"):
        texts(open_corpus([str(path)], field="m.t"))


@pytest.mark.parametrize("form", ["[%s]", '{"t": "a", "u": [%s]}', '[{"t": [%s]}]'])
def test_values_that_fill_the_memory(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.4 GB of memory for 194 kB of packed JSON, whose field is short."""
    monkeypatch.setattr("draftsmith.ngram.corpus.decode.MOST_VALUES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text(form % ",".join(["[]"] * 2000) + "\n")
    with pytest.raises(InputMalformed, match=r"more than \d+ values|is a list"):
        texts(open_corpus([str(path)], field="t"))
