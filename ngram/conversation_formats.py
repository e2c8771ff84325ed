"""What a value of JSON says, if it is a conversation: messages as a chat template takes them.

Known are OpenAI's messages, requests with their responses, pairs of prompt and completion,
ShareGPT, and the exports of llama-server's web page, Open WebUI, ChatGPT and Claude
(docs/conversations.md shows each). A reason why a value is none never holds a word of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..engine.chat_messages import (
    REASONING,
    TAKEN,
    Chat,
    Json,
    NotAChat,
    add_message,
    add_messages,
    first_of,
    has_text,
    parsed,
    shallow,
)
from .conversation_trees import PathLost, path_to_current

_PROMPTS = ("prompt", "instruction", "question", "query", "input")
_ANSWERS = ("completion", "response", "output", "answer")
_SYSTEMS = ("system", "system_prompt")

NOT_KNOWN = "no conversation of a known form"


def chat_of(value: object) -> Chat:
    """The conversation that a value of JSON is.

    Raises
    ------
    NotAChat : it is none, or one that is damaged
    """
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise NotAChat("neither an object nor a list")
    read = next((read for known, read in _FORMATS if known(value)), None)
    if read is None:
        raise NotAChat(NOT_KNOWN)
    chat = read(value)
    roles = [message["role"] for message in chat.messages[:2]]
    if roles == ["system", "system"]:  # what stands beside the messages, and their own
        del chat.messages[0]
    return chat


def is_message(value: object) -> bool:
    """Whether a value is a message, and a list that begins with it one conversation."""
    return isinstance(value, Mapping) and ("role" in value or "from" in value)


# ---- formats


def _of_messages(value: Json) -> Chat:
    """{"messages": [{"role", "content"}, ...]}, and the answer behind them if it is there."""
    request = value.get("request")
    asked = request if isinstance(request, Mapping) and "messages" in request else value
    listed = _list_of(asked, "messages")
    if any(_is_node(one) for one in listed):
        return _of_web_page({"conv": value, "messages": listed})
    chat = _chat_with(asked)
    add_messages(chat, listed)
    answer = value.get("response")
    choices = (answer if isinstance(answer, Mapping) else value).get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        if isinstance(message, Mapping):
            add_message(chat, {"role": "assistant"} | dict(message))
    return chat


def _of_sharegpt(value: Json) -> Chat:
    """{"conversations": [{"from", "value"}, ...], "system", "tools"}."""
    chat = _chat_with(value)
    add_messages(
        chat, _list_of(value, "conversations" if "conversations" in value else "conversation")
    )
    return chat


def _of_pair(value: Json) -> Chat:
    """{"prompt", "completion"}, or other names of the two; each a text, or messages."""
    chat = _chat_with(value)
    asked, answer = first_of(value, _PROMPTS), first_of(value, _ANSWERS)
    for name, role in ((asked, "user"), (answer, "assistant")):
        said = value[name]
        if isinstance(said, list) and all(map(is_message, said)):
            add_messages(chat, said)
            continue
        more = value.get("input") or value.get("context") if name == "instruction" else None
        if isinstance(more, str) and isinstance(said, str):
            said = f"{said}\n\n{more}"
        add_message(chat, {"role": role, "content": said})
    return chat


def _of_web_page(value: Json) -> Chat:
    """llama-server's web page: {"conv": {"currNode", ...}, "messages": [nodes of a tree]}."""
    chat = Chat()
    nodes = {str(node.get("id")): node for node in _list_of(value, "messages") if _is_node(node)}
    current = value["conv"].get("currNode") if isinstance(value["conv"], Mapping) else None
    for node in _path(nodes, current, "timestamp"):
        if node.get("type") == "root":
            continue
        message = {name: node.get(name) for name in ("role", "content", *REASONING)}
        calls = node.get("toolCalls")
        message["tool_calls"] = parsed(calls) if isinstance(calls, str) else calls
        message["tool_call_id"] = node.get("toolCallId")
        before, behind = _attached(node.get("extra"), chat)
        if before or behind:
            own = [node.get("content")] if node.get("content") else []
            message["content"] = [*before, *own, *behind]
        if message["role"] != "system" or message["content"]:
            add_message(chat, message)
    return chat


