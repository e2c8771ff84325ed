"""``--drafter``: rows of any drafters, what is advised, and what of a text gets into the output."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Done
from draftsmith.cli.output import Output
from draftsmith.cli.replay.advice import Paths, advise
from draftsmith.cli.replay.rows import Row
from draftsmith.engine.errors import ExitStatus
from draftsmith.ngram.advice.step_curve import parse_curve
from draftsmith.ngram.drafters.settings import KINDS

Cli = Callable[..., Done]

DOCS = Path(__file__).parent.parent / "docs"
CURVE = "1:10ms,2:11ms,4:13ms,8:17ms,16:25ms,64:73ms"
# What differs between two calls that replay the same.
TIMES = (
    *("t_draft_ms", "draft_us_per_token", "draft_tokens_per_s", "draft_us_per_text_token"),
    *("load_ms", "tokenize_ms", "draft_ns_samples", "host", "compile_s", "peak_rss_bytes"),
    *("options", "rows_side_by_side"),
)


@pytest.fixture
def folder(tmp_path: Path, smollm2: Path) -> Path:
    """Token ids: passages that come back, between such as do not."""
    rng = np.random.default_rng(5)
    passages = [rng.integers(20, 9000, 60).astype(np.int32) for _ in range(2)]
    parts = [np.concatenate([passages[i % 2], rng.integers(20, 9000, 9)]) for i in range(20)]
    np.save(tmp_path / "ids.npy", np.concatenate(parts).astype(np.int32))
    return tmp_path


@pytest.fixture
def stats(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Replay the ids in chunks of 256, in their folder; drafters may follow."""
    monkeypatch.chdir(folder)
    return lambda *args: cli("lookup-stats", "-m", "smollm2", "-f", "ids.npy", "-c", "256", *args)


def drafters(*names: str) -> list[str]:
    return [word for name in names for word in ("--drafter", name)]


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def refused(done: Done, status: ExitStatus, message: str) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error


# --- rows -----------------------------------------------------------------------------------------


def test_each_row_is_what_a_call_of_its_own_says(stats: Cli) -> None:
    """A row with another row's keys; a drafter that knows what another one learnt."""
    names = [f"ngram-simple:size-n={n},size-m={m}" for n in (3, 4) for m in (8, 16)]
    grid = ("ngram-simple:size-n=3|4,size-m=8|16", "suffix+ngram-mod")
    rows = stats(*drafters(*grid), "--json", "-q").record["rows"]
    assert [row["drafter"] for row in rows] == [*names, "suffix+ngram-mod"]
    for row in rows:
        (own,) = stats(*drafters(row["drafter"]), "--json").record["rows"]
        assert untimed(own) == untimed(row)


def test_upstream_forms_stand_before_the_repaired(stats: Cli) -> None:
    """A flaw whose cost does not show, or a row of ours that is marked as llama.cpp's."""
    args = (*drafters("ngram-simple:size-n=8", "suffix", "suffix"), "--upstream-exact")
    rows = stats(*args, "--json").record["rows"]
    assert [(row["drafter"], row["upstream_exact"]) for row in rows] == [
        ("ngram-simple:size-n=8", True),
        ("ngram-simple:size-n=8", False),
        ("suffix", False),
    ]
    assert rows[1]["n_accept"] >= rows[0]["n_accept"]
    lines = stats(*args).stdout.splitlines()
    assert ["llama.cpp" in line for line in lines[4:7]] == [True, False, False]
    assert ["repaired" in line for line in lines[4:7]] == [False, True, False]


def test_counts_fit_together(stats: Cli) -> None:
    """Tokens that are lost between rounds, positions, batches and drafters."""
    every = [*KINDS, "ngram-simple:size-n=4+ngram-cache"]
    for row in stats(*drafters(*every), "--json").record["rows"]:
        assert row["n_turns"] == row["n_conversations"] == 1380 // 256 + 1
        assert row["n_predict"] == row["n_input"] - row["n_conversations"]
        decoded = row["n_predict"] - row["n_turns"]
        assert row["n_rounds"] + row["n_accept"] - row["n_cut_rounds"] == decoded
        assert row["tokens_per_round"] == pytest.approx(decoded / row["n_rounds"])
        assert sum(row["drafted_by_position"]) == row["n_drafted"]
        assert sum(row["accepted_by_position"]) == row["n_accept"]
        assert len(row["drafted_by_position"]) == row["n_draft"]
        batches = row["rounds_by_batch"]
        assert sum(batches) == row["n_rounds"]
        assert sum(n * i for i, n in enumerate(batches)) == row["n_rounds"] + row["n_drafted"]
        assert row["n_rounds"] - batches[1] == row["n_drafts"]
        for key, whole in (("drafts", "n_drafts"), ("drafted", "n_drafted")):
            assert sum(one[key] for one in row["by_drafter"]) == row[whole]


