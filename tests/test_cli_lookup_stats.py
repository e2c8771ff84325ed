"""``draftsmith lookup-stats``: its figures, its options, and each input that it refuses."""

from __future__ import annotations

import csv
import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Done
from draftsmith.cli import options
from draftsmith.engine.errors import ExitStatus
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.ngram.cache import file as cache_file
from draftsmith.ngram.cache.count import NgramCounter
from draftsmith.ngram.cache.ngram_cache import NgramCache, OrderTable

Cli = Callable[..., Done]

N_VOCAB = 49152


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """600 token ids that repeat: two chunks of 256 and a rest."""
    path = tmp_path / "ids.npy"
    np.save(path, np.tile(np.arange(40, dtype=np.int32), 15))
    return path


@pytest.fixture
def stats(cli: Cli, smollm2: Path, ids: Path) -> Cli:
    """Replay the ids in chunks of 256; more options may follow."""

    def run(*args: str | Path) -> Done:
        return cli("lookup-stats", "-m", "smollm2", "-f", ids, "-c", "256", *args)

    return run


@pytest.fixture
def cache(smollm2: Path) -> NgramCache:
    """A cache of the model's vocabulary, of all sizes."""
    tokenizer = load_tokenizer(smollm2)
    counter = NgramCounter(orders=(1, 2, 3, 4), n_vocab=tokenizer.n_vocab)
    counter.add(0, np.tile(np.arange(30, dtype=np.int32), 3))
    return counter.finish(tokenizer.fingerprint)


def refused(done: Done, status: ExitStatus, message: str) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error


def test_a_recorded_row(cli: Cli, smollm2: Path, golden: Path) -> None:
    """The command line wired up wrongly: another text, context, draft length or cache."""
    done = cli(
        *("lookup-stats", "-m", "smollm2", "-f", golden / "kjv_test.txt", "-c", "256"),
        *("--draft-max", "3", "--json"),
    )
    record = done.record
    # tests/golden/lookup_golden.json: kjv_test, 256, 3, no cache, lowest id wins
    assert record["n_predict"] == 43520
    assert record["n_drafted"] == 17476
    assert record["n_accept"] == 8125
    assert record["accept"] == record["accept_percent"] == pytest.approx(46.492, abs=5e-4)
    assert record["n_seeds"] == record["n_chunks"] == record["n_input"] // 256
    assert record["n_replayed"] == record["n_seeds"] + record["n_rounds"] + record["n_accept"]


