"""``draftsmith lookup-create --chat`` and ``--answers``: caches from logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_dicts import assert_same, dict_of
from conftest import GOLDEN, Done
from draftsmith.engine.errors import ExitStatus
from draftsmith.ngram.cache.file import open_cache
from draftsmith.ngram.cache.ngram_cache import merge_caches
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.conversations.counts import counted_parts

Cli = Callable[..., Done]
CASES = GOLDEN / "cases"
FIRST = [
    ("user", "Name a colour."),
    ("assistant", "Red."),
    ("user", "More."),
    ("assistant", "Blue."),
]
SECOND = [("user", "Count to three."), ("assistant", "One two three, one two three.")]


def lines(*chats: list[tuple[str, str]]) -> str:
    forms = [{"messages": [{"role": role, "content": text} for role, text in c]} for c in chats]
    return "".join(json.dumps(form) + "\n" for form in forms)


def rendered(chat: list[tuple[str, str]]) -> str:
    """What SmolLM2's template makes of a chat without a system message."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    said = [("system", system), *chat]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said)


@pytest.fixture
def create(cli: Cli, smollm2: Path, tmp_path: Path) -> Callable[..., Any]:
    """Write a text to a file, count it, and return (what was printed, the cache)."""

    def run(text: str, name: str, *args: str) -> tuple[Done, Any]:
        path, out = tmp_path / name, tmp_path / f"{name}.lcs"
        path.write_text(text)
        done = cli("lookup-create", "-m", "smollm2", "-f", path, "-lcs", out, "--json", *args)
        return done, open_cache(out) if done.status == 0 else None

    return run


def test_whole_conversations(create: Callable[..., Any]) -> None:
    """Other tokens than the server has; or n-grams that go from one conversation into the next."""
    orders = ("--ngram-min", "1", "--ngram-max", "4")
    done, cache = create(lines(FIRST, SECOND), "log.jsonl", "--chat", *orders)
    parts = [
        create(rendered(chat), f"{i}.txt", *orders)[1] for i, chat in enumerate((FIRST, SECOND))
    ]
    assert_same(cache, merge_caches(parts))
    record = done.record
    assert (record["n_documents"], record["n_read"], record["n_bad"]) == (2, 2, 0)
    assert record["n_bytes"] is None
    assert record["options"]["chat"]


def test_answers_alone(create: Callable[..., Any]) -> None:
    """Prompts are counted, or one answer's end with the begin of the next."""
    done, cache = create(lines(FIRST, SECOND), "log.json", "--answers", "--ngram-min", "1")
    said = [text for role, text in FIRST + SECOND if role == "assistant"]
    parts = [
        create(f"{text}<|im_end|>", f"{i}.txt", "--ngram-min", "1")[1]
        for i, text in enumerate(said)
    ]
    assert_same(cache, merge_caches(parts))
    assert done.record["n_documents"] == 3


def test_what_is_left_out_is_told(create: Callable[..., Any], tmp_path: Path) -> None:
    """A log of which half the lines are bad makes a cache without a word."""
    done, _ = create(lines(FIRST) + "no JSON\n" + '{"a": 1}\n', "log.txt", "--chat")
    assert done.record["n_bad"] == done.record["n_skipped"] == 2
    assert [one.split(": ")[0] for one in done.record["skipped"]] == [
        f"{tmp_path / 'log.txt'}:2",
        f"{tmp_path / 'log.txt'}:3",
    ]
    assert "1 left out: not JSON" in done.stderr
    done, _ = create("no JSON\n", "log.txt", "--chat")
    assert done.status == ExitStatus.INPUT_MALFORMED


