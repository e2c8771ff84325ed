"""Conversations: which tokens were generated after which prompt, and what cannot be read."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.chat import template as chat
from draftsmith.engine.chat.messages import Chat, NotAChat
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import (
    ChatTemplateUnusable,
    InputEmpty,
    InputMalformed,
    InputTooShort,
    InputUnreadable,
    UsageError,
)
from draftsmith.engine.gguf.file import GgufMetadata, read_metadata
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.ngram.conversations import pieces as conversation_pieces
from draftsmith.ngram.conversations import reader as conversation_reader
from draftsmith.ngram.conversations import tokens as conversation_tokens
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.conversations.files import ChatFiles, open_chats
from draftsmith.ngram.conversations.formats import chat_of
from draftsmith.ngram.conversations.reader import read_conversations
from draftsmith.ngram.conversations.search import is_chat_path
from draftsmith.ngram.conversations.tokens import TurnStats
from draftsmith.ngram.conversations.trees import path_to_current
from draftsmith.ngram.corpus import decode as corpus_decode
from draftsmith.ngram.corpus import json_values as conversation_json
from draftsmith.ngram.corpus.json_values import Failure, json_values
from peer_text import ask_peer
from token_bytes import token_bytes
from toy_gguf import write_toy

KEY = "tokenizer.chat_template"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('Only two roles!') }}{% endif %}{% endfor %}" + CHATML
)
# Thoughts are shown in the last answer alone, as Qwen3 does.
THOUGHTFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.reasoning_content %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The prompt begins a thought that the text does not show later, as DeepSeek R1 does.
THINKING = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}").replace(
    "m.content }}", "m.content.split('</think>')[-1] }}"
)
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


TALK = [user("Hello"), answer("The quick brown fox."), user("More!"), answer(" It's\n lazy. \n")]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@dataclass(frozen=True)
class Toy:
    """A vocabulary with a template."""

    tokenizer: Tokenizer
    template: ChatTemplate
    ends: frozenset[int]

    @classmethod
    def of(cls, path: Path, source: str = CHATML, kind: str = "smollm", **changes: Any) -> Toy:
        metadata = read_metadata(write_toy(path / "toy.gguf", kind, **changes))
        return cls.of_metadata(replace(metadata, values=metadata.values | {KEY: source}))

    @classmethod
    def of_metadata(cls, metadata: GgufMetadata) -> Toy:
        tokenizer = load_tokenizer(metadata.path, metadata)
        return cls(tokenizer, ChatTemplate.of(metadata), eog_ids(metadata))

    def read(self, path: Path, *values: Any, **options: Any) -> Read:
        """What a file of these values, a line each, comes to."""
        lines = [one if isinstance(one, str) else json.dumps(one) for one in values]
        (path / "chat.jsonl").write_text("\n".join(lines))
        return self.read_files([path / "chat.jsonl"], **options)

    def read_files(self, paths: Iterable[Path], **options: Any) -> Read:
        files = open_chats([str(path) for path in paths])
        texts, turns = read_conversations(
            files, self.tokenizer, self.template, self.ends, **options
        )
        check(texts)
        return Read(self, texts, turns, files)


@dataclass(frozen=True)
class Read:
    """Conversations that were read."""

    toy: Toy
    texts: ReplayTexts
    turns: TurnStats
    files: ChatFiles

    def said(self) -> list[list[tuple[str, str]]]:
        """Of each conversation its turns: prompt, and what was generated."""
        return [
            [(self.text(one, p, a), self.text(one, a, b)) for p, a, b in spans(one)]
            for one in self.texts
        ]

    def answers(self) -> list[list[str]]:
        return [[text for _, text in one] for one in self.said()]

    def text(self, one: Conversation, start: int, stop: int) -> str:
        return token_bytes(self.toy.tokenizer, one.tokens[start:stop]).decode()

    @property
    def bad(self) -> list[tuple[str, str]]:
        """Place and reason, without the folder."""
        return [(place.rpartition("/")[2], reason) for place, reason in self.files.stats.bad]


def spans(one: Conversation) -> list[tuple[int, int, int]]:
    return [
        (int(p), int(a), int(b)) for p, (a, b) in zip(one.prompts, one.turns.tolist(), strict=True)
    ]


def check(texts: ReplayTexts) -> None:
    """What kernels rely on."""
    assert texts.tokens.dtype == np.int32
    for array in (texts.starts, texts.turns, texts.prompts, texts.turn_of_conversation):
        assert array.dtype == np.int64
    assert texts.starts[0] == texts.turn_of_conversation[0] == 0
    assert texts.starts[-1] == texts.tokens.size
    assert texts.turn_of_conversation[-1] == texts.n_turns == len(texts.turns)
    for c, one in enumerate(texts):
        before = 0
        assert one.turns.shape == (one.prompts.size, 2)
        for prompt, start, stop in spans(one):
            assert 0 <= prompt < start < stop <= one.tokens.size
            assert start >= before
            before = stop
        assert texts.starts[c] < texts.starts[c + 1]
    assert texts.n_generated == sum(b - a for one in texts for _, a, b in spans(one))


@pytest.fixture(scope="session")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A toy with a plain template."""
    return Toy.of(tmp_path_factory.mktemp("chatml"))


# ---- texts


def test_a_plain_text() -> None:
    """A first token that counts as generated, or a chunk that is lost."""
    tokens = np.arange(10, dtype=np.int32)
    whole = ReplayTexts.of_text(tokens)
    check(whole)
    assert (whole.n_conversations, whole.turns.tolist()) == (1, [[1, 10]])
    for n_ctx, turns in (
        (4, [[1, 4], [5, 8], [9, 10]]),
        (3, [[1, 3], [4, 6], [7, 9]]),
        (99, [[1, 10]]),
    ):
        texts = ReplayTexts.of_text(tokens, n_ctx)
        check(texts)
        assert texts.turns.tolist() == turns
    with pytest.raises(InputTooShort):
        ReplayTexts.of_text(tokens[:1])


def test_joined_and_parted() -> None:
    """Turns that are off by another conversation."""
    rng = np.random.default_rng(3)
    parts = [ReplayTexts.of_text(rng.integers(0, 99, n, np.int32)) for n in (2, 7, 30)]
    texts = ReplayTexts.of(one for part in parts for one in part)
    check(texts)
    for part, one in zip(parts, texts, strict=True):
        assert one.tokens.tolist() == part.tokens.tolist()
        assert one.turns.tolist() == part.turns.tolist()
    assert ReplayTexts.of([]).n_conversations == 0