def test_keys(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    cache_file.write_cache(tmp_path / "x", cache)
    record = stats("-lcs", tmp_path / "x", "-lcd", tmp_path / "x", "--json").record
    documented = (Path(__file__).parent.parent / "docs" / "lookup-stats.md").read_text()
    for key in record:
        assert f"`{key}`" in documented, key
    assert list(record)[:5] == ["schema", "command", "n_draft", "n_predict", "n_drafted"]
    assert list(record)[-5:] == ["options", "inputs", "host", "compile_s", "peak_rss_bytes"]
    assert [one["path"] for one in record["inputs"]][1:] == [str(tmp_path / "x")] * 2
    for kind in ("position", "source", "size"):
        for what, whole in (("drafted", "n_drafted"), ("accepted", "n_accept")):
            part = record[f"{what}_by_{kind}"]
            assert sum(part.values() if isinstance(part, dict) else part) == record[whole]


def test_table(stats: Cli) -> None:
    """llama.cpp's names, or a group of what it leaves out, missing from the tables."""
    done = stats("--repeat", "3", "-q")
    assert done.stderr == ""
    for name in ("n_draft", "n_predict", "n_drafted", "t_draft_flat", "t_draft", "n_accept"):
        assert f"{name} " in done.stdout
    for name in ("us per token", "tokens per round", "position 3", "from static", "by 4-grams"):
        assert name in done.stdout


def test_long_drafts_share_a_row(stats: Cli) -> None:
    """A table of 64 rows; positions that are left out altogether."""
    done = stats("--draft-max", "64")
    assert "position 16 " in done.stdout
    assert "position 17 to 64" in done.stdout


def test_repeat_shows_medians(stats: Cli) -> None:
    """A lone measurement, or a mean, given as the time."""
    record = stats("--repeat", "3", "--json").record
    samples = record["draft_ns_samples"]
    assert len(samples) == len(record["merge_ns_samples"]) == 3
    assert record["t_draft_ms"] == pytest.approx(sorted(samples)[1] / 1e6)
    us = sorted(samples)[1] / 1e3 / record["n_drafted"]
    assert record["draft_us_per_token"] == pytest.approx(us)
    assert record["draft_tokens_per_s"] == pytest.approx(1e6 / us)
    assert record["merge_ms"] == pytest.approx(sorted(record["merge_ns_samples"])[1] / 1e6)


def test_both_names_of_draft_max(stats: Cli) -> None:
    """llama.cpp's present spelling refused."""
    assert stats("--spec-draft-n-max", "5", "--json").record["n_draft"] == 5
    assert stats("--draft-max", "5", "--json").record["n_draft"] == 5


def test_nothing_drafted(stats: Cli) -> None:
    """nan and inf, which llama.cpp prints when nothing is drafted."""
    record = stats("--draft-max", "0", "--json").record
    assert record["n_drafted"] == 0
    for key in ("accept", "accept_percent", "mean_accepted_length"):
        assert record[key] is None
    assert (record["draft_us_per_token"], record["draft_tokens_per_s"]) == (None, None)
    table = stats("--draft-max", "0").stdout
    assert "nan" not in table
    assert "inf" not in table


def test_csv_rows_append(stats: Cli) -> None:
    """Columns that come and go with the options."""
    text = stats("--csv").stdout + stats("--csv", "--no-header", "--draft-max", "9").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["n_draft"] for row in rows] == ["3", "9"]
    assert all(None not in row and None not in row.values() for row in rows)
    assert rows[0]["drafted_by_position"].count(";") == 2


def test_context_is_rounded_up_and_said(cli: Cli, smollm2: Path, ids: Path) -> None:
    """-c 200 that silently means 256."""
    done = cli("lookup-stats", "-m", "smollm2", "-f", ids, "-c", "200", "--json")
    assert done.record["n_ctx"] == 256
    assert done.stderr == ("-c 200 is rounded up to 256, a multiple of 256, as llama.cpp does\n")
    assert cli("lookup-stats", "-m", "smollm2", "-f", ids, "-c", "200", "-q").stderr == ""


