"""What a value of JSON says, if it is a conversation: messages as a chat template takes them.

The table of forms is at the end of this module; docs/conversations.md tells what is read of each. A
reason why a value is none never holds a word of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...engine.chat.messages import Chat, Json, NotAChat, add_messages, is_message
from .agents import Line, chats_of_agent, is_agent_line, is_record
from .datasets import (
    is_half,
    is_only_list,
    is_pair,
    is_preference,
    is_talk,
    messages_of_pairs,
    of_half,
    of_only_list,
    of_pair,
    of_preference,
    of_talk,
)
from .exports import (
    is_continue,
    is_libre_chat,
    is_libre_message,
    is_lm_studio,
    is_open_webui,
    of_continue,
    of_libre_chat,
    of_lm_studio,
    of_open_webui,
)
from .items import chats_of_items, is_item_line
from .lists import (
    chat_of_reply_tree,
    chats_of_replies,
    chats_of_tavern,
    is_reply,
    is_tavern_heading,
    is_tavern_line,
)
from .requests import (
    chats_of_stream,
    is_exchange,
    is_trace,
    of_exchange,
    of_trace,
)
from .responses import is_chunk
from .services import of_chatgpt, of_claude, of_web_page
from .values import chat_with, inner, is_node, list_of

NOT_KNOWN = "no conversation of a known form"
ONE_MESSAGE = "a message by itself, which does not say what conversation it is of"


# ---- formats


def of_messages(value: Json) -> Chat:
    """{"messages": [{"role", "content"}, ...]}."""
    listed = list_of(value, "messages")
    if any(is_node(one) for one in listed):
        return of_web_page({"conv": value, "messages": listed})
    chat = chat_with(value)
    add_messages(chat, listed)
    return chat


def of_sharegpt(value: Json) -> Chat:
    """{"conversations": [{"from", "value"}, ...], "system", "tools"}."""
    chat = chat_with(value)
    listed = list_of(value, "conversations" if "conversations" in value else "conversation")
    add_messages(chat, messages_of_pairs(listed) or listed)
    return chat


# ---- the forms


class Form(NamedTuple):
    """A form of one value.

    Attributes
    ----------
    name : for those who look at the list.
    knows : whether a value has it.
    read : the conversation that it is; raises NotAChat.
    """

    name: str
    knows: Callable[[Json], bool]
    read: Callable[[Json], Chat]


class Gathered(NamedTuple):
    """A form whose conversation is spread over several values of a file, one after another.

    Attributes
    ----------
    name : for those who look at the list.
    begins : whether a value is the first of such a conversation.
    goes_on : whether a value belongs to those before it, which are given too.
    keeps : whether a value that goes on is kept, or means nothing.
    joined : the value that they are together, known to a line of ``FORMS``.
    chats : instead of it, the conversations that lines are, or the reasons why they are none,
        each with its place.
    has_records : lines that hold no message, but a type, may stand before the first.
    """

    name: str
    begins: Callable[[Json], bool]
    goes_on: Callable[[Json, Sequence[Json]], bool]
    keeps: Callable[[Json], bool] = lambda value: True
    joined: Callable[[Sequence[Json]], Any] = lambda values: None
    chats: Callable[[Sequence[Line]], Iterator[tuple[str, Chat | str]]] | None = None
    has_records: bool = False


# The first that knows a value reads it: a new form is a line here, and its reader a function of a
# module that fits it.
FORMS: tuple[Form, ...] = (
    Form("ChatGPT", lambda value: isinstance(value.get("mapping"), Mapping), of_chatgpt),
    Form("Open WebUI", is_open_webui, of_open_webui),
    Form("LM Studio", is_lm_studio, of_lm_studio),
    Form("LibreChat", is_libre_chat, of_libre_chat),
    Form("Continue", is_continue, of_continue),
    Form("web page", lambda value: "conv" in value and "messages" in value, of_web_page),
    Form(
        "OpenAssistant's tree",
        lambda value: "message_tree_id" in value and "prompt" in value,
        chat_of_reply_tree,
    ),
    Form("preference", is_preference, of_preference),
    Form("request and response", is_exchange, of_exchange),
    Form("messages", lambda value: "messages" in value, of_messages),
    Form("trace", is_trace, of_trace),
    Form(
        "messages in a chat",
        lambda value: "messages" in inner(value, "chat"),
        lambda value: of_messages(value["chat"]),
    ),
    Form(
        "ShareGPT",
        lambda value: "conversations" in value or "conversation" in value,
        of_sharegpt,
    ),
    Form("Claude", lambda value: "chat_messages" in value, of_claude),
    Form("pair", is_pair, of_pair),
    Form("UltraChat", is_talk, of_talk),
    Form("one list of messages", is_only_list, of_only_list),
    Form("half of MT-bench", is_half, of_half),
)

# A form whose messages are values of their own: a line here makes one value of them first.
GATHERED: tuple[Gathered, ...] = (
    Gathered(
        "stream",
        begins=is_chunk,
        goes_on=lambda value, _: is_chunk(value),
        chats=chats_of_stream,
    ),
    Gathered(
        "agent's session",
        begins=lambda value: is_agent_line(value) or _is_heading(value),
        goes_on=lambda value, _: is_agent_line(value) or _is_record(value),
        chats=chats_of_agent,
        has_records=True,
    ),
    Gathered(
        "agent's session of items",
        begins=is_item_line,
        goes_on=lambda value, _: "payload" in value and _is_record(value),
        chats=chats_of_items,
        has_records=True,
    ),
    Gathered(
        "SillyTavern",
        begins=lambda value: is_tavern_heading(value) or is_tavern_line(value),
        goes_on=lambda value, _: is_tavern_line(value) and not is_tavern_heading(value),
        chats=chats_of_tavern,
    ),
    Gathered(
        "LibreChat's messages",
        begins=is_libre_message,
        goes_on=lambda value, before: (
            is_libre_message(value)
            and value.get("conversationId") == before[0].get("conversationId")
        ),
        joined=lambda values: {"messages": list(values)},
    ),
    Gathered(
        "OpenAssistant's messages",
        begins=is_reply,
        goes_on=lambda value, _: is_reply(value),
        chats=chats_of_replies,
    ),
    Gathered(
        "web page's session",
        begins=lambda value: value.get("type") == "session" and "messages" not in value,
        goes_on=lambda value, _: isinstance(value.get("type"), str) and value["type"] != "session",
        keeps=lambda value: value["type"] == "message" and isinstance(value.get("message"), dict),
        joined=lambda values: {"conv": values[0], "messages": [v["message"] for v in values[1:]]},
    ),
)


def _is_heading(value: Json) -> bool:
    """Whether a value is the first line of an agent's session."""
    return value.get("type") == "session" and "cwd" in value


def _is_record(value: Json) -> bool:
    """Whether a value may be a line of a session that goes on, and holds no message."""
    return is_record(value) and value.get("type") != "session" and not is_known(value)


def is_known(value: Json) -> bool:
    """Whether a value is of a known form by itself."""
    return any(form.knows(value) for form in FORMS)


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
    read = next((form.read for form in FORMS if form.knows(value)), None)
    if read is None:
        raise NotAChat(ONE_MESSAGE if is_message(value) else NOT_KNOWN)
    chat = read(value)
    roles = [message["role"] for message in chat.messages[:2]]
    if roles == ["system", "system"]:  # what stands beside the messages, and their own
        chat.drop_first()
    return chat