def test_keys(stats: Cli) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = (DOCS / "lookup-stats.md").read_text()
    whole = stats(*drafters("suffix"), "--cost", CURVE, "--show-examples", "--json").record
    assert list(whole) == ["schema", "command", "rows", "advice", "examples"]
    (row,) = whole["rows"]
    for found in (whole, row, whole["advice"], whole["examples"][0], whole["advice"]["server"]):
        for key in found:
            assert f"`{key}`" in documented, key
    first = ["schema", "command", "drafter", "upstream_exact", "n_draft", "n_predict", "n_drafted"]
    assert list(row)[:7] == first
    assert list(row)[-5:] == ["options", "inputs", "host", "compile_s", "peak_rss_bytes"]


def test_csv(stats: Cli) -> None:
    """Columns that differ between drafters, or come with the options."""
    rows = stats(*drafters("suffix", "ngram-map-k+ngram-mod"), "--csv").stdout
    more = stats(*drafters("vllm-ngram"), "--cost", CURVE, "--csv", "--no-header").stdout
    found = list(csv.DictReader(io.StringIO(rows + more)))
    assert [row["drafter"] for row in found] == ["suffix", "ngram-map-k+ngram-mod", "vllm-ngram"]
    assert all(None not in row and None not in row.values() for row in found)
    assert [bool(row["predicted_ratio"]) for row in found] == [False, False, True]
    assert found[1]["by_drafter_name"] == "ngram-map-k;ngram-mod"


def test_rows_side_by_side_count_the_same_and_say_so(stats: Cli) -> None:
    """Times of rows that disturbed each other given out as if each had run alone."""
    args = drafters("ngram-mod:n-match=4|8,n-min=2", "suffix", "ngram-cache")
    alone, beside = (stats(*args, *more, "--json").record["rows"] for more in ((), ("-t", "2")))
    assert [untimed(row) for row in alone] == [untimed(row) for row in beside]
    assert {row["rows_side_by_side"] for row in alone} == {1}
    assert {row["rows_side_by_side"] for row in beside} == {2}
    assert "2 rows at a time" in stats(*args, "-t", "2").stdout
    assert "at a time" not in stats(*args).stdout


def test_repeats(stats: Cli) -> None:
    """A lone measurement, or a mean, given as the time."""
    done = stats(*drafters("suffix"), "--repeat", "3", "--json")
    (row,) = done.record["rows"]
    samples = row["draft_ns_samples"]
    assert len(samples) == 3
    assert row["t_draft_ms"] == pytest.approx(sorted(samples)[1] / 1e6)
    assert "least..most" in stats(*drafters("suffix"), "--repeat", "2").stdout


def test_one_row_shows_its_positions(stats: Cli) -> None:
    """By position missing where there is room for it; a page of it for each row of a grid."""
    assert "position 3 " in stats(*drafters("suffix")).stdout
    combined = stats(*drafters("suffix+ngram-cache")).stdout
    assert "by ngram-cache" in combined
    assert "position 3 " not in stats(*drafters("suffix", "ngram-cache")).stdout