# ---- formats


def said(chat: Chat) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in chat.messages]


PAIR = [("user", "a"), ("assistant", "b")]
NODES = {
    "r": {"id": "r", "parent": None, "children": ["1"], "message": None},
    "1": {
        "parent": "r",
        "message": {"author": {"role": "user"}, "create_time": 1.5,
                    "content": {"content_type": "text", "parts": ["a"]}},
    },
    "2": {
        "parent": "1",
        "message": {"author": {"role": "assistant"}, "create_time": 2,
                    "content": {"content_type": "text", "parts": ["other"]}},
    },
    "3": {
        "parent": "1",
        "message": {"author": {"role": "assistant"}, "create_time": 3,
                    "content": {"content_type": "thoughts", "thoughts": [{"content": "hm"}]}},
    },
    "4": {
        "parent": "3",
        "message": {"author": {"role": "assistant"}, "create_time": 4,
                    "content": {"content_type": "multimodal_text",
                                "parts": [{"content_type": "image_asset_pointer"}, "b"]}},
    },
}  # fmt: skip
PAGE = [
    {"id": "r", "type": "root", "role": "system", "content": "", "parent": None, "children": ["s"],
     "timestamp": 1},
    {"id": "s", "type": "system", "role": "system", "content": "Be.", "parent": "r",
     "children": ["1"], "timestamp": 2},
    {"id": "1", "type": "text", "role": "user", "content": "a", "parent": "s",
     "children": ["2", "3"], "timestamp": 3,
     "extra": [{"type": "TEXT", "name": "x.c", "content": "int x;"},
               {"type": "IMAGE", "name": "y.png", "base64Url": "data:"}]},
    {"id": "2", "type": "text", "role": "assistant", "content": "b", "parent": "1", "children": [],
     "timestamp": 4, "reasoningContent": "hm", "toolCalls": json.dumps([CALL])},
    {"id": "3", "type": "text", "role": "assistant", "content": "c", "parent": "1", "children": [],
     "timestamp": 5},
]  # fmt: skip
PAGE_SAID = [
    ("system", "Be."),
    ("user", [{"type": "text", "text": text} for text in ("\n\n--- File: x.c ---\nint x;", "a")]),
    ("assistant", "b"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"messages": [user("a"), answer("b")]}, PAIR),
        ([user("a"), answer("b")], PAIR),
        ({"messages": json.dumps([user("a"), answer("b")])}, PAIR),
        ({"request": {"messages": [user("a")]},
          "response": {"choices": [{"message": {"content": "b"}}]}}, PAIR),
        ({"messages": [user("a")], "choices": [{"message": answer("b")}]}, PAIR),
        ({"system": "Be.", "messages": [user("a"), answer("b")]}, [("system", "Be."), *PAIR]),
        ({"system": "X", "messages": [system("Be."), user("a")]}, [("system", "Be."), PAIR[0]]),
        ({"prompt": "a", "completion": "b"}, PAIR),
        ({"prompt": "a", "response": "b", "system_prompt": "Be."}, [("system", "Be."), *PAIR]),
        ({"prompt": [user("a")], "completion": [answer("b")]}, PAIR),
        ({"instruction": "a", "output": "b", "input": ""}, PAIR),
        ({"instruction": "a", "output": "b", "input": "c"}, [("user", "a\n\nc"), PAIR[1]]),
        ({"question": "a", "answer": "b"}, PAIR),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, PAIR),
        ([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], PAIR),
        ({"conversations": [user("a"), answer("b")]}, PAIR),
        ({"mapping": NODES, "current_node": "4"}, PAIR),
        ({"mapping": NODES}, PAIR),
        ({"mapping": NODES, "current_node": "2"}, [PAIR[0], ("assistant", "other")]),
        ({"conv": {"currNode": "2"}, "messages": PAGE}, PAGE_SAID),
        ({"id": "x", "currNode": "2", "messages": PAGE}, PAGE_SAID),
        ({"conv": {"currNode": "?"}, "messages": PAGE}, [*PAGE_SAID[:2], ("assistant", "c")]),
        ({"chat": {"messages": [user("a"), answer("b")]}}, PAIR),
        ({"chat_messages": [{"sender": "human", "text": "a", "content": []},
                            {"sender": "assistant", "content": [{"type": "text", "text": "b"},
                                                                {"type": "tool_use"}]}]}, PAIR),
    ],
)  # fmt: skip
def test_formats(value: Any, expected: list[tuple[str, Any]]) -> None:
    """A form that is not known, another branch, or roles that no template has."""
    assert said(chat_of(value)) == expected


