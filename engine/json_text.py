"""A small file of JSON to its value, whatever the file holds: a value, or the reason why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_HALVES = re.compile("[\ud800-\udfff]")
_HALF_WRITTEN = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(Exception):
    """Bytes that are no JSON; the message says why, and where."""


def json_of(data: bytes, on_halves: Callable[[], None] | None = None) -> Any:
    """The value; halves of surrogate pairs, which no text may hold, become U+FFFD.

    A byte order mark is passed over; UTF-16 and UTF-32 are read as such.

    Parameters
    ----------
    on_halves : called once if there are such halves

    Raises
    ------
    NotJson
    """
    try:
        text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
        value = json.loads(text)
        if on_halves is not None and _HALVES.search(json.dumps(value, ensure_ascii=False)):
            on_halves()
        return mended(value, text)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise NotJson(f"no {error.encoding}: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"no JSON: {error}") from None
    except ValueError:
        raise NotJson("no JSON: a number of thousands of digits") from None


def mended(value: Any, text: str) -> Any:
    """The value of a JSON text without halves of surrogate pairs: U+FFFD in place of each."""
    return _mended(value) if _HALF_WRITTEN.search(text) else value


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(one) for name, one in value.items()}
    return value