def test_nothing_drafted(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """nan, or a division by zero, where no drafter finds anything."""
    np.save(tmp_path / "x.npy", np.arange(100, 400, dtype=np.int32))
    args = ("lookup-stats", "-m", "smollm2", "-f", tmp_path / "x.npy", *drafters(*KINDS))
    record = cli(*args, "--cost", CURVE, "--json").record
    assert {row["n_drafted"] for row in record["rows"]} == {0}
    assert record["advice"]["best"] == {"drafter": None, "upstream_exact": False}
    assert record["advice"]["server"] is None
    done = cli(*args, "--cost", CURVE)
    assert "Best: no drafting" in done.stdout
    assert "nan" not in done.stdout


def test_plain_documents_are_conversations_of_their_own(
    cli: Cli, smollm2: Path, tmp_path: Path
) -> None:
    """A draft from another document, or a document of one token that ends the run."""
    for name, ids in (("a", range(100, 160)), ("b", range(100, 160)), ("c", range(5, 6))):
        np.save(tmp_path / f"{name}.npy", np.array(ids, np.int32))
    files = [tmp_path / f"{name}.npy" for name in "abc"]
    args = ("lookup-stats", "-m", "smollm2", "-f", *files, *drafters("ngram-simple:size-n=2"))
    (row,) = cli(*args, "--json").record["rows"]
    assert (row["n_conversations"], row["n_drafted"], row["n_input"]) == (2, 0, 120)
    np.save(tmp_path / "one.npy", np.zeros(1, np.int32))
    done = cli("lookup-stats", "-m", "smollm2", "-f", tmp_path / "one.npy", *drafters("suffix"))
    refused(done, ExitStatus.INPUT_TOO_SHORT, "two tokens")


def test_state_is_carried_as_asked(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """--server-like that forgets the last conversation, or a default that does not."""
    ids = np.random.default_rng(2).integers(20, 9000, 250).astype(np.int32)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", ids)
    files = [tmp_path / f"{name}.npy" for name in "ab"]
    args = ("lookup-stats", "-m", "smollm2", "-f", *files, "--json")
    args = (*args, *drafters("ngram-mod:n-match=4,n-min=2"))
    (alone,), (like,), (all_,) = (
        cli(*args, *more).record["rows"] for more in ((), ("--server-like",), ("--carry", "all"))
    )
    assert alone["n_accept"] == 0
    assert like["n_accept"] > 100
    assert untimed(like) == untimed(all_)


# --- advice ---------------------------------------------------------------------------------------


def test_speeds_are_rounds_by_their_costs(stats: Cli) -> None:
    """A prediction that is not what the table's own counts come to."""
    names = drafters("ngram-simple:size-n=4,size-m=12", "suffix")
    record = stats(*names, "--cost", CURVE, "--json").record
    advice = record["advice"]
    costs = parse_curve(CURVE).up_to(2000)
    for row in record["rows"]:
        batches = np.array(row["rounds_by_batch"])
        ms = batches @ costs[: batches.size] + row["t_draft_ms"]
        decoded = row["n_predict"] - row["n_turns"]
        assert row["predicted_tokens_per_s"] == pytest.approx(1000 * decoded / ms)
        assert row["predicted_ratio"] == pytest.approx(10 * decoded / ms)
        assert row["predicted_ratio_least"] <= row["predicted_ratio"]
        assert row["predicted_ratio"] <= row["predicted_ratio_most"]
    ratios = [row["predicted_ratio"] for row in record["rows"]]
    best = record["rows"][int(np.argmax(ratios))]
    assert advice["best"]["drafter"] == best["drafter"]
    assert advice["ratio"] == max(ratios)
    assert advice["margin_percent"] == pytest.approx(100 * (max(ratios) / sorted(ratios)[-2] - 1))
    assert advice["plain_tokens_per_s"] == 100
    assert advice["cost"]["16"] == 25


def test_the_command_line_can_be_copied(stats: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line that is folded, or is not that of the best row."""
    monkeypatch.setenv("COLUMNS", "40")
    args = (*drafters("ngram-simple:size-n=4,size-m=12"), "--upstream-exact", "--cost", CURVE)
    record = stats(*args, "--json").record
    line = record["advice"]["server"]["line"]
    words = shlex.split(line)
    assert words[:2] == ["llama-server", "-m"]
    assert Path(words[2]).is_file()
    assert words[3:] == [
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4"),
        *("--spec-ngram-simple-size-m", "12"),
    ]
    assert line in stats(*args).stdout.splitlines()


def test_without_milliseconds_there_is_no_speed(stats: Cli) -> None:
    """Tokens a second out of costs without a unit."""
    args = (*drafters("suffix", "ngram-cache"), "--cost", "1:1.0,2:1.1,8:1.5")
    rows = stats(*args, "--advise", "--json").record["rows"]
    assert {row["predicted_tokens_per_s"] for row in rows} == {None}
    assert all(row["predicted_ratio"] > 0 for row in rows)
    done = stats(*args)
    assert "x plain decoding" in done.stdout
    assert "tokens/s" not in done.stdout
    assert "of the predicted time is in passes over more than the 8 tokens" in done.stderr


def row_of(spec: str, rounds: list[dict[int, int]], accepted: list[int], exact: bool) -> Row:
    """A row as a replay would give it, of what advice looks at."""
    from types import SimpleNamespace

    from draftsmith.ngram.advice.advise import work_of
    from draftsmith.ngram.drafters.settings import parse_specs

    batches = np.zeros((len(rounds), 10), np.int64)
    for i, one in enumerate(rounds):
        for size, n in one.items():
            batches[i, size] = n
    work = work_of(batches, batches.sum(axis=1) + accepted, parse_curve(CURVE))
    (parsed,) = parse_specs(spec, upstream_exact=exact)
    stats: Any = SimpleNamespace()
    return Row(parsed, stats, batches.sum(axis=0), [0], work)


def test_the_best_that_llama_server_has_is_named_as_well() -> None:
    """Advice for a drafter that nobody can run, and none for what they can."""
    rows = [
        row_of("ngram-mod", [{1: 10}] * 20, [0] * 20, True),
        row_of("ngram-cache", [{2: 10}] * 20, [9] * 20, True),
        row_of("suffix", [{4: 10}] * 20, [29] * 20, False),
    ]
    advice = advise(rows, parse_curve(CURVE), Paths("m.gguf", None, None), Output())
    assert advice.record["best"] == {"drafter": "suffix", "upstream_exact": False}
    assert advice.record["server"]["is_exact"] is False
    best = advice.record["best_of_server"]
    assert best["best"] == {"drafter": "ngram-cache", "upstream_exact": True}
    assert best["server"]["line"] == "llama-server -m m.gguf --spec-type ngram-cache"
    text = "\n".join(advice.lines)
    assert "llama-server has no suffix" in text
    assert "- in vLLM: vllm serve" in text
    assert text.index("Best: suffix") < text.index("Of what llama-server has itself:")
    assert json.loads(json.dumps(advice.record)) == advice.record
    assert "--upstream-exact" not in text
    without = advise(rows[2:], parse_curve(CURVE), Paths("m.gguf", None, None), Output())
    assert "own drafters were not replayed: see --upstream-exact" in without.lines[-1]


def test_a_combination_with_what_it_lacks_is_not_llama_servers() -> None:
    """A command line said to be llama-server's own, for a drafter that only the replay has."""
    rows = [
        row_of("ngram-cache", [{2: 10}] * 20, [9] * 20, True),
        row_of("ngram-mod+suffix", [{4: 10}] * 20, [29] * 20, True),
    ]
    advice = advise(rows, parse_curve(CURVE), Paths("m.gguf", None, None), Output())
    assert advice.record["best"]["drafter"] == "ngram-mod+suffix"
    assert advice.record["best_of_server"]["best"]["drafter"] == "ngram-cache"


def test_few_conversations_are_said_to_be_few(capsys: pytest.CaptureFixture[str]) -> None:
    """100 % sure after two conversations, without a word."""
    for n, said in ((1, False), (2, True), (10, False)):
        advice = advise(
            [row_of("suffix", [{4: 10}] * n, [20] * n, False)],
            parse_curve(CURVE),
            Paths("m.gguf", None, None),
            Output(),
        )
        assert ("conversations are few" in capsys.readouterr().err) == said
        assert ("does not say how sure" in "\n".join(advice.lines)) == (n == 1)


# --- conversations --------------------------------------------------------------------------------

CHATS = [
    {"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "So."}]},
    "not a sesquipedalian conversation",
    {"prompt": "Say it twice.", "completion": "It is said, it is said, it is said, it is said."},
    {"messages": [{"role": "user", "content": "sesquipedalian"}]},
    {"sesquipedalian": 1},
]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """Two conversations and three lines that are none."""
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in CHATS))
    return path


def test_conversations(cli: Cli, smollm2: Path, chat: Path) -> None:
    """Prompts that are replayed as if they had been generated; bad lines that end a run, or vanish
    without their numbers; a word of them in a message.
    """
    args = ("lookup-stats", "-m", "smollm2", *drafters("ngram-simple:size-n=2", "ngram-cache"))
    done = cli(*args, "-f", chat, "--json")
    assert done.status == 0
    record = done.record
    row = record["rows"][0]
    assert (row["n_conversations"], row["n_turns"], row["n_read"], row["n_bad"]) == (2, 2, 3, 3)
    assert row["n_predict"] < 40 < row["n_input"]
    assert row["n_accept"] > 5
    assert row["n_documents"] is None
    assert [one["place"].rpartition(":")[2] for one in record["bad"]] == ["2", "4", "5"]
    assert done.stderr.count("warning: 1 left out: ") == 3
    assert f"({chat}:2)" in done.stderr
    assert "pedalian" not in done.stdout + done.stderr
    assert "left out: conversations   3" in " ".join(cli(*args, "-f", chat).stdout.split(" "))


def test_conversations_that_are_longer_than_the_context(
    cli: Cli, smollm2: Path, tmp_path: Path
) -> None:
    """-c that is read and does nothing; a context that ends answers without a word."""
    turns = [
        {"role": role, "content": f"{i} {'one two three ' * 40}"}
        for i in range(4)
        for role in ("user", "assistant")
    ]
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"messages": turns}))
    args = ("lookup-stats", "-m", "smollm2", *drafters("suffix"), "-f", path, "--json")

    def counts(*more: str) -> tuple[int, ...]:
        done = cli(*args, *more)
        assert ("-c" in done.stderr) == bool(more), done.stderr
        (row,) = done.record["rows"]
        assert row["n_input"] <= 1200
        return row["n_turns"], row["n_turns_refused"], row["n_turns_stopped"]

    assert counts() == (4, 0, 0)
    assert counts("-c", "512") == (2, 2, 1)
    assert (
        "2 of 4 answers, which a server refuses, and ends 1 early" in cli(*args, "-c", "512").stderr
    )
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "one " * 400}, turns[1]]}))
    refused(cli(*args, "-c", "256"), ExitStatus.USAGE, "no answer has a prompt of fewer tokens")
    path.write_text(
        json.dumps({"messages": [{"role": "user", "content": "one " * 9000}, turns[1]]})
    )
    assert "was trained on 8192 tokens, and a server" in cli(*args).stderr