def test_what_stands_beside_the_text() -> None:
    """Thoughts, tools and their calls that are lost; images that are not counted."""
    chat = chat_of({"conv": {"currNode": "2"}, "messages": PAGE})
    assert (chat.n_media, chat.messages[2]["reasoning_content"]) == (1, "hm")
    assert chat.messages[2]["tool_calls"] == [CALL]
    chat = chat_of({"mapping": NODES, "current_node": "4"})
    assert (chat.n_media, chat.messages[1]["reasoning_content"]) == (1, "hm")
    more = {"tools": '[{"name": "f"}]', "chat_template_kwargs": {"x": 1, "messages": 2}}
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    talk = [user(parts), answer(None, function_call={"name": "f", "arguments": "{}"})]
    chat = chat_of({"messages": talk, **more})
    assert chat.values == {"tools": [{"name": "f"}], "x": 1}
    assert (chat.n_media, chat.messages[0]["content"]) == (1, [parts[0], parts[2]])
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [{"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
             {"from": "observation", "value": "7"}]  # fmt: skip
    called, observed = chat_of({"conversations": turns}).messages
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (called["role"], called["content"]) == ("assistant", "")
    assert observed == {"role": "tool", "content": "7"}


def test_the_examples_of_the_docs(chatml: Toy, tmp_path: Path) -> None:
    """A form that the docs show and that is not read."""
    text = (Path(__file__).parent.parent / "docs" / "conversations.md").read_text()
    examples = text.split("```json\n")[1:]
    assert len(examples) == 8
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.json"
        path.write_text(example.partition("```")[0])
        read = chatml.read_files([path])
        assert read.bad == []
        for one in read.answers():
            assert one in (["Red.<|im_end|>"], ["red<|im_end|>"])


DEEP: Any = json.loads("[" * 200 + "]" * 200)


@pytest.mark.parametrize(
    "value",
    [
        None, 5, "secret", True, [], [5], ["secret"], {}, {"secret": "secret"}, {"messages": None},
        {"messages": "secret"}, {"messages": ["secret"]}, {"messages": [{"content": "secret"}]},
        {"messages": [{"role": 5, "content": "secret"}]}, {"messages": [user(5)]},
        {"messages": [user([5])]}, {"messages": [answer("", tool_calls=["secret"])]},
        {"messages": [answer("", tool_calls=[{"function": {}}])]},
        {"messages": [answer("", tool_calls=[{"name": "f", "arguments": {"secret": DEEP}}])]},
        {"messages": [user("secret")], "tools": DEEP}, {"conversations": {"secret": 1}},
        {"conversations": [{"from": "secret", "value": {"x": "secret"}, "x": 1}, 7]},
        {"prompt": ["secret"], "completion": 7}, {"prompt": "secret"},
        {"mapping": {"a": {"parent": "b", "message": None}, "b": {"parent": "a"}}},
        {"conv": None, "messages": 5}, {"chat_messages": ["secret"]},
        {"chat_messages": [{"text": "secret"}]},
    ],
)  # fmt: skip
def test_no_conversations(value: Any) -> None:
    """A traceback, or a word of the text in the message."""
    if value in ([], {}, {"messages": []}):
        return
    with pytest.raises(NotAChat, match=r"^(?!.*secret).+"):
        chat_of(value)


def test_random_values() -> None:
    """A traceback for anything that JSON can hold where something else is expected."""
    rng = random.Random(5)
    names = ["messages", "conversations", "role", "content", "from", "value", "parent", "id",
             "children", "mapping", "message", "author", "parts", "content_type", "conv", "extra",
             "tool_calls", "function", "name", "arguments", "prompt", "completion", "instruction",
             "input", "output", "tools", "type", "text", "thoughts", "chat_messages", "sender",
             "request", "response", "choices", "chat", "current_node", "currNode", "system",
             "metadata", "create_time", "timestamp", "files", "functions"]  # fmt: skip

    def value(depth: int) -> Any:
        kind = rng.randrange(3 if depth else 1)
        if kind == 1:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        if kind == 2:
            return {rng.choice(names): value(depth - 1) for _ in range(rng.randrange(8))}
        return rng.choice(
            [None, 0, 1.5, 10**400, True, "", "text", "user", "assistant", "thoughts"]
        )

    n_chats = 0
    for _ in range(6000):
        found = {rng.choice(names): value(5) for _ in range(2)}
        with suppress(NotAChat):
            n_chats += len(chat_of(found).messages)
    assert n_chats > 5


def test_a_long_branch() -> None:
    """Minutes, or the end of the stack, for a conversation of a hundred thousand messages."""
    nodes = {str(n): {"parent": str(n - 1), "n": n} for n in range(100_000)}
    path = path_to_current(nodes, "99999", "time")
    assert [node["n"] for node in path] == list(range(100_000))


# ---- JSON


def values_of(data: bytes, limit: int = 10**6, block: int = 10**6) -> list[tuple[str, Any]]:
    blocks = (data[i : i + block] for i in range(0, len(data), block))
    replaced: list[int] = []
    return [(place, value) for place, value, _ in json_values(blocks, limit, replaced.append)]


BAD = Failure("not JSON")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", []),
        ("\n \n", []),
        ('{"a": 1}\n\n{"a": 2}', [(":1", {"a": 1}), (":3", {"a": 2})]),
        ('\ufeff{"a": 1}\r\n{"a": 2}\r\n', [(":1", {"a": 1}), (":2", {"a": 2})]),
        ('x\n{"a": 2}\n{"a"\n', [(":1", BAD), (":2", {"a": 2}), (":3", BAD)]),
        ('{"a": \n{"a": 2}\n{"a": 3}\n', [(":1", BAD), (":2", {"a": 2}), (":3", {"a": 3})]),
        ('{"a\n{"a": 2}\n', [(":1", BAD), (":2", {"a": 2})]),
        ('[{"a"\n{"a": 2}\n', [(":1", BAD), (":2", {"a": 2})]),
        ("[]\n[1, 2]\n", [(":1", []), (":2", [1, 2])]),
        ('[{"role": 1}]\n[{"role": 2}]', [(":1", [{"role": 1}]), (":2", [{"role": 2}])]),
        ('{\n  "a": 1\n}\n', [("[1]", {"a": 1})]),
        ('{\n"a": 1\n}\n{\n"a": 2\n}', [("[1]", {"a": 1}), ("[2]", {"a": 2})]),
        ('{\n"a": 1\n}\n{\n"a": x\n}', [("[1]", {"a": 1}), ("[2]", BAD)]),
        ('[\n{"role": 1},\n{"role": 2}\n]', [("[1]", [{"role": 1}, {"role": 2}])]),
        ('[{"a": 1}, {"a": 2}]', [("[1]", {"a": 1}), ("[2]", {"a": 2})]),
        ('[\n {"a": 1},\n {"a": 2}\n]\n', [("[1]", {"a": 1}), ("[2]", {"a": 2})]),
        ('[{"a": 1}, [{"role": 2}], 5]', [("[1]", {"a": 1}), ("[2]", [{"role": 2}]), ("[3]", 5)]),
        ('[{"a": 1}, {"a": 2}', [("[1]", {"a": 1}), ("[2]", {"a": 2}), ("[3]", BAD)]),
        ('[{"a": 1}, {"a": "2', [("[1]", {"a": 1}), ("[2]", BAD)]),
        ('5\n[{"b": 1}, {"b": 2}]', [(":1", 5), (":2[1]", {"b": 1}), (":2[2]", {"b": 2})]),
        ('"a\\ud83d b\\ud83d\\ude00"', [(":1", "a\ufffd b\U0001f600")]),
        ('{"\\uDE00": ["\\ud800"]}', [(":1", {"\ufffd": ["\ufffd"]})]),
        ("[" * 10**5, [(":1", Failure("values nested too deeply"))]),
        ('{"a": ' * 10**5, [(":1", Failure("values nested too deeply"))]),
        ("1" * 5000, [(":1", BAD)]),
    ],
)  # fmt: skip
def test_values_of_a_file(data: str, expected: list[tuple[str, Any]]) -> None:
    """A file that is taken for another kind, a value that is lost, or a block that cuts one."""
    for block in (10**6, 7, 1):
        if block > 1 or len(data) < 1000:
            assert values_of(data.encode(), block=block) == expected


