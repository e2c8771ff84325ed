"""Chats as programs keep or export them: Open WebUI, LM Studio, LibreChat, Continue.

Where a program keeps what was tried and taken back, the branch that was current last is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from ...engine.chat.blocks import kind_of
from ...engine.chat.messages import Chat, Json, NotAChat, add_message, add_messages, has_text
from .details import without_details
from .items import messages_of_items
from .values import branch_of, inner

# What LM Studio notes between the steps of an answer: no model has said or seen it.
_NOTES = ("debugInfoBlock", "toolStatus", "status")
_LIBRE_NAMES = frozenset({"messageId", "isCreatedByUser"})
_LIBRE_LISTS = ("messagesTree", "messages")
_THINKING = re.compile(r"\s*:::thinking\n(.*?)\n?:::\s*", re.DOTALL)


# ---- Open WebUI


def is_open_webui(value: Json) -> bool:
    """Whether a value is a chat of Open WebUI, or holds one."""
    chat = value.get("chat", value)
    if not isinstance(chat, Mapping):
        return False
    if isinstance(inner(chat, "history").get("messages"), Mapping):
        return True
    return _any_has(chat, {"role", "parentId", "childrenIds"})


def of_open_webui(value: Json) -> Chat:
    """{"chat": {"history": {"messages": {id: {"parentId", ...}}, "currentId"}}}, or its list.

    Raises
    ------
    NotAChat : it is damaged
    """
    told = value.get("chat", value)
    chat = Chat()
    path = _branch(chat, *_nodes_of(told), "timestamp", "parentId")
    system = inner(told, "params").get("system") or told.get("system")
    if isinstance(system, str) and system and (not path or path[0].get("role") != "system"):
        chat.messages.append({"role": "system", "content": system})
    for node in path:
        _count_files(chat, node)
        sources = node.get("sources", node.get("citations"))
        if isinstance(sources, list) and sources:  # texts that the prompt had
            chat.dropped.add("field", "sources", n=len(sources))
        add_messages(chat, _messages_of_node(chat, node))
    return chat


def _messages_of_node(chat: Chat, node: Json) -> Iterable[Json]:
    """What a message of Open WebUI comes to."""
    content, items = node.get("content"), node.get("output")
    if node.get("role") == "assistant":
        if not content and isinstance(items, list):  # later versions keep both
            return messages_of_items(items, chat.dropped)
        if isinstance(content, str):
            content = without_details(content, chat.dropped)
    return [{**_named(node, "role", "reasoning_content"), "content": content}]


def _nodes_of(told: Json) -> tuple[dict[str, Json], object]:
    """The messages of a chat of Open WebUI by their ids, and the id of the current one."""
    history = inner(told, "history")
    kept = history.get("messages")
    nodes = {name: node for name, node in kept.items() if isinstance(node, Mapping)} if (
        isinstance(kept, Mapping)
    ) else {}  # fmt: skip
    if nodes:
        return nodes, history.get("currentId")
    listed = told.get("messages")
    nodes = {
        str(node["id"]): node
        for node in (listed if isinstance(listed, list) else [])
        if has_text(node, "id")
    }
    if not isinstance(listed, list) or len(nodes) < len(listed):
        raise NotAChat("a message without an id")
    return nodes, next(reversed(nodes), None)


# ---- LM Studio


def is_lm_studio(value: Json) -> bool:
    """Whether a value is a conversation of LM Studio."""
    return _any_has(value, {"versions", "currentlySelected"})


def of_lm_studio(value: Json) -> Chat:
    """{"systemPrompt", "messages": [{"versions": [...], "currentlySelected"}]}.

    Raises
    ------
    NotAChat : it is damaged
    """
    chat = Chat()
    if has_text(value, "systemPrompt"):
        chat.messages.append({"role": "system", "content": value["systemPrompt"]})
    for one in value["messages"]:
        versions = one.get("versions") if isinstance(one, Mapping) else None
        number = one.get("currentlySelected") if isinstance(one, Mapping) else None
        if not isinstance(versions, list) or type(number) is not int:
            raise NotAChat("a message without versions")
        if not 0 <= number < len(versions) or not isinstance(versions[number], Mapping):
            raise NotAChat("a message whose chosen version is not there")
        if len(versions) > 1:
            chat.dropped.add("version that was not chosen", n=len(versions) - 1)
        chosen = versions[number]
        content = chosen.get("content")
        if isinstance(chosen.get("steps"), list):
            content = list(_blocks_of_steps(chat, chosen["steps"]))
        elif isinstance(inner(chosen, "preprocessed").get("content"), list):
            content = chosen["preprocessed"]["content"]  # with what files said
        add_message(chat, {"role": chosen.get("role"), "content": content})
    return chat


def _blocks_of_steps(chat: Chat, steps: list[Any]) -> Iterator[Any]:
    """Yield the blocks of an answer that was made in steps."""
    after_thought = False
    for step in steps:
        kind = kind_of(step)
        if kind in _NOTES:
            continue
        parts = step.get("content") if kind == "contentBlock" else None
        if not isinstance(parts, list):
            chat.dropped.add("step", kind, of_answer=True)
            continue
        is_thought = kind_of(step.get("style")) == "thinking"
        for block in _joined(parts):
            if is_thought and has_text(block, "text"):
                yield {"type": "thinking", "thinking": _bare(block["text"], step)}
            elif after_thought and has_text(block, "text"):
                yield {**block, "text": block["text"].lstrip("\n")}
            else:
                yield _block_of_part(block)
            after_thought = is_thought


def _joined(parts: list[Any]) -> Iterator[Any]:
    """Yield the parts, with texts that follow one another as one: a part may be a token.

    Those that are structural are the model's marks around what it says, which its template writes.
    """
    texts: list[str] = []
    for part in parts:
        if kind_of(part) == "text" and isinstance(part.get("text"), str):
            texts += [] if part.get("isStructural") else [part["text"]]
            continue
        if texts:
            yield {"type": "text", "text": "".join(texts)}
        texts = []
        yield part
    if texts:
        yield {"type": "text", "text": "".join(texts)}


def _bare(thought: str, step: Json) -> str:
    """A thought without the marks around it."""
    for name in ("prefix", "suffix"):
        mark = step.get(name)
        if isinstance(mark, str):
            thought = thought.removeprefix(mark) if name == "prefix" else thought.removesuffix(mark)
    return thought.strip("\n")


def _block_of_part(part: Any) -> Any:
    """A part of a step; calls of tools and their results in names that are known."""
    kind = kind_of(part)
    if kind not in ("toolCallRequest", "toolCallResult"):
        return part
    name = part.get("toolCallRequestId", part.get("callId"))
    call = name if isinstance(name, str | None) else str(name)
    if kind == "toolCallRequest":
        return {"type": "tool_use", "id": call, "name": part.get("name"),
                "input": part.get("parameters")}  # fmt: skip
    return {"type": "tool_result", "tool_use_id": call, "content": part.get("content")}


# ---- LibreChat


def is_libre_chat(value: Json) -> bool:
    """Whether a value is a conversation of LibreChat."""
    return any(_any_has(value, _LIBRE_NAMES, place) for place in _LIBRE_LISTS)


def is_libre_message(value: Json) -> bool:
    """Whether a value is a message of LibreChat."""
    return value.keys() >= _LIBRE_NAMES


def of_libre_chat(value: Json) -> Chat:
    """{"messages": [{"messageId", "parentMessageId", "isCreatedByUser", "text", "children"}]}.

    Raises
    ------
    NotAChat : it is damaged
    """
    chat = Chat()
    if has_text(value.get("options"), "promptPrefix"):
        chat.messages.append({"role": "system", "content": value["options"]["promptPrefix"]})
    listed = next(value[place] for place in _LIBRE_LISTS if isinstance(value.get(place), list))
    nodes = {node["messageId"]: node for node in _flat(listed)}
    for node in _branch(chat, nodes, None, "createdAt", "parentMessageId"):
        is_user = bool(node.get("isCreatedByUser"))
        _count_files(chat, node)
        if node.get("error"):
            chat.dropped.add("message of an error", of_answer=not is_user)
            continue
        content = node.get("text")
        if not is_user:
            content = _libre_blocks(node)
        add_message(chat, {"role": "user" if is_user else "assistant", "content": content})
    return chat


def _flat(messages: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of trees, each before those that answer it."""
    waiting = [(one, None) for one in reversed(messages)]
    while waiting:
        node, before = waiting.pop()
        if not has_text(node, "messageId"):
            raise NotAChat("a message without an id")
        yield {"parentMessageId": before, **node}
        children = node.get("children")
        if isinstance(children, list):
            waiting += [(one, node["messageId"]) for one in reversed(children)]


