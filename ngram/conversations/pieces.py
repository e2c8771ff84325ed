"""What of a conversation a model's chat template is to render together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import Any

from ...engine.chat.abilities import Abilities, adapted, text_of
from ...engine.chat.batch import BatchedChat as Job
from ...engine.chat.messages import Chat, Message, NotAChat
from .tokens import ShownAnswer

# Longer conversations are no log of a chat; each is in memory some times over.
MOST_CHARACTERS = 1 << 26
# Each turn is rendered with all before it. What takes more messages or characters than this is
# continued with a shortened history.
_PIECE_MESSAGES, _PIECE_CHARACTERS = 100_000, 1 << 31


@dataclass(frozen=True)
class Piece:
    """Turns of a conversation that are rendered together.

    Attributes
    ----------
    job : two texts for each turn: its prompt, and the conversation up to it; None: there is
        nothing to render.
    answers : what the assistant said in each turn.
    texts : those texts, where there is nothing to render; see ``Rendered``.
    """

    job: Job | None
    answers: tuple[ShownAnswer, ...]
    texts: tuple[tuple[int, str], ...] = ()


def pieces_of(
    chat: Chat, abilities: Abilities, values: Mapping[str, Any]
) -> tuple[list[Piece], int]:
    """What of a conversation is to be rendered, and the number of answers that are empty.

    It is one piece unless it is long. A later piece has the system's messages, and then the
    conversation from a message of the user on, as a client goes on that has no room left; after
    too many messages since then, that message, and the conversation from an answer on.

    Parameters
    ----------
    values : variables of the template; those of the conversation itself come before them.

    Raises
    ------
    NotAChat : it is too long, or has something that the template cannot be given
    """
    if chat.is_raw:
        return [_text_piece(chat)], 0
    messages = adapted(chat.messages, abilities)
    sizes = [_size(message) for message in messages]
    if sum(sizes) > MOST_CHARACTERS:
        raise NotAChat(f"a conversation of more than {MOST_CHARACTERS} characters")
    n_less = len(chat.messages) - len(messages)  # a system's message may have gone into the next
    spoken = [
        i
        for i, message in enumerate(messages)
        if message["role"] == "assistant"
        and (chat.generated is None or i + n_less in chat.generated)
    ]
    turns = [i for i in spoken if _is_said(messages[i]) and _is_asked(messages[:i])]
    variables = abilities.filled({**values, **chat.values})
    pieces = [
        Piece(
            Job([messages[i] for i in history], _prefixes(history, of_piece), variables),
            tuple(_answer(messages[i], chat, i + n_less) for i in of_piece),
        )
        for history, of_piece in _histories(messages, turns, sizes)
    ]
    return pieces, sum(not _is_said(messages[i]) for i in spoken)


def _text_piece(chat: Chat) -> Piece:
    """Texts that went to the model as they are, each with its answer, one continuing another."""
    texts: list[tuple[int, str]] = []
    answers = []
    whole, n_known, unknown = 0, 0, ""
    for i, message in enumerate(chat.messages):
        text = text_of(message["content"])
        if i in (chat.generated or ()):
            texts += [(n_known, unknown), (whole, text)]
            n_known, unknown = whole + len(text), ""
            answers.append(ShownAnswer(text, is_cut=i in chat.cut, is_raw=True))
        else:
            unknown += text
        whole += len(text)
    return Piece(None, tuple(answers), tuple(texts))


def _size(message: Message) -> int:
    """Characters of a message, nearly."""
    calls = json.dumps(message["tool_calls"]) if "tool_calls" in message else ""
    reasoning = message.get("reasoning_content", "")
    return len(text_of(message["content"])) + len(calls) + len(reasoning)


def _is_said(message: Message) -> bool:
    """Whether an answer has anything to it."""
    return bool(
        text_of(message["content"]).strip()
        or message.get("tool_calls")
        or message.get("reasoning_content", "").strip()
    )


def _is_asked(messages: Sequence[Message]) -> bool:
    """Whether anybody else has spoken before; a greeting of the assistant is no answer."""
    return any(message["role"] != "assistant" for message in messages)


def _answer(message: Message, chat: Chat, place: int) -> ShownAnswer:
    text, prefill = text_of(message["content"]), chat.prefills.get(place, "")
    answer = ShownAnswer.of(
        text.removeprefix(prefill),
        message.get("reasoning_content", ""),
        calls_tools="tool_calls" in message,
    )
    return replace(answer, prefill=prefill, is_cut=place in chat.cut)


def _prefixes(history: Sequence[int], turns: Sequence[int]) -> list[tuple[int, bool]]:
    place = {message: n for n, message in enumerate(history)}
    return [prefix for i in turns for prefix in ((place[i], True), (place[i] + 1, False))]


def _histories(
    messages: Sequence[Message], turns: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the messages of each piece, and those of them that are its turns."""
    upto = [0, *accumulate(sizes)]
    systems = list(takewhile(lambda i: messages[i]["role"] == "system", range(len(messages))))
    before: list[int] = []  # messages that the history begins with, and where it goes on
    start = 0
    taken: list[int] = []
    n_messages = n_characters = 0
    for turn in turns:
        n = 2 * (len(before) + turn - start)
        size = 2 * (sum(sizes[i] for i in before) + upto[turn] - upto[start])
        is_much = n_messages + n > _PIECE_MESSAGES or n_characters + size > _PIECE_CHARACTERS
        if is_much and taken:
            yield [*before, *range(start, taken[-1] + 1)], taken
            before, start = _shortened(messages, systems, start, turn)
            taken, n_messages, n_characters = [], 0, 0
        taken.append(turn)
        n_messages += n
        n_characters += size
    if taken:
        yield [*before, *range(start, taken[-1] + 1)], taken


def _shortened(
    messages: Sequence[Message], systems: list[int], start: int, turn: int
) -> tuple[list[int], int]:
    """What a shortened history begins with, and where it goes on to a turn."""
    asked = max((i for i in range(turn) if messages[i]["role"] == "user"), default=-1)
    if asked > start:
        return systems, asked
    said = max(i for i in range(turn) if messages[i]["role"] == "assistant")
    return systems + ([asked] if asked >= 0 else []), said
