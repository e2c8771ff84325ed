"""What clients send, and what a file may hold in its place: messages, or a reason why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.abilities import Abilities, adapted
from draftsmith.engine.chat.messages import Chat, NotAChat, add_messages
from draftsmith.engine.chat.prompt import PromptTemplate, not_shown
from draftsmith.engine.chat.request import ChatRequest
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.json_text import NotJson, json_of
from hypothesis import given, settings
from hypothesis import strategies as st

VARIABLES = frozenset({"tools", "documents", "enable_thinking", "messages", "x"})
KINDS = (
    Abilities(variables=VARIABLES),
    Abilities(text=False, parts=frozenset({"user"}), objects=True, any_id=False),
    Abilities(system=False, systems=False, late_system=False, thinking=True, calls=False),
)
FIELDS = (
    *("role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"),
    *("reasoning_content", "thinking", "messages", "tools", "functions", "chat_template_kwargs"),
    *("system", "type", "text", "function", "arguments", "id", "refusal", "input", "x"),
    *("enable_thinking", "add_generation_prompt", "documents", "self", "loop", "range"),
)
TEXTS = st.sampled_from(
    [
        *("", "a", "user", "assistant", "system", "developer", "tool", "function_call", "text"),
        *("image_url", "tool_use", "tool_result", "thinking", "{", "[]", "\ud800", "\0"),
        *('{"a": "\\ud800"}', '{"name": "f", "arguments": {"a": 1}}', "</think>", "0" * 400),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.just(10**400),
    st.sampled_from([0.5, float("nan"), float("inf"), 1e308]),
    TEXTS,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    ),
    max_leaves=6,
)
MESSAGES = st.builds(
    lambda fields, role: {"role": role, **fields},
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4),
    TEXTS,
)
DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]


def template_with(abilities: Abilities) -> PromptTemplate:
    source = "{{ messages }}{{ m.x }}{{ m['documents'] }}"
    template = PromptTemplate.adapting(ChatTemplate(Path("toy.gguf"), source, "<s>", "</s>"))
    template.__dict__["abilities"] = abilities
    return template


def check(value: object, abilities: Abilities) -> None:
    """A request, or the reason why it is none; what a request holds can be sent and shown."""
    template = template_with(abilities)
    try:
        request = ChatRequest.of(value, template)
        taken = adapted(request.chat.messages, abilities)
    except NotAChat:
        return
    json.dumps([taken, abilities.filled(request.chat.values)])
    assert all(isinstance(name, str) for name in request.unused)
    for message in taken:
        assert isinstance(message["role"], str)
        assert isinstance(message["content"], str | list)
    list(not_shown("some text", request.chat.messages, abilities))


@settings(max_examples=60, deadline=None)
@given(value=VALUES, kind=st.sampled_from(KINDS))
def test_any_value(value: object, kind: Abilities) -> None:
    """A traceback for a file that is JSON, but no request."""
    check(value, kind)


@settings(max_examples=150, deadline=None)
@given(
    messages=st.lists(MESSAGES, max_size=3),
    more=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    kind=st.sampled_from(KINDS),
)
def test_any_field(messages: list[Any], more: dict[str, Any], kind: Abilities) -> None:
    """A traceback for one field of another type than anybody expects."""
    check(messages, kind)
    check(more | {"messages": messages}, kind)


@pytest.mark.parametrize("name", FIELDS)
def test_deep_values(name: str) -> None:
    """A recursion without end in one field, of a message or beside them."""
    for kind in KINDS:
        check([{"role": "user", "content": "a", name: DEEP}], kind)
        check([{"role": "user", "content": "a", name: json.dumps(DEEP)}], kind)
        check({"messages": [{"role": "user", "content": "a"}], name: DEEP}, kind)
    called = {"id": "a", "function": {"name": "f", "arguments": json.dumps(DEEP)}}
    check([{"role": "assistant", "tool_calls": [called]}], KINDS[1])


def test_parts_that_are_no_text() -> None:
    """An image that is left out without its name."""
    chat = Chat()
    add_messages(chat, [{"role": "user", "content": [{"type": "image_url"}, "a"]}])
    assert [(kind.what, n) for kind, n in chat.dropped.counts.items()] == [("block 'image_url'", 1)]
    assert chat.messages == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\xef\xbb\xbf["\xc3\xa9"]', ["é"]),
        ('["é"]'.encode("utf-16"), ["é"]),
        ('["é"]'.encode("utf-32-be"), ["é"]),
        (rb'["\ud800a", {"\udfff": "\ud83d\ude00"}]', ["\ufffda", {"\ufffd": "\U0001f600"}]),
        (b"1" * 400, int("1" * 400)),
    ],
    ids=["plain", "mark", "UTF-16", "UTF-32", "halves", "digits"],
)
def test_json(data: bytes, value: object) -> None:
    """A half of a pair that no tokenizer takes, or an encoding of Windows that is no JSON."""
    assert json_of(data) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no JSON: Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'["\xff"]', "no utf-8: invalid start byte at byte 2"),
        (b"1" * 5000, "thousands of digits"),
        (b'{"a": 1}\n{"a": 2}', "no JSON: Extra data: line 2"),
    ],
    ids=["empty", "deep", "bytes", "digits", "lines"],
)
def test_no_json(data: bytes, reason: str) -> None:
    """An error of Python's for a file that somebody wrote by hand."""
    with pytest.raises(NotJson, match=reason):
        json_of(data)