def _libre_blocks(node: Json) -> Any:
    """The content of an answer: its parts, or in earlier versions its text with the thoughts."""
    parts = node.get("content")
    if not isinstance(parts, list) or not parts:
        text = node.get("text")
        found = _THINKING.match(text) if isinstance(text, str) else None
        if found is None or not isinstance(text, str):
            return text
        thought = {"type": "thinking", "thinking": found[1]}
        return [thought, {"type": "text", "text": text[found.end() :]}]
    made: list[Any] = []
    results: list[Any] = []
    for part in parts:
        call = part.get("tool_call") if isinstance(part, Mapping) else None
        if isinstance(call, Mapping):
            made.append({"type": "tool_use", "id": call.get("id"), "name": call.get("name"),
                         "input": call.get("args")})  # fmt: skip
            if call.get("output") is not None:
                results.append({"type": "tool_result", "tool_use_id": call.get("id"),
                                "content": call["output"]})  # fmt: skip
            continue
        made += results
        results = []
        if kind_of(part) == "think":
            made.append({"type": "thinking", "thinking": part.get("think")})
        else:
            made.append(part)
    return made + results


# ---- Continue


def is_continue(value: Json) -> bool:
    """Whether a value is a session of Continue."""
    listed = value.get("history")
    return (
        isinstance(listed, list)
        and bool(listed)
        and all(isinstance(one, Mapping) and "message" in one for one in listed)
    )


