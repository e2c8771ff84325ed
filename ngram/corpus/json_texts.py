"""Files that hold JSON where a text is expected: told by their content, before it is counted.

A list of strings is as many documents. Lines of JSON, lists of records and conversations have to
be read by name (a field, or as chats); what else happens to be JSON, as a file of settings, is
text like any other.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

from ...engine.errors import InputMalformed
from .decode import LINE_LIMIT_BYTES
from .encodings import may_be_json
from .json_values import Failure, json_values

TextKind = Literal["text", "strings", "records"]

# So much of a file says which of them it is.
HEAD_BYTES = 64 << 10

_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"
_OF_CHATS = ("messages", "conversations", "mapping", "chat_messages")
_CHAT_KEY = re.compile(rf'"(?:{"|".join(_OF_CHATS)})"\s*:')


def json_head(blocks: Iterator[bytes], n_most: int = HEAD_BYTES) -> tuple[bytes, Iterator[bytes]]:
    """Return (as much of a text's begin as says whether it is JSON; all its blocks).

    Of JSON that is ``n_most`` bytes, or less if there is no more; of other texts mostly one block.
    """
    held: list[bytes] = []
    head = bytearray()
    for block in blocks:
        held.append(block)
        head += block
        if len(head) >= HEAD_BYTES:
            break
        if not _is_blank(head) and (len(head) >= n_most or not may_be_json(head)):
            break
    return bytes(head), chain(held, blocks)


def _is_blank(head: bytes | bytearray) -> bool:
    return not head.removeprefix(codecs.BOM_UTF8).strip(_BLANKS.encode())


def kind_of(head: bytes) -> TextKind:
    """What a text holds that begins so; one shorter than HEAD_BYTES is all of it."""
    if not may_be_json(head):
        return "text"
    is_all = len(head) < HEAD_BYTES
    text = head.decode("utf-8", "replace").lstrip("\ufeff" + _BLANKS)
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return "text" if is_all else _kind_of_begin(text)
    return _kind_of_value(value, text[:end], text[end:].lstrip(_BLANKS))


def _kind_of_value(value: Any, shown: str, behind: str) -> TextKind:
    """What a file holds whose first value is whole; ``after`` is what follows it."""
    if isinstance(value, dict):
        has_lines = "\n" not in shown and behind.startswith("{")
        return "records" if has_lines or _is_chat(value) else "text"
    if not value or not isinstance(value, list):
        return "text"
    if all(isinstance(one, str) for one in value):
        return "text" if behind else "strings"
    if all(isinstance(one, dict) for one in value) or any(map(_is_chat, value)):
        return "records"
    return "text"


def _kind_of_begin(text: str) -> TextKind:
    """What a file holds whose first value goes on after what is known of it."""
    if text.startswith("{"):
        return "records" if _CHAT_KEY.search(text) else "text"
    inner = text[1:].lstrip(_BLANKS)
    try:
        first, end = _DECODER.raw_decode(inner)
    except (ValueError, RecursionError) as error:
        if inner.startswith('"') and str(error).startswith("Unterminated"):
            return "strings"
        return "records" if inner.startswith("{") and _CHAT_KEY.search(inner) else "text"
    if inner[end:].lstrip(_BLANKS)[:1] not in ("", ",", "]"):
        return "text"
    if isinstance(first, str):
        return "strings"
    return "records" if isinstance(first, dict) else "text"


def _is_chat(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and "role" in value[0]
    return isinstance(value, dict) and any(isinstance(value.get(k), list | dict) for k in _OF_CHATS)


def refuse_records(name: str) -> InputMalformed:
    """The error of a text that is lines or a list of JSON."""
    return InputMalformed(
        f"{name}: holds JSON, whose syntax would be counted as text without --chat or --field",
        remedy="give --chat for conversations, --field NAME for a text of each object, or --text "
        "to read it as it is",
    )


def texts_of_list(blocks: Iterator[bytes], name: str) -> Iterator[tuple[str, str]]:
    """Yield ("[number]" from 1 on, text) of each string of a list.

    Raises
    ------
    InputMalformed : something else in it, or after it.
    """
    for place, value, _ in json_values(blocks, LINE_LIMIT_BYTES, _ignore, lists_texts=True):
        if not isinstance(value, str):
            what = value.reason if isinstance(value, Failure) else "something else than a text"
            raise InputMalformed(
                f"{name}{place}: {what} in a list of texts",
                remedy="mend the list, or give --text to read the file as it is",
            )
        yield place, value


def records_of_list(blocks: Iterator[bytes], name: str) -> Iterator[tuple[str, Any]]:
    """Yield ("[number]" from 1 on, value) of each value of a list.

    Raises
    ------
    InputMalformed : what is no JSON.
    """
    for place, value, _ in json_values(blocks, LINE_LIMIT_BYTES, _ignore, lists_texts=True):
        if isinstance(value, Failure):
            raise InputMalformed(
                f"{name}{place}: {value.reason}",
                remedy="--field reads a JSON object a line, or a list of objects: mend the file",
            )
        yield place, value


def _ignore(n_replaced: int) -> None:
    """Invalid sequences have been replaced, and counted, before."""
