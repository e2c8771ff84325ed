"""Answers as Open WebUI keeps them: thoughts and calls of tools as HTML among the words.

They become blocks, as in Anthropic's messages (``engine/chat/blocks.py``): thoughts, calls, what
the tools said, and words.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...engine.chat.dropped import Dropped
from ...engine.chat.messages import Json, has_text, parsed, shallow

_OPEN, _CLOSE = "<details", "</details>"
_KINDS = ("reasoning", "tool_calls", "code_interpreter")
# A value holds no quote: it is escaped.
_ATTRIBUTE = re.compile(r'\s+([A-Za-z_]+)(?:="([^"]*)")?')
_SUMMARY = re.compile(r"\s*<summary>[^<]*</summary>\n?")
_QUOTE = re.compile(r"^>[ ]?", re.MULTILINE)
# An escaped text has none of these, but for the > that each of its lines may begin with.
_NOT_ESCAPED = re.compile(r"[<\"']|(?<!^)>|&(?!(?:[A-Za-z]+|#\d+|#x[0-9A-Fa-f]+);)", re.MULTILINE)


def without_details(content: str, dropped: Dropped) -> str | list[Any]:
    """The content of an answer of Open WebUI, as blocks if it holds more than words.

    Calls that stand next to each other are one answer's. What is no block of a known type is
    words; code that was run within the answer is left out.
    """
    made: list[Any] = []
    results: list[Any] = []

    def go_on() -> None:
        """What comes now was said after the tools' answers."""
        made.extend(results)
        results.clear()

    for words, attributes, body in _blocks(content):
        if attributes is None and not made and not results and words == content:
            return content
        shown = words.strip("\n") if attributes is not None else words.lstrip("\n")
        if shown.strip():
            go_on()
            made.append({"type": "text", "text": shown})
        kind = attributes["type"] if attributes is not None else ""
        if kind == "reasoning" and (thought := _thought(body)).strip():
            go_on()
            made.append({"type": "thinking", "thinking": thought})
        elif attributes is not None and kind == "tool_calls":
            for call, result in _calls(attributes, body):
                made.append(call)
                if result is not None:
                    results.append({"type": "tool_result", "tool_use_id": call.get("id"),
                                    "content": result})  # fmt: skip
        elif kind == "code_interpreter":
            dropped.add("details", kind, of_answer=True)
    return made + results


def _blocks(content: str) -> Iterator[tuple[str, dict[str, str] | None, str]]:
    """Yield (words before it, attributes, body) of each block; at the end the words after it."""
    start = searched = 0
    while (at := content.find(_OPEN, searched)) >= 0:
        attributes, searched = _opened(content, at + len(_OPEN))
        if attributes.get("type") not in _KINDS or not content.startswith(">", searched):
            continue
        body = searched + 1
        end = content.find(_CLOSE, body)
        if end < 0:  # the answer was stopped within it
            yield content[start:at], attributes, content[body:]
            return
        yield content[start:at], attributes, content[body:end]
        start = searched = end + len(_CLOSE)
    yield content[start:], None, ""


def _opened(content: str, at: int) -> tuple[dict[str, str], int]:
    """The attributes of a tag, and where they end."""
    attributes = {}
    while found := _ATTRIBUTE.match(content, at):
        attributes[found[1]] = found[2] or ""
        at = found.end()
    return attributes, at


def _body(text: str) -> str:
    """What a block holds, without its summary."""
    found = _SUMMARY.match(text)
    return text[found.end() :] if found else text


def _thought(text: str) -> str:
    """The thought that is shown as a quotation."""
    shown = _body(text).strip("\n")
    if not _NOT_ESCAPED.search(shown):
        shown = html.unescape(shown)
    return _QUOTE.sub("", shown)


def _calls(attributes: Mapping[str, str], body: str) -> Iterator[tuple[Json, str | None]]:
    """Yield the calls that a block tells of, each with what the tool said, or None."""
    values = {name: html.unescape(value) for name, value in attributes.items()}
    if "name" in values:
        told = values.get("arguments", "")
        arguments = parsed(told)
        result = values.get("result") or html.unescape(_body(body)).strip()
        is_done = bool(result) or values.get("done") == "true"
        call = _call(values.get("id"), values["name"], told if arguments is None else arguments)
        yield call, _text(result) if is_done else None
        return
    calls, results = parsed(values.get("content", "")), parsed(values.get("results", ""))
    said = {
        one["tool_call_id"]: one.get("content")
        for one in (results if isinstance(results, list) else [])
        if has_text(one, "tool_call_id")
    }
    for one in calls if isinstance(calls, list) else []:
        function = one.get("function") if isinstance(one, Mapping) else None
        if isinstance(function, Mapping):
            call = _call(one.get("id"), function.get("name"), function.get("arguments"))
            found = said.get(one["id"]) if has_text(one, "id") else None
            yield call, found if isinstance(found, str) else None


def _call(name: object, tool: object, arguments: object) -> Json:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def _text(result: str) -> str:
    """What a tool said: it is kept as JSON, mostly of a text."""
    value = parsed(result)
    if isinstance(value, str):
        return value
    return result if value is None else json.dumps(shallow(value), ensure_ascii=False)