@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_lines_and_values_that_are_too_long(block: int) -> None:
    """A line that is held whole whatever its length, or takes the next one along."""
    long, short = json.dumps("x" * 500), json.dumps("y")
    too_long = Failure("longer than 100 characters")
    found = values_of(f"{short}\n{long}\n{short}\n{long}".encode(), 100, block)
    assert found == [(":1", "y"), (":2", too_long), (":3", "y"), (":4", too_long)]
    found = values_of(f'[{{"a": 1}}, {{"a": {long}}}, {{"a": 1}}]'.encode(), 100, block)
    assert found[0] == ("[1]", {"a": 1})
    if block < 10**6:  # what is there already takes no more memory
        assert found[1:] == [("[2]", too_long)]
    assert values_of(b"\n" * 1000 + b'"y"', 100, block) == [(":1001", "y")]


def test_values_that_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes of empty objects from a line of a few hundred megabytes."""
    monkeypatch.setattr(corpus_decode, "MOST_VALUES", 1000)
    many = json.dumps([{}] * 600)
    too_many = Failure(conversation_json.TOO_MANY.reason)
    assert values_of(f'{{"a": {many}}}\n"b"'.encode()) == [(":1", too_many), (":2", "b")]
    listed = f'[{{"b": 1}}, {{"a": {many}}}]'.encode()
    assert values_of(listed, block=100) == [("[1]", {"b": 1}), ("[2]", too_many)]


def test_invalid_utf8_is_counted(chatml: Toy, tmp_path: Path) -> None:
    """A file that is given up for one wrong byte."""
    data = json.dumps({"messages": TALK}).encode().replace(b"brown", b"b\xffwn")
    (tmp_path / "chat.jsonl").write_bytes(data)
    read = chatml.read_files([tmp_path / "chat.jsonl"])
    assert read.files.stats.n_invalid_utf8 == 1
    assert read.answers()[0][0] == "The quick b\ufffdwn fox.<|im_end|>"


def test_sessions_of_the_web_page(chatml: Toy, tmp_path: Path) -> None:
    """Lines of one conversation that are taken for many, or a bad one among them that ends it."""

    def record(node: dict[str, Any]) -> dict[str, Any]:
        return {"type": "message", "message": node}

    session = {"harness": "llama.app", "type": "session", "id": "x", "currNode": "3"}
    lone = {"messages": TALK}
    lines = [record(PAGE[2]), session, *map(record, PAGE[:3]), "{bad", {"type": "new"},
             record(PAGE[4]), session | {"currNode": "2"}, *map(record, PAGE), lone]  # fmt: skip
    read = chatml.read(tmp_path, *lines)
    assert read.answers() == [["c<|im_end|>"], ["b<|im_end|>"], [t for _, t in read.said()[2]]]
    assert read.bad == [
        ("chat.jsonl:1", "a message before any session"),
        ("chat.jsonl:6", "not JSON"),
    ]
    assert "int x;\na<|im_end|>" in read.said()[0][0][0]
    assert read.files.stats.n_media == 2


# ---- files


def test_which_files() -> None:
    """A text that is taken for conversations, or the other way round."""
    for path in ("a.jsonl", "A.JSONL", "a.json", "x/a.ndjson.gz", "a.jsonlines", "a.json.xz"):
        assert is_chat_path(path)
    for path in ("a.txt", "jsonl", "a.json.txt", "-", "a.npy", "a.gz"):
        assert not is_chat_path(path)


def test_several_files(chatml: Toy, tmp_path: Path) -> None:
    """Places that name the wrong file, or compressed ones that are not read."""
    (tmp_path / "a.jsonl").write_text("x\n" + json.dumps({"messages": TALK}))
    with gzip.open(tmp_path / "b.json.gz", "wt") as file:
        json.dump([{"messages": TALK}, {"prompt": "a", "completion": "b"}, {}], file, indent=1)
    read = chatml.read_files([tmp_path / "a.jsonl", tmp_path / "b.json.gz"])
    assert read.texts.n_conversations == 3
    assert [place for place, _ in read.bad] == ["a.jsonl:1", "b.json.gz[3]"]
    stats = read.files.stats
    assert (stats.n_read, stats.n_bad, stats.bytes_read) == (3, 2, read.files.total_bytes)
    with pytest.raises(InputUnreadable):
        open_chats([str(tmp_path / "c.jsonl")])
    np.save(tmp_path / "d.npy", np.arange(5, dtype=np.int32))
    with pytest.raises(UsageError, match="token ids, among conversations"):
        open_chats([str(tmp_path / "a.jsonl"), str(tmp_path / "d.npy")])


def test_bad_lines_are_told_and_the_rest_is_read(chatml: Toy, tmp_path: Path) -> None:
    """A run that stops, a wrong line number, lines out of order, or a list without end."""
    good = {"messages": TALK}
    lines: list[Any] = [good, "{", good, {"messages": [user("a")]}, "", {"a": 1}, good]
    read = chatml.read(tmp_path, *lines, *["secret"] * 150)
    assert read.texts.n_conversations == 3
    stats = read.files.stats
    assert stats.n_bad == 153
    assert stats.reasons == {
        "not JSON": 151, "no answer of the assistant": 1, "no conversation of a known form": 1,
    }  # fmt: skip
    assert len(stats.bad) == 100
    assert [int(place.split(":")[1]) for place, _ in read.bad] == [2, 4, 6, *range(8, 105)]


@pytest.mark.parametrize("data", ["", "\n\n", "[]", "[\n]"])
def test_nothing_in_it(data: str, chatml: Toy, tmp_path: Path) -> None:
    """A replay of nothing."""
    (tmp_path / "a.json").write_text(data)
    with pytest.raises((InputEmpty, InputMalformed)) as caught:
        chatml.read_files([tmp_path / "a.json"])
    assert "docs/conversations.md" in caught.value.remedy


def test_nothing_good_in_it(chatml: Toy, tmp_path: Path) -> None:
    """A replay of nothing, or an error that does not tell the first reason."""
    with pytest.raises(InputMalformed, match=r"none of 2 .*:1: not JSON") as caught:
        chatml.read(tmp_path, "secret", {"secret": 1})
    assert "secret" not in str(caught.value)


# ---- tokens


def expected(toy: Toy, messages: Sequence[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of each turn, by one rendering each."""
    found = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = toy.template.encode(toy.template.render(messages[:i]), toy.tokenizer)
            answer = toy.tokenizer.encode(message["content"] + "<|im_end|>", add_special=False)
            found.append((prompt.tolist(), answer.tolist()))
    return found


