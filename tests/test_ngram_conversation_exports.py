"""Exports of programs, sessions of agents and rows of data sets: the chats that are in them."""

from __future__ import annotations

import html
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.abilities import Abilities, adapted
from draftsmith.engine.chat.dropped import Dropped
from draftsmith.engine.chat.messages import Chat, NotAChat
from draftsmith.ngram.conversations.details import without_details
from draftsmith.ngram.conversations.files import open_chats
from draftsmith.ngram.conversations.formats import chat_of
from draftsmith.ngram.conversations.trees import roots_of
from test_ngram_conversation_requests import Real
from test_ngram_conversations import (
    CHATML,
    NODES,
    PAGE,
    THOUGHTFUL,
    Toy,
    answer,
    said,
    system,
    user,
)

CASES = Path(__file__).parent / "golden" / "cases" / "logs"
TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or []"
    " %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}<|im_end|>"
    "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chats_in(path: Path) -> list[Chat | str]:
    return [chat for _, chat in open_chats([str(path)]).chats()]


def chats_of(tmp_path: Path, *values: Any, name: str = "a.jsonl") -> list[Chat | str]:
    """The conversations of a file of these values, a line each."""
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(value) for value in values))
    return chats_in(path)


def only(found: list[Chat | str]) -> Chat:
    assert len(found) == 1, found
    assert isinstance(found[0], Chat), found[0]
    return found[0]


def plain(chat: Chat) -> list[dict[str, Any]]:
    """The messages as a template that takes objects gets them, without names of calls."""
    messages = adapted(chat.messages, Abilities(objects=True))
    for message in messages:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", ()):
            call.pop("id", None)
    return messages


def dropped(chat: Chat) -> dict[str, int]:
    return {kind.what: n for kind, n in chat.dropped.counts.items()}


def places(chat: Chat, what: str) -> list[str]:
    found = next(at for kind, at in chat.dropped.places.items() if kind.what == what)
    return [place.rpartition("/")[2] for place in found]


# ---- the cases


@pytest.mark.parametrize(
    ("name", "reference", "left_out"),
    [
        ("anthropic_messages.jsonl", "openai_tools.jsonl", {}),
        ("agent_session.jsonl", "openai_tools.jsonl", {"line 'summary'": 1}),
        ("openwebui_plain.json", "ref_nosys.jsonl", {}),
        ("openwebui_reasoning.json", "ref_think.jsonl", {}),
        ("lmstudio.conversation.json", "ref_think.jsonl", {}),
        ("librechat.json", "ref_nosys.jsonl", {}),
        ("sillytavern.jsonl", "ref_nosys.jsonl", {}),
        ("continue_session.json", "ref_nosys.jsonl", {}),
        ("hf_rows.json", "ref_nosys.jsonl", {}),
        ("oasst_flat.jsonl", "ref_nosys.jsonl", {}),
        ("dpo.jsonl", "ref_one.jsonl", {"field 'rejected'": 1}),
    ],
)
def test_the_cases(name: str, reference: str, left_out: dict[str, int]) -> None:
    """A form that is refused, or another chat than its reference."""
    chat, expected = only(chats_in(CASES / name)), only(chats_in(CASES / reference))
    assert dropped(chat) == left_out
    messages, right = plain(chat), plain(expected)
    if messages[0]["role"] != "system" == right[0]["role"]:
        del right[0]  # the form has no place for it
    if messages[0]["role"] == "system" != right[0]["role"]:
        del messages[0]
    assert messages == right


TEXT = "The answer is forty two, and the answer is the same each time I am asked: forty two."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m_prompt_list.jsonl", ["user", "assistant"] * 2),
        ("m_ultrachat.jsonl", ["user", "assistant"] * 2),
        ("m_capital.jsonl", ["user", "assistant"]),
        ("m_developer.jsonl", ["developer", "user", "assistant"]),
        ("m_dictcontent.jsonl", ["user", "tool", "assistant"]),
        ("m_tool_dict.jsonl", ["user", "assistant", "tool", "assistant"]),
        ("m_null_parts.jsonl", ["user", "assistant"]),
        ("m_reasoning_details.jsonl", ["user", "assistant"]),
        ("m_list_line.jsonl", ["user", "assistant"]),
    ],
)
def test_the_small_cases(name: str, expected: list[str]) -> None:
    """Turns that are merged into one, roles that no template knows, an object counted as image."""
    for chat in chats_in(CASES / name):
        assert isinstance(chat, Chat), chat
        assert [message["role"] for message in chat.messages] == expected
        assert plain(chat)[-1]["content"].startswith(TEXT)
        known = {"block 'image_url'": 1} if name == "m_null_parts.jsonl" else {}
        assert dropped(chat) == known


def test_a_number_as_content() -> None:
    """A number that is written out as it may never have been."""
    assert chats_in(CASES / "m_int.jsonl") == ["a content that is no text"]


@pytest.mark.parametrize(
    ("name", "reference", "template"),
    [
        ("anthropic_messages.jsonl", "openai_tools.jsonl", TOOLS),
        ("openwebui_reasoning.json", "ref_think.jsonl", THOUGHTFUL),
        ("openwebui_reasoning.json", "ref_nosys.jsonl", CHATML),
    ],
)
def test_the_tokens_of_the_cases(name: str, reference: str, template: str, tmp_path: Path) -> None:
    """Calls or thoughts that a template shows otherwise than the reference's."""
    toy = Toy.of(tmp_path, template)
    read, expected = (toy.read_files([CASES / one]) for one in (name, reference))
    assert read.said() == expected.said()
    assert (read.turns.n_turns, read.bad) == (expected.turns.n_turns, [])
    assert read.turns.n_turns == (3 if template == TOOLS else 2)


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Real:
    return Real(smollm2)


