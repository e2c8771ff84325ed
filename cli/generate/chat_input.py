"""A conversation that somebody names as the prompt: a JSON file to messages and their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...engine.errors import InputMalformed
from ..chat_options import shown_names

if TYPE_CHECKING:
    from ...engine.chat.messages import Message
    from ...engine.chat.prompt import PromptTemplate
    from ..output import Output

MOST_BYTES = 1 << 25
_SHOWN = 5
_REMEDY = (
    'give a JSON list of {"role": ..., "content": ...}, or an object with "messages" and what else '
    "the template takes"
)


@dataclass(frozen=True)
class ChatInput:
    """A conversation.

    Attributes
    ----------
    messages : in one form, to be rendered by ``template``
    template : with the variables that the file sets
    text : of the prompt
    stop : texts that end the answer
    """

    messages: Sequence[Message]
    template: PromptTemplate
    text: str
    stop: tuple[str, ...] = ()


def read_chat(path: str, template: PromptTemplate, out: Output) -> ChatInput:
    """Read and render a conversation, and say what of it is not used.

    Raises
    ------
    InputUnreadable : the file
    InputMalformed : it holds no conversation
    ChatTemplateUnusable : the template does not like it
    """
    from ...engine.chat.messages import NotAChat
    from ...engine.chat.request import ChatRequest
    from ...engine.json_text import NotJson, json_of
    from ...engine.plain_file import read_small

    data = read_small(path, MOST_BYTES, path, stdin=True)
    name = "standard input" if path == "-" else path
    try:
        value = json_of(
            data,
            on_halves=lambda: out.warn(
                f"{name}: halves of surrogate pairs, which stand for no character, are read as "
                "U+FFFD"
            ),
        )
        request = ChatRequest.of(value, template)
    except (NotAChat, NotJson) as error:
        raise InputMalformed(f"{name} holds no conversation ({error})", remedy=_REMEDY) from error
    if request.unused:
        out.note(f"{name}: not used: {shown_names(list(request.unused))}")
    chat = request.chat
    if chat.messages[-1]["role"] == "assistant":
        out.warn(f"{name} ends with an answer: another one is asked for, where llama-server goes "
                 "on with it")  # fmt: skip
    filled = template.with_values(chat.values)
    text = filled.render(chat.messages)
    for kind, n in chat.dropped.counts.items():
        out.warn(f"{name}: left out: {n} times {kind.what}")
    warn_of_lost(chat.messages, text, filled, name, out)
    return ChatInput(chat.messages, filled, text, request.stop)


def warn_of_lost(
    messages: Sequence[Message], text: str, template: PromptTemplate, name: str, out: Output
) -> None:
    """Say what of a conversation is not in its text."""
    from ...engine.chat.prompt import not_shown

    lost: dict[str, list[int]] = {}
    for place, what in not_shown(text, messages, template.abilities):
        role = messages[place]["role"]
        lost.setdefault(f"{what} of {shown_names([role])}", []).append(place + 1)
    for what, places in lost.items():
        more = ", ..." if len(places) > _SHOWN else ""
        shown = ", ".join(map(str, places[:_SHOWN])) + more
        out.warn(f"{name}: the chat template does not show the {what} (message {shown})")
