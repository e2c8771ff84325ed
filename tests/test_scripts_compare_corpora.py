"""scripts/compare_corpora.sh: nested corpora, rows, and tools of llama.cpp that fail in every way.

The tools are shell scripts here that print what the real ones log.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import llama_lookup  # noqa: E402
import nested_corpora  # noqa: E402
from llama_lookup import ToolFailed  # noqa: E402
from nested_corpora import Exclusion, NotEnoughText, cut, files_below, write_corpus  # noqa: E402

LOG = """\
0.00.266.456 I cmn          init: llama threadpool init, n_threads = 2
0.01.544.040 I lookup-stats: 102400/158093 done, ETA: 00:00
0.01.984.140 I
0.01.984.161 I n_draft      = 8
0.01.984.176 I n_predict    = 155648
0.01.984.191 I n_drafted    = 200
0.01.984.210 I t_draft_flat = 27.21 ms
0.01.984.227 I t_draft      = 0.50 ms, 2.50 us per token, 400000.00 tokens per second
0.01.984.242 I n_accept     = 80
0.01.984.257 I accept       = 40.000%
"""


# --- the log --------------------------------------------------------------------------------------


def test_log() -> None:
    """A figure taken from another line, such as the 'n_threads = 2' of the first."""
    assert llama_lookup.parse(LOG, 8) == llama_lookup.LookupStats(200, 80, 27.21, 0.5)


def test_log_without_prefix_and_with_colours() -> None:
    """A log whose prefix was turned off, or a terminal's colours, that cannot be read."""
    bare = "\n".join(line[15:] for line in LOG.splitlines())
    assert llama_lookup.parse(bare, 8) == llama_lookup.parse(LOG, 8)
    coloured = LOG.replace("n_drafted", "\x1b[32mn_drafted").replace("200", "200\x1b[0m")
    assert llama_lookup.parse(coloured, 8) == llama_lookup.parse(LOG, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n_accept     = 80", "", "no n_accept"),
        ("n_drafted    = 200", "", "no n_drafted"),
        ("t_draft      = 0.50", "t_draft = nan", "t_draft = nan"),
        ("t_draft      = 0.50", "t_draft = -1", "t_draft = -1"),
        ("n_drafted    = 200", "n_drafted = 2x0", "n_drafted = 2x0"),
        ("n_drafted    = 200", "n_drafted = inf", "n_drafted = inf"),
        ("n_accept     = 80", "n_accept = 201", "contradict"),
        ("n_draft      = 8", "n_draft = 3", "contradict"),
    ],
)
def test_log_that_is_not_to_be_trusted(old: str, new: str, message: str) -> None:
    """A figure guessed where the log lacks it, or a half-written number taken for a whole one."""
    assert old in LOG
    with pytest.raises(ValueError, match=message):
        llama_lookup.parse(LOG.replace(old, new), 8)


def test_every_missing_tail_is_noticed() -> None:
    """A log that ends inside its figures and is taken for whole."""
    end = LOG.index("n_accept     = 80") + len("n_accept     = 80")
    for length in range(end - 2):
        with pytest.raises(ValueError, match=r"log|contradict"):
            llama_lookup.parse(LOG[:length], 8)