FIGURES = {  # conversations, turns and generated tokens with SmolLM2's vocabulary and template
    "anthropic_messages.jsonl": (1, 2, 13),
    "agent_session.jsonl": (1, 2, 13),
    "openwebui_plain.json": (1, 2, 430),
    "openwebui_reasoning.json": (1, 2, 430),
    "lmstudio.conversation.json": (1, 2, 430),
    "librechat.json": (1, 2, 430),
    "sillytavern.jsonl": (1, 2, 430),
    "continue_session.json": (1, 2, 430),
    "hf_rows.json": (1, 2, 430),
    "oasst_flat.jsonl": (1, 2, 430),
    "dpo.jsonl": (1, 1, 197),
    "m_prompt_list.jsonl": (1, 2, 46),
    "m_ultrachat.jsonl": (1, 2, 44),
}


def test_the_figures_of_the_cases(real: Real) -> None:
    """A form that is read, and whose turns are not those that a server would have had."""
    found = {}
    for name in FIGURES:
        texts, files = real.read(CASES / name)
        found[name] = (texts.n_conversations, texts.n_turns, texts.n_generated)
        assert files.stats.n_bad == 0
    assert found == FIGURES


# ---- sessions of agents


def line(name: str, before: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    inside = more.pop("inside", {})
    return {"type": role, "uuid": name, "parentUuid": before, "sessionId": "s",
            "message": {"role": role, "content": content, **inside}, **more}  # fmt: skip


def block(kind: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": kind, **more}]


def use(name: str) -> list[dict[str, Any]]:
    return block("tool_use", id=name, name="f", input={"n": name})


def result(name: str) -> list[dict[str, Any]]:
    return block("tool_result", tool_use_id=name, content=f"of {name}")


def texts(chat: Chat) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in plain(chat)]


def test_an_answer_on_several_lines(tmp_path: Path) -> None:
    """One answer that becomes several, a call at once that is lost because its line is on another
    branch, or results that stand before their calls."""
    one = {"inside": {"id": "m1"}}
    lines = [
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        line("1", None, "user", "a"),
        line("2", "1", "assistant", block("thinking", thinking="hm"), **one),
        line("3", "2", "assistant", block("text", text="b"), **one),
        line("4", "3", "assistant", use("t1"), **one),
        line(
            "5",
            "4",
            "user",
            block(
                "tool_result",
                tool_use_id="t1",
                content=[{"type": "text", "text": "of t1"}, {"type": "image", "source": {}}],
            ),
        ),
        line("6", "4", "assistant", use("t2"), **one),
        line("7", "6", "user", result("t2") + block("text", text="c")),
        {"type": "system", "subtype": "turn_duration", "uuid": "8", "parentUuid": "7"},
        line("9", "8", "assistant", block("text", text="d"), inside={"id": "m2"}),
        {"type": "summary", "summary": "secret", "leafUuid": "9"},
    ]
    chat = only(chats_of(tmp_path, *lines))
    assert texts(chat) == [
        ("user", "a"), ("assistant", "b"), ("tool", "of t1"), ("tool", "of t2"), ("user", "c"),
        ("assistant", "d"),
    ]  # fmt: skip
    assert chat.messages[1]["reasoning_content"] == "hm"
    assert [c["id"] for c in chat.messages[1]["tool_calls"]] == ["t1", "t2"]
    assert dropped(chat) == {
        "line 'file-history-snapshot'": 1, "line 'system'": 1, "line 'summary'": 1,
        "block 'image'": 1,
    }  # fmt: skip
    assert places(chat, "line 'system'") == ["a.jsonl:9"]
    assert places(chat, "block 'image'") == ["a.jsonl:6"]


def test_branches_and_sidechains(tmp_path: Path) -> None:
    """What was taken back, or said by another agent, in the middle of the conversation."""
    main = [
        line("1", None, "user", "a"),
        line("2", "1", "assistant", "first try", inside={"id": "m1"}),
        line("s1", None, "user", "aside", isSidechain=True),
        line("s2", "s1", "assistant", "aside too", isSidechain=True),
        line("3", "1", "assistant", "b", inside={"id": "m2"}),
        {"sessionId": "s", "snapshot": {}},
        line("e", "3", "assistant", "API Error", isApiErrorMessage=True),
        line("4", "e", "user", "c", isMeta=True),
        line("5", "4", "assistant", "d"),
    ]
    chat = only(chats_of(tmp_path, *main))
    expected = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert texts(chat) == expected
    assert dropped(chat) == {
        "line of another branch": 1, "line of a sidechain": 2, "message that no model said": 1,
        "line": 1,
    }  # fmt: skip
    # In another order of lines, and of fields.
    turned = [dict(reversed(one.items())) for one in [*main[:2], *main[4:], *main[2:4]]]
    assert texts(only(chats_of(tmp_path, *turned))) == expected
    assert texts(only(chats_of(tmp_path, {"id": "s", "messages": main}))) == expected
    # A file of an agent that was called in has nothing else.
    assert texts(only(chats_of(tmp_path, *main[2:4]))) == [
        ("user", "aside"), ("assistant", "aside too")
    ]  # fmt: skip


def test_beginnings_of_a_session(tmp_path: Path) -> None:
    """A compacted history that is put after the whole one, or lost; a lost beginning unsaid."""
    lines = [
        line("1", None, "user", "a"),
        line("2", "1", "assistant", "b"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "3", "parentUuid": None,
         "logicalParentUuid": "2"},
        line("4", "3", "user", "in short", isCompactSummary=True),
        line("5", "4", "assistant", "c"),
    ]  # fmt: skip
    first, second = chats_of(tmp_path, *lines)
    assert isinstance(first, Chat)
    assert isinstance(second, Chat)
    assert texts(first) == [("user", "a"), ("assistant", "b")]
    assert texts(second) == [("user", "in short"), ("assistant", "c")]
    chat = only(chats_of(tmp_path, *lines[3:]))
    assert dropped(chat) == {"messages before the first, not in the file": 1}
    circle = [line("1", "2", "user", "a"), line("2", "1", "assistant", "b")]
    assert chats_of(tmp_path, *circle) == ["messages that follow one another in a circle"]


def test_sessions_without_links(tmp_path: Path) -> None:
    """The stream that the agent writes when it is called by another program."""
    lines = [
        {"type": "system", "subtype": "init", "session_id": "s", "tools": ["f"]},
        {"type": "assistant", "message": answer(use("t1")) | {"id": "m1"}, "session_id": "s"},
        {"type": "user", "message": user(result("t1")), "session_id": "s"},
        {"type": "assistant", "message": answer("aside"), "parent_tool_use_id": "t1"},
        {"type": "assistant", "message": answer([{"type": "text", "text": "b"}]) | {"id": "m2"}},
        {"type": "result", "subtype": "success", "result": "b", "session_id": "s"},
    ]
    chat = only(chats_of(tmp_path, *lines))
    assert texts(chat) == [("assistant", ""), ("tool", "of t1"), ("assistant", "b")]
    assert dropped(chat) == {
        "line 'system'": 1, "line 'result'": 1, "line of a sidechain": 1
    }  # fmt: skip


def test_sessions_with_other_names(tmp_path: Path) -> None:
    """Another agent's lines: its own names of the links, of calls and of what tools said."""

    def message(name: str, before: str | None, **inside: Any) -> dict[str, Any]:
        return {"type": "message", "id": name, "parentId": before, "message": inside}

    call = block("toolCall", id="t1", name="f", arguments={"x": 1})
    lines = [
        {"type": "session", "version": 3, "id": "s", "cwd": "/secret"},
        {"type": "model_change", "id": "0", "parentId": None, "modelId": "m"},
        message("1", "0", role="user", content="a"),
        message("2", "1", role="assistant", content=call),
        message("3", "2", role="toolResult", toolCallId="t1", content=block("text", text="7")),
        message("4", "3", role="bashExecution", command="ls"),
        message("5", "4", role="assistant", content=block("text", text="b")),
    ]
    chat = only(chats_of(tmp_path, *lines))
    assert texts(chat) == [("user", "a"), ("assistant", ""), ("tool", "7"), ("assistant", "b")]
    assert chat.messages[2]["tool_call_id"] == "t1"
    assert dropped(chat) == {
        "line 'session'": 1, "line 'model_change'": 1, "message that no model said": 1
    }  # fmt: skip


def test_sessions_of_parts(tmp_path: Path) -> None:
    """A session in which the assistant is the model, and what is said stands in parts."""
    call = {"functionCall": {"id": "t1", "name": "f", "args": {}}}
    result = {"functionResponse": {"id": "t1", "name": "f", "response": {"output": "7"}}}
    lines = [
        line("1", None, "user", None, inside={"parts": [{"text": "a"}]}),
        line("2", "1", "assistant", None, inside={"role": "model", "parts": [{"text": "b"}, call]}),
        line("3", "2", "tool_result", None, inside={"role": "user", "parts": [result]}),
        line("4", "3", "assistant", None, inside={"role": "model", "parts": [{"text": "c"}]}),
    ]
    for one in lines:
        del one["message"]["content"]
    chat = only(chats_of(tmp_path, *lines))
    assert texts(chat) == [("user", "a"), ("assistant", "b"), ("tool", "7"), ("assistant", "c")]
    assert (dropped(chat), len(chat.messages[1]["tool_calls"])) == ({}, 1)


def item(kind: str, **more: Any) -> dict[str, Any]:
    return {"timestamp": "x", "type": "response_item", "payload": {"type": kind, **more}}


def test_sessions_of_items(tmp_path: Path) -> None:
    """A session whose events have a payload: its calls, thoughts and instructions lost."""
    meta = {"type": "session_meta", "payload": {"id": "s", "instructions": "Be."}}
    text = [{"type": "input_text", "text": "a"}]
    lines = [
        {"timestamp": "x", **meta},
        item("message", role="user", content=text),
        {"type": "event_msg", "payload": {"type": "user_message", "message": "a"}},
        item("reasoning", summary=[{"type": "summary_text", "text": "s"}], encrypted_content="x"),
        item("reasoning", content=[{"type": "reasoning_text", "text": "hm"}]),
        item("message", role="assistant", content=[{"type": "output_text", "text": "b"}]),
        item("function_call", name="f", arguments='{"x": 1}', call_id="c1"),
        item("custom_tool_call", name="patch", input="***", call_id="c2"),
        item("function_call_output", call_id="c1", output="7"),
        item("custom_tool_call_output", call_id="c2", output={"content": "8", "success": True}),
        item("web_search_call", action={}),
        item("message", role="assistant", content=[{"type": "output_text", "text": "c"}]),
    ]
    chat = only(chats_of(tmp_path, *lines))
    expected = [("system", "Be."), ("user", "a"), ("assistant", "b"), ("tool", "7"), ("tool", "8"),
                ("assistant", "c")]  # fmt: skip
    assert texts(chat) == expected
    assert chat.messages[2]["reasoning_content"] == "hm"
    calls = [call["function"] for call in plain(chat)[2]["tool_calls"]]
    assert calls == [{"name": "f", "arguments": {"x": 1}},
                     {"name": "patch", "arguments": {"input": "***"}}]  # fmt: skip
    assert dropped(chat) == {
        "line 'event_msg'": 1, "item 'reasoning'": 1, "item 'web_search_call'": 1
    }  # fmt: skip
    assert places(chat, "item 'web_search_call'") == ["a.jsonl:11"]
    left = {"replacement_history": [user("in short")]}
    more = item("message", role="assistant", content="d")
    first, second = chats_of(tmp_path, *lines, {"type": "compacted", "payload": left}, more)
    assert isinstance(first, Chat)
    assert isinstance(second, Chat)
    assert (texts(first), said(second)) == (expected, [("user", "in short"), ("assistant", "d")])
    first, reason = chats_of(tmp_path, *lines, {"type": "compacted", "payload": {}}, more)
    assert reason == "a history that was shortened, and how is not in the file"
    short = [{"type": "message", "payload": user("a")}, {"type": "message", "payload": answer("b")}]
    assert texts(only(chats_of(tmp_path, *short))) == [("user", "a"), ("assistant", "b")]


def test_records_without_a_session(tmp_path: Path) -> None:
    """Lines that wait for a session that never comes, and are told by nobody."""
    records = [{"type": "summary", "n": n} for n in range(1200)]
    found = chats_of(tmp_path, *records, {"messages": [user("a"), answer("b")]}, records[0])
    assert [isinstance(one, Chat) for one in found] == [False] * 1200 + [True, False]


# ---- exports


def reasoning(thought: str, *, is_escaped: bool) -> str:
    quoted = "\n".join(f"> {one}" for one in thought.split("\n"))
    shown = html.escape(quoted) if is_escaped else quoted
    return (
        '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds'
        f"</summary>\n{shown}\n</details>\n"
    )


def called(name: str, result: str | None, **more: str) -> str:
    values = {"id": name, "name": "f", "arguments": json.dumps(json.dumps({"q": "<a>"}))} | more
    if result is not None:
        values |= {"done": "true", "result": json.dumps(result)}
    shown = " ".join(f'{key}="{html.escape(value)}"' for key, value in values.items())
    return f'<details type="tool_calls" {shown}>\n<summary>Tool Executed</summary>\n</details>\n'


def details(content: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    left_out = Dropped()
    blocks = without_details(content, left_out)
    chat = chat_of({"messages": [answer(blocks)]})
    assert dropped(chat) == {}
    return plain(chat), {kind.what: n for kind, n in left_out.counts.items()}


def test_thoughts_of_open_webui() -> None:
    """HTML in what a model is said to have generated, or its marks in the thoughts."""
    for thought, is_escaped in (
        ('a < b & "c"\n\n> quoted', True), ("a < b && c &lt; d\n\nx", False), ("plain", False),
        ("a > b is &gt;", False), ("&lt;", True),
    ):  # fmt: skip
        messages, _ = details(reasoning(thought, is_escaped=is_escaped) + "Words.\n")
        expected = thought if is_escaped or "quoted" not in thought else ""
        assert messages == [answer("Words.\n", reasoning_content=expected)]


def test_tools_of_open_webui() -> None:
    """Calls and results that are words of the answer, or in one answer that was two."""
    messages, _ = details(
        "One.\n" + called("t1", "7 > 6") + called("t2", None) + reasoning("hm", is_escaped=True)
        + "Two.\n" + called("t3", "")
    )  # fmt: skip
    call = {"type": "function", "function": {"name": "f", "arguments": {"q": "<a>"}}}
    assert messages == [
        answer("One.", tool_calls=[call, call]), {"role": "tool", "content": "7 > 6"},
        answer("Two.", reasoning_content="hm", tool_calls=[call]), {"role": "tool", "content": ""},
    ]  # fmt: skip
    # What a tool said stands in the body, or all of it in two lists.
    told = html.escape(json.dumps({"a": "é"}, ensure_ascii=False))
    opened = '<details type="tool_calls" done="true" id="t" name="f" arguments="{}">'
    body = f"{opened}\n<summary>x</summary>\n{told}\n</details>"
    assert details(body)[0][1] == {"role": "tool", "content": '{"a": "é"}'}
    lists = {"content": json.dumps([{"id": "t", "function": {"name": "f", "arguments": "{}"}}]),
             "results": json.dumps([{"tool_call_id": "t", "content": "9"}])}  # fmt: skip
    shown = " ".join(f'{name}="{html.escape(value)}"' for name, value in lists.items())
    messages, _ = details(f'<details type="tool_calls" done="true" {shown}>\n</details>')
    assert [one["content"] for one in messages] == ["", "9"]


def test_what_is_no_block_of_open_webui() -> None:
    """Words about HTML that are taken for a block; code that is left out unnamed."""
    for words in ("<details>x</details>", '<details type="x">y</details>', '<details type="', "<b>",
                  "<details open><summary>s</summary></details>", ""):  # fmt: skip
        assert without_details(words, Dropped()) == words
    ran = '<details type="code_interpreter" done="true">\n```py\n1\n```\n</details>\n'
    assert details("a\n" + ran + "b") == (
        [answer("a\nb")], {"details 'code_interpreter'": 1}
    )  # fmt: skip
    stopped = '<details type="reasoning" done="false">\n<summary>Thinking…</summary>\n> hm'
    assert details(stopped)[0] == [answer("", reasoning_content="hm")]


@pytest.mark.parametrize(
    "evil",
    [
        '<details type="reasoning">' * 40_000, '<details x="' * 40_000, '<details a="" ' * 40_000,
        '<details type="reasoning" ' + "a " * 200_000, "</details>" * 40_000,
        '<details type="reasoning"></details>' * 20_000, "<details " * 40_000,
    ],
)  # fmt: skip
def test_hostile_blocks(evil: str) -> None:
    """Minutes for tags that never end."""
    without_details(evil, Dropped())


def web_ui(*nodes: tuple[str, str | None, str, Any], **more: Any) -> dict[str, Any]:
    kept = {name: {"id": name, "parentId": before, "childrenIds": [], "role": role,
                   "content": content} for name, before, role, content in nodes}  # fmt: skip
    return {"chat": {"history": {"messages": kept, **more}}}


def test_branches_of_open_webui() -> None:
    """The answer that was taken back, or all branches one after the other."""
    nodes = [("1", None, "user", "a"), ("2", "1", "assistant", "old"), ("3", "1", "assistant", "b")]
    value = web_ui(*nodes, currentId="3")
    expected = [("user", "a"), ("assistant", "b")]
    assert said(chat_of(value)) == expected
    assert dropped(chat_of(value)) == {"message of another branch": 1}
    assert said(chat_of(value["chat"])) == expected
    # The list alone, as earlier versions wrote it, and an instruction beside it.
    listed = list(value["chat"]["history"]["messages"].values())
    inside = {"messages": listed, "params": {"system": "Be."}}
    assert said(chat_of({"chat": inside})) == [("system", "Be."), *expected]
    value["chat"]["history"]["messages"]["1"]["files"] = [{"type": "image"}, {"type": "file"}]
    value["chat"]["history"]["messages"]["3"]["sources"] = [{"document": ["x"]}]
    assert dropped(chat_of(value)) == {
        "file 'image'": 1, "file 'file'": 1, "message of another branch": 1, "field 'sources'": 1
    }  # fmt: skip
    # Later versions keep what was said as items, too.
    items = [{"type": "message", "role": "assistant",
              "content": [{"type": "output_text", "text": "b"}]}]  # fmt: skip
    answered = web_ui(nodes[0], ("2", "1", "assistant", ""))
    answered["chat"]["history"]["messages"]["2"]["output"] = items
    assert texts(chat_of(answered)) == expected
    with pytest.raises(NotAChat, match="circle"):
        chat_of(web_ui(("1", "2", "user", "a"), ("2", "1", "user", "b")))


def test_answers_of_lm_studio() -> None:
    """Another version of an answer, thoughts in its words, or calls that are lost."""

    def steps(*contents: tuple[str, Any]) -> dict[str, Any]:
        made = [{"type": "contentBlock", "style": {"type": style}, "content": [part]}
                for style, part in contents]  # fmt: skip
        return {"type": "multiStep", "role": "assistant", "steps": [*made, {"type": "toolStatus"}]}

    asked = {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": "a"}]}
    sent = asked | {"preprocessed": {"content": [{"type": "text", "text": "file\na"}]}}
    request = {"type": "toolCallRequest", "callId": 7, "name": "f", "parameters": {"x": 1}}
    good = steps(
        ("thinking", {"type": "text", "text": "hm"}), ("default", {"type": "text", "text": "b"}),
        ("default", request), ("default", {"type": "toolCallResult", "callId": 7, "content": "8"}),
        ("default", {"type": "text", "text": "c"}), ("default", {"type": "chart"}),
    )  # fmt: skip
    value = {"systemPrompt": "Be.", "messages": [
        {"versions": [sent], "currentlySelected": 0},
        {"versions": [steps(("default", {"type": "text", "text": "old"})), good],
         "currentlySelected": 1},
    ]}  # fmt: skip
    chat = chat_of(value)
    assert texts(chat) == [("system", "Be."), ("user", "file\na"), ("assistant", "b"),
                           ("tool", "8"), ("assistant", "c")]  # fmt: skip
    assert chat.messages[2]["reasoning_content"] == "hm"
    assert plain(chat)[2]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert dropped(chat) == {"version that was not chosen": 1, "block 'chart'": 1}
    # Later versions keep each token as a part, and the marks around a thought.
    mark = {"type": "text", "text": "<think>", "isStructural": True}
    parts = [{"type": "text", "text": one} for one in ("h", "m", "\n")]
    thought = {"type": "contentBlock", "style": {"type": "thinking"}, "suffix": "\n",
               "content": [mark, *parts]}  # fmt: skip
    words = [{"type": "text", "text": one} for one in ("\n\n", "b", "ut", "\n")]
    spoken = [thought, {"type": "contentBlock", "content": words}]
    value["messages"][1] = {"currentlySelected": 0, "versions": [
        {"type": "multiStep", "role": "assistant", "steps": spoken}]}  # fmt: skip
    assert chat_of(value).messages[2] == answer("but\n", reasoning_content="hm")
    for number in (2, -1, None, True):
        value["messages"][1]["currentlySelected"] = number
        with pytest.raises(NotAChat):
            chat_of(value)


def test_messages_of_libre_chat(tmp_path: Path) -> None:
    """An earlier answer, thoughts and calls that stand in parts, or an error as an answer."""

    def node(name: str, before: str, by_user: bool, **more: Any) -> dict[str, Any]:
        return {"messageId": name, "parentMessageId": before, "isCreatedByUser": by_user, **more}

    call = {"id": "t", "name": "f", "args": '{"x": 1}', "output": "7"}
    parts = [{"type": "think", "think": "hm"}, {"type": "text", "text": {"value": "b"}},
             {"type": "tool_call", "tool_call": call}, {"type": "text", "text": "c"}]  # fmt: skip
    flat = [
        node("1", "0", True, text="a", createdAt="2026-01-01"),
        node("2", "1", False, text="old", createdAt="2026-01-02"),
        node("4", "3", True, text="d", createdAt="2026-01-04"),
        node("3", "1", False, text="", content=parts, createdAt="2026-01-03"),
    ]
    expected = [("user", "a"), ("assistant", "b"), ("tool", "7"), ("assistant", "c"), ("user", "d")]
    chat = chat_of({"messages": flat, "options": {"promptPrefix": "Be."}})
    assert texts(chat) == [("system", "Be."), *expected]
    assert (chat.messages[2]["reasoning_content"], dropped(chat)) == (
        "hm", {"message of another branch": 1}
    )  # fmt: skip
    later = flat[3] | {"children": [flat[2]]}
    tree = flat[0] | {"children": [flat[1], later]}
    assert texts(chat_of({"messages": [tree]})) == expected
    assert texts(chat_of({"messagesTree": [tree], "recursive": True})) == expected
    for one in (tree, later, *flat):  # without times the last one is meant
        one.pop("createdAt")
    assert texts(chat_of({"messages": [tree]})) == expected
    apart = [flat[0] | {"conversationId": "x"}, flat[0] | {"conversationId": "y"}]
    assert [texts(only([one])) for one in chats_of(tmp_path, *apart)] == [expected[:1]] * 2
    assert texts(only(chats_of(tmp_path, flat[0], flat[3], flat[2]))) == expected
    early = node("2", "1", False, text=":::thinking\nhm\n:::\n\nb")
    chat = chat_of({"messages": [flat[0], early, node("3", "2", False, text="e", error=True)]})
    assert chat.messages[1] == answer("b", reasoning_content="hm")
    assert dropped(chat) == {"message of an error": 1}


def test_messages_of_silly_tavern(tmp_path: Path) -> None:
    """Chats that run into one another, hidden messages that are shown, thoughts that are lost."""

    def message(text: str, *, is_user: bool, **more: Any) -> dict[str, Any]:
        return {"name": "x", "is_user": is_user, "is_system": False, "mes": text, **more}

    heading = {"user_name": "u", "character_name": "c", "chat_metadata": {}}
    lines = [
        message("a", is_user=True),
        message("b", is_user=False, swipes=["old", "b"], swipe_id=1, extra={"reasoning": "hm"}),
        message("note", is_user=False) | {"is_system": True},
        message("It rains.", is_user=False, extra={"type": "narrator"}),
        message("c", is_user=True, extra={"image": "x.png"}),
    ]
    first, second = chats_of(tmp_path, heading, *lines, heading, *lines[:2])
    assert isinstance(first, Chat)
    assert isinstance(second, Chat)
    assert said(first) == [("user", "a"), ("assistant", "b"), ("system", "It rains."),
                           ("user", "c")]  # fmt: skip
    assert (first.messages[1]["reasoning_content"], len(second.messages)) == ("hm", 2)
    assert dropped(first) == {
        "message that was hidden from the model": 1, "attachment 'image'": 1
    }  # fmt: skip
    assert places(first, "attachment 'image'") == ["a.jsonl:6"]
    assert chats_of(tmp_path, message("a", is_user=True) | {"mes": 5}) == [
        "a content that is no text"
    ]  # fmt: skip


def test_messages_of_continue() -> None:
    """Thoughts that speak for themselves, calls that are lost, files that were sent unsaid."""
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        {"message": user("a"), "contextItems": [{"content": "x"}, {"content": "y"}]},
        {"message": {"role": "thinking", "content": "hm"}, "contextItems": []},
        {"message": answer("b", toolCalls=[call])},
        {"message": {"role": "tool", "content": "7", "toolCallId": "t"}},
        {"message": answer("c"), "reasoning": {"text": "so"}},
    ]
    chat = chat_of({"sessionId": "s", "history": history})
    assert texts(chat) == [("user", "a"), ("assistant", "b"), ("tool", "7"), ("assistant", "c")]
    assert [one.get("reasoning_content") for one in chat.messages] == [None, "hm", None, "so"]
    assert (chat.messages[1]["tool_calls"], chat.messages[2]["tool_call_id"]) == ([call], "t")
    assert dropped(chat) == {"field 'contextItems'": 2}


def test_blocks_of_claude() -> None:
    """Thoughts, calls and results that the export has, dropped without a word."""
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"},
               {"type": "tool_use", "name": "f", "input": {}}, {"type": "token_budget"},
               {"type": "tool_result", "content": [{"type": "text", "text": "7"}]},
               {"type": "text", "text": "c"}]  # fmt: skip
    answered = {"sender": "assistant", "text": "b c", "content": content}
    chat = chat_of({"chat_messages": [{"sender": "human", "text": "a"}, answered]})
    assert texts(chat) == [("user", "a"), ("assistant", "b"), ("tool", "7"), ("assistant", "c")]
    assert (chat.messages[1]["reasoning_content"], dropped(chat)) == ("hm", {})


def test_branches_of_claude() -> None:
    """All branches one after the other, where the export names the message before."""

    def message(name: str, before: str, sender: str, text: str, at: str) -> dict[str, Any]:
        return {"uuid": name, "parent_message_uuid": before, "sender": sender, "text": text,
                "created_at": f"2026-01-0{at}T00:00:00Z"}  # fmt: skip

    listed = [message("1", "0", "human", "a", "1"), message("2", "1", "assistant", "b", "3"),
              message("3", "1", "assistant", "old", "2")]  # fmt: skip
    value = {"chat_messages": listed}
    assert said(chat_of(value)) == [("user", "a"), ("assistant", "b")]
    assert dropped(chat_of(value)) == {"message of another branch": 1}
    chosen = chat_of(value | {"current_leaf_message_uuid": "3"})
    assert said(chosen) == [("user", "a"), ("assistant", "old")]


def test_contents_of_chatgpt() -> None:
    """What is left out of the export without its name."""

    def node(before: str | None, role: str, **content: Any) -> dict[str, Any]:
        return {"parent": before, "message": {"author": {"role": role}, "content": content}}

    mapping = {
        "1": node(None, "user", content_type="user_editable_context"),
        "2": node("1", "user", content_type="text", parts=["a"]),
        "3": node("2", "assistant", content_type="text", parts=["b"]),
    }
    chat = chat_of({"mapping": mapping, "current_node": "3"})
    assert said(chat) == [("user", "a"), ("assistant", "b")]
    assert dropped(chat) == {"content 'user_editable_context'": 1}


# ---- data sets


def reply(name: str, parent: str | None, text: str, **more: Any) -> dict[str, Any]:
    role = "prompter" if text in "ac" else "assistant"
    return {"message_id": name, "parent_id": parent, "role": role, "text": text, **more}


def test_trees_of_open_assistant(tmp_path: Path) -> None:
    """Branches one after the other, trees that run into one another, an order that matters."""
    first = [
        reply("1", None, "a"), reply("2", "1", "worse", rank=1), reply("3", "1", "b", rank=0),
        reply("4", "3", "c"), reply("x", "4", "f", deleted=True), reply("5", "4", "d"),
        reply("6", "4", "e", rank=-(10**400)),
    ]  # fmt: skip
    second = [reply("7", None, "a"), reply("8", "7", "b")]
    expected = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    for lines in ([*first, *second], [first[0], second[0], *second[1:], *first[1:]]):
        one, other = chats_of(tmp_path, *lines)
        assert isinstance(one, Chat)
        assert isinstance(other, Chat)
        assert (said(one), said(other)) == (expected, expected[:2])
        assert dropped(one) == {"answer that was ranked lower": 3}
    path = tmp_path / "list.json"
    path.write_text(json.dumps([*first, *second], indent=1))
    assert [said(chat) for chat in chats_in(path) if isinstance(chat, Chat)] == [
        expected, expected[:2]
    ]  # fmt: skip
    assert chats_of(tmp_path, *first[1:2], *second)[0] == (
        "an answer to a message that is not in the file"
    )
    circle = [reply("1", "2", "a"), reply("2", "1", "b")]
    assert chats_of(tmp_path, *circle) == ["messages that follow one another in a circle"] * 2

    def tree(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"replies": [tree(x) for x in first if x["parent_id"] == line["message_id"]]}

    chat = chat_of({"message_tree_id": "1", "tree_state": "x", "prompt": tree(first[0])})
    assert (said(chat), dropped(chat)) == (expected, {"answer that was ranked lower": 3})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt": ["a", "c"], "response": ["b", "d"]}, "abcd"),
        ({"prompt": ["a", "c"], "response": ["b"]}, "abc"),
        ({"instruction": "a", "output": ["b"]}, "ab"),
        ({"instruction": "c", "output": "d", "history": [["a", "b"]]}, "abcd"),
        ({"id": "0", "data": ["a", "b", "c"]}, "abc"),
        ({"conversation": [{"input": "a", "output": "b"}, {"input": "c", "output": "d"}]}, "abcd"),
        ({"conversations": [{"human": "a", "assistant": "b"}]}, "ab"),
        ({"prompt": "a", "chosen": "b", "rejected": "x"}, "ab"),
        ({"question": "a", "chosen": "b", "rejected": "x"}, "ab"),
        ({"prompt": [user("a")], "chosen": [answer("b")], "rejected": [answer("x")]}, "ab"),
        ({"instruction": "c", "output": "d", "history": [user("a"), answer("b")]}, "abcd"),
        ({"turns": [user("a"), answer("b")], "topic": "x"}, "ab"),
        ({"items": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "ab"),
        ({"chosen": [user("a"), answer("b")], "rejected": [user("a"), answer("x")]}, "ab"),
        ({"conversations": [{"from": "human", "value": "a"}], "rejected": "x",
          "chosen": {"from": "gpt", "value": "b"}}, "ab"),
        ({"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d",
          "rejected": "\n\nHuman: a\n\nAssistant: x"}, "abcd"),
        ({"prompt": "\n\nHuman: a\n\nAssistant:", "chosen": " b", "rejected": " x"}, ["a", " b"]),
    ],
)  # fmt: skip
def test_rows(value: Any, expected: Any) -> None:
    """Turns merged into one, an answer that was refused by the user replayed, a history lost."""
    roles = ["user", "assistant", "user", "assistant"]
    assert said(chat_of(value)) == list(zip(roles, expected, strict=False))
    assert dropped(chat_of(value)) == ({"field 'rejected'": 1} if "rejected" in value else {})
    other = {"instruction": "a", "input": "c", "chosen_response": "b", "rejected_response": "x"}
    assert said(chat_of(other)) == [("user", "a\n\nc"), ("assistant", "b")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"prompt": "a", "response": ["b", "c"]}, "not of one length"),
        ({"prompt": ["a"], "response": ["b", "c"]}, "not of one length"),
        ({"prompt": ["a", "b"], "response": {"x": 1}}, "beside what is none"),
        ({"chosen": "b", "rejected": "c"}, "without its prompt"),
        ({"question_id": 81, "turns": ["a", "b"]}, "does not say whose"),
        ({"question_id": 81, "choices": [{"index": 0, "turns": ["a", "b"]}]}, "in another file"),
        ({"data": ["a", "b"]}, "no conversation of a known form"),
        (user("a"), "a message by itself"),
        ({"conversation_a": [user("a")], "conversation_b": [user("a")]}, "known form"),
        ({"turns": [user("a"), answer("b")], "response": "c"}, "known form"),
    ],
)
def test_rows_that_leave_it_open(value: Any, reason: str) -> None:
    """A guess which answer belongs to which prompt."""
    with pytest.raises(NotAChat, match=reason):
        chat_of(value)


