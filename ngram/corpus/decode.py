"""Byte streams to text: the steps between a file's bytes and a document's valid UTF-8.

Every function takes blocks of any size and yields blocks, and where the input happens to be
cut never shows in the joined output. Nothing here opens a file; memory is one block, or one
JSON line.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...engine.errors import InputMalformed

LINE_LIMIT_BYTES = 256 << 20

# A value takes 8 to 60 bytes of memory, and its text two: what has more commas and brackets than
# any conversation, or record, needs is none.
MOST_VALUES = 1 << 23

_REPLACEMENT = "\ufffd"
_REPLACEMENT_UTF8 = _REPLACEMENT.encode()

# llama.cpp reads the two characters after \x with strtol, which also takes white space or a sign
# before a digit; "finished" is a whole escape, "begun" one that the next block may finish.
_ESCAPE = re.compile(
    rb"\\(?:(?P<letter>[nrt'\"\\])|x(?P<number>[0-9a-fA-F \t\n\v\f\r+-][0-9a-fA-F]))"
    rb"|(?P<begun>\\(?:x[0-9a-fA-F \t\n\v\f\r+-]?)?\Z)"
)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
SURROGATE = re.compile("[\ud800-\udfff]")


def drop_last_newline(blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yield ``blocks`` without one final ``\n``, as llama.cpp's ``-f`` reads a file."""
    held = b""
    for block in blocks:
        whole = held + block if held else block
        held = b"\n" if whole.endswith(b"\n") else b""
        whole = whole[:-1] if held else whole
        if whole:
            yield whole