def tokens_of(read: Read) -> list[list[tuple[list[int], list[int]]]]:
    return [
        [(one.tokens[p:a].tolist(), one.tokens[a:b].tolist()) for p, a, b in spans(one)]
        for one in read.texts
    ]


def test_of_the_real_model(smollm2: Path, tmp_path: Path) -> None:
    """A prompt, an answer or an end that is not what a server would have had, token for token."""
    toy = Toy.of_metadata(read_metadata(smollm2))
    talks = [
        TALK,
        [system("Be brief."), *TALK],
        [
            user("1 < 2"),
            answer("caf\u00e9 \U0001f600\n\n```c\nint x;\n```"),
            user("?"),
            answer("12"),
        ],
        [user("a"), answer("\nb"), user("c"), answer(" d")],
    ]
    read = toy.read(tmp_path, *({"messages": talk} for talk in talks))
    assert tokens_of(read) == [expected(toy, talk) for talk in talks]
    assert read.turns == TurnStats(n_turns=8)
    # one stream: nothing is there twice
    assert [one.prompts.tolist() for one in read.texts] == [[0, 0]] * 4


def test_as_a_server_had_it(smollm2: Path, tmp_path: Path) -> None:
    """Prompts or answers that differ from those of llama-server, whose log it is."""
    toy = Toy.of_metadata(read_metadata(smollm2))
    asked = ["Name two colours.", "Wie hei\u00dft du?"]
    talks = [[user(text)] for text in asked]
    had: list[list[tuple[list[int], list[int]]]] = [[] for _ in talks]
    for turn in range(2):
        prompts = ask_peer(smollm2, [("/apply-template", {"messages": talk}) for talk in talks])
        bodies = [
            {"prompt": one["prompt"], "n_predict": 400, "temperature": 0, "return_tokens": True}
            for one in prompts.answers
        ]
        requests = [
            request
            for body in bodies
            for request in (
                ("/tokenize", {"content": body["prompt"], "add_special": True}),
                ("/completion", body),
            )
        ]
        answers = ask_peer(smollm2, requests, n_ctx=1024).answers
        for talk, found, ids, said in zip(talks, had, answers[::2], answers[1::2], strict=True):
            assert said["stop_type"] == "eos"
            found.append((ids["tokens"], said["tokens"]))
            talk.append(answer(said["content"]))
            talk += [user("Say it in other words.")] * (turn == 0)
    read = toy.read(tmp_path, *({"messages": talk} for talk in talks))
    assert tokens_of(read) == had
    assert read.turns.n_rewritten == 0


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default"])
def test_of_other_vocabularies(kind: str, tmp_path: Path) -> None:
    """BOS or EOS that are lost or doubled."""
    toy = Toy.of(tmp_path, "{{ bos_token }}" + CHATML, kind)
    read = toy.read(tmp_path, {"messages": TALK})
    found = tokens_of(read)[0]
    for (prompt, said), (wanted, answer) in zip(found, expected(toy, TALK), strict=True):
        assert (prompt, said) == (wanted, answer)
        assert prompt.count(toy.tokenizer.bos_id) == 1
        assert prompt.count(toy.tokenizer.eos_id) == (kind == "gpt-2")


def test_of_an_spm_vocabulary(tmp_path: Path) -> None:
    """A space too many before the answer, which llama.cpp puts before texts, not before answers."""
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} "
        "[/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
    )
    toy = Toy.of(tmp_path, source, "spm")
    read = toy.read(tmp_path, {"messages": [user("Hello"), answer("The dog"), *TALK[:2]]})
    (first, second) = read.said()[0]
    assert first == ("<s> [INST] Hello [/INST]", " The dog </s>")
    assert second[0] == f"{first[0]}{first[1]}<s> [INST] Hello [/INST]"
    assert tokens_of(read)[0][0][0] == toy.tokenizer.encode("[INST] Hello [/INST]").tolist()
    whole = toy.tokenizer.encode("[INST] Hello [/INST] The dog </s>").tolist()
    assert read.texts.tokens[: len(whole)].tolist() == whole


def test_a_token_over_the_border(tmp_path: Path) -> None:
    """A prompt that ends within a token: the answer goes on from where the prompt ends."""
    source = CHATML.replace("m.role }}\n", "m.role }}:\n\n").replace(
        "assistant\n", "assistant:\n\n"
    )
    toy = Toy.of(tmp_path, source)
    assert "\n\n\n" in [toy.tokenizer.decode([t]) for t in range(toy.tokenizer.n_vocab)]
    read = toy.read(tmp_path, {"messages": [user("a"), answer("\nb"), user("c"), answer("d")]})
    assert read.answers() == [["\nb<|im_end|>", "d<|im_end|>"]]
    prompt = toy.tokenizer.encode("<|im_start|>user:\n\na<|im_end|>\n<|im_start|>assistant:\n\n")
    assert tokens_of(read)[0][0][0] == prompt.tolist()