def of_continue(value: Json) -> Chat:
    """{"history": [{"message": {"role", "content"}, "contextItems": [...]}]}.

    Raises
    ------
    NotAChat : it is damaged
    """
    chat = Chat()
    thought = ""
    for one in value["history"]:
        message = one["message"]
        if not isinstance(message, Mapping):
            raise NotAChat("a message that is no object")
        items = one.get("contextItems")
        if isinstance(items, list) and items:
            chat.dropped.add("field", "contextItems", n=len(items))
        if message.get("role") == "thinking":
            thought = message["content"] if has_text(message, "content") else ""
            continue
        if has_text(one.get("reasoning"), "text"):
            thought = thought or one["reasoning"]["text"]
        made = {**_named(message, "role", "content", "tool_calls", "name"),
                **({"tool_calls": message["toolCalls"]} if "toolCalls" in message else {}),
                "tool_call_id": message.get("toolCallId")}  # fmt: skip
        if message.get("role") == "assistant" and thought:
            made["reasoning_content"] = thought
        thought = ""
        add_message(chat, made)
    return chat


# ---- all of them


def _branch(
    chat: Chat, nodes: Mapping[str, Json], current: object, time: str, parent: str
) -> list[Json]:
    """The branch that was current last; messages of others are counted."""
    path = branch_of(nodes, current, time, parent=parent)
    if len(nodes) > len(path):
        chat.dropped.add("message of another branch", n=len(nodes) - len(path))
    return path


def _count_files(chat: Chat, node: Json) -> None:
    """Count what was attached to a message."""
    files = node.get("files")
    for one in files if isinstance(files, list) else []:
        chat.dropped.add("file", kind_of(one) or None)


def _any_has(value: Json, names: Set[str], place: str = "messages") -> bool:
    """Whether any of the messages has all of these fields."""
    listed = value.get(place)
    return isinstance(listed, list) and any(
        isinstance(one, Mapping) and names <= one.keys() for one in listed
    )


def _named(value: Json, *names: str) -> dict[str, Any]:
    return {name: value[name] for name in names if name in value}