def fake(tmp_path: Path, *, create: str, stats: str) -> Path:
    """A folder with two tools; $cache is what -lcs names, $log the log of a good run."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    (tmp_path / "log").write_text(LOG)
    for name, body in (("create", create), ("stats", stats)):
        path = tools / f"llama-lookup-{name}"
        lines = (
            "#!/bin/bash",
            f'echo "$@" >>{tmp_path}/{name}.calls',
            'while [ $# -gt 0 ]; do [ "$1" = -lcs ] && cache=$2; shift; done',
            f"log={tmp_path}/log calls=$(wc -l <{tmp_path}/{name}.calls)",
            body,
        )
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)
    return tools


# --- tools that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (':>"$cache"', "llama-lookup-create wrote no cache"),
        (":", "llama-lookup-create wrote no cache"),
        ("exit 3", "llama-lookup-create ended with status 3: no message"),
        ("echo 0.00.001.002 E out of luck >&2; exit 1", "ended with status 1: out of luck"),
        ('echo >"$cache"; kill -9 $$', "llama-lookup-create ended with signal 9"),
    ],
)
def test_create_that_fails(tmp_path: Path, body: str, message: str) -> None:
    """A failed tool's cache used; a status of 0 believed, which says nothing about the file."""
    tools = fake(tmp_path, create=body, stats=":")
    with pytest.raises(ToolFailed, match=message):
        llama_lookup.create(tools, Path("m"), Path("c"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("body", "message", "n_calls"),
    [
        ('head -4 "$log" >&2', "its log has no n_drafted, 3 times", 3),
        ("head -c 9999 /dev/urandom >&2", "its log has no n_drafted, 3 times", 3),
        ('cat "$log" >&2; kill -9 $$', "ended with signal 9: accept", 1),
        ('cat "$log" >&2; exit 1', "ended with status 1: accept", 1),
    ],
)
def test_stats_that_fail(tmp_path: Path, body: str, message: str, n_calls: int) -> None:
    """Figures of a tool that failed, or that were not all logged; a hopeless tool run for ever."""
    tools = fake(tmp_path, create=":", stats=body)
    with pytest.raises(ToolFailed, match=message):
        llama_lookup.stats(tools, Path("m"), Path("t"), None, n_ctx=256, draft_max=8)
    assert len((tmp_path / "stats.calls").read_text().splitlines()) == n_calls


def test_stats_whose_tail_comes_the_third_time(tmp_path: Path) -> None:
    """A lost tail that ends a long comparison."""
    tools = fake(
        tmp_path, create=":", stats='[ $calls = 3 ] && cat "$log" >&2 || head -6 "$log" >&2'
    )
    read, done = llama_lookup.stats(tools, Path("m"), Path("t"), None, n_ctx=256, draft_max=8)
    assert read.n_accept == 80
    assert done.wall_s > 0
    assert done.peak_bytes > 1e5


def test_tool_that_is_not_there(tmp_path: Path) -> None:
    """A tool that is missing, or cannot be run, found out after an hour."""
    tools = fake(tmp_path, create=":", stats=":")
    llama_lookup.check_tools(tools)
    (tools / "llama-lookup-stats").chmod(0o644)
    with pytest.raises(ToolFailed, match="no llama-lookup-stats that can be run"):
        llama_lookup.check_tools(tools)
    (tools / "llama-lookup-create").write_text("no program")
    with pytest.raises(ToolFailed, match="can't be run"):
        llama_lookup.create(tools, Path("m"), Path("c"), tmp_path / "cache")


# --- the corpora ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty texts of 2.9 kB each, some of them in folders, and things that are no text."""
    folder = tmp_path / "folder"
    (folder / "sub" / ".git").mkdir(parents=True)
    for i in range(40):
        lines = "".join(f"text {i} says {j * i % 97} é\n" for j in range(160))
        (folder / ("sub" if i % 3 else ".") / f"{i}.txt").write_text(lines)
    (folder / "a.bin").write_bytes(b"\0" * 5000)
    (folder / "latin1.txt").write_bytes(b"caf\xe9\n" * 999)
    (folder / "sub" / ".git" / "hidden.txt").write_text("hidden\n" * 999)
    (folder / "empty.txt").write_text("")
    (folder / "link.txt").symlink_to(folder / "0.txt")
    return folder


def corpus_of(folder: Path, n_bytes: int, *, seed: int = 1, without: str = "") -> bytes:
    target = folder.parent / "corpus"
    exclusion = Exclusion(without.encode(), set())
    write_corpus(folder, target, n_bytes=n_bytes, seed=seed, without=exclusion)
    return target.read_bytes()


def test_corpora_are_nested(folder: Path, tmp_path: Path) -> None:
    """A larger corpus that is another one, not the smaller one and more."""
    other, small = corpus_of(folder, 90_000, seed=2), corpus_of(folder, 10_000)
    large = corpus_of(folder, 90_000)
    assert large.startswith(small)
    assert large != other
    for n_bytes in (20_000, 20_001, 20_002):
        n_cut = cut(tmp_path / "corpus", tmp_path / "cut", n_bytes)
        part = (tmp_path / "cut").read_bytes()
        assert n_bytes - 1 <= n_cut == len(part) <= n_bytes
        assert large.decode().startswith(part.decode())


def test_cut_at_the_end(tmp_path: Path) -> None:
    """The last character lost where a corpus is cut at its own size."""
    (tmp_path / "x").write_bytes("aé€😀".encode())
    whole = (tmp_path / "x").read_bytes()
    ends = [cut(tmp_path / "x", tmp_path / "y", n) for n in range(1, len(whole) + 1)]
    assert ends == [1, 1, 3, 3, 3, 6, 6, 6, 6, 10]


def test_only_text_is_taken(folder: Path) -> None:
    """Bytes that the tools would read differently; a file that counts twice through a link."""
    text = corpus_of(folder, 100_000).decode()
    assert "\0" not in text
    assert "caf" not in text
    assert "hidden" not in text
    names = [path.name for path in files_below(folder)]
    assert "link.txt" not in names
    assert len(names) == 43


def test_what_is_replayed_is_not_in_the_corpus(folder: Path, tmp_path: Path) -> None:
    """A cache that knows the replayed text by heart, and figures that flatter it."""
    replayed = [folder / "sub" / f"{i}.txt" for i in (1, 2, 4)]
    joined = "".join(path.read_text() for path in replayed)
    left = corpus_of(folder, 90_000, without=joined).decode()
    for i in (1, 2, 4):
        assert f"text {i} says" not in left
    assert "text 5 says" in left
    paths = nested_corpora.write_replay_text(folder / "0.txt", tmp_path / "replay")
    assert Exclusion(b"other", paths).holds(folder / "0.txt", b"anything")


def test_not_enough_text(folder: Path) -> None:
    """A corpus of 200 MB that holds 100."""
    with pytest.raises(NotEnoughText, match=r"holds 0\.\d+ MB of text .* give smaller --sizes"):
        corpus_of(folder, 10_000_000)


# --- the whole ------------------------------------------------------------------------------------

Compare = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def compare(folder: Path, tmp_path: Path, golden: Path, smollm2: Path) -> Compare:
    """Run the script on small corpora; more options may follow."""

    def run(*args: str | Path, sizes: str = "0.02,0.05") -> subprocess.CompletedProcess[str]:
        text = tmp_path / "replay.txt"
        text.write_text((golden / "kjv_test.txt").read_text()[:20_000])
        return subprocess.run(
            [
                *("bash", SCRIPTS / "compare_corpora.sh", folder, text, "--out", tmp_path / "out"),
                *("--sizes", sizes, "--repeat", "2", "-m", "smollm2", "-c", "256", *args),
            ],
            env={**os.environ, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def rows_of(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "out" / "compare.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "out").iterdir())


@pytest.mark.slow
def test_without_llama(compare: Compare, tmp_path: Path) -> None:
    """A row for each size and one without a cache; corpora and caches left lying about."""
    done = compare()
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path)
    assert [(row["tool"], row["corpus_bytes"]) for row in rows] == [
        ("draftsmith", "0"),
        ("draftsmith", "20000"),
        ("draftsmith", "50000"),
    ]
    for row in rows:
        least, middle, most = (
            float(row[f"draft_us_per_token{end}"]) for end in ("_min", "", "_max")
        )
        assert 0 < least <= middle <= most
        assert int(row["n_drafted"]) > int(row["n_accept"]) > 0
        assert float(row["peak_bytes"]) > 5e7
        assert (row["cache_bytes"] == row["load_ms"] == "") == (row["corpus_bytes"] == "0")
    assert leftovers(tmp_path) == ["compare.csv", "compare.png"]
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "times" not in done.stdout


def test_with_llama(compare: Compare, tmp_path: Path) -> None:
    """Other options than draftsmith gets; ratios upside down; a lost tail that is not retried."""
    flaky = '[ $((calls % 2)) = 1 ] && head -7 "$log" >&2 || cat "$log" >&2'
    tools = fake(tmp_path, create='echo cache >"$cache"', stats=flaky)
    done = compare("--llama-bin", tools, "--repeat", "1", sizes="0.02")
    assert done.returncode == 0, done.stderr
    _, none, ours, theirs = rows_of(tmp_path)
    assert [row["missing"] for row in (none, ours, theirs)] == ["", "", ""]
    assert (none["load_ms"], theirs["load_ms"]) == ("", "27.21")
    assert (theirs["n_drafted"], theirs["accept_percent"]) == ("200", "40.0")
    assert float(theirs["draft_us_per_token"]) == 2.5
    ratio = float(theirs["draft_us_per_token_ratio"])
    assert ratio == pytest.approx(2.5 / float(ours["draft_us_per_token"]))
    assert float(theirs["create_s_ratio"]) > 0
    calls = (tmp_path / "stats.calls").read_text().splitlines()
    assert len(calls) == 4  # two rows, two tries each
    assert "--no-escape -c 256 --spec-draft-n-max 8" in calls[0]
    assert "-lcs" not in calls[1]
    assert "-lcs" in calls[2]
    assert "--no-escape" in (tmp_path / "create.calls").read_text()
    assert "llama.cpp" in done.stdout


@pytest.mark.slow
def test_goes_on_where_a_tool_fails(compare: Compare, tmp_path: Path) -> None:
    """A comparison that ends because one tool did; figures left in the row of a failed tool."""
    tools = fake(tmp_path, create="exit 1", stats='cat "$log" >&2')
    done = compare("--llama-bin", tools, "--repeat", "1", sizes="0.02")
    assert done.returncode == 0, done.stderr
    _, none, ours, theirs = rows_of(tmp_path)
    assert theirs["missing"] == "llama-lookup-create ended with status 1: no message"
    assert theirs["n_drafted"] == theirs["draft_us_per_token_ratio"] == theirs["cache_bytes"] == ""
    assert none["missing"] == ours["missing"] == ""
    assert theirs["missing"] in done.stdout
    assert theirs["missing"] in done.stderr
    assert leftovers(tmp_path) == ["compare.csv", "compare.png"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--llama-bin", "/nowhere"], "holds no llama-lookup-create that can be run"),
        (["--sizes", "1,x"], "is not a list of sizes in MB"),
        (["--sizes", "0"], "is not a list of sizes in MB"),
        (["--repeat", "0"], "is not a number from 1 on"),
        (["--sizes", "500"], "give smaller --sizes"),
        (["-m", "nope"], "neither a file nor a known model"),
    ],
)
def test_refusals(compare: Compare, tmp_path: Path, args: list[str], message: str) -> None:
    """A traceback, or a folder of leftovers, for a user's mistake."""
    done = compare(*args)
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists() or leftovers(tmp_path) == []
