"""Messages of a conversation, whatever they come from, in the one form that draftsmith works on.

Roles, contents, thoughts and tool calls go by several names. Here they get one each, and a message
that makes no sense is refused; ``abilities.py`` then makes of them what a template takes. A
reason why a value is no conversation never holds a word of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .blocks import kind_of, opened
from .dropped import Dropped

Json = Mapping[str, Any]
Message = dict[str, Any]

# An export's own names for those who speak; other names stay, and the template has its say.
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "chatbot": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "prompter": "user",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "function-response": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
_TEMPLATE_ROLES = ("user", "assistant", "system", "developer", "tool")
_CALLS = ("function_call", "function-call", "tool_call")
REASONING = ("reasoning_content", "reasoning", "thinking", "reasoningContent")
# Variables that a template gets from elsewhere.
TAKEN = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
# Lists of thoughts, by the type of those that are a text, and where they have it.
_THOUGHTS = {"reasoning.text": "text", "thinking": "thinking"}
_THOUGHT_LISTS = ("reasoning_details", "thinking_blocks")
# Where a message has what was said.
_CONTENTS = ("content", "value", "text", "parts", "message")
# What is no text, and stands beside it.
MEDIA = ("image", "images", "audio", "audios", "video", "videos", "attachments")
# Fields of a message that are read; where a template has one of the others, it may be passed on.
READ = frozenset(
    {"role", "from", "tool_calls", "function_call", "tool_call_id", "name"}
    | {*REASONING, *_THOUGHT_LISTS, *_CONTENTS, *MEDIA}
)
_ARGUMENTS = ("arguments", "args", "parameters", "input")
_TEXT_PARTS = ("text", "input_text", "output_text")
# Nothing honest goes deeper, and JSON can be written again.
_DEEPEST = 100


class NotAChat(Exception):
    """A value that is no conversation; its message is the reason, a fixed text."""


@dataclass
class Chat:
    """A conversation as it was logged.

    Attributes
    ----------
    messages : each with ``role`` and ``content`` (a text, or a list of parts {"type": "text",
        "text": ...}), and ``reasoning_content``, ``tool_calls``, ``tool_call_id`` and ``name``
        where there are such.
    values : further variables of the template.
    dropped : what was left out: blocks that are no text, such as images, and the like.
    asked : of a request with its response: how many messages the request has.
    generated : which messages a model generated here; None: each of the assistant's.
    prefills : by message, what its request had of it already.
    cut : messages whose generation was ended from outside, by a limit of tokens.
    is_raw : the messages are one text, which went to the model without a template.
    beside : messages that stand beside the others: the system's.
    response_id, follows : names of the response, and of the one that the request goes on from.
    unanswered : why there is no answer, if that is known.
    is_trace : nothing before it may be in the log, so that its history was generated, too.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    dropped: Dropped = field(default_factory=Dropped)
    asked: int | None = None
    generated: set[int] | None = None
    prefills: dict[int, str] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    is_raw: bool = False
    beside: int = 0
    response_id: str = ""
    follows: str = ""
    unanswered: str = ""
    is_trace: bool = False

    def drop_first(self) -> None:
        """Take the first message away."""
        del self.messages[0]
        self.asked = None if self.asked is None else self.asked - 1
        self.prefills = {i - 1: text for i, text in self.prefills.items()}
        self.cut = {i - 1 for i in self.cut}
        self.beside = max(0, self.beside - 1)

    @property
    def n_media(self) -> int:
        """All that was left out."""
        return self.dropped.n


def add_messages(chat: Chat, messages: Iterable[object]) -> None:
    """Add each of the messages; raises NotAChat as ``add_message`` does."""
    for message in messages:
        if not isinstance(message, Mapping):
            raise NotAChat("a message that is no object")
        add_message(chat, message)


def add_message(chat: Chat, message: Json) -> None:
    """Add a message in the form that templates take; one made of blocks may come to several.

    Raises
    ------
    NotAChat : it has no role, or something that cannot be read
    """
    role = message.get("role", message.get("from"))
    is_answer = isinstance(role, str) and role_of(role) == "assistant"
    for one in opened(message, is_answer=is_answer):
        _add(chat, one)


def _add(chat: Chat, message: Json) -> None:
    role = message.get("role", message.get("from"))
    if not isinstance(role, str) or not role:
        raise NotAChat("a message without a role")
    role_known = role_of(role)
    found = message.get(first_of(message, _CONTENTS))
    if role_known != "assistant" and not any(name in message for name in _CONTENTS):
        raise NotAChat("a message without a content")
    said = _said(found, is_tool=role_known == "tool")
    content = content_of(chat, said, of_answer=role_known == "assistant")
    count_media(chat, message, of_answer=role_known == "assistant")
    added: dict[str, Any] = {"role": role_known, "content": content}
    calls = calls_of(message)
    if role in _CALLS:
        calls = _call_in_words(added["content"])
        added |= {"role": "assistant"} | ({"content": ""} if calls else {})
    if calls:
        added["tool_calls"] = calls
    thoughts = _thoughts_of(chat, message)
    if thoughts:
        added["reasoning_content"] = thoughts
    for name in ("tool_call_id", "name"):
        if isinstance(message.get(name), str):
            added[name] = message[name]
    chat.messages.append(added)