def test_fault_in_a_folder_of_logs(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """A dangling link among logs ends the run."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.jsonl").write_text(lines(FIRST))
    (folder / "b.jsonl").symlink_to(folder / "gone")
    (folder / "c.jsonl").write_bytes(lines(FIRST).encode("utf-16-le"))
    args = ("lookup-create", "-m", "smollm2", "-f", folder, "-lcs", tmp_path / "out", "--chat")
    done = cli(*args, "--json")
    assert done.status == 0, done.stderr
    assert done.record["n_read"] == 1
    assert [one.split(": ")[0] for one in done.record["skipped"]] == [
        str(folder / "b.jsonl"),
        str(folder / "c.jsonl"),
    ]
    done = cli(*args, "--strict")
    assert done.status == ExitStatus.INPUT_UNREADABLE
    assert "b.jsonl" in done.error


@pytest.mark.parametrize("flag", ["--chat", "--answers"])
@pytest.mark.parametrize("other", [("--field", "t"), ("--text",), ("-e",), ("--dask", "a:1")])
def test_options_of_text(create: Callable[..., Any], flag: str, other: tuple[str, ...]) -> None:
    """An option that says nothing of conversations is ignored without a word."""
    done, _ = create(lines(FIRST), "log.jsonl", flag, *other)
    assert done.status == ExitStatus.USAGE
    assert flag in done.error


def test_log_without_chat(create: Callable[..., Any], tmp_path: Path) -> None:
    """A log is counted as the JSON that it is written in."""
    for name in ("log.jsonl", "log.json", "log.txt"):
        done, _ = create(lines(FIRST, SECOND), name)
        assert done.status == ExitStatus.INPUT_MALFORMED
        assert "--chat" in done.error
        done, _ = create(lines(FIRST, SECOND), name, "--text")
        assert done.status == 0
    assert json.loads((tmp_path / "log.txt").read_text().splitlines()[0])


def test_prompts_that_begin_anew_are_counted_once() -> None:
    """A template that drops thoughts: the history is counted again with each prompt."""
    first = [1, 2, 3, 90, 91, 4, 5]  # a prompt, thoughts, an answer
    second = [1, 2, 3, 4, 5, 6, 7, 8]  # the prompt without the thoughts, the next answer
    tokens = np.array(first + second, np.int32)
    turns, prompts = np.array([[3, 7], [13, 15]]), np.array([0, 7])
    texts = ReplayTexts.of([Conversation(tokens, turns, prompts)])
    for n_shared in (1, 2, 3):
        whole, rest = (part.tolist() for part in counted_parts(texts, "all", n_shared))
        assert whole == first
        assert rest == second[3 - n_shared :]
    answers = [part.tolist() for part in counted_parts(texts, "answers", 2)]
    assert answers == [[90, 91, 4, 5], [7, 8]]
    again = Conversation(
        np.array([1, 2, 3, 1, 2, 3], np.int32), np.array([[1, 3], [4, 6]]), np.array([0, 3])
    )
    assert len(list(counted_parts(ReplayTexts.of([again]), "all", 2))) == 1


# --- what files are like --------------------------------------------------------------------------


def counts(cli: Cli, path: Path, tmp_path: Path, *args: str) -> tuple[Any, ...]:
    out = tmp_path / "out.lcs"
    done = cli("lookup-create", "-m", "smollm2", "-f", path, "-lcs", out, "--json", *args)
    assert done.status == 0, done.stderr
    record = done.record
    return record["n_tokens"], record["n_invalid_utf8"], dict_of(open_cache(out))


def test_utf16_corpus(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """5,362 tokens of letters with zeros between them, and "2 invalid sequences"."""
    found = counts(cli, CASES / "corpus_utf16.txt", tmp_path)
    assert found == counts(cli, CASES / "corpus_utf8.txt", tmp_path)
    assert found[:2] == (601, 0)


def test_list_of_strings(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """The JSON around the strings is counted."""
    strings = counts(cli, CASES / "corpus_strings.json", tmp_path)
    assert strings == counts(cli, CASES / "ref_corpus.jsonl", tmp_path, "--field", "text")


def test_utf16_log(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """PowerShell's > writes a log of which no line can be read."""
    found = counts(cli, CASES / "utf16.jsonl", tmp_path, "--chat")
    assert found == counts(cli, CASES / "ref_sys.jsonl", tmp_path, "--chat")


def test_utf16_without_a_mark(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """2.097 tokens a round on random words."""
    for command, *more in (("lookup-create", "-lcs", tmp_path / "out"), ("lookup-stats",)):
        done = cli(command, "-m", "smollm2", "-f", CASES / "rnd16le.txt", *more)
        assert done.status == ExitStatus.INPUT_MALFORMED
        assert "every second byte is 0" in done.error
        assert "iconv -f UTF-16LE" in done.error
    (row,) = cli(
        *("lookup-stats", "-m", "smollm2", "-f", CASES / "rnd8.txt", "--drafter", "suffix"),
        "--json",
    ).record["rows"]
    assert row["tokens_per_round"] == pytest.approx(1.013, abs=0.001)


def test_settings_are_text(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """A text that happens to be JSON has no way in."""
    args = ("lookup-stats", "-m", "smollm2", "-f", CASES / "config.json", "--drafter", "suffix")
    (row,) = cli(*args, "--text", "--json").record["rows"]
    assert row["n_documents"] == 1
    assert counts(cli, CASES / "config.json", tmp_path)[0] == row["n_predict"] + 1


def test_folder_of_requests(cli: Cli, smollm2: Path, tmp_path: Path) -> None:
    """A request a file: the JSON replayed as text, or with --chat dropped without a word."""
    folder = CASES / "requests_folder"
    files = sorted(folder.iterdir())
    args = ("lookup-stats", "-m", "smollm2", "--drafter", "suffix", "--json")

    def figures(*more: str | Path) -> tuple[int, ...]:
        (row,) = cli(*args, *more).record["rows"]
        return tuple(row[key] for key in ("n_turns", "n_predict", "n_drafted", "n_accept"))

    assert figures("-f", folder) == figures("-f", folder, "--chat") == figures("-f", *files)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for path in files:
        (mixed / path.with_suffix(".log").name).write_bytes(path.read_bytes())
    (mixed / "README.md").write_text("about the logs in this folder\n")
    assert figures("-f", mixed, "--chat") == figures("-f", folder)
    done = cli(*args, "-f", mixed)  # text, of which the logs are none
    assert done.status == ExitStatus.USAGE
    assert "--chat" in done.error
    found = counts(cli, folder, tmp_path, "--answers")
    assert found[0] == figures("-f", folder)[1]
    for more in (("-f", folder), ("-f", folder / "req_1.json")):
        done = cli("lookup-create", "-m", "smollm2", "-lcs", tmp_path / "x", *more)
        assert done.status == ExitStatus.INPUT_MALFORMED
        assert "--chat" in done.error


def test_list_of_strings_is_no_log(cli: Cli, smollm2: Path) -> None:
    """A corpus in a .json file is refused as a log without conversations."""
    args = ("lookup-stats", "-m", "smollm2", "--drafter", "suffix", "--json")
    (strings,) = cli(*args, "-f", CASES / "corpus_strings.json").record["rows"]
    (lines_of,) = cli(*args, "-f", CASES / "ref_corpus.jsonl", "--field", "text").record["rows"]
    for key in ("n_documents", "n_predict", "n_drafted", "n_accept"):
        assert strings[key] == lines_of[key]
