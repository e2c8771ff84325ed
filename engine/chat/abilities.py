"""What a chat template takes, found by trying it out, and messages changed to be that.

What a template does not take is changed as llama.cpp (build 11434, common/chat.cpp) changes it:
parts of a text are joined by newlines, a system message that the template does not know goes into
the message after it, arguments of tool calls are parsed or written out, no content is an empty
one, and the developer is the system. Beyond that, where llama.cpp loses a text or gives up: parts
are joined for each role whose parts the template does not show, a second system message joins the
first, a later one the user's message after it, and ids of calls become nine letters and digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .batch import BatchedChat, BatchRenderer
from .messages import Message, NotAChat, shallow
from .template import ChatTemplate

# Names that templates have for whether thoughts of earlier answers are shown, and what says so.
_PRESERVED = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
_SET_WITH = {
    "preserve_reasoning": tuple(_PRESERVED),
    "reasoning_effort": ("reasoning_strength",),
}
_SYSTEMS = ("system", "developer")
_ONE, _TWO = "markone", "marktwo"
_CALL = {"name": "markname", "arguments": {"markargument": "markvalue"}}
_CALL_ID, _OTHER_ID = "call00001", "call_1"
_TOOL = {
    "type": "function",
    "function": {
        "name": "othername",
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"other": {"type": "string", "description": "What."}},
            "required": ["other"],
        },
    },
}


@dataclass(frozen=True)
class Abilities:
    """What a template takes.

    Attributes
    ----------
    text : a content that is a text; else all are lists of parts.
    parts : roles whose content may be a list of parts.
    system : messages of the system.
    systems : several of them at the begin.
    late_system : one after other messages.
    calls : calls of tools.
    objects : arguments of tool calls that are objects.
    any_id : ids of tool calls that are not nine letters and digits.
    developer : it knows the developer.
    thinking : it calls thoughts so.
    variables : what it asks for: names that it does not set itself.
    no_tools : what it is given as ``tools`` where there are none: None, or an empty list.
    """

    text: bool = True
    parts: frozenset[str] = frozenset()
    system: bool = True
    systems: bool = True
    late_system: bool = True
    calls: bool = True
    objects: bool = False
    any_id: bool = True
    developer: bool = False
    thinking: bool = False
    variables: frozenset[str] = frozenset()
    no_tools: tuple[()] | None = None

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Variables with those that llama.cpp sets too: it thinks unless told not to, and where
        templates have several names for how long to think, and for whether thoughts of earlier
        answers are shown, it sets all of them."""
        none: list[Any] | None = None if self.no_tools is None else []
        known: dict[str, Any] = {"enable_thinking": True, "tools": none}
        preserves, effort = values.get("preserve_reasoning"), values.get("reasoning_effort")
        if isinstance(preserves, bool):
            known |= {name: shows == preserves for name, shows in _PRESERVED.items()}
        if isinstance(effort, str):
            known["reasoning_strength"] = effort
        return known | dict(values)

    def asks_for(self, name: str) -> bool:
        """Whether a variable can change anything: it, or one that ``filled`` sets with it, is
        among those that the template asks for."""
        return not self.variables.isdisjoint({name, *_SET_WITH.get(name, ())})

    @classmethod
    def of(cls, template: ChatTemplate, renderer: BatchRenderer) -> Abilities:
        """Try the template out.

        Raises
        ------
        ChatTemplateUnusable : see ``BatchRenderer.render_all``
        """
        trials = _Trials(renderer)
        no_tools: tuple[()] | None = None
        shown = trials.run({"text": [_said("user", _ONE)], "parts": [_said("user", [_ONE])]})
        if not any(_ONE in text for text in shown.values()):
            trials.tools = []
            shown = trials.run({"text": [_said("user", _ONE)], "parts": [_said("user", [_ONE])]})
            if any(_ONE in text for text in shown.values()):
                no_tools = ()
            else:
                trials.tools = None
        text = _ONE in shown["text"] or _ONE not in shown["parts"]
        shown = trials.run(_trials_of(as_parts=not text))
        calls = trials.run(_calls_of(as_parts=not text), [_TOOL])
        roles = ("user", "system", "assistant", "tool")
        return cls(
            text=text,
            parts=frozenset(roles if not text else filter(_Shown(shown, calls).takes_parts, roles)),
            system=_ONE in shown["system"],
            systems=_both(shown["systems"]),
            late_system=_both(shown["late system"]),
            calls=any("markname" in text for text in (calls["object"], shown["bare call"])),
            objects=_is_object(calls["object"]) or _is_object(shown["bare call"]),
            any_id=not calls["object"] or bool(calls["other id"]),
            developer="<|channel|>" in template.source,
            thinking=".thinking" in template.source,
            variables=renderer.variables,
            no_tools=no_tools,
        )


@dataclass
class _Trials:
    """Small conversations put through a template.

    Attributes
    ----------
    tools : where there are none.
    """

    renderer: BatchRenderer
    tools: list[Any] | None = None

    def run(
        self, trials: Mapping[str, list[Message]], tools: list[Any] | None = None
    ) -> dict[str, str]:
        """The text of each trial, "" where the template fails."""
        values = {"enable_thinking": True, "tools": tools or self.tools}
        jobs = [BatchedChat(one, [(len(one), False)], values) for one in trials.values()]
        texts = [one.texts[0][1] if one.texts else "" for one in self.renderer.render_all(jobs)]
        return dict(zip(trials, texts, strict=True))


