"""Blocks of Anthropic's messages, and messages in names that no template knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.blocks import opened, text_of_blocks, tools_of
from draftsmith.engine.chat.messages import Chat, NotAChat, add_messages, role_of

TEXT = {"type": "text", "text": "a"}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "7"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}


def messages_of(*messages: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The messages, and what was left out of them."""
    chat = Chat()
    add_messages(chat, messages)
    return chat.messages, {kind.what: n for kind, n in chat.dropped.counts.items()}


def of_answer(*blocks: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
    return messages_of({"role": "assistant", "content": list(blocks)})


def test_calls_and_results() -> None:
    """Calls that are lost as images; results before the calls, or after what was said later."""
    called = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    result = {"role": "tool", "tool_call_id": "t1", "content": "7"}
    said, dropped = of_answer(THOUGHT, TEXT, CALL)
    assert said == [
        {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [called]}
    ]
    assert dropped == {}
    said, _ = messages_of({"role": "user", "content": [TEXT, RESULT, RESULT, "b"]})
    texts = [TEXT, {"type": "text", "text": "b"}]
    assert said == [result, result, {"role": "user", "content": texts}]
    said, _ = messages_of({"role": "user", "content": [RESULT]})
    assert said == [result]
    # A service's own tools answer within the message.
    said, _ = of_answer(CALL, CALL, RESULT, TEXT)
    assert [(one["role"], len(one.get("tool_calls", ()))) for one in said] == [
        ("assistant", 2), ("tool", 0), ("assistant", 0)
    ]  # fmt: skip


def test_blocks_that_are_left_out() -> None:
    """A block that is dropped without its name, or that takes the text beside it with it."""
    said, dropped = messages_of({"role": "user", "content": [IMAGE, {"type": "document"}, TEXT]})
    assert (said[0]["content"], dropped) == ("a", {"block 'image'": 1, "block 'document'": 1})
    said, dropped = of_answer(
        TEXT, {"type": "redacted_thinking", "data": "x"}, {**THOUGHT, "thinking": ""}, CALL,
        {**CALL, "name": None}, {"type": "server_tool_use", "name": "s"},
    )  # fmt: skip
    assert (said[0]["content"], len(said[0]["tool_calls"])) == ("a", 1)
    names = ("redacted_thinking", "thinking", "tool_use", "server_tool_use")
    assert dropped == {f"block '{name}'": 1 for name in names}
    with_image = {**RESULT, "content": [TEXT, IMAGE]}
    said, dropped = messages_of({"role": "user", "content": [with_image]})
    assert (said[0]["content"], dropped) == ("a", {"block 'image'": 1})


def test_media_beside_a_text() -> None:
    """Images that a prompt had, left out without a word."""
    images = {"role": "user", "content": "a", "images": ["AAAA", "BBBB"]}
    sound = {"role": "assistant", "content": "b", "audio": {"id": "x"}}
    neither = {"role": "user", "content": "c", "images": [], "audio": None}
    _, dropped = messages_of(images, sound, neither)
    assert dropped == {"field 'images'": 2, "field 'audio'": 1}


def test_results_of_several_texts() -> None:
    """Texts of one result with line ends between them that llama-server does not put there."""
    for content, text in (
        ([TEXT, TEXT], "aa"), ([], ""), (None, ""), ("x", "x"), ({"x": 1}, '{"x": 1}'),
        ([{"x": 1}], '[{"x": 1}]'),
    ):  # fmt: skip
        said, _ = messages_of({"role": "user", "content": [{**RESULT, "content": content}]})
        assert said == [{"role": "tool", "tool_call_id": "t1", "content": text}]


def test_other_messages_stay() -> None:
    """A message of texts that comes back changed."""
    for content in (None, "a", [], [TEXT], [IMAGE, 5], {"type": "tool_use"}):
        message = {"role": "user", "content": content}
        assert opened(message, is_answer=False) == [message]


def test_tools() -> None:
    """A tool's schema under a name that no template knows, or OpenAI's tools changed."""
    schema = {"type": "object", "properties": {}}
    ours = {"name": "f", "description": "d", "input_schema": schema}
    made = {"name": "f", "description": "d", "parameters": schema}
    own = {"name": "web", "description": "", "parameters": {}}
    tools = [ours, {"type": "web_search_20250305", "name": "web"}, 5]
    assert tools_of(tools) == [
        {"type": "function", "function": made}, {"type": "function", "function": own}, 5
    ]  # fmt: skip
    theirs = [{"type": "function", "function": made}, {"name": "f"}]
    assert tools_of(theirs) is theirs


def test_texts_of_blocks() -> None:
    """A system's text that is lost because it stands in blocks."""
    assert text_of_blocks([TEXT, "b", TEXT]) == "aba"
    assert [text_of_blocks(one) for one in ("a", None, [IMAGE], [{**TEXT, "text": 5}])] == [
        None
    ] * 4


def test_roles() -> None:
    """Roles with a capital letter, which make a chat one without any answer."""
    names = ("User", "ASSISTANT", "Human", "GPT", "prompter", "Developer", "ipython", "Narrator")
    assert [role_of(name) for name in names] == [
        "user", "assistant", "user", "assistant", "user", "developer", "tool", "Narrator"
    ]  # fmt: skip


def test_thoughts_in_lists() -> None:
    """Thoughts that OpenRouter gives in parts, and that are lost or told twice."""
    parts = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": "b"},
             {"type": "reasoning.encrypted", "data": "x"}, 5]  # fmt: skip
    answer = {"role": "assistant", "content": "c", "reasoning": None, "reasoning_details": parts}
    said, dropped = messages_of(answer)
    assert said[0]["reasoning_content"] == "ab"
    assert dropped == {"block 'reasoning.encrypted'": 1, "block without a plain name": 1}
    said, dropped = messages_of(answer | {"reasoning": "d", "thinking_blocks": [THOUGHT]})
    assert (said[0]["reasoning_content"], dropped) == ("d", {})
    said, _ = messages_of({"role": "assistant", "content": "c", "thinking_blocks": [THOUGHT]})
    assert said[0]["reasoning_content"] == "hm"