def test_which_files_hold_conversations(cli: Cli, smollm2: Path, chat: Path) -> None:
    """A log replayed as the JSON that it is written in; a text taken for a log."""
    other = chat.with_name("log.txt")
    other.write_bytes(chat.read_bytes())
    args = ("lookup-stats", "-m", "smollm2", *drafters("suffix"), "--json")
    (named,) = cli(*args, "-f", chat).record["rows"]
    (told,) = cli(*args, "-f", other, "--chat").record["rows"]
    (text,) = cli(*args, "-f", other, "--text").record["rows"]
    (named_text,) = cli(*args, "-f", chat, "--text").record["rows"]
    (seen,) = cli(*args, "-f", other).record["rows"]
    lines = chat.with_name("lines.jsonl")
    lines.write_text('{"t": "a b a b a b"}\n')
    (field,) = cli(*args, "-f", lines, "--field", "t").record["rows"]
    assert named["n_predict"] == told["n_predict"] == seen["n_predict"] < text["n_predict"]
    assert text["n_read"] is None
    assert named_text["n_predict"] == text["n_predict"]
    assert field["n_documents"] == 1
    other.write_text("a b a b")
    refused(cli(*args, "-f", chat, other), ExitStatus.USAGE, "give a call for each")
    refused(cli(*args, "-f", chat, "--chat", "--field", "t"), ExitStatus.USAGE, "--field")
    refused(cli(*args, "-f", chat, "--chat", "--text"), ExitStatus.USAGE, "--text")
    refused(cli(*args, "-f", chat, "-e"), ExitStatus.USAGE, "--escape is for plain text")