@dataclass(frozen=True)
class _Shown:
    """What trials without and with tools came to."""

    plain: Mapping[str, str]
    calls: Mapping[str, str] = field(default_factory=dict)

    def takes_parts(self, role: str) -> bool:
        """Whether one part is shown as the text is, and no word of a second is lost."""
        shown = self.calls if role == "tool" else self.plain
        whole, one, two = (shown[f"{role} {form}"] for form in ("text", "part", "parts"))
        return _ONE in whole and one == whole and _both(two)


def _trials_of(*, as_parts: bool) -> dict[str, list[Message]]:
    """Trials without tools."""

    def said(role: str, text: str) -> Message:
        return _said(role, [text] if as_parts else text)

    user, answer, asked = said("user", "Hello"), said("assistant", "Yes."), said("user", "And?")
    call = _called(said("assistant", ""), _CALL_ID, _CALL)
    contents: dict[str, str | list[str]] = {"text": _ONE, "part": [_ONE], "parts": [_ONE, _TWO]}
    return {
        **{f"user {form}": [_said("user", content)] for form, content in contents.items()},
        **{f"system {form}": [_said("system", one), user] for form, one in contents.items()},
        **{
            f"assistant {form}": [user, _said("assistant", one), asked]
            for form, one in contents.items()
        },
        "system": [said("system", _ONE), user],
        "systems": [said("system", _ONE), said("system", _TWO), user],
        "late system": [said("system", _ONE), user, answer, said("system", _TWO), asked],
        "bare call": [user, call],
    }


def _calls_of(*, as_parts: bool) -> dict[str, list[Message]]:
    """Trials of tool calls and what they came to."""

    def said(role: str, text: str) -> Message:
        return _said(role, [text] if as_parts else text)

    def trial(result: Message, call_id: str = _CALL_ID) -> list[Message]:
        call = _called(said("assistant", ""), call_id, _CALL)
        told = result | {"tool_call_id": call_id, "name": "markname"}
        return [said("user", "Hello"), call, told, said("assistant", "Yes."), said("user", "And?")]

    return {
        "tool text": trial(_said("tool", _ONE)),
        "tool part": trial(_said("tool", [_ONE])),
        "tool parts": trial(_said("tool", [_ONE, _TWO])),
        "object": trial(said("tool", _ONE)),
        "other id": trial(said("tool", _ONE), _OTHER_ID),
    }


def _said(role: str, content: str | list[str]) -> Message:
    if isinstance(content, list):
        return {"role": role, "content": [{"type": "text", "text": text} for text in content]}
    return {"role": role, "content": content}


def _called(message: Message, call_id: str, function: Message) -> Message:
    return message | {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def _both(text: str) -> bool:
    return _ONE in text and _TWO in text


def _is_object(text: str) -> bool:
    # one that is written as Python writes it was not meant to be an object
    return "markvalue" in text and "'markargument'" not in text


# ---- messages


def adapted(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """The messages as the template takes them.

    Raises
    ------
    NotAChat : a tool call whose arguments are no JSON, for a template that wants objects
    """
    return _with_systems([_adapted(message, abilities) for message in messages], abilities)


def _with_systems(messages: Sequence[Message], abilities: Abilities) -> list[Message]:
    """The messages with what the system says where the template shows it."""
    changed: list[Message] = []
    waiting: list[Message] = []  # goes into the message after it
    for message in messages:
        is_system = message["role"] in _SYSTEMS
        if is_system and not changed and not abilities.system:
            waiting.append(message)
        elif is_system and changed and _are_systems(changed) and not abilities.systems:
            changed[-1] = _joined([changed[-1], message], abilities)
        elif is_system and changed and not _are_systems(changed) and not abilities.late_system:
            waiting.append(message)
        else:
            if waiting and changed and message["role"] != "user":
                changed.append(_joined(waiting, abilities) | {"role": "user"})
                waiting = []
            changed.append(_joined([*waiting, message], abilities) if waiting else message)
            waiting = []
    if waiting and changed:
        changed.append(_joined(waiting, abilities) | {"role": "user"})
    return changed


def _are_systems(messages: Sequence[Message]) -> bool:
    return all(message["role"] in _SYSTEMS for message in messages)


def _joined(messages: Sequence[Message], abilities: Abilities) -> Message:
    """The last of the messages with the texts of all."""
    texts = [text_of(message["content"]) for message in messages]
    return messages[-1] | {"content": _content("\n".join(texts), abilities)}


def _adapted(message: Message, abilities: Abilities) -> Message:
    changed = dict(message)
    if message["role"] == "developer" and not abilities.developer:
        changed["role"] = "system"
    content = message["content"]
    if isinstance(content, str) or changed["role"] not in abilities.parts:
        changed["content"] = _content(text_of(content), abilities)
    if "tool_calls" in message:
        changed["tool_calls"] = [_call(call, abilities) for call in message["tool_calls"]]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _id(message["tool_call_id"], abilities)
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
            arguments = shallow(json.loads(arguments or "{}"))
        except (ValueError, RecursionError):
            raise NotAChat("a tool call whose arguments are no JSON") from None
    elif not abilities.objects and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    changed = call | {"function": function | {"arguments": arguments}}
    return changed | {"id": _id(call["id"], abilities)} if "id" in call else changed


def _id(text: str, abilities: Abilities) -> str:
    """The id of a call, nine letters and digits if it has to be that."""
    if abilities.any_id or (len(text) == 9 and text.isascii() and text.isalnum()):
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:9]
