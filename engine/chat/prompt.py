"""One conversation to the text of a prompt: what every command does that renders a single one.

Whatever form the messages have, they go the way that those of a replayed log go: into one form
(``messages.py``), then into the one that the template takes (``abilities.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .abilities import Abilities, adapted
from .batch import BatchRenderer
from .messages import (
    READ,
    Chat,
    Message,
    NotAChat,
    add_message,
    parsed,
    shallow,
    texts_of,
)
from .template import ChatTemplate

# A longer text that does not stand in a prompt as it is, is looked for by its ends alone.
_LONG_TEXT, _END_LINES = 1 << 16, 8
_THOUGHT = "</think>"


@dataclass(frozen=True)
class PromptTemplate(ChatTemplate):
    """A chat template that takes messages of any form.

    Attributes
    ----------
    values : variables of the template, as far as ``render`` is not given others.
    """

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def adapting(
        cls, template: ChatTemplate, values: Mapping[str, Any] | None = None
    ) -> PromptTemplate:
        """A template that adapts what it is given to what the other one takes."""
        return cls(
            template.path, template.source, template.bos_token, template.eos_token, values or {}
        )

    def with_values(self, values: Mapping[str, Any]) -> PromptTemplate:
        """The same with other variables before its own; nothing is tried out anew."""
        changed = replace(self, values={**self.values, **values})
        if "abilities" in self.__dict__:
            changed.__dict__["abilities"] = self.abilities
        return changed

    @cached_property
    def abilities(self) -> Abilities:
        """What the template takes; found at the first use, which takes some 0.2 s.

        Raises
        ------
        ChatTemplateUnusable : the template is wrong
        """
        with BatchRenderer(self) as renderer:
            return Abilities.of(self, renderer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **values: Any,
    ) -> str:
        """The text of a conversation; see ``ChatTemplate.render``.

        Raises
        ------
        ChatTemplateUnusable : as there; or a message makes no sense
        """
        chat = Chat()
        try:
            for message in messages:
                add_with_fields(chat, message, self.source)
            taken = adapted(chat.messages, self.abilities)
        except NotAChat as error:
            raise self.unusable(str(error)) from None
        known = self.abilities.filled({**self.values, **values})
        return super().render(taken, add_generation_prompt, **known)


def add_with_fields(chat: Chat, message: Mapping[str, Any], source: str) -> list[str]:
    """Add a message as ``add_message`` does, and with what else of it a template looks at.

    Parameters
    ----------
    source : the template.

    Returns
    -------
    unused : names of fields that nothing is made of.

    Raises
    ------
    NotAChat : see ``add_message``
    """
    n_before = len(chat.messages)
    add_message(chat, message)
    more = [name for name in message if name not in READ and message[name] not in (None, [], "")]
    if len(chat.messages) != n_before + 1:
        return more
    used = {name: shallow(message[name]) for name in more if _is_named(source, name)}
    chat.messages[-1] |= used
    return [name for name in more if name not in used]


def _is_named(source: str, field_name: str) -> bool:
    """Whether a template looks at a field of that name."""
    return bool(re.search(rf"(?:\.|\[\s*['\"]|\(\s*['\"]){re.escape(field_name)}\b", source))


def not_shown(
    text: str, messages: Sequence[Message], abilities: Abilities
) -> Iterator[tuple[int, str]]:
    """Yield (place, what) of each message that a rendered text does not show all of.

    A text may stand there as JSON writes it, and each of its lines by itself. Thoughts are not
    looked for: most templates drop those of earlier answers, as their models want it.
    """
    for place, message in enumerate(messages):
        texts = texts_of(message)
        if message["role"] == "assistant":
            texts = [one.rpartition(_THOUGHT)[2] for one in texts]
        if not all(_is_shown(one.strip(), text) for one in texts):
            yield place, "text"
        called = [word for call in message.get("tool_calls", ()) for word in _words_of(call)]
        if called and not (abilities.calls and all(_is_shown(one.strip(), text) for one in called)):
            yield place, "tool calls"


def _words_of(call: Message) -> list[str]:
    """The name of a tool that is called, and the texts among the arguments."""
    function = call["function"]
    given = function["arguments"]
    found, level = [function["name"]], [parsed(given) if isinstance(given, str) else given]
    while level:
        found += [one for one in level if isinstance(one, str)]
        level = [
            inner
            for one in level
            if isinstance(one, list | Mapping)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        ]
    return found


def _is_shown(wanted: str, text: str) -> bool:
    if wanted in text or _in_json(wanted, text):
        return True
    lines = wanted.splitlines()
    if len(wanted) > _LONG_TEXT:
        lines = [*lines[:_END_LINES], *lines[-_END_LINES:]]
    return all(line.strip() in text or _in_json(line.strip(), text) for line in lines)


def _in_json(wanted: str, text: str) -> bool:
    """Whether a text stands there as JSON writes it."""
    return any(json.dumps(wanted, ensure_ascii=it)[1:-1] in text for it in (False, True))