def test_context_of_the_model(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """No -c: llama.cpp takes the context that the model was trained on, 8192 here."""
    np.save(tmp_path / "x.npy", np.zeros(9000, np.int32))
    done = cli("lookup-stats", "-m", "smollm2", "-f", tmp_path / "x.npy", "--json")
    assert done.record["n_ctx"] == 8192


def test_several_documents_are_joined(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """All but the first document left out."""
    (tmp_path / "x.jsonl").write_text('{"t": "a b c d e f g h"}\n' * 99)
    args = ("-f", tmp_path / "x.jsonl", "--field", "t", "-c", "256", "--json")
    record = cli("lookup-stats", "-m", "smollm2", *args).record
    assert record["n_documents"] == 99
    assert record["n_input"] >= 99 * 8


def test_repeats_must_agree(stats: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that depends on what ran before, hidden by medians."""
    from draftsmith.ngram.lookup import sweep as replay

    real, turns = replay.replay, iter(range(9))

    def drifting(*args: object, **options: object) -> object:
        run = real(*args, **options)  # type: ignore[arg-type]
        return replace(run, n_accepted=run.n_accepted + next(turns))

    monkeypatch.setattr(replay, "replay", drifting)
    assert "two replays of one text differ" in stats("--repeat", "2").error


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("-c", "many"),
        ("-c", "256,"),
        ("-c", "-1"),
        ("-c", "2147483648"),
        ("--draft-max", "4097"),
        ("--draft-max", "3,x"),
        ("--draft-max", "1.5"),
        ("--draft-max", ""),
    ],
)
def test_numbers_that_are_none(stats: Cli, flag: str, value: str) -> None:
    """A number out of range, or half of a list, taken for another number."""
    done = stats(f"{flag}={value}" if flag.startswith("--") else flag, *([value] * (flag == "-c")))
    refused(done, ExitStatus.USAGE, f"is not a number from 0 to {4096 if '--' in flag else ''}")


def test_text_too_short(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """n_drafted = 0, as llama.cpp says, for a text that was never replayed."""
    (tmp_path / "x.txt").write_text("only a few words")
    done = cli("lookup-stats", "-m", "smollm2", "-f", tmp_path / "x.txt", "-c", "256")
    refused(done, ExitStatus.INPUT_TOO_SHORT, "257")


def test_empty_text(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """An empty file that counts as a short one."""
    (tmp_path / "x.txt").write_bytes(b"")
    done = cli("lookup-stats", "-m", "smollm2", "-f", tmp_path / "x.txt", "-c", "256")
    refused(done, ExitStatus.INPUT_EMPTY, "no text")


def test_ids_outside_the_vocabulary(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """An index out of bounds in a kernel, which does not check."""
    np.save(tmp_path / "x.npy", np.full(999, N_VOCAB, np.int32))
    done = cli("lookup-stats", "-m", "smollm2", "-f", tmp_path / "x.npy", "-c", "256")
    refused(done, ExitStatus.INPUT_MALFORMED, str(N_VOCAB))


# --- caches ---------------------------------------------------------------------------------------


def llama_record(*entries: tuple[int, int], ngram: tuple[int, ...] = (1, 2, -1, -1)) -> bytes:
    pairs = [number for entry in entries for number in entry]
    return struct.pack(f"<{5 + len(pairs)}i", *ngram, len(entries), *pairs)


def with_table(cache: NgramCache, order: int, **arrays: np.ndarray) -> NgramCache:
    """The cache with some arrays of one size replaced, whatever they hold."""
    table: OrderTable = replace(cache.tables[order], **arrays)
    return replace(cache, tables={**cache.tables, order: table})


@pytest.mark.parametrize("flag", ["-lcs", "-lcd"])
def test_missing_cache(stats: Cli, tmp_path: Path, flag: str) -> None:
    """A missing dynamic cache that counts as empty, as in llama.cpp."""
    refused(stats(flag, tmp_path / "nope"), ExitStatus.INPUT_UNREADABLE, "nope")


def test_empty_cache(stats: Cli, tmp_path: Path) -> None:
    """An interrupted copy that counts as an empty cache."""
    (tmp_path / "x").write_bytes(b"")
    refused(stats("-lcs", tmp_path / "x"), ExitStatus.CACHE_TRUNCATED, "empty")


def test_not_a_cache(stats: Cli, tmp_path: Path) -> None:
    """Text taken for n-grams: -f and -lcs mixed up."""
    (tmp_path / "x").write_text("In the beginning God created the heaven and the earth.\n" * 9)
    done = stats("-lcs", tmp_path / "x")
    assert done.stdout == ""
    assert ExitStatus.CACHE_NOT_A_CACHE <= done.status <= ExitStatus.CACHE_BAD_TOKEN
    assert str(tmp_path / "x") in done.error


def test_truncated_cache(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A half-copied cache that is used."""
    cache_file.write_cache(tmp_path / "x", cache)
    data = (tmp_path / "x").read_bytes()
    for n_bytes in (9, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "x").write_bytes(data[:n_bytes])
        done = stats("-lcs", tmp_path / "x")
        refused(done, ExitStatus.CACHE_TRUNCATED, str(tmp_path / "x"))


def test_truncated_llama_cache(stats: Cli, tmp_path: Path) -> None:
    """A half-copied file of llama.cpp, which aborts there and is used here."""
    (tmp_path / "x").write_bytes(llama_record((3, 1), (4, 2))[:-4])
    refused(stats("-lcs", tmp_path / "x"), ExitStatus.CACHE_TRUNCATED, str(tmp_path / "x"))


def test_flipped_byte(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A damaged count that changes what is drafted."""
    cache_file.write_cache(tmp_path / "x", cache)
    data = bytearray((tmp_path / "x").read_bytes())
    data[len(data) * 3 // 4] ^= 0x10
    (tmp_path / "x").write_bytes(data)
    refused(stats("-lcd", tmp_path / "x"), ExitStatus.CACHE_DAMAGED, "create it again")


@pytest.mark.parametrize("count", [0, -5])
def test_bad_count(stats: Cli, tmp_path: Path, cache: NgramCache, count: int) -> None:
    """A count of 0 or below, on which llama.cpp aborts, in either format."""
    (tmp_path / "x").write_bytes(llama_record((3, count)))
    refused(stats("-lcs", tmp_path / "x"), ExitStatus.CACHE_BAD_COUNT, "0 or below")
    counts = cache.tables[2].entry_count.copy()
    counts[0] = count & 0xFFFFFFFF
    cache_file.write_cache(tmp_path / "y", with_table(cache, 2, entry_count=counts))
    refused(stats("-lcs", tmp_path / "y"), ExitStatus.CACHE_BAD_COUNT, "count of entry 0")


def test_bad_token(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A token that no model knows drafted, or an index out of bounds, in either format."""
    (tmp_path / "x").write_bytes(llama_record((N_VOCAB, 1)))
    refused(stats("-lcd", tmp_path / "x"), ExitStatus.CACHE_BAD_TOKEN, str(N_VOCAB))
    tokens = cache.tables[2].entry_token.copy()
    tokens[-1] = N_VOCAB
    cache_file.write_cache(tmp_path / "y", with_table(cache, 2, entry_token=tokens))
    refused(stats("-lcd", tmp_path / "y"), ExitStatus.CACHE_BAD_TOKEN, str(N_VOCAB))


def test_other_vocabulary(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A cache of another model, whose ids mean other words."""
    cache_file.write_cache(tmp_path / "x", replace(cache, fingerprint=b"o" * 32))
    refused(stats("-lcs", tmp_path / "x"), ExitStatus.CACHE_OTHER_VOCABULARY, "this model")


def test_newer_version(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A later format read as if it were this one."""
    cache_file.write_cache(tmp_path / "x", cache)
    data = bytearray((tmp_path / "x").read_bytes())
    head = cache_file._HEADER.size - 4
    struct.pack_into("<I", data, len(cache_file.MAGIC), cache_file.VERSION + 1)
    struct.pack_into("<I", data, head, zlib.crc32(data[:head]))
    (tmp_path / "x").write_bytes(data)
    refused(stats("-lcs", tmp_path / "x"), ExitStatus.CACHE_NEWER_VERSION, "upgrade draftsmith")


def test_static_without_bigrams(stats: Cli, tmp_path: Path, cache: NgramCache) -> None:
    """A static cache that can never draft, used without a word."""
    only = replace(cache, tables={3: cache.tables[3]})
    cache_file.write_cache(tmp_path / "x", only)
    done = stats("-lcs", tmp_path / "x")
    refused(done, ExitStatus.CACHE_UNSUITABLE, str(tmp_path / "x"))
    assert "no bigrams (its sizes: 3)" in done.error


def test_caches_of_llama_cpp(stats: Cli, tmp_path: Path) -> None:
    """llama.cpp's own files, which have no magic, refused."""
    (tmp_path / "x").write_bytes(llama_record((3, 2)))
    assert stats("-lcs", tmp_path / "x", "-lcd", tmp_path / "x").status == 0


def test_draft_most_is_what_help_says(cli: Cli) -> None:
    """A limit on --draft-max that --help does not tell."""
    text = cli("lookup-stats", "--help").stdout
    assert f"0 to {options.DRAFT_MOST}" in " ".join(text.split())
