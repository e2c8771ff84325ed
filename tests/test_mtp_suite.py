"""The prompts of a suite: those that come along, and what a user's file may hold."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.errors import (
    DraftsmithError,
    InputEmpty,
    InputMalformed,
    InputUnreadable,
)
from draftsmith.mtp import suite
from draftsmith.mtp.suite import SuitePrompt, read_suite

OTHERS = Path(__file__).resolve().parent.parent / "scripts" / "prompts.jsonl"
KINDS = (
    "code_python",
    "code_cpp",
    "explain",
    "summarize",
    "qa_factual",
    "translation",
    "story",
    "stepwise_math",
    "long_code_review",
    "json_extraction",
)


def line(**changes: Any) -> dict[str, Any]:
    fields = {"id": "a", "category": "b", "prompt": "c", "max_tokens": 5} | changes
    return {key: value for key, value in fields.items() if value is not ...}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def words(text: str) -> set[tuple[str, ...]]:
    """All runs of eight words."""
    parts = text.lower().split()
    return set(zip(*(parts[i:] for i in range(8)), strict=False))


def texts(prompt: SuitePrompt) -> str:
    return "\n".join(message["content"] for message in prompt.messages)


# --- the bundled prompts --------------------------------------------------------------------------


def test_kinds() -> None:
    """A kind that is missing, or weighs more than the others."""
    prompts = read_suite()
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(KINDS, 4)
    assert len({texts(prompt) for prompt in prompts}) == 40
    assert all(96 <= prompt.max_tokens <= 256 for prompt in prompts)
    longs = [texts(p) for p in prompts if p.category in ("summarize", "long_code_review")]
    assert all(len(text) > 1200 for text in longs)


def test_both_directions_of_both_languages() -> None:
    """Translations into English only, or from it."""

    def korean(text: str) -> bool:
        return any("\uac00" <= character <= "\ud7a3" for character in text)

    asked = [texts(prompt) for prompt in read_suite() if prompt.category == "translation"]
    assert sum(map(korean, asked)) == 1
    for words_of_it in ("into Korean", "into French", "en anglais"):
        assert sum(words_of_it in text for text in asked) == 1


def test_other_prompts_than_lookup_s() -> None:
    """A measurement on what the n-gram drafter was tuned with."""
    others = [json.loads(one)["prompt"] for one in OTHERS.read_text().splitlines()]
    for prompt, other in product(read_suite(), others):
        assert not words(texts(prompt)) & words(other), prompt.name


# --- a user's file --------------------------------------------------------------------------------


def test_a_file(tmp_path: Path) -> None:
    """A default that is not one, a blank line or a byte order mark that counts."""
    messages = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "y"},
        {"role": "assistant", "content": "z"},
        {"role": "user", "content": "é"},
    ]
    path = write(
        tmp_path / "x", line(), line(id="d", prompt=..., max_tokens=..., messages=messages)
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n \n", 1))
    one, other = read_suite(path)
    assert one == SuitePrompt("a", "b", ({"role": "user", "content": "c"},), 5)
    assert other == SuitePrompt("d", "b", tuple(messages), suite.MAX_TOKENS)


def test_no_newline_at_the_end(tmp_path: Path) -> None:
    """A last prompt that is lost."""
    (tmp_path / "x").write_text(json.dumps(line()))
    assert len(read_suite(tmp_path / "x")) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ...}, "id has to be"),
        ({"id": ""}, "id has to be"),
        ({"id": 3}, "id has to be"),
        ({"id": "x\x1b[31m"}, "id has to be"),
        ({"category": ...}, "category has to be"),
        ({"category": "x" * 201}, "category has to be"),
        ({"max_tokens": 0}, "max_tokens has to be"),
        ({"max_tokens": True}, "max_tokens has to be"),
        ({"max_tokens": 1.5}, "max_tokens has to be"),
        ({"max_tokens": 1 << 40}, "max_tokens has to be"),
        ({"prompt": ...}, "exactly one of"),
        ({"messages": []}, "exactly one of"),
        ({"prompt": ""}, "text of 1 character"),
        ({"prompt": None}, "text of 1 character"),
        ({"prompt": "\ud800"}, "lone surrogate"),
        ({"prompt": ..., "messages": []}, "a list of one or more"),
        ({"prompt": ..., "messages": "x"}, "a list of one or more"),
        ({"prompt": ..., "messages": ["x"]}, "a message that is no object"),
        ({"prompt": ..., "messages": [{"role": "user"}]}, "a message without a content"),
        ({"prompt": ..., "messages": [{"role": "user", "content": ""}]}, "text of 1 character"),
        ({"prompt": ..., "messages": [{"role": [], "content": "x"}]}, "without a role"),
        ({"prompt": ..., "messages": [{"role": "assistant", "content": "x"}]}, "the last message"),
        (
            {"prompt": ..., "messages": [{"role": "user", "content": "x", "weight": 1}]},
            "unknown field 'weight'",
        ),
        (
            {
                "prompt": ...,
                "messages": [
                    {"role": "user", "content": ["x", {"type": "image_url", "image_url": {}}]}
                ],
            },
            "block 'image_url'",
        ),
        ({"tools": {}, "chat_template_kwargs": 3}, "chat_template_kwargs that are no object"),
        ({"chat_template_kwargs": {"messages": 3}}, "which cannot be set"),
        ({"tools": "x"}, "tools that are no list"),
        ({"temperature": 1}, "unknown field 'temperature'"),
    ],
    ids=str,
)
def test_bad_lines(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """A line taken for something else, or refused without its number."""
    path = write(tmp_path / "x", line(id="first"), line(**changes))
    with pytest.raises(InputMalformed, match="line 2") as caught:
        read_suite(path)
    assert message in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"{", InputMalformed, "line 1: not JSON"),
        (b"\xff\xfe", InputMalformed, "line 1: not JSON"),
        (b"[" * 100_000, InputMalformed, "line 1: not JSON"),
        (b"3", InputMalformed, "line 1: not an object"),
        (b"\n \n", InputEmpty, "holds no prompt"),
        (b"", InputEmpty, "holds no prompt"),
    ],
    ids=["open", "bytes", "deep", "number", "blank", "empty"],
)
def test_bad_files(tmp_path: Path, data: bytes, kind: type[DraftsmithError], message: str) -> None:
    """A traceback from the parser."""
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(kind, match=message):
        read_suite(tmp_path / "x")


def test_an_id_twice(tmp_path: Path) -> None:
    """Two rows of one name."""
    with pytest.raises(InputMalformed, match="line 3: line 1 has the id 'a' already"):
        read_suite(write(tmp_path / "x", line(), line(id="z"), line()))


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without an end that fills the memory."""
    monkeypatch.setattr(suite, "MAX_PROMPTS", 2)
    with pytest.raises(InputMalformed, match="line 3: more than 2 prompts"):
        read_suite(write(tmp_path / "x", *(line(id=str(i)) for i in range(3))))
    monkeypatch.setattr(suite, "MAX_LINE_BYTES", 100)
    with pytest.raises(InputMalformed, match="line 2: longer than 100 bytes"):
        read_suite(write(tmp_path / "x", line(), line(id="x", prompt="y" * 100)))
    monkeypatch.setattr(suite, "MAX_BYTES", 120)
    with pytest.raises(InputMalformed, match="line 2: more than 120 bytes; split the file"):
        read_suite(write(tmp_path / "x", *(line(id=str(i)) for i in range(2)), {"x": "y" * 60}))


def test_not_a_file(tmp_path: Path) -> None:
    """A traceback for a wrong name."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputUnreadable, match=r"can't be read"):
            read_suite(path)