def process_escapes(blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""Replace ``\n \r \t \' \" \\`` and ``\xHH`` by what they stand for.

    An escape that is unknown, or cut short by the end of the text, stays as it is written.
    ``\xHH`` is one byte, so the result need not be UTF-8.
    """
    begun = b""

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal begun
        if match["begun"]:
            begun = match["begun"]
            return b""
        if match["letter"]:
            return _LETTERS.get(match["letter"], match["letter"])
        return bytes([int(match["number"], 16) & 0xFF])

    for block in blocks:
        whole = begun + block if begun else block
        begun = b""
        if b"\\" in whole:
            whole = _ESCAPE.sub(replace, whole)
        if whole:
            yield whole
    if begun:
        yield begun


def repair_utf8(blocks: Iterable[bytes], on_replaced: Callable[[int], None]) -> Iterator[bytes]:
    """Yield ``blocks`` as valid UTF-8, each block ending at a character's end.

    Invalid sequences become U+FFFD, as many as ``bytes.decode("utf-8", "replace")`` makes of
    the joined blocks; ``on_replaced`` gets each block's number of them when there are any.
    A byte order mark is text like any other (llama.cpp keeps it too).
    """
    rest = b""
    for block in blocks:
        whole = rest + block if rest else block
        repaired, n_read, n_replaced = _decode(whole, final=False)
        rest = whole[n_read:]
        if n_replaced:
            on_replaced(n_replaced)
        if repaired:
            yield repaired
    if rest:
        repaired, _, n_replaced = _decode(rest, final=True)
        on_replaced(n_replaced)
        yield repaired


def json_line_texts(
    blocks: Iterable[bytes],
    field: str,
    name: str,
    *,
    line_limit_bytes: int = LINE_LIMIT_BYTES,
    on_bad: Callable[[int, InputMalformed], None] | None = None,
) -> Iterator[tuple[int, str, int]]:
    """Yield (line number from 1, text of ``field``, replaced sequences) of each JSON line.

    Blank lines are skipped. Invalid UTF-8 is replaced before the line is parsed, so sequences
    outside ``field`` count as well; half of a surrogate pair in the field counts as one.
    ``on_bad`` gets the number of each line that is none, and why; None: that is raised.

    Raises
    ------
    InputMalformed : a line is too long, not a JSON object, or has no text in ``field``.
    """
    for number, line in enumerate(_lines(blocks, line_limit_bytes), start=1):
        try:
            if line is None:
                raise _too_long(name, number, line_limit_bytes)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            text = line.decode("utf-8", "replace")
            n_replaced = text.count(_REPLACEMENT) - line.count(_REPLACEMENT_UTF8)
            value = field_text(_parse(text, name, number), field, f"{name}:{number}")
        except InputMalformed as error:
            if on_bad is None:
                raise
            on_bad(number, error)
            continue
        value, n_surrogates = SURROGATE.subn(_REPLACEMENT, value)
        yield number, value, n_replaced + n_surrogates


def is_too_much(text: str) -> bool:
    """Whether a text of JSON holds more values than anything needs: memory that nobody asked for"""
    return len(text) > MOST_VALUES and sum(map(text.count, ",:[{")) > MOST_VALUES


def _decode(block: bytes, *, final: bool) -> tuple[bytes, int, int]:
    """Return (valid UTF-8, bytes of ``block`` used, sequences replaced)."""
    if block.isascii():
        return block, len(block), 0
    text, n_read = codecs.utf_8_decode(block, "replace", final)
    used = block[:n_read]
    # A U+FFFD that was in the file is not a repair. Its first byte never continues another
    # character, so its three bytes always decode to it and counting them is exact.
    n_replaced = text.count(_REPLACEMENT) - used.count(_REPLACEMENT_UTF8)
    return (text.encode() if n_replaced else used), n_read, n_replaced


def _lines(blocks: Iterable[bytes], limit_bytes: int) -> Iterator[bytes | None]:
    """Yield each line; None as soon as one is too long, whose rest is passed over then."""
    pieces: list[bytes] = []
    n_bytes = 0
    is_over = False
    for block in blocks:
        first, *others = block.split(b"\n")
        for ended, piece in enumerate((first, *others)):
            if ended:
                if not is_over:
                    yield b"".join(pieces)
                pieces, n_bytes, is_over = [], 0, False
            if is_over:
                continue
            pieces.append(piece)
            n_bytes += len(piece)
            if n_bytes > limit_bytes:
                pieces, is_over = [], True
                yield None
    if not is_over:
        yield b"".join(pieces)


def _too_long(name: str, number: int, limit_bytes: int) -> InputMalformed:
    return InputMalformed(
        f"{name}:{number}: the line is longer than {limit_bytes} bytes",
        remedy="write one JSON object a line, or leave --field out for plain text",
    )


def _parse(text: str, name: str, number: int) -> Any:
    if is_too_much(text):
        raise InputMalformed(
            f"{name}:{number}: the line has more than {MOST_VALUES} values",
            remedy="write one JSON object a line, with the text in a field of its own",
        )
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = f"{error.msg} at column {error.colno}"
    except RecursionError:
        what = "nested too deeply"
    except ValueError:
        what = "a number of too many digits"
    raise InputMalformed(
        f"{name}:{number}: the line is not JSON ({what})",
        remedy="--field reads one JSON object a line: mend the line, or leave --field out for text",
    )


def field_text(value: Any, field: str, where: str) -> str:
    """The text in a field of a JSON object; ``where`` is the object's place.

    Raises
    ------
    InputMalformed : it is no object, or there is no text in the field.
    """
    if not isinstance(value, dict):
        raise InputMalformed(
            f"{where}: the line is {_json_type(value)}, not a JSON object",
            remedy="--field reads one JSON object a line",
        )
    found: Any = value
    for key in [field] if field in value else field.split("."):
        if not isinstance(found, dict) or key not in found:
            raise InputMalformed(
                f"{where}: no field {field!r}; the line has {_some_keys(value)}",
                remedy="name the field that holds the text with --field (a.b for b inside a)",
            )
        found = found[key]
    if not isinstance(found, str):
        raise InputMalformed(
            f"{where}: the field {field!r} is {_json_type(found)}, not text",
            remedy="name the field that holds the text with --field (a.b for b inside a)",
        )
    return found


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {"dict": "an object", "list": "a list", "str": "a text"}
    return names.get(type(value).__name__, "a number")


def _some_keys(value: dict[str, Any]) -> str:
    keys = [ascii(key[:40]) for key in list(value)[:8]]
    if len(value) > len(keys):
        keys.append("...")
    return ", ".join(keys) or "no field"
