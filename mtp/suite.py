"""Prompts to measure drafting with: the bundled ones, or a user's JSON lines.

A line is an object with ``id``, ``category``, ``max_tokens`` (optional) and either ``prompt`` or
``messages``, as in docs/mtp-run.md. A file is read whole, within limits, before anything runs, so
that a mistake in its last line does not show after an hour.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.chat.messages import Chat, Message, NotAChat, add_messages, texts_of
from ..engine.chat.request import values_of
from ..engine.errors import InputEmpty, InputMalformed, InputUnreadable
from ..engine.plain_file import open_plain, unique_keys

BUNDLED = Path(__file__).with_name("suite.jsonl")
MAX_TOKENS = 128  # where a line does not say
MAX_TOKENS_MOST = 1 << 20
MAX_LINE_BYTES = 1 << 22
MAX_PROMPTS = 10_000
MAX_BYTES = 1 << 28  # of all lines
_NAME_MOST = 200
_KEYS = (*("id", "category", "prompt", "messages", "tools", "chat_template_kwargs", "max_tokens"),)
_MESSAGE_KEYS = (*("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"),)
_REMEDY = "correct that line; see docs/mtp-run.md"
_NAME_ONE = "name a file of JSON lines"


@dataclass(frozen=True)
class SuitePrompt:
    """One prompt of a suite.

    Attributes
    ----------
    name : the line's ``id``; no other line has it
    category : what prompts are grouped by
    messages : for the chat template, as ``engine/chat/messages.py`` makes them; the last one is
        no answer
    max_tokens : most tokens to generate, 1 or more
    values : further variables of the template
    """

    name: str
    category: str
    messages: tuple[Message, ...]
    max_tokens: int
    values: Mapping[str, Any] = field(default_factory=dict)


def read_suite(path: str | Path | None = None) -> list[SuitePrompt]:
    """Return the prompts of a file, or the bundled ones, in order.

    Raises
    ------
    InputUnreadable : the file is missing or cannot be read
    InputEmpty : it holds no prompt
    InputMalformed : a line is not what it has to be, too long, or one too many; names the line
    """
    path = BUNDLED if path is None else Path(path)
    prompts: list[SuitePrompt] = []
    lines_of: dict[str, int] = {}
    for number, line in _lines(path):
        prompt = _prompt(line, f"{path}, line {number}")
        if prompt.name in lines_of:
            raise InputMalformed(
                f"{path}, line {number}: line {lines_of[prompt.name]} has the id "
                f"{prompt.name!r} already",
                remedy="give each line an id of its own",
            )
        if len(prompts) == MAX_PROMPTS:
            raise InputMalformed(
                f"{path}, line {number}: more than {MAX_PROMPTS} prompts",
                remedy="split the file",
            )
        lines_of[prompt.name] = number
        prompts.append(prompt)
    if not prompts:
        raise InputEmpty(f"{path} holds no prompt", remedy=_NAME_ONE)
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of the lines that are not blank; never more than one in memory."""
    try:
        with open_plain(path, str(path), remedy=_NAME_ONE, pipes=True) as file:
            number = n_bytes = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                n_bytes += len(line)
                if n_bytes > MAX_BYTES:
                    raise InputMalformed(
                        f"{path}, line {number}: more than {MAX_BYTES} bytes",
                        remedy="split the file",
                    )
                if len(line) > MAX_LINE_BYTES:
                    raise InputMalformed(
                        f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes",
                        remedy="give a shorter prompt",
                    )
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputUnreadable(
            f"{path} can't be read ({error.strerror})", remedy=_NAME_ONE
        ) from error


def _prompt(line: bytes, place: str) -> SuitePrompt:
    """Return the prompt of one line.

    Raises
    ------
    InputMalformed : no JSON, no object, or a field that is missing or not what it has to be
    """

    def wrong(what: str) -> InputMalformed:
        return InputMalformed(f"{place}: {what}", remedy=_REMEDY)

    try:
        fields = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
        raise wrong(f"not JSON ({_short(str(error))})") from error
    if not isinstance(fields, dict):
        raise wrong("not an object, as {...}")
    unknown = sorted(set(fields) - set(_KEYS))
    if unknown:
        raise wrong(f"unknown field {_short(repr(unknown[0]))}, known are {', '.join(_KEYS)}")
    for key in ("id", "category"):
        value = fields.get(key)
        if not isinstance(value, str) or not 0 < len(value) <= _NAME_MOST or not _printable(value):
            raise wrong(f"{key} has to be printable text of 1 to {_NAME_MOST} characters")
    most = fields.get("max_tokens", MAX_TOKENS)
    if type(most) is not int or not 1 <= most <= MAX_TOKENS_MOST:
        raise wrong(f"max_tokens has to be a whole number from 1 to {MAX_TOKENS_MOST}")
    if ("prompt" in fields) == ("messages" in fields):
        raise wrong("exactly one of prompt and messages is needed")
    try:
        messages, values = _messages(fields), values_of(fields)
    except NotAChat as error:
        raise wrong(str(error)) from error
    return SuitePrompt(fields["id"], fields["category"], tuple(messages), most, values)


def _messages(fields: dict[str, Any]) -> list[Message]:
    """The conversation of a line; raises NotAChat for what is wrong with it."""
    if not _encodable(fields):
        raise NotAChat("a text holds half a character (a lone surrogate)")
    chat = Chat()
    if "prompt" in fields:
        if not isinstance(fields["prompt"], str):
            raise NotAChat("a prompt has to be text of 1 character or more")
        messages = [{"role": "user", "content": fields["prompt"]}]
    else:
        messages = fields["messages"]
    if not isinstance(messages, list) or not messages:
        raise NotAChat("messages has to be a list of one or more")
    for message in messages:
        unknown = set(message) - set(_MESSAGE_KEYS) if isinstance(message, dict) else ()
        if unknown:
            raise NotAChat(
                f"a message has an unknown field {_short(repr(min(unknown)))}, known are "
                f"{', '.join(_MESSAGE_KEYS)}"
            )
    add_messages(chat, messages)
    if chat.dropped.n:
        what = next(iter(chat.dropped.counts)).what
        raise NotAChat(f"the content of a message has to be text, and there is a {what}")
    last = chat.messages[-1]
    if last["role"] == "assistant":
        raise NotAChat("the last message has to be the user's or a tool's, not an answer")
    if last["role"] == "user" and not any(texts_of(last)):
        raise NotAChat(
            "a prompt, and the content of the last message, has to be text of 1 character or more"
        )
    return chat.messages


def _printable(text: str) -> bool:
    return text.isprintable()


def _encodable(fields: dict[str, Any]) -> bool:
    text = json.dumps(fields, ensure_ascii=False)
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