def test_calls_under_other_names() -> None:
    """Arguments that are lost without a word because they are named otherwise."""
    for call, arguments in (
        ({"name": "f", "args": {"x": 1}}, {"x": 1}),
        ({"name": "f", "parameters": {"x": 1}}, {"x": 1}),
        ({"type": "custom", "custom": {"name": "f", "input": "ls"}}, {"input": "ls"}),
    ):
        said, _ = messages_of({"role": "assistant", "content": "", "tool_calls": [call]})
        assert said[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": arguments}


def test_contents_that_are_objects() -> None:
    """An object counted as an image, and nothing in its place."""
    said, dropped = messages_of({"role": "tool", "content": {"rows": ["é", 2]}},
                                {"role": "user", "content": {"parts": ["a", "b"]}})  # fmt: skip
    assert (said[0]["content"], dropped) == ('{"rows": ["é", 2]}', {})
    assert [part["text"] for part in said[1]["content"]] == ["a", "b"]
    for content in ({"answer": 42}, {}, 5):
        with pytest.raises(NotAChat, match="no text"):
            messages_of({"role": "assistant", "content": content})
    deep: Any = json.loads("[" * 900 + "]" * 900)
    call = {"name": "f", "arguments": deep}
    for message in ({"role": "tool", "content": {"x": deep}}, {"role": "ai", "tool_calls": [call]}):
        with pytest.raises(NotAChat, match="deeply"):
            messages_of(message)


def test_parts_of_gemini() -> None:
    """Thoughts that are words of the answer, calls and results that are lost."""
    call = {"functionCall": {"id": "t1", "name": "f", "args": {"x": 1}}}
    parts = [{"text": "hm", "thought": True}, {"text": "a"}, call, {"functionCall": {}}]
    said, dropped = messages_of({"role": "model", "parts": parts})
    called = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert said == [
        {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": [called]}
    ]
    assert dropped == {"block 'functionCall'": 1}
    answers = [{"functionResponse": {"id": "t1", "name": "f", "response": one}}
               for one in ({"output": "7"}, {"error": "8"})]  # fmt: skip
    said, dropped = messages_of({"role": "user", "parts": [*answers, {"text": "b"}]})
    assert [(one["role"], one["content"]) for one in said] == [
        ("tool", "7"), ("tool", '{"error": "8"}'), ("user", "b")
    ]  # fmt: skip
    assert dropped == {}


def test_contents_under_other_names() -> None:
    """A prompt that is empty because its text has another name, without a word."""
    for message in (
        {"text": "a"}, {"value": "a"}, {"parts": [{"text": "a"}]}, {"message": "a"},
        {"content": None, "text": "a"},
    ):  # fmt: skip
        said, dropped = messages_of({"role": "user", **message})
        assert (said, dropped) == ([{"role": "user", "content": "a"}], {})
    with pytest.raises(NotAChat, match="without a content"):
        messages_of({"role": "user", "body": "a"})
    parts = [{"text": "a"}, {"functionCall": {}}, {"inlineData": {}, "mimeType": "x"}, {}]
    said, dropped = messages_of({"role": "MODEL", "parts": parts})
    assert said == [{"role": "assistant", "content": "a"}]
    assert dropped == {"block 'functionCall'": 1, "block 'inlineData'": 1,
                       "block": 1}  # fmt: skip


def test_the_case(golden: Path) -> None:
    """A request of Anthropic's form that is another chat than OpenAI's."""
    cases = golden / "cases" / "logs"
    theirs, ours = (
        [json.loads(line) for line in (cases / f"{name}.jsonl").read_text().splitlines()]
        for name in ("anthropic_messages", "openai_tools")
    )
    said, dropped = messages_of(*theirs[0]["messages"])
    expected, _ = messages_of(*ours[0]["messages"][1:])
    for one in expected:
        for call in one.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert (said, dropped) == (expected, {})
