"""Conversations whose messages are values of their own, a line each, in data sets and exports.

OpenAssistant's messages name the one they answer; SillyTavern's chats are a heading and then one
message after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...engine.chat.messages import Chat, Json, NotAChat, add_message, has_text
from .agents import Line
from .trees import roots_of

_ANOTHER = "answer that was ranked lower"
_NO_RANK = 1e9


def is_tavern_heading(value: object) -> bool:
    """Whether a value is the first line of a chat of SillyTavern."""
    if not isinstance(value, Mapping) or "messages" in value:
        return False
    return "chat_metadata" in value or {"user_name", "character_name"} <= value.keys()


def is_tavern_line(value: object) -> bool:
    """Whether a value is a message of SillyTavern."""
    return isinstance(value, Mapping) and {"mes", "is_user"} <= value.keys()


def chats_of_tavern(lines: Sequence[Line]) -> Iterator[tuple[str, Chat | str]]:
    """Yield (place, the conversation with the answers that were chosen, or why it is none)."""
    try:
        yield lines[0].place, _tavern(lines)
    except NotAChat as error:
        yield lines[0].place, str(error)


def _tavern(lines: Sequence[Line]) -> Chat:
    chat = Chat()
    for place, value in lines:
        if not is_tavern_line(value):
            continue
        chat.dropped.here = place
        more = value.get("extra")
        extra: Json = more if isinstance(more, Mapping) else {}
        if value.get("is_system"):  # shown to the user, and not to the model
            chat.dropped.add("message that was hidden from the model")
            continue
        for name in ("image", "file", "media", "files"):
            if extra.get(name):
                chat.dropped.add("attachment", name)
        is_narrator = extra.get("type") == "narrator"
        role = "user" if value["is_user"] else "system" if is_narrator else "assistant"
        message = {"role": role, "content": value["mes"]}
        if role == "assistant" and has_text(extra, "reasoning"):
            message["reasoning_content"] = extra["reasoning"]
        add_message(chat, message)
    return chat


def is_reply(value: object) -> bool:
    """Whether a value is a message of OpenAssistant."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("message_id"), str | int)
        and isinstance(value.get("text"), str)
        and isinstance(value.get("role"), str)
        and "parent_id" in value
    )


def chats_of_replies(lines: Sequence[Line]) -> Iterator[tuple[str, Chat | str]]:
    """Yield (place, conversation or the reason why it is none) of each tree of messages.

    Of several answers the one that was ranked first is taken, or else the first one.
    """
    lines_of = {str(line.value["message_id"]): line for line in lines[::-1]}
    parents = {name: _parent(line) for name, line in reversed(lines_of.items())}
    replies: dict[str, list[str]] = {}
    for name, parent in parents.items():
        if parent is not None:
            replies.setdefault(parent, []).append(name)
    sizes: dict[str | None, int] = {}
    roots = roots_of(parents)
    for root in roots.values():
        sizes[root] = sizes.get(root, 0) + 1
    for name, root in roots.items():
        place = lines_of[name].place
        if root is None:
            yield place, "messages that follow one another in a circle"
        elif root == name and parents[name] is not None:
            yield place, "an answer to a message that is not in the file"
        elif root == name:
            yield place, _branch(name, lines_of, replies, sizes[root])


def _branch(root: str, lines: Mapping[str, Line], replies: Json, size: int) -> Chat | str:
    chat = Chat()
    name, n = root, 0
    try:
        while True:
            line = lines[name]
            add_message(chat, {"role": line.value["role"], "content": line.value["text"]})
            n += 1
            following = replies.get(name)
            if not following:
                break
            name = min(following, key=lambda one: _rank(lines[one].value))
    except NotAChat as error:
        return str(error)
    if size > n:
        chat.dropped.add(_ANOTHER, place=lines[root].place, n=size - n)
    return chat


def chat_of_reply_tree(value: Json) -> Chat:
    """{"message_tree_id", "prompt": {"text", "role", "replies": [...]}}: a tree of OpenAssistant.

    Raises
    ------
    NotAChat : a message that is no text
    """
    chat = Chat()
    node: Any = value["prompt"]
    while True:
        if not isinstance(node, Mapping):
            raise NotAChat("a message that is no object")
        add_message(chat, {"role": node.get("role"), "content": node.get("text")})
        listed = node.get("replies")
        replies = listed if isinstance(listed, list) else []
        following = [one for one in replies if isinstance(one, Mapping)]
        if not following:
            return chat
        if len(following) > 1:
            chat.dropped.add(_ANOTHER, n=len(following) - 1)
        node = min(following, key=_rank)


def _parent(line: Line) -> str | None:
    parent = line.value["parent_id"]
    return str(parent) if isinstance(parent, str | int) and parent != "" else None


def _rank(value: Json) -> tuple[bool, float]:
    """What is the least for the answer that is taken; one that was deleted comes last."""
    rank = value.get("rank")
    if not isinstance(rank, int | float) or not abs(rank) < _NO_RANK:
        rank = _NO_RANK
    return bool(value.get("deleted")), rank
