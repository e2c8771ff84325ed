"""Lines of a batch's input and of its output, put together by their ``custom_id``.

The input has the requests, the output the answers, in another order and in another file.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from .requests import is_batch_request, is_batch_response

# Characters of lines whose other half has not come.
_MOST_CHARACTERS = 1 << 28


class _Halves:
    """Lines of one kind, by their names."""

    def __init__(self) -> None:
        self.lines: OrderedDict[str, tuple[str, Any, int]] = OrderedDict()
        self.size = 0

    def put(self, name: str, place: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Hold a line; yield those that there is no room for."""
        size = _size(value)
        there = self.lines.pop(name, None)
        if there is not None:  # a name that is used twice
            self.size -= there[2]
            yield there[:2]
        self.lines[name] = (place, value, size)
        self.size += size
        while self.size > _MOST_CHARACTERS:
            old_place, old, old_size = self.lines.popitem(last=False)[1]
            self.size -= old_size
            yield old_place, old

    def take(self, name: str) -> tuple[str, Any] | None:
        found = self.lines.pop(name, None)
        if found is None:
            return None
        self.size -= found[2]
        return found[:2]


def with_batches(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield (place, value), a request of a batch with its answer as one value.

    Those whose other half is missing come last.
    """
    requests, answers = _Halves(), _Halves()
    for place, value in values:
        name = value.get("custom_id") if isinstance(value, dict) else None
        is_request = isinstance(name, str) and is_batch_request(value)
        if not is_request and not (isinstance(name, str) and is_batch_response(value)):
            yield place, value
            continue
        assert isinstance(name, str)
        own, others = (requests, answers) if is_request else (answers, requests)
        other = others.take(name)
        if other is None:
            yield from own.put(name, place, value)
        elif is_request:
            yield place, _together(value, other[1])
        else:
            yield other[0], _together(other[1], value)
    for halves in (requests, answers):
        for place, value, _ in halves.lines.values():
            yield place, value


def _size(value: Any) -> int:
    """Characters of a value, nearly."""
    try:
        return len(json.dumps(value))
    except RecursionError:
        return _MOST_CHARACTERS


def _together(request: Any, answer: Any) -> dict[str, Any]:
    return {
        "request": request.get("body", request.get("params")),
        "response": answer.get("response", answer.get("result")),
    }
