"""Messages made of blocks, as Anthropic's and Gemini's API have them, in the form of the others.

A block of a message may call a tool, hold what a tool said, or be a thought; in the other form
these are messages and fields of their own. Blocks that have no place in a text (images, documents,
thoughts that are encrypted) stay among the parts, for ``messages.py`` to leave out by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]

# Where a call has its arguments, and where a result says which call it answers.
_CALLS = {"tool_use": "input", "mcp_tool_use": "input", "toolCall": "arguments"}
_RESULTS = ("tool_result", "mcp_tool_result")
_OWN = frozenset({*_CALLS, *_RESULTS, "thinking"})


def opened(message: Json, *, is_answer: bool) -> list[Json]:
    """The messages that one made of blocks comes to; the message itself if it has none.

    What tools said to a user's message comes first, as the API demands it, in order, and then what
    else is in it. An answer that goes on after the result of a tool is one answer before it and
    another after it.

    Parameters
    ----------
    is_answer : the assistant says it.
    """
    blocks, parts = message.get("content"), message.get("parts")
    if blocks is None and isinstance(parts, list):
        blocks = [_block_of_part(part) for part in parts]
    if not isinstance(blocks, list) or not any(kind_of(block) in _OWN for block in blocks):
        return [message]
    made: list[Json] = []
    rest = _Rest(message)
    for block in blocks:
        if kind_of(block) not in _RESULTS:
            rest.add(block)
            continue
        if is_answer:
            made += rest.taken()
        made.append(_result(block))
    return made + rest.taken()


def kind_of(block: object) -> str:
    """The type of a block; "" if it has none."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else ""


def text_of_blocks(blocks: object) -> str | None:
    """The text that blocks of nothing but text come to; None if they are something else."""
    if not isinstance(blocks, list):
        return None
    texts = [one.get("text") if kind_of(one) == "text" else one for one in blocks]
    return "".join(texts) if all(isinstance(one, str) for one in texts) else None


def tools_of(tools: list[Any]) -> list[Any]:
    """Tools as OpenAI's API names them, where they are Anthropic's."""
    if not any(isinstance(one, Mapping) and "input_schema" in one for one in tools):
        return tools
    return [_tool(one) if isinstance(one, Mapping) and "function" not in one else one
            for one in tools]  # fmt: skip


class _Rest:
    """What of a message is its own."""

    def __init__(self, message: Json) -> None:
        self._message = message
        self._begin()

    def add(self, block: Any) -> None:
        """Take one block that is no result."""
        kind = kind_of(block)
        if kind in _CALLS and isinstance(block.get("name"), str):
            call = {"name": block.get("name"), "arguments": block.get(_CALLS[kind])}
            self._calls.append({"id": block.get("id"), "function": call})
        elif kind == "thinking" and isinstance(block.get("thinking"), str) and block["thinking"]:
            self._thoughts.append(block["thinking"])
        else:
            self._parts.append(block)

    def taken(self) -> list[Json]:
        """The message, and begin another; none if it would be empty."""
        made = {**self._message, "content": self._parts}
        if self._calls:
            made["tool_calls"] = self._calls
        if self._thoughts:
            made["reasoning_content"] = "".join(self._thoughts)
        has_any = self._parts or self._calls or self._thoughts
        self._begin()
        return [made] if has_any else []

    def _begin(self) -> None:
        self._parts: list[Any] = []
        self._calls: list[Json] = []
        self._thoughts: list[str] = []


def _result(block: Json) -> Json:
    """What a tool said, as a message."""
    said = block.get("content")
    text = text_of_blocks(said)
    return {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": said if text is None else text,
    }


def _tool(tool: Json) -> Json:
    """A tool; one that the service has itself has a name and no schema, as llama-server sees it."""
    return {
        "type": "function",
        "function": {
            "name": tool.get("name"),
            "description": tool.get("description") or "",
            "parameters": tool.get("input_schema") or {},
        },
    }


def _block_of_part(part: Any) -> Any:
    """A part of Gemini's as a block; the part itself if it is words, or nothing known."""
    call, result = (_inner(part, name) for name in ("functionCall", "functionResponse"))
    if call:
        return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"),
                "input": call.get("args")}  # fmt: skip
    if result:
        said = result.get("response")
        output = _inner(result, "response").get("output")
        return {"type": "tool_result", "tool_use_id": result.get("id"),
                "content": output if isinstance(output, str) else said}  # fmt: skip
    if isinstance(part, Mapping) and part.get("thought") is True:
        return {"type": "thinking", "thinking": part.get("text")}
    return part


def _inner(value: Any, name: str) -> Json:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def merged_blocks(contents: Iterable[object]) -> list[Any]:
    """The blocks of contents that are one message's, in order; a text is a block of its own."""
    made: list[Any] = []
    for content in contents:
        if isinstance(content, str):
            made.append({"type": "text", "text": content})
        elif isinstance(content, list):
            made += content
        elif content is not None:
            made.append(content)
    return made
