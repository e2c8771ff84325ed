"""Sweeps of ``draftsmith lookup-stats``: a row for each combination, equal to a call of its own."""

from __future__ import annotations

import csv
import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packed_plain
import pytest
from conftest import Done
from draftsmith.cli import inputs
from draftsmith.cli.output import Output, Table
from draftsmith.cli.replay.report import sweep_table, us_per_token
from draftsmith.engine.errors import ExitStatus
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.cache import file as cache_file
from draftsmith.ngram.cache.count import NgramCounter

Cli = Callable[..., Done]

# What differs between two calls that replay the same.
TIMES = (
    *("t_draft_flat_ms", "t_draft_ms", "draft_us_per_token", "draft_tokens_per_s", "load_ms"),
    *("tokenize_ms", "merge_ms", "draft_ns_samples", "merge_ns_samples", "host", "compile_s"),
    "peak_rss_bytes",
)


@pytest.fixture
def folder(tmp_path: Path, smollm2: Path) -> Path:
    """Token ids, 2300 of them, and two caches of the model's vocabulary, small and large."""
    rng = np.random.default_rng(1)
    np.save(tmp_path / "ids.npy", rng.integers(0, 30, 2300).astype(np.int32))
    tokenizer = load_tokenizer(smollm2)
    for name, n_tokens in (("small", 200), ("large", 5000)):
        counter = NgramCounter(orders=(1, 2, 3, 4), n_vocab=tokenizer.n_vocab)
        counter.add(0, rng.integers(0, 40, n_tokens).astype(np.int32))
        cache_file.write_cache(tmp_path / name, counter.finish(tokenizer.fingerprint))
    return tmp_path


