"""Items of OpenAI's Responses API as messages; and sessions of agents that keep one a line.

What a model said in one go is several items: a thought, words, calls of tools. They are one answer
up to what somebody else says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...engine.chat.blocks import kind_of, merged_blocks
from ...engine.chat.dropped import Dropped
from ...engine.chat.messages import Chat, Json, NotAChat, add_messages, has_text
from .agents import Line

_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
_OUTPUTS = tuple(f"{name}_output" for name in _CALLS)
_COMPACTED = "a history that was shortened, and how is not in the file"


def messages_of_items(items: Iterable[object], dropped: Dropped) -> Iterator[Json]:
    """Yield the messages that items come to; what has no place in them is left out by name.

    Raises
    ------
    NotAChat : an item that is no object
    """
    answer: list[Any] = []
    for item in items:
        if not isinstance(item, Mapping):
            raise NotAChat("an item that is no object")
        blocks, message = _read(item, dropped)
        answer += blocks
        if message is not None:
            if answer:
                yield {"role": "assistant", "content": answer}
            answer = []
            yield message
    if answer:
        yield {"role": "assistant", "content": answer}


def _read(item: Json, dropped: Dropped) -> tuple[list[Any], Json | None]:
    """What an item adds to the answer, or the message of another that it is."""
    kind = kind_of(item)
    call = item.get("call_id", item.get("id"))
    if kind in ("", "message"):
        if item.get("role") == "assistant":
            return merged_blocks([item.get("content")]), None
        return [], {"role": item.get("role"), "content": item.get("content")}
    if kind in _CALLS:
        told = item.get(_CALLS[kind])
        told = {"input": told} if kind == "custom_tool_call" else told
        name = item.get("name", kind.removesuffix("_call"))
        return [{"type": "tool_use", "id": call, "name": name, "input": told}], None
    if kind in _OUTPUTS:
        said = item.get("output")
        if isinstance(said, Mapping) and has_text(said, "content"):
            said = said["content"]
        return [], {"role": "tool", "tool_call_id": call, "content": said}
    thought = _thought(item) if kind == "reasoning" else ""
    if not thought:
        dropped.add("item", kind, of_answer=kind == "reasoning" or kind.endswith("_call"))
    return ([{"type": "thinking", "thinking": thought}] if thought else []), None


def _thought(item: Json) -> str:
    """What was thought, and not its summary, which no model wrote in an answer."""
    parts = item.get("content")
    listed = parts if isinstance(parts, list) else []
    return "".join(part["text"] for part in listed if has_text(part, "text"))


def is_item_line(value: object) -> bool:
    """Whether a value is a line of a session whose events have a payload."""
    if not isinstance(value, Mapping) or not isinstance(value.get("payload"), Mapping):
        return False
    kind = value.get("type")
    return kind in ("session_meta", "response_item") or (
        kind == "message" and "role" in value["payload"]
    )


def chats_of_items(lines: Sequence[Line]) -> Iterator[tuple[str, Chat | str]]:
    """Yield (place, conversation or the reason why it is none) of a session with payloads.

    Where its history is shortened, another conversation begins with what is left of it.
    """
    chat, place, items = Chat(), lines[0].place, list[Line]()
    for where, value in lines:
        kind, payload = kind_of(value), value.get("payload")
        if not isinstance(payload, Mapping):
            payload = {}
        if kind == "compacted":
            yield from _finished(chat, place, items)
            left = payload.get("replacement_history")
            if not isinstance(left, list):
                yield where, _COMPACTED
                return
            chat, place, items = Chat(), where, [Line(where, item) for item in left]
        elif kind in ("response_item", "message"):
            items.append(Line(where, payload))
        elif kind == "session_meta":
            instructions = payload.get("instructions", payload.get("base_instructions"))
            if has_text(instructions, "text"):
                instructions = instructions["text"]
            if isinstance(instructions, str) and instructions and not chat.messages:
                chat.messages.append({"role": "system", "content": instructions})
        else:
            chat.dropped.add("line", value.get("type"), place=where)
    yield from _finished(chat, place, items)


def _finished(chat: Chat, place: str, items: list[Line]) -> Iterator[tuple[str, Chat | str]]:
    def each() -> Iterator[Json]:
        for where, item in items:
            chat.dropped.here = where
            yield item

    try:
        add_messages(chat, messages_of_items(each(), chat.dropped))
    except NotAChat as error:
        yield place, str(error)
        return
    if items:
        yield place, chat