@pytest.mark.parametrize("kind", ["smollm", "spm"])
def test_control_tokens_in_words(kind: str, tmp_path: Path) -> None:
    """An answer that ends where it speaks of an end; a model that speaks of one spells it."""
    control = "<|im_start|>" if kind == "spm" else "<|im_end|>"
    toy = Toy.of(tmp_path, kind=kind)
    said = f"Say {control} then stop"
    read = toy.read(tmp_path, {"messages": [user("how?"), answer(said), user("x"), answer("y")]})
    one = next(iter(read.texts))
    prompt, start, stop = spans(one)[0]
    generated = one.tokens[start:stop].tolist()
    ids = [
        t
        for t in range(toy.tokenizer.n_vocab)
        if token_bytes(toy.tokenizer, [t]).decode("latin1") == control
    ]
    assert not set(ids) & set(generated[:-1])
    assert generated[-1] in toy.ends
    assert read.text(one, start, stop) == f"{said}<|im_end|>"
    # the next request is rendered from the log, where it is one
    assert (read.turns.n_rewritten, one.prompts.tolist()) == (1, [prompt, stop])


def test_no_token_ends_the_answer(tmp_path: Path) -> None:
    """What the template writes after an answer, as if the model had."""
    source = (
        "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}### assistant:\n{% endif %}"
    )
    toy = Toy.of(tmp_path, source)
    read = toy.read(tmp_path, {"messages": [*TALK[:3], answer("It's lazy.")]})
    assert read.answers() == [["The quick brown fox.", "It's lazy."]]


def test_a_template_that_ends_the_text(tmp_path: Path) -> None:
    """An answer that goes on after its end, to what ends the whole text, as Phi 3's does."""
    source = CHATML + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    toy = Toy.of(tmp_path, source)
    assert toy.tokenizer.eos_id in toy.ends
    read = toy.read(tmp_path, {"messages": TALK})
    assert read.answers() == [["The quick brown fox.<|im_end|>", " It's\n lazy. \n<|im_end|>"]]
    assert read.turns.n_rewritten == 0


def test_thoughts_that_are_dropped_later(tmp_path: Path) -> None:
    """A prompt with thoughts that the server no longer had, or an answer without them."""
    toy = Toy.of(tmp_path, THOUGHTFUL)
    talk = [user("a"), answer("b", reasoning_content="hm"), user("c"), answer("d")]
    read = toy.read(tmp_path, {"messages": talk})
    first = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    second = f"{first}b<|im_end|>\n{first.replace('a<', 'c<')}"
    turns = [(first, "<think>hm</think>b<|im_end|>"), (second, "d<|im_end|>")]
    assert read.said() == [turns]
    assert read.turns.n_rewritten == 1


@pytest.mark.parametrize(
    ("said", "generated"),
    [
        (answer("b"), "b"),
        (answer("b", reasoning_content="hm\n"), "hm\n</think>\n\nb"),
        (answer("<think>\nhm\n</think>\n\nb"), "hm\n</think>\n\nb"),
        (answer("<|im"), "<|im"),
        (answer("<"), "<"),
        (answer("<thin>", reasoning_content="hm"), "hm\n</think>\n\n<thin>"),
    ],
)
def test_a_prompt_that_begins_a_thought(
    said: dict[str, Any], generated: str, tmp_path: Path
) -> None:
    """Thoughts that are lost, or an answer that is not found, as the template shows none."""
    toy = Toy.of(tmp_path, THINKING)
    read = toy.read(tmp_path, {"messages": [user("a"), said, user("c"), answer("d")]})
    assert read.answers() == [[f"{generated}<|im_end|>", "d<|im_end|>"]]
    assert read.said()[0][0][0].endswith("<|im_start|>assistant\n<think>\n")


def test_an_answer_that_is_not_shown(tmp_path: Path) -> None:
    """Another text than the logged one, as if the model had generated it."""
    source = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}").replace(
        "m.content }}", "m.content|upper }}"
    )
    read = Toy.of(tmp_path, source).read(
        tmp_path, {"messages": [user("a"), answer("bcd"), user("c"), answer("D")]}
    )
    assert read.answers() == [["D<|im_end|>"]]
    assert read.turns.n_not_found == 1


# ---- what templates do not take


def test_content_that_is_no_text(chatml: Toy, tmp_path: Path) -> None:
    """A list of parts spelled out as Python does, None as a word, or an image that stops it all."""
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "x"}},
             {"type": "text", "text": "two"}]  # fmt: skip
    call = answer(None, tool_calls=[CALL])
    talk = [user(parts), call, {"role": "tool", "content": None}, answer("seven"), user("")]
    read = chatml.read(tmp_path, {"messages": talk})
    assert read.said()[0][0][0] == (
        "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>tool\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert read.answers() == [["seven<|im_end|>"]]
    # this template shows no calls
    assert (read.turns.n_turns, read.turns.n_empty, read.files.stats.n_media) == (1, 1, 1)


def test_a_template_of_parts(tmp_path: Path) -> None:
    """Letters of a text for its parts, or parts that are joined though the template takes them."""
    source = CHATML.replace(
        "{{ m.content }}", "{% for part in m.content %}({{ part.text }}){% endfor %}"
    )
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    toy = Toy.of(tmp_path, source)
    read = toy.read(tmp_path, {"messages": [system("Be."), user(parts), answer("b")]})
    assert read.said()[0][0][0].startswith(
        "<|im_start|>system\n(Be.)<|im_end|>\n<|im_start|>user\n(one)(two)<|im_end|>"
    )


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("{{ call.function.arguments }}", '{"a": 1}'),
        ("{{ call.function.arguments|tojson }}", '{"a": 1}'),
        ("{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
    ],
)
@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_tool_calls(shown: str, text: str, arguments: Any, tmp_path: Path) -> None:
    """Arguments as Python writes them, as a text within a text, or ones that are refused."""
    calls = f"{{% for call in m.tool_calls or [] %}}call: {shown}{{% endfor %}}"
    toy = Toy.of(tmp_path, CHATML.replace("{{ m.content }}", f"{{{{ m.content }}}}{calls}"))
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [user("a"), answer("", tool_calls=[call]), {"role": "tool", "content": "7"}, answer("b")]
    read = toy.read(tmp_path, {"messages": talk})
    assert read.answers() == [[f"call: {text}<|im_end|>", "b<|im_end|>"]]
    assert read.turns.n_empty == 0