def test_pictures_beside_a_row() -> None:
    """Answers about a picture, as if there was none."""
    value = {"image": "x.png", "conversations": [user("<image>\nWhat is it?"), answer("b")]}
    assert dropped(chat_of(value)) == {"field 'image'": 1}


def test_a_history_of_another_form() -> None:
    """A history that is left out without a word."""
    chat = chat_of({"instruction": "a", "output": "b", "history": [["x"]]})
    assert (said(chat), dropped(chat)) == (
        [("user", "a"), ("assistant", "b")], {"field 'history'": 1}
    )  # fmt: skip


def test_a_batch_of_one(tmp_path: Path) -> None:
    """A list in the list of messages, as traces of requests have it."""
    value = {"messages": [[user("a"), answer("b")]]}
    assert texts(only(chats_of(tmp_path, value))) == [("user", "a"), ("assistant", "b")]
    both = {"messages": [[user("a")], [user("b")]]}
    assert chats_of(tmp_path, both) == ["several conversations in one request"]


def test_pages_of_rows(tmp_path: Path) -> None:
    """Rows that the server has cut, replayed as if they ended there."""
    row = {"messages": [user("a"), answer("b")]}
    rows = [{"row_idx": 0, "row": row, "truncated_cells": []},
            {"row_idx": 1, "row": row, "truncated_cells": ["messages"]}]  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"features": [], "rows": rows}, indent=1))
    found = list(open_chats([str(path)]).chats())
    assert [place.rpartition("/")[2] for place, _ in found] == [
        "rows.json[1][1]",
        "rows.json[1][2]",
    ]
    assert isinstance(found[0][1], Chat)
    assert found[1][1] == "a row with cells that the server has cut"


