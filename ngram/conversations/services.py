"""Chats as services and llama-server's own web page export them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.chat.blocks import kind_of
from ...engine.chat.messages import (
    REASONING,
    Chat,
    Json,
    NotAChat,
    add_message,
    has_text,
    parsed,
)
from .values import OTHER_BRANCH, branch_of, is_node, list_of

_CHATGPT_TEXTS = ("text", "multimodal_text", "code", "execution_output")


def of_web_page(value: Json) -> Chat:
    """llama-server's web page: {"conv": {"currNode", ...}, "messages": [nodes of a tree]}."""
    chat = Chat()
    nodes = {str(node.get("id")): node for node in list_of(value, "messages") if is_node(node)}
    current = value["conv"].get("currNode") if isinstance(value["conv"], Mapping) else None
    for node in branch_of(nodes, current, "timestamp"):
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


def of_chatgpt(value: Json) -> Chat:
    """ChatGPT's export: {"mapping": {id: {"message", "parent", "children"}}, "current_node"}."""
    chat = Chat()
    thoughts: list[str] = []
    nodes = {
        key: dict(node) | {"time": (node.get("message") or {}).get("create_time")}
        for key, node in value["mapping"].items()
        if isinstance(node, Mapping) and isinstance(node.get("message") or {}, Mapping)
    }
    for node in branch_of(nodes, value.get("current_node"), "time"):
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
            listed = listed if isinstance(listed, list) else []
            thoughts += [one["content"] for one in listed if has_text(one, "content")]
        elif kind not in _CHATGPT_TEXTS:
            chat.dropped.add("content", kind)
        if kind not in _CHATGPT_TEXTS:
            continue
        said = content.get("parts", content.get("text"))
        spoken = {"role": author.get("role"), "content": said}
        if author.get("role") == "assistant" and thoughts:
            spoken["reasoning_content"] = "\n\n".join(thoughts)
            thoughts = []
        if said not in (None, "", [""]):
            add_message(chat, spoken)
    return chat


def of_claude(value: Json) -> Chat:
    """Claude's export: {"chat_messages": [{"sender", "text", "content"}, ...]}."""
    chat = Chat()
    for one in _claude_branch(chat, list_of(value, "chat_messages"), value):
        said = one.get("content") or one.get("text")
        if isinstance(said, list):  # the service's own notes, and nothing that was said
            said = [part for part in said if kind_of(part) != "token_budget"]
        add_message(chat, {"role": one.get("sender"), "content": said})
        for name in ("attachments", "files"):
            n = len(one[name]) if isinstance(one.get(name), list) else 0
            if n:
                chat.dropped.add("field", name, n=n)
    return chat


def _claude_branch(chat: Chat, listed: list[Any], value: Json) -> list[Json]:
    """The messages; where they name the one before, those of the branch that was current last."""
    if not all(isinstance(one, Mapping) for one in listed):
        raise NotAChat("a message that is no object")
    nodes = {
        one["uuid"]: one
        for one in listed
        if has_text(one, "uuid") and has_text(one, "parent_message_uuid")
    }
    if not listed or len(nodes) < len(listed):
        return listed
    current = value.get("current_leaf_message_uuid")
    path = branch_of(nodes, current, "created_at", parent="parent_message_uuid")
    if len(nodes) > len(path):
        chat.dropped.add(OTHER_BRANCH, n=len(nodes) - len(path))
    return path


def _attached(extra: object, chat: Chat) -> tuple[list[str], list[str]]:
    """Texts of attached files, those before and those after what the user wrote."""
    before: list[str] = []
    behind: list[str] = []
    for one in extra if isinstance(extra, list) else []:
        if not isinstance(one, Mapping):
            raise NotAChat("an attachment that is no object")
        label, place = _ATTACHMENTS.get(str(one.get("type")), ("", None))
        is_shown = has_text(one, "content") and not one.get("processedAsImages")
        if place is None or not is_shown:
            chat.dropped.add("attachment", one.get("type"))
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