def test_arguments_that_are_no_json(tmp_path: Path) -> None:
    """A traceback, or a run that stops, for the arguments that a model made up."""
    calls = "{% for call in m.tool_calls or [] %}{{ call.function.arguments|tojson }}{% endfor %}"
    toy = Toy.of(tmp_path, CHATML.replace("{{ m.content }}", "{{ m.content }}" + calls))
    call = {"function": {"name": "f", "arguments": "{secret"}}
    talk = [user("a"), answer("", tool_calls=[call])]
    read = toy.read(tmp_path, {"messages": talk}, {"messages": TALK})
    assert read.bad == [("chat.jsonl:1", "a tool call whose arguments are no JSON")]


def test_a_system_that_the_template_refuses(tmp_path: Path) -> None:
    """A log that cannot be read since the template knows no system, though llama.cpp reads it."""
    toy = Toy.of(tmp_path, STRICT)
    read = toy.read(
        tmp_path,
        {"messages": [system("Be."), *TALK[:2]]},
        {"messages": [*TALK, system("secret"), *TALK]},
        {"messages": [{"role": "secret", "content": "secret"}, *TALK]},
    )
    assert read.said()[0][0][0] == "<|im_start|>user\nBe.\nHello<|im_end|>\n<|im_start|>assistant\n"
    # a later one, too
    assert "<|im_start|>user\nsecret\nHello<|im_end|>" in "".join(read.said()[1][-1])
    assert [place for place, _ in read.bad] == ["chat.jsonl:3"]
    assert all(reason.endswith("it refuses it: Only two roles!") for _, reason in read.bad)


def test_the_developer(chatml: Toy, tmp_path: Path) -> None:
    """A role that templates do not know."""
    talk = [{"role": "developer", "content": "Be."}, *TALK[:2]]
    read = chatml.read(tmp_path, {"messages": talk})
    assert read.said()[0][0][0].startswith("<|im_start|>system\nBe.")


@pytest.mark.parametrize(
    "failure",
    [
        "{{ raise_exception('no: ' ~ m.content) }}",
        "{{ raise_exception(m.content) }}",
        "{{ none + m.content }}",
        "{{ messages[0][m.content].x }}",
        "{{ m.content.nosuch() }}",
        "{{ {}[m.content]() }}",
        "{% include m.content %}",
        LOOP,
    ],
)
def test_reasons_hold_nothing_of_the_text(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in a list of bad lines, by way of the template; or one that hangs for one line."""
    monkeypatch.setattr(chat, "PROCESSOR_S", 0.1)
    source = CHATML.replace(
        "{{ m.content }}",
        f"{{% if 'secret' in m.content %}}{failure}{{% endif %}}{{{{ m.content }}}}",
    )
    toy = Toy.of(tmp_path, source.replace("'secret'", "'sec' ~ 'ret'"))
    talk = [user("the secret word"), answer("b")]
    read = toy.read(tmp_path, {"messages": TALK}, {"messages": talk}, {"messages": TALK})
    assert read.texts.n_conversations == 2
    ((place, reason),) = read.bad
    assert place == "chat.jsonl:2"
    assert "secret" not in reason
    assert reason.startswith("the chat template cannot render it")
    assert list(read.files.stats.reasons) == [reason]


def test_a_wrong_template(tmp_path: Path) -> None:
    """Every line told as a bad one."""
    toy = Toy.of(tmp_path, "{% if %}")
    with pytest.raises(ChatTemplateUnusable, match="line 1"):
        toy.read(tmp_path, {"messages": TALK})


def test_variables_of_the_template(tmp_path: Path) -> None:
    """Another prompt than a server's: thoughts switched off, or a request's own wishes unheard."""
    toy = Toy.of(tmp_path, "{{ enable_thinking }}{{ x }}{{ tools }}" + CHATML)
    lines = [{"messages": TALK}, {"messages": TALK, "chat_template_kwargs": {"x": 1}, "tools": [1]}]
    read = toy.read(tmp_path, *lines, values={"x": 5})
    assert [one[0][0].split("<")[0] for one in read.said()] == ["True5None", "True1[1]"]


# ---- turns that are none


def test_turns_without_a_text(chatml: Toy, tmp_path: Path) -> None:
    """A turn of nothing but an end, a greeting without a prompt, or no turns at all."""
    lines = [
        {"messages": [answer("Welcome!"), user("a"), answer("  "), user("c"), answer("d")]},
        {"messages": []}, {"messages": [user("a")]}, {"messages": [answer("a")]},
        {"messages": [user("a"), answer("")]}, {"messages": [system("a"), answer("b")]},
    ]  # fmt: skip
    read = chatml.read(tmp_path, *lines)
    assert read.answers() == [["d<|im_end|>"], ["b<|im_end|>"]]
    assert read.said()[0][0][0].startswith("<|im_start|>assistant\nWelcome!<|im_end|>")
    assert (read.turns.n_turns, read.turns.n_empty) == (2, 2)
    assert [place for place, _ in read.bad] == [f"chat.jsonl:{n}" for n in (2, 3, 4, 5)]


def test_a_template_that_writes_nothing_before_the_answer(tmp_path: Path) -> None:
    """A turn whose first token has nothing before it."""
    toy = Toy.of(
        tmp_path,
        "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}",
    )
    read = toy.read(tmp_path, {"messages": [user("a"), answer("The quick brown fox")]})
    ((prompt, said),) = read.said()[0]
    assert prompt + said == "The quick brown fox"
    assert read.texts.turns[0, 0] == 1


# ---- long ones


def test_long_conversations_go_on_with_a_shorter_history(
    chatml: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours for a conversation of thousands of turns, or turns of it that are lost."""
    monkeypatch.setattr(conversation_pieces, "_PIECE_MESSAGES", 60)
    talk = [system("Be.")]
    for n in range(40):
        talk += [user(f"u{n}"), answer(f"a{n}")]
    read = chatml.read(tmp_path, {"messages": talk}, {"messages": TALK})
    (told, other) = read.said()
    assert [text for _, text in told] == [f"a{n}<|im_end|>" for n in range(40)]
    assert len(other) == 2
    assert (read.turns.n_turns, read.turns.n_cut) == (42, 1)
    n_begins = 0
    for n, (prompt, _) in enumerate(told):
        first, *others = prompt.split("<|im_start|>")[1:]
        assert first == "system\nBe.<|im_end|>\n"
        assert others[-2:] == [f"user\nu{n}<|im_end|>\n", "assistant\n"]
        begin = int(others[0].partition("u")[2].partition("<")[0].removeprefix("ser\nu"))
        n_begins += begin == n
        wanted = [f"{r}{i}" for i in range(begin, n + 1) for r in "ua"][:-1]
        assert [one.split("\n")[1].split("<")[0] for one in others[:-1]] == wanted
    assert 5 < n_begins < 15


def test_a_long_run_of_tools(chatml: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No place to go on from where the user spoke but once."""
    monkeypatch.setattr(conversation_pieces, "_PIECE_MESSAGES", 60)
    talk = [system("Be."), user("do it")]
    for n in range(40):
        talk += [answer(f"a{n}"), {"role": "tool", "content": f"t{n}"}]
    read = chatml.read(tmp_path, {"messages": talk})
    (told,) = read.said()
    assert [text for _, text in told] == [f"a{n}<|im_end|>" for n in range(40)]
    for n, (prompt, _) in enumerate(told):
        parts = prompt.split("<|im_start|>")[1:]
        assert parts[:2] == ["system\nBe.<|im_end|>\n", "user\ndo it<|im_end|>\n"]
        if n:
            assert parts[-3:-1] == [
                f"assistant\na{n - 1}<|im_end|>\n",
                f"tool\nt{n - 1}<|im_end|>\n",
            ]
    assert max(len(prompt.split("<|im_start|>")) for prompt, _ in told) < 20


def test_rewritten_prompts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All memory for the prompts of a template that rewrites each of them."""
    toy = Toy.of(tmp_path, THOUGHTFUL)
    talk = []
    for n in range(30):
        talk += [user(f"u{n}"), answer(f"a{n}", reasoning_content="hm")]
    whole = toy.read(tmp_path, {"messages": talk})
    assert whole.turns.n_rewritten == 29
    monkeypatch.setattr(conversation_tokens, "MOST_TOKENS", 1000)
    read = toy.read(tmp_path, {"messages": talk})
    assert 0 < read.texts.tokens.size <= 1000
    assert read.turns.n_turns + read.turns.n_left_out == 30
    assert read.answers()[0] == whole.answers()[0][: read.turns.n_turns]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\ud800"}', "[" * 900 + "]" * 900, '{"a": ' + "1" * 400 + "}", "NaN", '"a"', "{"],
    ids=["half a pair", "deep", "digits", "no number", "text", "open"],
)
def test_odd_arguments_end_one_line_alone(arguments: str, tmp_path: Path) -> None:
    """A whole log that ends with status 1 for what one call of a tool holds."""
    source = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}{% endfor %}",
    )
    toy = Toy.of(tmp_path, source)
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    asked = [user("Hello"), answer("", tool_calls=[call])]
    read = toy.read(tmp_path, {"messages": TALK}, {"messages": asked}, {"messages": TALK})
    assert read.texts.n_conversations + len(read.bad) == 3
    assert {place for place, _ in read.bad} <= {"chat.jsonl:2"}