# ---- anything


NAMES = [
    "messages", "history", "chat", "currentId", "parentId", "childrenIds", "id", "role", "content",
    "versions", "currentlySelected", "steps", "style", "preprocessed", "systemPrompt", "messageId",
    "parentMessageId", "isCreatedByUser", "children", "text", "options", "promptPrefix", "error",
    "files", "message", "contextItems", "reasoning", "toolCalls", "toolCallId", "uuid", "type",
    "parentUuid", "isSidechain", "payload", "summary", "call_id", "output", "arguments", "name",
    "input", "action", "mes", "is_user", "is_system", "extra", "message_id", "parent_id", "rank",
    "replies", "message_tree_id", "prompt", "chosen", "rejected", "conversations", "data", "turns",
    "choices", "rows", "row", "row_idx", "truncated_cells", "tool_call", "think", "tool_use_id",
    "reasoning_details", "thinking_blocks", "chat_messages", "sender", "instruction", "params",
    "instructions", "replacement_history", "timestamp", "createdAt", "tools", "system", "session",
    "parent", "conv", "toolCalls", "mapping", "author", "content_type", "parts", "thoughts",
    "metadata", "parent_message_uuid", "conversation", "human", "assistant", "messagesTree",
]  # fmt: skip
LEAVES = [
    None, 0, 1.5, 10**400, float("nan"), True, "", "text", "user", "assistant", "1", "2", "\ud800",
    "message", "tool_use", "tool_result", "thinking", "response_item", "session_meta", "compacted",
    "function_call", "contentBlock", '<details type="reasoning">', "summary", "multiStep", "think",
    "toolCallRequest", "thinking", "reasoning",
]  # fmt: skip
WELL_MADE = [
    line("1", None, "user", "a"), line("2", "1", "assistant", use("1")),
    item("function_call", name="f", arguments="{}", call_id="1"), reply("1", None, "a"),
    web_ui(("1", None, "user", "a"), ("2", "1", "assistant", "b")),
    {"messages": [{"messageId": "1", "isCreatedByUser": True, "text": "a", "children": []}]},
    {"messages": [{"versions": [{"role": "user", "content": []}], "currentlySelected": 0}]},
    {"history": [{"message": user("a")}]}, {"mes": "a", "is_user": True, "extra": {}},
    {"conv": {"currNode": "2"}, "messages": PAGE}, {"mapping": NODES, "current_node": "4"},
    {"chat_messages": [{"uuid": "1", "parent_message_uuid": "0", "sender": "human", "text": "a"}]},
    {"conversation": [{"human": "a", "assistant": "b"}]},
    {"chosen": [user("a")], "rejected": "b"}, {"rows": [{"row_idx": 1, "row": {}}]},
    {"prompt": ["a"], "response": ["b"]}, {"message_tree_id": "1", "prompt": reply("1", None, "a")},
]  # fmt: skip