@pytest.fixture
def stats(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Replay the ids, in their folder."""
    monkeypatch.chdir(folder)
    return lambda *args: cli("lookup-stats", "-m", "smollm2", "-f", "ids.npy", *args)


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def test_each_row_is_what_a_call_of_its_own_says(stats: Cli) -> None:
    """A row with another row's cache, context or draft length; a cache that learns in between."""
    done = stats(
        *("-lcs", "none", "-lcs", "small", "-lcs", "large", "-lcd", "small"),
        *("-c", "256,1024", "--draft-max", "2", "--draft-max", "8", "--json", "-q"),
    )
    assert (done.status, done.stderr) == (0, "")
    whole = done.record
    assert list(whole) == ["schema", "command", "rows"]
    assert (whole["schema"], whole["command"]) == (1, "lookup-stats")
    rows = iter(whole["rows"])
    for cache in ("none", "small", "large"):
        for n_ctx in ("256", "1024"):
            for draft_max in ("2", "8"):
                one = ("-lcs", cache, "-lcd", "small", "-c", n_ctx, "--draft-max", draft_max)
                single = stats(*one, "--json").record
                row = next(rows)
                assert untimed(row) == untimed(single), one
                assert list(row) == list(single)
    assert next(rows, None) is None


def test_none_alone_is_no_cache(stats: Cli) -> None:
    """A file named none that is looked for, and a single row given as a list."""
    without = stats("-c", "256", "--json").record
    assert untimed(stats("-lcs", "none", "-c", "256", "--json").record) == untimed(without)
    assert without["options"]["static"] is None
    assert without["static_bytes"] == 0


def test_a_cache_named_none(stats: Cli, folder: Path) -> None:
    """A file that cannot be named at all."""
    (folder / "small").rename(folder / "none")
    assert stats("-lcs", "./none", "-c", "256", "--json").record["static_bytes"] > 0


def test_one_cache_twice(stats: Cli) -> None:
    """Rows that are lost, or refused, because a cache was named before."""
    rows = stats("-lcs", "small", "-lcs", "small", "-c", "256", "--json").record["rows"]
    assert untimed(rows[0]) == untimed(rows[1])


def test_csv(stats: Cli) -> None:
    """Columns that differ from row to row, or from those of a single call."""
    text = stats("-lcs", "none", "-lcs", "large", "-c", "256,512", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["n_ctx"] for row in rows] == ["256", "512", "256", "512"]
    assert [row["options_static"] for row in rows] == ["", "", "large", "large"]
    assert all(None not in row and None not in row.values() for row in rows)
    single = stats("-lcs", "large", "-c", "256", "--csv").stdout
    assert text.splitlines()[0] == single.splitlines()[0]
    lone = stats("-c", "256,512", "--csv", "--no-header").stdout
    assert len(lone.splitlines()) == 2


def test_table(stats: Cli) -> None:
    """A column or a row that is missing; pages of tables for each combination."""
    out = stats("-lcs", "none", "-lcs", "large", "-c", "256,512", "--repeat", "3").stdout
    lines = out.splitlines()
    for name in ("cache", "c ", "drafted", "accepted", "us/", "least..most", "load", "memory"):
        assert name in lines[1] + lines[2], name
    assert [line.split()[:2] for line in lines[4:8]] == [
        ["none", "256"],
        ["none", "512"],
        ["large", "256"],
        ["large", "512"],
    ]
    assert "position" not in out
    assert "█" not in out  # bars are for a terminal
    assert "least..most" not in stats("-c", "256,512").stdout


def test_nothing_drafted(stats: Cli) -> None:
    """A division by zero where a row drafts nothing."""
    done = stats("-c", "256", "--draft-max", "0,3", "-q")
    assert (done.status, done.stderr) == (0, "")
    assert "nan" not in done.stdout


def test_a_missing_cache_is_refused_before_the_text_is_read(
    stats: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of replays lost to a typing error in the last name."""
    monkeypatch.setattr("draftsmith.cli.lookup_stats._tokens", lambda *_: pytest.fail("read"))
    done = stats("-lcs", "small", "-lcs", "nope", "-c", "256")
    assert (done.status, done.stdout) == (ExitStatus.INPUT_UNREADABLE, "")
    assert "nope" in done.error
    (folder / "large").write_bytes((folder / "large").read_bytes()[:-1])
    done = stats("-lcs", "small", "-lcs", "large", "-c", "256")
    assert done.status == ExitStatus.CACHE_TRUNCATED


def test_text_too_short_for_one_context(stats: Cli) -> None:
    """A combination left out without a word."""
    done = stats("-c", "256,4096")
    assert (done.status, done.stdout) == (ExitStatus.INPUT_TOO_SHORT, "")
    assert "4097" in done.error


def test_numbers_from_the_environment(stats: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's variables, which hold one number, no longer understood."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "5")
    record = stats("--json").record
    assert (record["n_ctx"], record["n_draft"]) == (512, 5)


def test_one_cache_is_open_at_a_time(stats: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """All caches of a sweep in memory at once."""
    import gc
    import weakref

    from draftsmith.ngram.lookup import sweep as replay

    seen: list[Any] = []
    real = replay.replay

    def watching(*args: Any, static: Any, **options: Any) -> Any:
        if static is not None and static not in [one() for one in seen]:
            seen.append(weakref.ref(static))
        gc.collect()
        assert sum(one() is not None for one in seen) <= 1
        return real(*args, static=static, **options)

    monkeypatch.setattr(replay, "replay", watching)
    args = ("-lcs", "small", "-lcs", "large", "-lcs", "none", "-lcs", "small")
    assert stats(*args, "-c", "256,512").status == 0
    assert len(seen) == 3


# --- the table ------------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    return {
        "options": {"static": "a/x.lcs", "dynamic": None, "repeat": 3},
        "n_ctx": 4096,
        "n_draft": 8,
        "n_drafted": 1_234_567,
        "n_accept": 456_789,
        "accept_percent": 37.0,
        "tokens_per_round": 2.5,
        "draft_us_per_token": 0.2,
        "draft_ns_samples": [300_000_000, 100_000_000, 200_000_000],
        "t_draft_flat_ms": 8.0,
        "static_bytes": 27_000_000,
        **changes,
    }


def shown(table: Table, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a table in a terminal of that width."""
    import sys

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    Output().results("x", [{}], [table])
    monkeypatch.undo()
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()


def test_times_of_the_repeats() -> None:
    """A mean, or the first sample, in the place of the median; least and most swapped."""
    assert us_per_token(row(n_drafted=1_000_000)) == (0.2, 0.1, 0.3)
    assert us_per_token(row(n_drafted=0)) == (None, None, None)


def test_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars that do not tell the slow row from the fast one."""
    half = row(draft_ns_samples=[100_000_000] * 3)
    lines = shown(sweep_table([row(), half]), 120, monkeypatch)
    bars = [[word for word in line.split() if "█" in word] for line in lines[4:6]]
    assert bars[0][1] == "█" * 7
    assert bars[1][1] == "███▌"
    assert bars[0][0] == bars[1][0] == "██▋"  # 37 of 100 percent of 7


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
def test_a_narrow_terminal_keeps_numbers_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,234,567 folded into two numbers, or cut to 1,23…"""
    lines = shown(sweep_table([row(), row()]), width, monkeypatch)
    text = "\n".join(lines)
    assert all(len(line) <= width for line in lines)
    for whole in ("x.lcs", "4096", "37.0", "0.162"):
        assert whole in text
    assert ("1,234,567" in text) == ("drafted" in text) == (width >= 100)
    assert ("2.500" in text) == (width >= 60)
    assert "…" not in text


def test_names_of_caches() -> None:
    """Two caches of one file name in two folders, which cannot be told apart."""
    paths = ["a/x.lcs", "b/x.lcs", "c/y.lcs", None]
    table = sweep_table([row(options={"static": path, "repeat": 1}) for path in paths])
    cells = [cells[0] for cells in table.rows if cells is not None]
    assert cells == ["a/x.lcs", "b/x.lcs", "y.lcs", "none"]


def out_of_order(cache: bytes) -> bytes:
    """A native cache whose 4-grams are out of order, under checksums that hold."""
    data = bytearray(cache)
    n_arrays = struct.unpack_from("<I", data, 16)[0]
    for at in range(76, 76 + 56 * n_arrays, 56):
        name, kind, _, start, n_items = struct.unpack_from("<24s8sQQQ", data, at)
        if name.rstrip(b"\0") == b"4.rest":
            n_bytes = n_items * int(kind[2:3])
            padded_bytes = -(-n_bytes // 64) * 64
            items = np.frombuffer(data, kind.rstrip(b"\0").decode(), n_items, start)
            data[start : start + n_bytes] = items[::-1].tobytes()
            total = packed_plain.checksum(bytes(data[start : start + padded_bytes]))
            struct.pack_into("<Q", data, at + 32, total)
    table_stop = min(
        struct.unpack_from("<Q", data, at + 40)[0] for at in range(76, 76 + 56 * n_arrays, 56)
    )
    struct.pack_into("<I", data, 20, zlib.crc32(bytes(data[76:table_stop])))
    struct.pack_into("<I", data, 72, zlib.crc32(bytes(data[:72])))
    return bytes(data)


def test_verify_finds_what_checksums_do_not(stats: Cli, folder: Path) -> None:
    """Silently wrong drafts from a crafted cache, though the user asked for every check."""
    (folder / "large").write_bytes(out_of_order((folder / "large").read_bytes()))
    assert stats("-lcs", "large", "-c", "256", "--json").status == ExitStatus.OK
    done = stats("-lcs", "large", "-c", "256", "--json", "--verify")
    assert done.status == ExitStatus.CACHE_DAMAGED
    assert "large" in done.stderr
    assert stats("-lcs", "small", "-c", "256", "--json", "--verify").status == ExitStatus.OK


@pytest.mark.parametrize("more", [(), ("--drafter", "ngram-cache")])
def test_cache_that_goes_while_it_is_replayed(
    more: tuple[str, ...],
    cli: Cli,
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An hour's result lost at its end, for the size of a file that is gone."""
    text, cache = tmp_path / "a.txt", tmp_path / "a.lcs"
    text.write_text("the cat sat on the mat, " * 60)
    assert cli("lookup-create", "-m", "smollm2", "-f", text, "-lcs", cache).status == 0
    n_bytes = cache.stat().st_size
    real = inputs.closing_keys

    def gone_before(*args: Any, **named: Any) -> dict[str, Any]:
        cache.unlink()
        return real(*args, **named)

    monkeypatch.setattr(inputs, "closing_keys", gone_before)
    args = ("-c", "256", "-lcs", cache, "--json", *more)
    done = cli("lookup-stats", "-m", "smollm2", "-f", text, *args)
    assert done.status == 0, done.stderr
    record = done.record["rows"][0] if more else done.record
    assert {"path": str(cache), "bytes": n_bytes} in record["inputs"]