def test_no_conversation_at_all(cli: Cli, smollm2: Path, chat: Path) -> None:
    """Tables of nothing for a file of another kind."""
    chat.write_text('{"a": 1}\n')
    done = cli("lookup-stats", "-m", "smollm2", *drafters("suffix"), "-f", chat)
    refused(done, ExitStatus.INPUT_MALFORMED, "chat.jsonl:1")
    chat.write_text("")
    done = cli("lookup-stats", "-m", "smollm2", *drafters("suffix"), "-f", chat)
    refused(done, ExitStatus.INPUT_EMPTY, "no conversation")


# --- the text stays where it is -------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A text of which a word is easily found."""
    path = tmp_path / "x.txt"
    path.write_text("the sesquipedalian cat sat on the mat; " * 40)
    return path


@pytest.mark.parametrize("mode", [(), ("--json",), ("--csv",)])
def test_nothing_of_the_text_is_shown_unless_asked_for(
    cli: Cli, smollm2: Path, secret: Path, mode: tuple[str, ...]
) -> None:
    """Somebody's conversations in a log."""
    args = ("lookup-stats", "-m", "smollm2", "-f", secret, *drafters("suffix", "ngram-mod"), *mode)
    done = cli(*args, "--cost", CURVE)
    assert done.status == 0
    assert "pedalian" not in done.stdout + done.stderr
    if mode != ("--csv",):
        assert "pedalian" in cli(*args, "--show-examples").stdout