def test_all_conversations_are_bounded_together(
    chatml: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes of tokens from a small file whose template writes much for each conversation."""
    talk = {"messages": TALK}
    size = chatml.read(tmp_path, talk).texts.tokens.size
    monkeypatch.setattr(conversation_reader, "LEAST_TOKENS", 3 * size)
    monkeypatch.setattr(conversation_reader, "available_memory_bytes", lambda: 0)
    read = chatml.read(tmp_path, *[talk] * 5)
    assert read.texts.tokens.size == 3 * size
    places = [place for place, reason in read.bad if reason == conversation_reader.NO_ROOM]
    assert places == ["chat.jsonl:4", "chat.jsonl:5"]


def test_too_long_for_a_conversation(
    chatml: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes for one line; or the end of the run for one endless word."""
    monkeypatch.setattr(conversation_pieces, "MOST_CHARACTERS", 10 << 20)
    lines = [
        {"messages": [user(word), answer("b")]} for word in ("a b " * (3 << 20), "a" * (9 << 20))
    ]
    read = chatml.read(tmp_path, *lines, {"messages": TALK})
    assert read.bad == [
        ("chat.jsonl:1", "a conversation of more than 10485760 characters"),
        ("chat.jsonl:2", "a word, or blanks, of more than 4 MiB"),
    ]
    assert read.texts.n_conversations == 1


def test_interrupted(chatml: Toy, tmp_path: Path) -> None:
    """Ctrl-C, or another error of the caller, that leaves the process after that renders."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chatml.read(tmp_path, *[{"messages": TALK}] * 50, on_read=interrupt)


@pytest.mark.slow
def test_a_hundred_thousand(smollm2: Path, tmp_path: Path) -> None:
    """A process for each conversation, or memory that is never given back."""
    toy = Toy.of_metadata(read_metadata(smollm2))
    with open(tmp_path / "a.jsonl", "w") as file:
        for n in range(100_000):
            talk = [user(f"What is {n} plus one?"), answer(f"That is {n + 1}.")]
            file.write(json.dumps({"messages": talk}) + "\n")
    start = time.process_time()
    read = toy.read_files([tmp_path / "a.jsonl"])
    assert time.process_time() - start < 300
    assert read.texts.n_conversations == read.turns.n_turns == 100_000
    last = list(read.texts)[-1]
    assert read.text(last, *last.turns[0].tolist()) == "That is 100000.<|im_end|>"


@pytest.mark.slow
@pytest.mark.parametrize("n_turns", [1, 200, 5000])
def test_two_million_tokens(n_turns: int, smollm2: Path, tmp_path: Path, golden: Path) -> None:
    """A conversation that takes all time or memory, be it of few turns or of many."""
    toy = Toy.of_metadata(read_metadata(smollm2))
    text = (golden / "kjv_test.txt").read_text()
    size = 8_400_000 // n_turns // 2
    text *= 2 + size // len(text)
    starts = [n * 997 % (len(text) - size) for n in range(n_turns)]
    talk = [
        one
        for at in starts
        for one in (user(text[at : at + size]), answer(text[at + 5 : at + size]))
    ]
    start = time.process_time()
    read = toy.read(tmp_path, {"messages": talk})
    assert time.process_time() - start < 120
    assert read.texts.tokens.size > 2_000_000
    assert read.turns.n_turns == n_turns
    assert read.turns.n_cut == (n_turns == 5000)