class Maker:
    """Values of JSON, some of them nearly well made."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def value(self, depth: int) -> Any:
        kind = self.rng.randrange(4 if depth else 1)
        if kind == 1:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        if kind == 2:
            names = self.rng.sample(NAMES, self.rng.randrange(6))
            return {name: self.value(depth - 1) for name in names}
        if kind == 3:
            return self.changed(self.rng.choice(WELL_MADE))
        return self.rng.choice(LEAVES)

    def changed(self, value: Any) -> Any:
        """The value with some of what is in it replaced."""
        if self.rng.random() < 0.08:
            return self.value(2)
        if isinstance(value, dict):
            return {name: self.changed(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.changed(one) for one in value]
        return value


def test_any_value(tmp_path: Path) -> None:
    """A traceback for something that JSON can hold where something else is expected."""
    maker = Maker(7)
    lines = [maker.changed(maker.rng.choice(WELL_MADE)) for _ in range(3000)]
    n_chats = 0
    for value in [maker.value(4) for _ in range(3000)] + lines:
        with suppress(NotAChat):
            n_chats += isinstance(chat_of(value), Chat)
    assert n_chats > 100
    found = chats_of(tmp_path, *lines)
    assert sum(isinstance(one, Chat) for one in found) > 100
    assert sum(isinstance(one, str) for one in found) > 100


def test_deep_values(tmp_path: Path) -> None:
    """The end of the stack, in whatever form the depth stands."""
    for depth in (150, 900):
        deep: Any = "x"
        for _ in range(depth):
            deep = [deep]
        for value in (
            line("1", None, "assistant", [*use("1"), {"type": "text", "text": deep}]),
            line("1", None, "assistant", block("tool_use", id="1", name="f", input={"x": deep})),
            item("function_call", name="f", arguments=deep, call_id="1"),
            {"messages": [{"role": "tool", "content": deep}]}, web_ui(("1", None, "user", deep)),
        ):  # fmt: skip
            path = tmp_path / "deep.jsonl"
            path.write_text("\n".join([json.dumps(value)] * 2))
            assert len(chats_in(path)) in (1, 2)
    node: dict[str, Any] = {"messageId": "x", "isCreatedByUser": True, "text": "a"}
    for number in range(300):
        node = {"messageId": str(number), "isCreatedByUser": True, "text": "a", "children": [node]}
    assert len(chat_of({"messages": [node]}).messages) == 301


def test_large_trees(tmp_path: Path) -> None:
    """Hours for a long chain, for one message with a great many answers, or for long circles."""
    n = 5_000
    chain = [line(str(i), str(i - 1) if i else None, "user", "a") for i in range(n)]
    assert len(only(chats_of(tmp_path, *chain)).messages) == n
    assert len(only(chats_of(tmp_path, *reversed(chain))).messages) == 1
    fan = [chain[0], *(line(f"f{i}", "0", "user", "b") for i in range(n))]
    assert len(only(chats_of(tmp_path, *fan)).messages) == 2
    assert dropped(only(chats_of(tmp_path, *fan))) == {"line of another branch": n - 1}
    calls = [line("0", None, "assistant", use("t"), inside={"id": "m"})] * n
    assert len(only(chats_of(tmp_path, *calls)).messages) == 1
    replies = [reply("r", None, "a"), *(reply(str(i), "r", "b") for i in range(n))]
    assert len(only(chats_of(tmp_path, *replies)).messages) == 2
    parents: dict[str, str | None] = {str(i): str((i + 1) % n) for i in range(n)}
    assert set(roots_of(parents).values()) == {None}
    parents["0"] = None
    assert set(roots_of(parents).values()) == {"0"}
    assert roots_of({"a": "b", "b": "x"}) == {"a": "b", "b": "b"}


def test_the_beside_of_a_system() -> None:
    """A system's text in blocks, and tools in Anthropic's form, that no template gets."""
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    chat = chat_of({"system": [{"type": "text", "text": "Be."}, {"type": "text", "text": " So."}],
                    "tools": [tool], "messages": [user("a")]})  # fmt: skip
    assert said(chat) == [(system("")["role"], "Be. So."), ("user", "a")]
    assert chat.values["tools"][0]["function"]["parameters"] == {"type": "object"}
