"""Rows of data sets: prompts with their answers, one or several, and answers that were compared.

Where a row does not say which answer belongs to which prompt it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...engine.chat.messages import (
    Chat,
    Json,
    NotAChat,
    add_message,
    add_messages,
    first_of,
    is_message,
)
from .values import chat_with

_PROMPTS = ("prompt", "instruction", "question", "query", "input")
_ANSWERS = ("completion", "response", "output", "answer")
_TALKS = ("conversations", "conversation", "messages")
_COMPARED = (("chosen", "rejected"), ("chosen_response", "rejected_response"))
_BOTH = (("input", "output"), ("human", "assistant"), ("user", "assistant"), ("prompt", "response"))
_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):[ ]?")


# ---- pairs


def is_pair(value: Json) -> bool:
    """Whether a value has a prompt and an answer."""
    return bool(first_of(value, _PROMPTS) and first_of(value, _ANSWERS))


def of_pair(value: Json) -> Chat:
    """{"prompt", "completion"}, or other names of the two; texts, messages, or lists of texts.

    Raises
    ------
    NotAChat : it is damaged, or has several answers to one prompt
    """
    chat = chat_with(value)
    add_messages(chat, _earlier(chat, value))
    asked, answered = first_of(value, _PROMPTS), first_of(value, _ANSWERS)
    if _are_texts(value[asked]) or _are_texts(value[answered]):
        add_messages(chat, _turns(value[asked], value[answered]))
        return chat
    for said, role in ((_asked(value, asked), "user"), (value[answered], "assistant")):
        if isinstance(said, list) and all(map(is_message, said)):
            add_messages(chat, said)
        else:
            add_message(chat, {"role": role, "content": said})
    return chat


def _asked(value: Json, name: str) -> Any:
    """What stands under the name of a prompt; with an instruction what it is about, too."""
    said = value.get(name)
    more = value.get("input") or value.get("context") if name == "instruction" else None
    return f"{said}\n\n{more}" if isinstance(more, str) and isinstance(said, str) else said


def _earlier(chat: Chat, value: Json) -> Iterator[Json]:
    """Yield what was said before, where a row has it as pairs of texts."""
    history = value.get("history")
    if not history:
        return
    if isinstance(history, list) and all(map(is_message, history)):
        yield from history
        return
    is_known = isinstance(history, list) and all(
        _are_texts(pair) and len(pair) == 2 for pair in history
    )
    if not is_known:
        chat.dropped.add("field", "history")
        return
    for pair in history:
        yield from _alternating(pair)


def _turns(prompt: Any, answer: Any) -> Iterator[Json]:
    """Yield the messages of a list of prompts and one of answers."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    answers = [answer] if isinstance(answer, str) else answer
    if not _are_texts(prompts) or not _are_texts(answers):
        raise NotAChat("a list of texts beside what is none")
    n = len(answers)
    if len(prompts) not in (n, n + 1):
        raise NotAChat("lists of prompts and of answers that are not of one length")
    for number, text in enumerate(prompts):
        yield {"role": "user", "content": text}
        if number < n:
            yield {"role": "assistant", "content": answers[number]}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


# ---- answers that were compared


def is_preference(value: Json) -> bool:
    """Whether a value has an answer that was chosen and one that was not."""
    return _compared(value) is not None


def _compared(value: Json) -> tuple[str, str] | None:
    """The names of the two answers."""
    return next((names for names in _COMPARED if {*names} <= value.keys()), None)


def of_preference(value: Json) -> Chat:
    """{"prompt", "chosen", "rejected"}: the answer that was chosen, after its prompt.

    Raises
    ------
    NotAChat : it is damaged, or there is no prompt
    """
    names = _compared(value)
    assert names is not None
    chat = chat_with(value)
    chosen = _messages_of(value[names[0]], "assistant")
    if chosen and _role(chosen[0]) == "assistant":
        asked = _messages_of(_asked(value, first_of(value, (*_PROMPTS, *_TALKS))), "user")
        if not asked:
            raise NotAChat("an answer without its prompt")
        add_messages(chat, asked)
    add_messages(chat, chosen)
    chat.dropped.add("field", names[1])
    return chat


def _messages_of(value: object, role: str) -> Sequence[Any]:
    """The messages that a field holds: a list of them, one, or a text that one of a role said."""
    if isinstance(value, str):
        return list(_transcript(value)) or [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        return [value]
    return value if isinstance(value, list) else []


def _role(message: object) -> str:
    chat = Chat()
    add_messages(chat, [message])
    return str(chat.messages[0]["role"]) if chat.messages else ""


def _transcript(text: str) -> Iterator[Json]:
    """Yield the messages of a text in which Human and Assistant speak; none of another text."""
    begins = list(_SPEAKER.finditer(text))
    if not begins or begins[0].start() or begins[0][1] != "Human":
        return
    ends = [*(one.start() for one in begins[1:]), len(text)]
    for begin, end in zip(begins, ends, strict=True):
        said = text[begin.end() : end]
        if said or end < len(text):  # the last may be asked for, and not there
            yield {"role": "user" if begin[1] == "Human" else "assistant", "content": said}


# ---- turns in one list


def is_talk(value: Json) -> bool:
    """Whether a value is a row of UltraChat, and nothing else."""
    texts = value.get("data")
    return value.keys() == {"id", "data"} and _are_texts(texts) and len(value["data"]) > 1


def of_talk(value: Json) -> Chat:
    """{"id", "data": [what the user said, what the assistant said, ...]}."""
    chat = Chat()
    add_messages(chat, _alternating(value["data"]))
    return chat


def messages_of_pairs(listed: Sequence[Any]) -> list[Json]:
    """The messages of a list in which each entry has what both said; none of another list."""
    made: list[Json] = []
    for one in listed:
        if not isinstance(one, Mapping) or is_message(one):
            return []
        names = next((it for it in _BOTH if {*it} <= one.keys()), None)
        if names is None:
            return []
        made += [{"role": "user", "content": one[names[0]]},
                 {"role": "assistant", "content": one[names[1]]}]  # fmt: skip
    return made


def _alternating(texts: Sequence[str]) -> Iterator[Json]:
    for number, text in enumerate(texts):
        yield {"role": "assistant" if number % 2 else "user", "content": text}


def is_only_list(value: Json) -> bool:
    """Whether one field of a value is a list of messages, and no other may be a part of it."""
    names = (*_PROMPTS, *_ANSWERS, *(name for pair in _COMPARED for name in pair))
    return len(_lists(value)) == 1 and not first_of(value, names)


def of_only_list(value: Json) -> Chat:
    """{"turns": [{"role", "content"}, ...]}, whatever the name.

    Raises
    ------
    NotAChat : it is damaged
    """
    chat = chat_with(value)
    add_messages(chat, _lists(value)[0])
    return chat


def _lists(value: Json) -> list[list[Any]]:
    """The fields that are lists of messages."""
    lists = [one for one in value.values() if isinstance(one, list) and one]
    return [one for one in lists if all(map(is_message, one))]


def is_half(value: Json) -> bool:
    """Whether a value has turns of one side alone, such as MT-bench's questions, or its answers."""
    choices = value.get("choices")
    holders = [value, *(choices if isinstance(choices, list) else [])]
    return any(isinstance(one, Mapping) and _are_texts(one.get("turns")) for one in holders)


def of_half(value: Json) -> Chat:
    """Refuse it: which questions the answers are to stands in another file.

    Raises
    ------
    NotAChat : in every case
    """
    if "choices" in value:
        raise NotAChat("answers whose questions are in another file")
    raise NotAChat("a list of turns that does not say whose they are")