def test_examples(stats: Cli) -> None:
    """The wrong drafts: not the longest, or not the ones that cost most."""
    (row,), examples = (
        stats(*drafters("ngram-simple:size-n=3"), "--show-examples", "--json").record[key]
        for key in ("rows", "examples")
    )
    longest = [one for one in examples if one["what"] == "longest"]
    costliest = [one for one in examples if one["what"] == "costliest"]
    assert 1 <= len(longest) <= 10
    most = max(i for i, n in enumerate(row["accepted_by_position"]) if n) + 1
    assert longest[0]["n_accepted"] == most
    refused = [one["n_drafted"] - one["n_accepted"] for one in costliest]
    assert refused == sorted(refused, reverse=True)
    assert all(one["by"] == "ngram-simple" for one in examples)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--drafter", "ngram-mid"), "did you mean ngram-mod?"),
        (("--drafter", "suffix:n=2"), "suffix has max-tree-depth"),
        (("--drafter", "suffix", "--draft-max", "3"), "keys of their own"),
        (("--drafter", "suffix", "-c", "256,512"), "several -c"),
        (("--drafter", "suffix", "-lcs", "a", "-lcs", "b"), "several -lcs"),
        (("--drafter", "suffix", "-lcs", "a"), "no --drafter names it"),
        (("--drafter", "suffix", "--advise"), "give --cost FILE of llama-bench"),
        (("--drafter", "suffix", "--cost", "1:1"), "one token only"),
        (("--drafter", "suffix", "--server-like", "--carry", "none"), "exclude each other"),
        (("--drafter", "suffix", "--csv", "--show-examples"), "--show-examples is not for --csv"),
        (("--upstream-exact",), "--upstream-exact is for --drafter"),
        (("--server-like",), "--server-like is for --drafter"),
        (("--carry", "all"), "--carry is for --drafter"),
        (("--cost", "1:1,2:2"), "--cost is for --drafter"),
        (("--show-examples",), "--show-examples is for --drafter"),
        (("--chat",), "--chat is for --drafter"),
    ],
)
def test_options_that_do_not_fit(cli: Cli, args: tuple[str, ...], message: str) -> None:
    """An option without effect, which its user takes for done; half an hour before it is said."""
    done = cli("lookup-stats", "-m", "no-such-model.gguf", "-f", "nope", *args)
    refused(done, ExitStatus.USAGE, message)


def test_a_missing_curve_is_refused_first(cli: Cli) -> None:
    """An hour of replays lost to a typing error in a file name."""
    args = ("lookup-stats", "-m", "no-such-model.gguf", "-f", "nope", "--drafter", "suffix")
    refused(cli(*args, "--cost", "nope.json"), ExitStatus.INPUT_UNREADABLE, "nope.json")


def test_draft_max_of_the_environment_is_for_others(
    stats: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that is set for llama-server, and makes every call fail."""
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "5")
    assert stats(*drafters("suffix"), "--json").status == 0


def test_figure(stats: Cli, folder: Path) -> None:
    """A figure that is not drawn, or another one each time."""
    args = (*drafters("ngram-simple:size-n=3|4|8", "suffix"), "--upstream-exact")
    assert stats(*args, "--plot", "a.svg").status == 0
    assert stats(*args, "--plot", "b.svg", "--cost", "1:1,2:1.1").status == 0
    a, b = ((folder / name).read_text() for name in ("a.svg", "b.svg"))
    assert "memory of the drafter" in a or "<svg" in a
    assert a != b


def test_docs_tell_every_key_and_default() -> None:
    """A table of drafters that is not the program's."""
    text = (DOCS / "lookup-stats.md").read_text()
    rows: dict[str, str] = {}
    for item in re.split(r"\n(?=- )|\n\n", text):
        if item.startswith("- `"):
            rows.setdefault(item.split("`")[1], " ".join(item.split()))
    for kind in KINDS.values():
        if kind.name == "ngram-map-k4v":  # "as ngram-map-k"
            continue
        for key in kind.keys:
            assert f"`{key.name}`" in rows[kind.name], (kind.name, key.name)
            if (kind.name, key.name[:4]) != ("ngram-map-k", "size"):  # "likewise"
                span = f"`{key.name}`: {key.default} ({key.least} to {key.most})"
                assert span in rows[kind.name], (kind.name, span)
