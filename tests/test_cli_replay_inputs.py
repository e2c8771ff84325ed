"""Which files of a call hold conversations, and what the run says of what it left out."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus

Cli = Callable[..., Done]
Stats = Callable[..., Done]

CASES = Path(__file__).parent / "golden" / "cases"
LOGS = CASES / "logs"
FIGURES = ("n_turns", "n_predict", "n_drafted", "n_accept")


@pytest.fixture
def stats(cli: Cli, smollm2: Path) -> Stats:
    return lambda *args: cli("lookup-stats", "-m", "smollm2", "--drafter", "suffix", *args)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASES / "requests_folder", tmp_path / "folder"))


def figures(done: Done) -> list[int]:
    assert done.status == 0, done.stderr
    (row,) = done.record["rows"]
    return [row[name] for name in FIGURES]


def refused(done: Done, status: ExitStatus, *words: str) -> None:
    assert done.status == status, done.stderr
    for word in words:
        assert word in done.error


def test_the_figures_of_a_log(stats: Stats) -> None:
    """3 turns and 627 tokens of a log that has 2 and 430."""
    done = stats("-f", LOGS / "api_log_growing.jsonl", "--json")
    assert figures(done) == [2, 430, 485, 333]
    assert figures(stats("-f", LOGS / "api_log_ten.jsonl", "--json")) == [10, 2481, 4178, 1364]


def test_a_folder_is_read_as_its_files_are(stats: Stats, folder: Path) -> None:
    """.json files of a folder as text without a word; the same files left out with --chat."""
    done = stats("-f", folder, "--json")
    (row,) = done.record["rows"]
    assert (row["n_conversations"], row["n_turns"], row["n_bad"]) == (4, 7, 0)
    assert (row["n_predict"], row["n_left_out"]) == (3 * 430 + 197, 0)
    assert "warning" not in done.stderr
    assert figures(stats("-f", folder, "--chat", "--json")) == figures(done)
    assert figures(stats("-f", *sorted(folder.iterdir()), "--json")) == figures(done)
    for path in folder.iterdir():  # whatever they are called, and packed
        path.with_suffix(".log.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert figures(stats("-f", folder, "--json")) == figures(done)


def test_what_else_is_in_a_folder_is_named(stats: Stats, folder: Path) -> None:
    """A readme replayed as a conversation, or conversations replayed as text."""
    (folder / "readme.md").write_text("Some logs.")
    refused(stats("-f", folder), ExitStatus.USAGE, "ref_one.jsonl", "readme.md", "--chat", "--text")
    (folder / "gone.json").symlink_to("nowhere")
    (folder / "settings.json").write_text('{"a": 1}')
    done = stats("-f", folder, "--chat", "--json")
    (row,) = done.record["rows"]
    assert (row["n_turns"], row["n_left_out"], row["n_bad"]) == (7, 1, 2)
    places = [one["place"].rpartition("/")[2] for one in done.record["bad"]]
    assert sorted(places) == ["gone.json", "settings.json:1"]
    assert "readme.md" in done.stderr
    assert "gone.json" in done.stderr
    refused(stats("-f", folder, "--chat", "--strict"), ExitStatus.INPUT_UNREADABLE, "gone.json")
    (text,) = stats("-f", folder, "--text", "--json").record["rows"]
    assert text["n_documents"] == 6


def test_json_that_is_no_conversation(stats: Stats, tmp_path: Path) -> None:
    """A text that happens to be JSON, refused without a way out, or replayed without a word."""
    config = CASES / "config.json"
    refused(stats("-f", config), ExitStatus.INPUT_MALFORMED, "config.json[1]", "--text", "--field")
    (row,) = stats("-f", config, "--text", "--json").record["rows"]
    assert row["n_predict"] > 1000
    done = stats("-f", LOGS / "notebook.ipynb", "--json")
    assert done.status == 0
    assert "JSON of no known form is replayed as the text that it is" in done.stderr
    (row,) = stats("-f", CASES / "corpus_strings.json", "--json").record["rows"]
    assert (row["n_documents"], row["n_read"]) == (30, None)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("print(1)\n" * 20)
    (tmp_path / "code" / "package.json").write_text('{"name": "a"}')
    done = stats("-f", tmp_path / "code", "--json")
    assert done.record["rows"][0]["n_documents"] == 2
    assert "package.json" in done.stderr


@pytest.mark.parametrize("name", ["m_null_parts.jsonl", "responses_api.jsonl"])
def test_what_is_left_out_is_named(name: str, stats: Stats) -> None:
    """Blocks that are counted as images; an answer that lacks something, and exact figures."""
    expected: dict[str, Any] = {
        "m_null_parts.jsonl": ("block 'image_url'", False),
        "responses_api.jsonl": ("item 'reasoning'", True),
    }
    what, of_answers = expected[name]
    done = stats("-f", LOGS / name, "--json")
    (one,) = done.record["dropped"]
    assert (one["what"], one["of_answers"], one["n"]) == (what, of_answers, 1)
    assert [place.rpartition("/")[2] for place in one["places"]] == [f"{name}:1"]
    (row,) = done.record["rows"]
    assert (row["n_media"], row["n_inexact"]) == (1, int(of_answers))
    assert f"{what} ({LOGS / name}:1)" in done.stderr
    assert ("not exact" in done.stderr) == of_answers
    shown = " ".join(stats("-f", LOGS / name).stdout.split())
    assert what in shown
    assert f"left out: {'parts of answers' if of_answers else 'other parts'} 1" in shown


def test_many_kinds_are_bounded(stats: Stats, tmp_path: Path) -> None:
    """A warning for each of a thousand kinds; a name that is a text of the log."""
    parts = [{"type": f"kind{n}"} for n in range(300)] + [{"type": "secret words of a user"}]
    talk = [{"role": "user", "content": [*parts, {"type": "text", "text": "q"}]},
            {"role": "assistant", "content": "a b a b a b"}]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for _ in range(3)))
    done = stats("-f", path, "--json")
    assert done.record["rows"][0]["n_media"] == 903
    assert len(done.record["dropped"]) <= 101
    assert done.stderr.count("\n") < 20
    assert "secret" not in done.stdout + done.stderr


def test_a_request_without_an_answer_is_refused(stats: Stats) -> None:
    """A batch's input that fails without saying where the answers are."""
    done = stats("-f", LOGS / "batch_input.jsonl")
    refused(done, ExitStatus.INPUT_MALFORMED, "batch_input.jsonl:1", "the batch's output")
    done = stats("-f", LOGS / "batch_input.jsonl", LOGS / "batch_output.jsonl", "--json")
    assert figures(done) == figures(stats("-f", LOGS / "ref_one.jsonl", "--json"))
    done = stats("-f", LOGS / "batch_output.jsonl", "--json")
    assert done.record["rows"][0]["n_turns"] == 1
    assert "prompt that the file does not hold" in done.stderr
    assert "not exact" in done.stderr


def test_latin_1_is_replaced_and_counted(stats: Stats) -> None:
    """Letters that are gone without a word."""
    done = stats("-f", LOGS / "latin1.jsonl", "--json")
    assert done.record["rows"][0]["n_invalid_utf8"] > 0
    assert "invalid UTF-8" in done.stderr
