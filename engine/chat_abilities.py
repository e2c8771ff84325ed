"""What a chat template takes, found by trying it out, and messages changed to be that.

What a template does not take is changed as llama.cpp (build 11434, common/chat.cpp) changes it:
parts of a text are joined by newlines, a system message that the template does not know goes into
the message behind it, arguments of tool calls are parsed or written out, no content is an empty
one, and the developer is the system.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .chat import ChatTemplate
from .chat_batch import BatchRenderer, Conversation
from .chat_messages import Message, NotAChat

_MARK, _OTHER_MARK = "markone", "marktwo"
_CALL = {"name": "markname", "arguments": {"markargument": "markvalue"}}


@dataclass(frozen=True)
class Abilities:
    """What a template takes.

    Attributes
    ----------
    text, parts : a content that is a text; one that is a list of parts.
    system : messages of the system.
    objects : arguments of tool calls that are objects.
    developer : it knows the developer.
    thinking : it calls thoughts so.
    """

    text: bool = True
    parts: bool = False
    system: bool = True
    objects: bool = False
    developer: bool = False
    thinking: bool = False

    @classmethod
    def of(cls, template: ChatTemplate, renderer: BatchRenderer) -> Abilities:
        """Try the template out.

        Raises
        ------
        ChatTemplateUnusable : see ``BatchRenderer.render_all``
        """

        def tried(*trials: list[Message]) -> list[str]:
            """The texts of trials, "" where the template fails."""
            jobs = [
                Conversation(one, [(len(one), False)], {"enable_thinking": True}) for one in trials
            ]
            return [one.texts[0][1] if one.texts else "" for one in renderer.render_all(jobs)]

        def said(role: str, text: str, *, as_parts: bool, **more: Any) -> Message:
            content = [{"type": "text", "text": text}] if as_parts else text
            return {"role": role, "content": content, **more}

        text, parts = tried(*([said("user", _MARK, as_parts=it)] for it in (False, True)))
        as_parts = _MARK in parts and _MARK not in text
        user = said("user", _MARK, as_parts=as_parts)
        call = {"id": "call00001", "type": "function", "function": _CALL}
        system, objects = tried(
            [said("system", _OTHER_MARK, as_parts=as_parts), user],
            [user, said("assistant", "", as_parts=as_parts, tool_calls=[call])],
        )
        return cls(
            text=not as_parts,
            parts=_MARK in parts and "'text'" not in parts,
            system=_OTHER_MARK in system,
            # one that is written as Python writes it was not meant to be an object
            objects="markvalue" in objects and "'markargument'" not in objects,
            developer="<|channel|>" in template.source,
            thinking=".thinking" in template.source,
        )


def adapted(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """The messages as the template takes them.

    Raises
    ------
    NotAChat : a tool call whose arguments are no JSON, for a template that wants objects
    """
    changed = [_adapted(message, abilities) for message in messages]
    if abilities.system or not changed or changed[0]["role"] != "system":
        return changed
    if len(changed) > 1:
        texts = [text_of(message["content"]) for message in changed[:2]]
        changed[1] |= {"content": _content("\n".join(texts), abilities)}
    return changed[1:]


def _adapted(message: Message, abilities: Abilities) -> Message:
    content, role = message["content"], message["role"]
    changed = dict(message)
    if not (isinstance(content, list) and abilities.parts):
        changed["content"] = _content(text_of(content), abilities)
    if role == "developer" and not abilities.developer:
        changed["role"] = "system"
    if "tool_calls" in message:
        changed["tool_calls"] = [_call(call, abilities) for call in message["tool_calls"]]
    if abilities.thinking and "reasoning_content" in message:
        changed["thinking"] = message["reasoning_content"]
    return changed


def _content(text: str, abilities: Abilities) -> str | list[Message]:
    return text if abilities.text else [{"type": "text", "text": text}]


def text_of(content: str | list[Message]) -> str:
    """The text of a content, its parts joined by newlines."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _call(call: Message, abilities: Abilities) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    if abilities.objects and isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise NotAChat("a tool call whose arguments are no JSON") from None
    elif not abilities.objects and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}