def _of_chatgpt(value: Json) -> Chat:
    """ChatGPT's export: {"mapping": {id: {"message", "parent", "children"}}, "current_node"}."""
    chat = Chat()
    thoughts: list[str] = []
    nodes = {
        key: dict(node) | {"time": (node.get("message") or {}).get("create_time")}
        for key, node in value["mapping"].items()
        if isinstance(node, Mapping) and isinstance(node.get("message") or {}, Mapping)
    }
    for node in _path(nodes, value.get("current_node"), "time"):
        message = node.get("message") or {}
        content, author = message.get("content"), message.get("author")
        if not isinstance(content, Mapping) or not isinstance(author, Mapping):
            continue
        hints = message.get("metadata")
        if isinstance(hints, Mapping) and hints.get("is_visually_hidden_from_conversation"):
            continue
        kind = content.get("content_type")
        if kind == "thoughts":
            listed = content.get("thoughts")
            thoughts += [t["content"] for t in listed or [] if has_text(t, "content")]
        if kind not in ("text", "multimodal_text", "code", "execution_output"):
            continue
        said = content.get("parts", content.get("text"))
        spoken = {"role": author.get("role"), "content": said}
        if author.get("role") == "assistant" and thoughts:
            spoken["reasoning_content"] = "\n\n".join(thoughts)
            thoughts = []
        if said not in (None, "", [""]):
            add_message(chat, spoken)
    return chat


def _of_claude(value: Json) -> Chat:
    """Claude's export: {"chat_messages": [{"sender", "text", "content"}, ...]}."""
    chat = Chat()
    for one in _list_of(value, "chat_messages"):
        if not isinstance(one, Mapping):
            raise NotAChat("a message that is no object")
        said = one.get("content") or one.get("text")
        if isinstance(said, list):
            # what tools were asked and said, and thoughts, are parts of their own
            said = [part for part in said if not isinstance(part, Mapping) or "text" in part]
        add_message(chat, {"role": one.get("sender"), "content": said})
        for name in ("attachments", "files"):
            chat.n_media += len(one[name]) if isinstance(one.get(name), list) else 0
    return chat


_FORMATS: tuple[tuple[Callable[[Json], bool], Callable[[Json], Chat]], ...] = (
    (lambda value: isinstance(value.get("mapping"), Mapping), _of_chatgpt),
    (lambda value: "conv" in value and "messages" in value, _of_web_page),
    (lambda value: "messages" in value or "messages" in _inner(value, "request"), _of_messages),
    (lambda value: "messages" in _inner(value, "chat"), lambda value: _of_messages(value["chat"])),
    (lambda value: "conversations" in value or "conversation" in value, _of_sharegpt),
    (lambda value: "chat_messages" in value, _of_claude),
    (lambda value: bool(first_of(value, _PROMPTS) and first_of(value, _ANSWERS)), _of_pair),
)


# ---- messages


def _attached(extra: object, chat: Chat) -> tuple[list[str], list[str]]:
    """Texts of attached files, those before and those behind what the user wrote."""
    before: list[str] = []
    behind: list[str] = []
    for one in extra if isinstance(extra, list) else []:
        label, place = _ATTACHMENTS.get(str(one.get("type")), ("", None))
        is_shown = has_text(one, "content") and not one.get("processedAsImages")
        if place is None or not is_shown:
            chat.n_media += 1
            continue
        server = f" ({one['serverName']})" if has_text(one, "serverName") else ""
        text = f"\n\n--- {label}: {one.get('name')}{server} ---\n{one['content']}"
        (before if place == 0 else behind).append(text)
    return before, behind


# What llama-server's web page calls an attached text, and whether it puts it before (0) the
# user's own.
_ATTACHMENTS: dict[str, tuple[str, int | None]] = {
    "TEXT": ("File", 0),
    "context": ("File", 0),
    "PDF": ("PDF File", 1),
    "MCP_PROMPT": ("MCP Prompt", 1),
    "MCP_RESOURCE": ("MCP Resource", 1),
}


# ---- values


def _chat_with(value: Json) -> Chat:
    """A conversation with the tools, further variables and system's text that stand beside it."""
    chat = Chat()
    tools, functions = value.get("tools"), value.get("functions")
    if isinstance(tools, str):
        tools = parsed(tools)
    if isinstance(functions, list) and not tools:
        tools = [{"type": "function", "function": one} for one in functions]
    if isinstance(tools, list) and tools:
        chat.values["tools"] = shallow(tools)
    more = value.get("chat_template_kwargs")
    if isinstance(more, Mapping):
        chat.values |= {name: shallow(one) for name, one in more.items() if name not in TAKEN}
    system = first_of(value, _SYSTEMS)
    if system and has_text(value, system):
        chat.messages.append({"role": "system", "content": value[system]})
    return chat


def _path(nodes: Mapping[str, Json], current: object, time: str) -> list[Json]:
    try:
        return path_to_current(nodes, current, time)
    except PathLost as error:
        raise NotAChat(str(error)) from None


def _list_of(value: Json, name: str) -> list[Any]:
    found = value.get(name)
    if isinstance(found, str):  # some tables hold it as text
        found = parsed(found)
    if not isinstance(found, list):
        raise NotAChat("no list of messages")
    return found


def _inner(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_node(value: object) -> bool:
    """Whether a message is a node of llama-server's trees."""
    return isinstance(value, Mapping) and {"id", "parent", "children"} <= value.keys()
