"""``draftsmith lookup-merge``: sums, formats, and caches that do not go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.cache.ngram_cache import NgramCache

Cli = Callable[..., Done]


def cache_of(tokens: list[int], *, fingerprint: bytes = b"f" * 32) -> NgramCache:
    counter = NgramCounter(orders=(2,), n_vocab=100)
    counter.add(0, np.array(tokens, np.int32))
    return counter.finish(fingerprint)


@pytest.fixture
def caches(tmp_path: Path) -> tuple[Path, Path]:
    write_cache(tmp_path / "a", cache_of([1, 2, 3, 1, 2, 4]))
    write_cache(tmp_path / "b", cache_of([1, 2, 3]))
    return tmp_path / "a", tmp_path / "b"


def test_sums(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """An output that is one of the inputs, or a copy of the first."""
    done = cli("lookup-merge", *caches, tmp_path / "c", "--json")
    merged = open_cache(tmp_path / "c")
    assert merged.tables[2].entry_count.tolist() == [2, 1, 1, 1]
    record = done.record
    assert (record["n_caches"], record["n_ngrams"], record["n_entries"]) == (2, 3, 4)
    assert record["file_bytes"] == (tmp_path / "c").stat().st_size
    assert [one["path"] for one in record["inputs"]] == [str(path) for path in caches]


def test_table_names_every_cache(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """A table that leaves out a cache, or cuts its name."""
    done = cli("lookup-merge", *caches, tmp_path / "c", "-q")
    assert done.stderr == ""
    for path in (*caches, tmp_path / "c"):
        assert str(path) in done.stdout


def test_into_an_input(cli: Cli, caches: tuple[Path, Path]) -> None:
    """An accumulating cache cut short because it is mapped while it is written."""
    assert cli("lookup-merge", *caches, caches[0]).status == 0
    assert open_cache(caches[0]).tables[2].entry_count.tolist() == [2, 1, 1, 1]


def test_converts(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """A single input refused, which is how the formats are converted."""
    done = cli("lookup-merge", caches[0], tmp_path / "c", "--format", "llama.cpp")
    assert done.status == 0
    assert open_cache(tmp_path / "c").format == "llama.cpp"
    # size by the format's arithmetic: 20 bytes an n-gram and 8 an entry
    assert (tmp_path / "c").stat().st_size == 20 * 3 + 8 * 4


def test_unnamed_vocabularies_are_mentioned(
    cli: Cli, caches: tuple[Path, Path], tmp_path: Path
) -> None:
    """llama.cpp's files of two models summed without a word."""
    cli("lookup-merge", caches[0], tmp_path / "c", "--format", "llama.cpp")
    done = cli("lookup-merge", tmp_path / "c", caches[1], tmp_path / "d")
    assert done.status == 0
    assert "do not name their vocabulary" in done.stderr


def test_other_vocabulary(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """Ids of two models added up."""
    write_cache(tmp_path / "x", cache_of([1, 2, 3], fingerprint=b"g" * 32))
    done = cli("lookup-merge", caches[0], tmp_path / "x", tmp_path / "c")
    assert (done.status, done.stdout) == (ExitStatus.CACHE_OTHER_VOCABULARY, "")
    assert "same model" in done.error
    assert f"{tmp_path / 'x'} " in done.error
    assert f"{caches[0]} " in done.error
    assert not (tmp_path / "c").exists()


def test_missing_cache(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """A missing input that counts as empty."""
    done = cli("lookup-merge", caches[0], tmp_path / "nope", tmp_path / "c")
    assert done.status == ExitStatus.INPUT_UNREADABLE
    assert "nope" in done.error
    assert not (tmp_path / "c").exists()


def test_output_folder_missing(cli: Cli, caches: tuple[Path, Path], tmp_path: Path) -> None:
    """Found out only after the work."""
    done = cli("lookup-merge", *caches, tmp_path / "no" / "c")
    assert done.status == ExitStatus.OUTPUT_NO_FOLDER
