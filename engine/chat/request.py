"""A request for one answer, as clients send it: what of it makes the prompt, and what is not used.

A field that the template asks for is a variable of it, as ``tools``; ``chat_template_kwargs`` holds
more of them. Fields that say how to generate, such as ``temperature``, are options of the commands
here: they are named, so that nobody takes them for used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputMalformed
from ..tokens.stop_strings import stop_field
from .abilities import adapted
from .messages import (
    TAKEN,
    Chat,
    Json,
    NotAChat,
    first_of,
    has_text,
    parsed,
    shallow,
)
from .prompt import PromptTemplate, add_with_fields

_KWARGS = "chat_template_kwargs"
_SYSTEMS = ("system", "system_prompt")
_OWN = frozenset({"messages", "tools", "functions", "stop", _KWARGS})


@dataclass(frozen=True)
class ChatRequest:
    """What a request says.

    Attributes
    ----------
    chat : messages, and variables of the template
    unused : fields that nothing is made of, and variables that the template does not ask for
    stop : texts that end the answer
    """

    chat: Chat
    unused: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: object, template: PromptTemplate) -> ChatRequest:
        """The request that a value of JSON is: a list of messages, or an object with them.

        Raises
        ------
        NotAChat : it is none, or the template cannot be given what it says
        """
        if isinstance(value, list):
            value = {"messages": value}
        if not isinstance(value, Mapping):
            raise NotAChat("neither an object nor a list")
        messages = value.get("messages")
        if not isinstance(messages, list) or not messages:
            raise NotAChat("no list of messages")
        given = values_of(value)
        chat = Chat(values=given | _more_values(value, template, given))
        asks_for = template.abilities.asks_for
        unused = [name for name in value if name not in chat.values and name not in _OWN]
        unused += [
            name if name == "tools" else f"{_KWARGS}: {name}"
            for name in given
            if not asks_for(name)
        ]
        system, first = first_of(value, _SYSTEMS), messages[0]
        is_own = isinstance(first, Mapping) and first.get("role") in ("system", "developer")
        if has_text(value, system) and not is_own:
            chat.messages.append({"role": "system", "content": value[system]})
            unused.remove(system)
        for place, message in enumerate(messages, start=1):
            unused += _add(chat, message, place, template)
        adapted(chat.messages, template.abilities)
        return cls(chat, tuple(dict.fromkeys(unused)), _stop_of(value))


def _stop_of(value: Json) -> tuple[str, ...]:
    """The texts that end the answer."""
    try:
        return stop_field(value.get("stop"))
    except InputMalformed as error:
        raise NotAChat(error.message) from error


def values_of(value: Json) -> dict[str, Any]:
    """The variables that a request sets: ``chat_template_kwargs``, and ``tools`` by both names.

    Raises
    ------
    NotAChat : they are not what they have to be, or set what cannot be set
    """
    given = value.get(_KWARGS)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise NotAChat(f"{_KWARGS} that are no object")
    if taken := sorted(TAKEN & given.keys()):
        raise NotAChat(f"{_KWARGS} with {taken[0]}, which cannot be set")
    values = dict(given)
    name = "functions" if not value.get("tools") and value.get("functions") else "tools"
    if listed := value.get(name):
        listed = parsed(listed) if isinstance(listed, str) else listed
        if not isinstance(listed, list):
            raise NotAChat(f"{name} that are no list")
        is_old = name == "functions"
        values["tools"] = (
            [{"type": "function", "function": one} for one in listed] if is_old else listed
        )
    shallow(values)
    return values


def _more_values(value: Json, template: PromptTemplate, known: Mapping[str, Any]) -> dict[str, Any]:
    """Further fields that the template asks for; raises NotAChat for those that cannot be set."""
    values = {}
    for name, one in value.items():
        if name in TAKEN - {"messages"}:
            raise NotAChat(f"{name}, which cannot be set")
        if name not in known and name not in _OWN and template.abilities.asks_for(name):
            values[name] = shallow(one)
    return values


def _add(chat: Chat, message: object, place: int, template: PromptTemplate) -> list[str]:
    """Add a message; the names of what of it is not used."""
    if not isinstance(message, Mapping):
        raise NotAChat(f"message {place} is no object")
    try:
        unused = add_with_fields(chat, message, template.source)
    except NotAChat as error:
        raise NotAChat(f"message {place}: {error}") from None
    return [f"{name} of messages" for name in unused]