def count_media(chat: Chat, value: Json, *, of_answer: bool = False) -> None:
    """Count images, sounds and files that stand beside a text."""
    for name in MEDIA:
        found = value.get(name)
        if found:
            n = len(found) if isinstance(found, list) else 1
            chat.dropped.add("field", name, of_answer=of_answer, n=n)


def is_message(value: object) -> bool:
    """Whether a value is a message, and a list that begins with it one conversation."""
    if not isinstance(value, Mapping) or {"message_id", "parent_id"} <= value.keys():
        return False  # a message of a tree, whose list may hold several
    return "role" in value or "from" in value


def role_of(role: str) -> str:
    """The name of a role that templates know; the role itself if it is another."""
    name = role.lower()
    return ROLES.get(name, name if name in _TEMPLATE_ROLES else role)


def _said(content: object, *, is_tool: bool) -> object:
    """A content that may be read; what a tool said as an object is JSON, as a client sends it."""
    if isinstance(content, Mapping) and isinstance(content.get("parts"), list):
        return content["parts"]
    is_block = isinstance(content, str | None) or bool(kind_of(content)) or (
        isinstance(content, Mapping) and ("text" in content or "content_type" in content)
    )  # fmt: skip
    if isinstance(content, list):
        is_block = all(isinstance(one, str | None) or kind_of(one) for one in content)
    if is_tool and not is_block:
        return json.dumps(shallow(content), ensure_ascii=False)
    if isinstance(content, Mapping) and not is_block:
        raise NotAChat("a content that is no text")
    return content


def _thoughts_of(chat: Chat, message: Json) -> str:
    """What was thought before an answer; "" if it is not known."""
    name = first_of(message, REASONING)
    if name and has_text(message, name):
        return str(message[name])
    texts: list[str] = []
    for name in _THOUGHT_LISTS:
        listed = message.get(name)
        for one in listed if isinstance(listed, list) and not texts else []:
            kind = kind_of(one)
            if kind in _THOUGHTS and has_text(one, _THOUGHTS[kind]):
                texts.append(one[_THOUGHTS[kind]])
            else:
                chat.dropped.add("block", kind, of_answer=True)
    return "".join(texts)


def content_of(chat: Chat, said: object, *, of_answer: bool = False) -> str | list[dict[str, str]]:
    """A text, or the texts of several parts; what is no text is counted by its type."""
    parts = said if isinstance(said, list) else [said]
    texts = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Mapping):
            kind = _part_kind(part)
            text = part.get("text") if kind in _TEXT_PARTS else part.get("refusal")
            if isinstance(text, Mapping):  # with notes beside it
                text = text.get("value")
            if not isinstance(text, str):
                chat.dropped.add("block", kind, of_answer=of_answer)
                continue
            part = text
        if not isinstance(part, str):
            raise NotAChat("a content that is no text")
        texts.append(part)
    if len(texts) < 2:
        return texts[0] if texts else ""
    return [{"type": "text", "text": text} for text in texts]


def _part_kind(part: Json) -> object:
    """The type of a part; without one it is a text, or known by its first field."""
    return part.get(
        "type", part.get("content_type", "text" if "text" in part else next(iter(part), None))
    )


def texts_of(message: Message) -> list[str]:
    """The texts of a message that ``add_message`` made."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def calls_of(message: Json) -> list[dict[str, Any]]:
    """The tools that a message calls, in OpenAI's form."""
    listed = message.get("tool_calls")
    old = message.get("function_call")
    calls = listed if isinstance(listed, list) else [old] if isinstance(old, Mapping) else []
    return [call_of(one) for one in calls]


def call_of(call: object) -> dict[str, Any]:
    """One call, in OpenAI's form; raises NotAChat if it has no name."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    custom = call.get("custom") if isinstance(call, Mapping) else None
    if isinstance(custom, Mapping):  # a tool that takes a text, and no object
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise NotAChat("a tool call without a name")
    arguments = function.get(first_of(function, _ARGUMENTS))
    if not isinstance(arguments, str | Mapping):
        arguments = {} if arguments is None else json.dumps(shallow(arguments))
    made: dict[str, Any] = {
        "type": "function",
        "function": {"name": function["name"], "arguments": shallow(arguments)},
    }
    assert isinstance(call, Mapping)
    if isinstance(call.get("id"), str):
        made["id"] = call["id"]
    return made


def _call_in_words(said: object) -> list[dict[str, Any]]:
    """The call that a text holds as JSON; none if it does not."""
    found = parsed(said) if isinstance(said, str) else None
    named = isinstance(found, Mapping) and isinstance(found.get("name"), str)
    return [call_of(found)] if named else []


def shallow(value: Any) -> Any:
    """The value, if it is not nested without end."""
    depth, level = 0, [value]
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise NotAChat("values nested too deeply")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = inner
    return value


def first_of(value: Json, names: tuple[str, ...]) -> str:
    """The first of the names that the value has something for; "" if none."""
    return next((name for name in names if value.get(name) is not None), "")


def has_text(value: object, name: str) -> bool:
    """Whether the value has a text under that name that is not empty."""
    return isinstance(value, Mapping) and isinstance(value.get(name), str) and bool(value[name])


def parsed(text: str) -> Any:
    """The value that a text is as JSON; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
