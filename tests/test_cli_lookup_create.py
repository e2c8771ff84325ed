"""``draftsmith lookup-create``: what it prints and writes, and each input that it refuses."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Done
from draftsmith.cli import inputs
from draftsmith.engine.errors import ExitStatus
from draftsmith.ngram.cache import count
from draftsmith.ngram.cache.file import open_cache
from draftsmith.ngram.cache.ngram_cache import KeyLayout
from draftsmith.ngram.cache.run_store import RunStore

Cli = Callable[..., Done]

TEXT = "the cat sat on the mat, the cat sat on the hat\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def create(cli: Cli, smollm2: Path, tmp_path: Path) -> Cli:
    """Create tmp_path/out.lcs from some files; more options may follow."""

    def run(*args: str | Path) -> Done:
        return cli("lookup-create", "-m", "smollm2", "-lcs", tmp_path / "out.lcs", *args)

    return run


def left_over(folder: Path) -> list[str]:
    """Names of temporary files, and of the output if there is one."""
    return [p.name for p in folder.iterdir() if p.name.startswith(".") or p.name == "out.lcs"]


def refused(done: Done, status: ExitStatus, message: str, tmp_path: Path) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error
    assert left_over(tmp_path) == []


def test_prints_a_table(create: Cli, text: Path) -> None:
    """A row of the table that is missing."""
    done = create("-f", text)
    assert done.status == 0, done.stderr
    for name in ("documents", "tokens", "n-grams", "entries", "file size", "peak memory"):
        assert name in done.stdout
    for stage in ("read, tokenize, count", "merge counts", "write", "compile kernels"):
        assert stage in done.stdout


def test_json_is_one_flat_object(create: Cli, text: Path, tmp_path: Path) -> None:
    """A key renamed, or figures that are not those of the file."""
    record = create("-f", text, "--json", "--threads", "2").record
    cache = open_cache(tmp_path / "out.lcs")
    assert record["schema"] == 1
    assert record["command"] == "lookup-create"
    assert (record["n_documents"], record["n_bytes"]) == (1, len(TEXT) - 1)
    assert (record["n_ngrams"], record["n_entries"]) == (cache.n_ngrams, cache.n_entries)
    assert record["file_bytes"] == (tmp_path / "out.lcs").stat().st_size
    assert record["inputs"] == [{"path": str(text), "bytes": len(TEXT)}]
    assert record["options"]["escape"] is False
    assert record["options"]["threads"] == 2
    assert record["host"]["n_cores"] >= 1
    for key in ("tokenize_s", "count_s", "write_s", "total_s", "compile_s", "peak_rss_bytes"):
        assert record[key] >= 0
    assert {key for key in record if isinstance(record[key], dict)} == {"options", "host"}
    assert cache.orders == (2,)


def test_csv_rows_append(create: Cli, text: Path) -> None:
    """A row whose cells do not fit the header of another call."""
    first = create("-f", text, "--csv").stdout
    second = create("-f", text, "--csv", "--no-header", "--ngram-max", "4").stdout
    rows = list(csv.DictReader(io.StringIO(first + second)))
    assert [row["options_ngram_max"] for row in rows] == ["2", "4"]
    assert all(row["inputs_path"] == str(text) and None not in row for row in rows)


def test_several_files_after_one_flag(create: Cli, text: Path, tmp_path: Path) -> None:
    """-f corpus/*.txt, expanded by a shell: the second file taken for something else."""
    other = tmp_path / "other.txt"
    other.write_text("more text of its own")
    assert create("-f", text, other, "--json").record["n_documents"] == 2
    assert create("-f", text, "-f", other, "--json").record["n_documents"] == 2
    assert create("-f", tmp_path, "--quiet", "--json").record["n_documents"] == 2


def test_documents_are_apart(create: Cli, text: Path, tmp_path: Path) -> None:
    """An n-gram that spans two files: the sum of two caches would differ from the whole."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(TEXT)
    assert create("-f", tmp_path / "a", tmp_path / "b").status == 0
    twice = open_cache(tmp_path / "out.lcs")
    assert create("-f", text).status == 0
    once = open_cache(tmp_path / "out.lcs")
    assert twice.n_entries == once.n_entries


def test_mixed_kinds(create: Cli, text: Path, tmp_path: Path) -> None:
    """Token ids between texts that shift the numbers of the documents after them."""
    np.save(tmp_path / "ids.npy", np.arange(9, dtype=np.int32))
    with gzip.open(tmp_path / "more.txt.gz", "wt") as file:
        file.write(TEXT)
    ids = tmp_path / "ids.npy"
    record = create("-f", text, ids, tmp_path / "more.txt.gz", ids, "--json").record
    assert record["n_documents"] == 4
    alone = create("-f", text, "--json").record
    assert record["n_tokens"] == 2 * alone["n_tokens"] + 18


def test_stdin(create: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """- taken for a file name."""
    stdin = io.TextIOWrapper(io.BytesIO(TEXT.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    record = create("-f", "-", "--json").record
    assert record["n_documents"] == 1
    assert record["inputs"] == [{"path": "-", "bytes": None}]


def test_json_lines(create: Cli, tmp_path: Path) -> None:
    """--field that does not reach the corpus."""
    (tmp_path / "x.jsonl").write_text('{"t": "one two"}\n{"t": "three four"}\n')
    assert create("-f", tmp_path / "x.jsonl", "--field", "t", "--json").record["n_documents"] == 2


def test_escape_is_off(create: Cli, tmp_path: Path) -> None:
    r"""A source text silently altered: \n in it turned into a line break."""
    (tmp_path / "x.txt").write_text(r"a\nb")
    assert create("-f", tmp_path / "x.txt", "--json").record["n_bytes"] == 4
    assert create("-f", tmp_path / "x.txt", "--json", "--escape").record["n_bytes"] == 3


def test_invalid_utf8_is_counted_and_warned_of(create: Cli, tmp_path: Path) -> None:
    """Bytes replaced without a word."""
    (tmp_path / "x.txt").write_bytes(b"caf\xe9 and more caf\xe9 \n")
    done = create("-f", tmp_path / "x.txt", "--json", "--quiet")
    assert done.status == 0
    assert done.record["n_invalid_utf8"] == 2
    assert done.stderr.startswith("warning: 2 invalid UTF-8 sequences replaced by U+FFFD, in ")
    assert done.stderr.count("\n") == 1


def test_missing_file(create: Cli, tmp_path: Path) -> None:
    """A traceback, or a cache of the files that are there."""
    done = create("-f", tmp_path / "nope.txt")
    refused(done, ExitStatus.INPUT_UNREADABLE, "nope.txt", tmp_path)


def test_unreadable_file(create: Cli, tmp_path: Path) -> None:
    """A damaged compressed file, reported as an internal error."""
    (tmp_path / "x.gz").write_bytes(gzip.compress(TEXT.encode() * 50)[:40])
    done = create("-f", tmp_path / "x.gz")
    refused(done, ExitStatus.INPUT_UNREADABLE, "x.gz", tmp_path)


def test_folder_without_text(create: Cli, tmp_path: Path) -> None:
    """An empty cache from a mistyped folder."""
    (tmp_path / "empty").mkdir()
    refused(create("-f", tmp_path / "empty"), ExitStatus.INPUT_NO_TEXT, "empty", tmp_path)


def test_empty_file(create: Cli, tmp_path: Path) -> None:
    """An empty cache from an empty file."""
    (tmp_path / "x.txt").write_bytes(b"")
    refused(create("-f", tmp_path / "x.txt"), ExitStatus.INPUT_EMPTY, "no text", tmp_path)


@pytest.mark.parametrize(("n_tokens", "ngram_min"), [(1, 1), (1, 2), (2, 2), (4, 4)])
def test_no_n_gram_for_llama_cpp(
    create: Cli, tmp_path: Path, n_tokens: int, ngram_min: int
) -> None:
    """An empty file, which we would then refuse as truncated, or a limit that is off by one."""
    args = ("--format", "llama.cpp", "--ngram-min", str(ngram_min), "--ngram-max", "4")
    ids = tmp_path / "x.npy"
    np.save(ids, np.arange(n_tokens, dtype=np.int32))
    message = f"no document has the {ngram_min + 1} tokens of a {ngram_min}-gram"
    refused(create("-f", ids, ids, *args), ExitStatus.INPUT_TOO_SHORT, message, tmp_path)
    np.save(ids, np.arange(ngram_min + 1, dtype=np.int32))
    assert create("-f", ids, *args).status == 0
    assert open_cache(tmp_path / "out.lcs").n_entries == 1


def test_ids_outside_the_vocabulary(create: Cli, tmp_path: Path) -> None:
    """Ids of another model counted, or an array index out of bounds."""
    np.save(tmp_path / "x.npy", np.array([1, 2, 49152], np.int32))
    np.save(tmp_path / "y.npy", np.array([1, 2], np.int32))
    done = create("-f", tmp_path / "y.npy", tmp_path / "x.npy")
    refused(done, ExitStatus.INPUT_MALFORMED, "x.npy: holds token 49152", tmp_path)


@pytest.mark.parametrize("n_threads", ["1", "2"])
def test_endless_word(create: Cli, tmp_path: Path, n_threads: str) -> None:
    """One bad file among thousands that the message does not name."""
    for name, text in (("a", TEXT), ("b", "x" * (5 << 20)), ("c", TEXT)):
        (tmp_path / name).write_text(text)
    done = create("-f", *(tmp_path / name for name in "abc"), "-t", n_threads)
    message = f"{tmp_path / 'b'}: a text goes on for more than 4 MiB"
    refused(done, ExitStatus.INPUT_MALFORMED, message, tmp_path)


def test_output_folder_missing(cli: Cli, smollm2: Path, text: Path, tmp_path: Path) -> None:
    """Found out only after the long work."""
    target = tmp_path / "no" / "out.lcs"
    done = cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", target)
    refused(done, ExitStatus.OUTPUT_NO_FOLDER, str(tmp_path / "no"), tmp_path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that root cannot write")
def test_output_folder_not_writable(cli: Cli, smollm2: Path, text: Path, tmp_path: Path) -> None:
    """A traceback of PermissionError."""
    done = cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", "/proc/self/out.lcs")
    refused(done, ExitStatus.OUTPUT_NOT_WRITABLE, "/proc/self/out.lcs", tmp_path)


def test_output_is_a_folder(cli: Cli, smollm2: Path, text: Path, tmp_path: Path) -> None:
    """A rename over a folder, at the very end."""
    done = cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", tmp_path)
    refused(done, ExitStatus.OUTPUT_NOT_WRITABLE, "is a folder", tmp_path)


def test_output_is_an_input(cli: Cli, smollm2: Path, text: Path) -> None:
    """-lcs and -f mixed up: the text overwritten by its cache."""
    done = cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", text)
    assert done.status == ExitStatus.USAGE
    assert "is one of the input files" in done.error
    assert text.read_text() == TEXT


def test_disk_full(
    create: Cli, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file left on a full disk, or the old one gone."""
    (tmp_path / "out.lcs").write_bytes(b"old")

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fsync)
    done = create("-f", text)
    assert done.status == ExitStatus.DISK_FULL
    assert "out.lcs" in done.error
    assert left_over(tmp_path) == ["out.lcs"]
    assert (tmp_path / "out.lcs").read_bytes() == b"old"


FULL_WHILE_SPILLING = """
import resource, sys
from draftsmith.cli.main import main
from draftsmith.ngram.cache import count, run_files, run_store

count._LARGEST_BATCH = 5_000
made, append = run_store.RunStore.__init__, run_files.TemporaryFile.append
unpack = run_store.table_of_blocks
after, *args = sys.argv[1:]
n_left = float("inf")

def without_memory(store, layouts, _, folder):
    made(store, layouts, 1_000, folder)

def fill_the_disk(file, *arrays):
    global n_left
    n_left -= 1
    if n_left == 0:  # half of this fits: the system itself says so, after a partial write
        room = file.n_bytes + sum(array.nbytes for array in arrays) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    append(file, *arrays)

def unpack_on_a_full_disk(*args):
    global n_left
    if after == "table":
        n_left = 3
    return unpack(*args)

run_store.RunStore.__init__ = without_memory
run_files.TemporaryFile.append = fill_the_disk
first = main(args)  # with room: an old cache is there, and no kernel is compiled later
run_store.table_of_blocks = unpack_on_a_full_disk
if after == "run":
    n_left = 4
print(first, flush=True)
sys.exit(main(args))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
@pytest.mark.parametrize(("after", "n_threads"), [("run", "2"), ("table", "1")])
def test_disk_fills_while_spilling(
    after: str, n_threads: str, smollm2: Path, golden: Path, tmp_path: Path
) -> None:
    """A disk that others fill meanwhile: a traceback from a thread, one that never ends, half a
    cache in the place of the old one, or a temporary file that stays."""
    text = (golden / "kjv_train.txt").read_bytes()[:150_000]
    (tmp_path / "in.txt").write_bytes(text)
    args = ["-m", smollm2, "-f", "in.txt", "-lcs", "out.lcs", "-q", "--csv", "-t", n_threads]
    done = subprocess.run(
        [sys.executable, "-c", FULL_WHILE_SPILLING, after, "lookup-create", *map(str, args)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    printed = done.stdout.splitlines()
    assert printed[-1] == "0", done  # and nothing after it
    assert int(next(csv.DictReader(io.StringIO(done.stdout)))["n_runs"]) > 4
    assert done.returncode == ExitStatus.DISK_FULL, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: a temporary file in {tmp_path} can't be written (")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.lcs"]
    assert open_cache(tmp_path / "out.lcs", verify=True).n_entries > 0


def test_known_model_not_fetched(
    cli: Cli, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-m smollm2 before draftsmith fetch-model ran: the remedy is missing."""
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))
    done = cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", tmp_path / "out.lcs")
    refused(done, ExitStatus.MODEL_UNKNOWN, "run draftsmith fetch-model", tmp_path)


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("smollm3", ExitStatus.MODEL_UNKNOWN, "one of: smollm2"),
        ("nope/model.gguf", ExitStatus.INPUT_UNREADABLE, "nope/model.gguf"),
        (".", ExitStatus.INPUT_UNREADABLE, "is a folder"),
    ],
)
def test_model_not_found(
    cli: Cli, text: Path, tmp_path: Path, name: str, status: ExitStatus, message: str
) -> None:
    """A mistyped model, with no word of what there is."""
    done = cli("lookup-create", "-m", name, "-f", text, "-lcs", tmp_path / "out.lcs")
    refused(done, status, message, tmp_path)


def test_model_from_the_environment(
    cli: Cli, smollm2: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLAMA_ARG_MODEL, which llama.cpp's tools take, without effect."""
    monkeypatch.setenv("LLAMA_ARG_MODEL", str(smollm2))
    assert cli("lookup-create", "-f", text, "-lcs", tmp_path / "out.lcs").status == 0


@pytest.mark.parametrize("size", ["", "lots", "-1G", "1 X", "G", "1e9", "0x10", "1GB2", "nan"])
def test_max_memory_is_no_size(create: Cli, text: Path, size: str, tmp_path: Path) -> None:
    """A size that Python reads as something else, or a traceback."""
    done = create("-f", text, "--max-memory", size)
    refused(done, ExitStatus.USAGE, "such as 600M", tmp_path)


@pytest.mark.parametrize("size", ["0", "1", "20k", "100M", "150 MiB"])
def test_max_memory_too_small(create: Cli, text: Path, size: str, tmp_path: Path) -> None:
    """A limit that Python alone exceeds, taken and then ignored."""
    refused(create("-f", text, "--max-memory", size), ExitStatus.USAGE, "or more", tmp_path)
    remedy = create("-f", text, "--max-memory", size).error.split("give ")[1].split()[0]
    assert create("-f", text, "--max-memory", remedy[:-1] + "1M").status == 0


def test_max_memory_does_not_show_in_the_cache(
    create: Cli, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that go through files, through the command: other bytes, or a file that stays."""
    args = ("-f", golden / "kjv_train.txt", "--ngram-min", "1", "--ngram-max", "4", "--json")
    assert create(*args).record["n_runs"] == 0
    whole = (tmp_path / "out.lcs").read_bytes()
    monkeypatch.setattr(count, "_LARGEST_BATCH", 20_000)
    made = RunStore.__init__

    def without_memory(
        store: RunStore, layouts: dict[int, KeyLayout], _: int | None, folder: Path
    ) -> None:
        made(store, layouts, 10_000, folder)

    monkeypatch.setattr(RunStore, "__init__", without_memory)
    record = create(*args, "--threads", "2", "--max-memory", "2G").record
    assert record["n_runs"] > 4
    assert record["spilled_bytes"] > 100_000
    assert record["options"]["max_memory"] == 2_000_000_000
    assert (tmp_path / "out.lcs").read_bytes() == whole
    assert left_over(tmp_path) == ["out.lcs"]


def test_disk_too_full_to_begin(
    create: Cli, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour's work before it shows that the cache can never fit."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    refused(create("-f", text), ExitStatus.DISK_FULL, "are free", tmp_path)


def test_many_files_in_the_record(
    create: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of a million lines for a folder of as many files, or bytes missing from it."""
    for i in range(7):
        (tmp_path / f"{i}.txt").write_text("ab" * (i + 1))
    monkeypatch.setattr(inputs, "INPUTS_SHOWN", 4)
    shown = create("-f", tmp_path, "--json").record["inputs"]
    assert [one["bytes"] for one in shown] == [2, 4, 6, 8, 10 + 12 + 14]
    assert shown[-1]["path"] == "and 3 more"
