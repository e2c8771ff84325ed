"""What forms of conversations have in common: values by their names, and what stands beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.chat.blocks import text_of_blocks, tools_of
from ...engine.chat.messages import (
    TAKEN,
    Chat,
    Json,
    NotAChat,
    count_media,
    first_of,
    parsed,
    shallow,
)
from .trees import PathLost, path_to_current

OTHER_BRANCH = "message of another branch"
_SYSTEMS = ("system", "system_prompt", "systemPrompt", "system_message", "systemMessage",
            "system_instruction", "systemInstruction")  # fmt: skip


def chat_with(value: Json) -> Chat:
    """A conversation with the tools, further variables and system's text that stand beside it."""
    chat = Chat()
    count_media(chat, value)
    tools, functions = value.get("tools"), value.get("functions")
    if isinstance(tools, str):
        tools = parsed(tools)
    if isinstance(functions, list) and not tools:
        tools = [{"type": "function", "function": one} for one in functions]
    if isinstance(tools, list) and tools:
        chat.values["tools"] = tools_of(shallow(tools))
    more = value.get("chat_template_kwargs")
    if isinstance(more, Mapping):
        chat.values |= {name: shallow(one) for name, one in more.items() if name not in TAKEN}
    name = first_of(value, _SYSTEMS)
    system = _system_text(value.get(name))
    if system:
        chat.messages.append({"role": "system", "content": system})
    elif system is None and value.get(name):
        chat.dropped.add("field", name)
    return chat


def _system_text(said: Any) -> str | None:
    """A text of the system; None if it is none, or more than a text."""
    if isinstance(said, Mapping):
        held = said.get(first_of(said, ("content", "parts", "text")))
        return _system_text(held) if not isinstance(held, Mapping) else None
    if isinstance(said, list):
        parts = [{"type": "text", **one} if isinstance(one, Mapping) else one for one in said]
        return text_of_blocks(parts)
    return said if isinstance(said, str) else None


def branch_of(
    nodes: Mapping[str, Json], current: object, time: str, *, parent: str = "parent"
) -> list[Json]:
    """The nodes from the root to the current one; see ``path_to_current``."""
    try:
        return path_to_current(nodes, current, time, parent=parent)
    except PathLost as error:
        raise NotAChat(str(error)) from None


def list_of(value: Json, name: str) -> list[Any]:
    """The list under that name; raises NotAChat if there is none."""
    found = value.get(name)
    if isinstance(found, str):  # some tables hold it as text
        found = parsed(found)
    if not isinstance(found, list):
        raise NotAChat("no list of messages")
    return found


def inner(value: Json, name: str) -> Json:
    """The object under that name; an empty one if there is none."""
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def is_node(value: object) -> bool:
    """Whether a message is a node of llama-server's trees."""
    return isinstance(value, Mapping) and {"id", "parent", "children"} <= value.keys()
