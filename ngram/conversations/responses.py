"""What an API answered: its messages, whatever the API, whole or in the pieces of a stream.

Known are the answers of chat completions, completions, OpenAI's Responses and Anthropic's Messages,
of Ollama, and of llama-server's /completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...engine.chat.blocks import kind_of
from ...engine.chat.messages import Chat, Json, NotAChat, has_text, is_message, parsed
from .items import messages_of_items

AN_ERROR = "an error instead of an answer"
NO_FORM = "a response of no known form"
# What llama-server's /completion says beside the text.
_COMPLETION = (
    "tokens_predicted",
    "tokens_evaluated",
    "generation_settings",
    "timings",
    "stop_type",
)
_CUT = ("length", "max_tokens", "max_output_tokens", "limit")
# What a line of server-sent events begins with; a line of a comment keeps the connection open.
_EVENT_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_ANSWERS = ("response", "completion", "output_text", "text", "generated_text", "answer")
_STATUSES = ("status", "status_code", "statusCode")
_FAILED = ("errored", "expired", "canceled")
_BLOCKS = ("text", "thinking", "tool_use", "redacted_thinking", "server_tool_use")
_DEEPEST = 4


class ResponseAnswer(NamedTuple):
    """What was answered.

    Attributes
    ----------
    messages : of the assistant; none: there is no answer, for the ``reason``.
    is_cut : a limit ended it.
    is_text : it continues a prompt that went to the model without a template.
    name : of the response.
    """

    messages: tuple[Json, ...]
    is_cut: bool = False
    is_text: bool = False
    name: str = ""
    reason: str = ""


def is_response(value: object) -> bool:
    """Whether a value is what an API answered, and nothing else."""
    if not isinstance(value, Mapping):
        return False
    return bool(_choices(value)) or _is_items(value) or is_completion(value)


def is_completion(value: Json) -> bool:
    """Whether a value is an answer of llama-server's /completion."""
    return isinstance(value.get("content"), str) and any(name in value for name in _COMPLETION)


def answer_of(response: object, chat: Chat, depth: int = 0) -> ResponseAnswer:
    """What a response says; ``chat`` counts what is left out.

    Raises
    ------
    NotAChat : it has no known form
    """
    if depth > _DEEPEST:
        raise NotAChat(NO_FORM)
    if isinstance(response, str):
        inner = _inner(response)
        return _said(response) if inner is None else answer_of(_whole(inner, chat), chat, depth + 1)
    if isinstance(response, list):
        return _of_list(response, chat)
    if response is None:
        return ResponseAnswer((), reason="no answer of the assistant")
    if not isinstance(response, Mapping):
        raise NotAChat(NO_FORM)
    if is_refused(response):
        return ResponseAnswer((), reason=AN_ERROR)
    for name in ("body", "result", "data"):
        if isinstance(response.get(name), str | Mapping | list) and not is_response(response):
            return answer_of(response[name], chat, depth + 1)
    return _of_object(response, chat)


def _inner(text: str) -> Any:
    """What a text holds: JSON that is an answer, or the lines of a stream; None: words."""
    start = text.lstrip()[:6]
    if start.startswith(_EVENT_FIELDS) and (events := _events(_lines(text))):
        return events
    if start[:1] not in ("{", "["):
        return None
    found = parsed(text)
    if found is None:  # a stream of JSON lines, as Ollama's
        found = [parsed(line) for line in _lines(text) if line.strip()]
    if isinstance(found, Mapping):
        known = is_response(found) or is_chunk(found) or "body" in found or is_message(found)
        return found if known or _is_error(found) else None
    pieces = [one for one in found if one is not None] if isinstance(found, list) else []
    return found if is_stream(pieces) else None


def _lines(text: str) -> list[str]:
    """The lines of a stream: JSON may hold other characters that separate lines, as U+2028."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _events(lines: Sequence[str]) -> list[Any]:
    """The values of the lines of events, None for a torn one; none if there are other lines."""
    if not all(line.startswith(_EVENT_FIELDS) for line in lines if line.strip()):
        return []
    data = (line for line in lines if line.startswith("data:"))
    found = [event_of(line) for line in data if line[5:].strip() not in ("", "[DONE]")]
    return found if any(one is not None for one in found) else []


def _whole(held: Any, chat: Chat) -> Any:
    """What a text holds without the pieces of a stream that are torn, which are counted."""
    if not isinstance(held, list) or None not in held:
        return held
    chat.dropped.add("torn piece of a stream", of_answer=True, n=held.count(None))
    return [one for one in held if one is not None]


def _is_error(value: Json) -> bool:
    """Whether a value says what went wrong, and nothing that a model might have written."""
    error = value.get("error")
    if isinstance(error, Mapping):
        return isinstance(error.get("message"), str)
    return (len(value) == 1 and isinstance(error, str)) or value.get("object") == "error"


def is_refused(value: Json) -> bool:
    """Whether a value has the HTTP status of an error."""
    said = [str(value.get(name)) for name in _STATUSES]
    return any(len(one) == 3 and one[0] in "45" and one.isdecimal() for one in said)


def held_response(value: object) -> bool:
    """Whether a value is a response, whatever it is called: whole, as text, or a stream."""
    if isinstance(value, str):
        return _inner(value) is not None
    return is_response(value) or is_stream(value) or bool(_attempts(value))


def _attempts(value: object) -> list[Json]:
    """The responses in a list of them, without those that are errors; none if it is another."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        return []
    known = [one for one in value if is_response(one)]
    return known if len(known) == len([one for one in value if not _is_error(one)]) else []


def is_stream(value: object) -> bool:
    """Whether a value is a list of the pieces of a stream."""
    return isinstance(value, list) and bool(value) and all(map(is_chunk, value))


def event_of(line: str) -> Any:
    """The value of a line of server-sent events; None if it has none."""
    if not line.startswith("data:"):
        return None
    return parsed(line.removeprefix("data:"))


def _of_list(response: Sequence[Any], chat: Chat) -> ResponseAnswer:
    if is_stream(response):
        return _of_object(joined_chunks(response), chat)
    attempts = _attempts(response)
    if attempts:
        if len(attempts) > 1:
            chat.dropped.add("further response", n=len(attempts) - 1)
        return _of_object(attempts[0], chat)
    if response and all(isinstance(one, str) for one in response):
        events = _whole(_events(response), chat)
        if is_stream(events):
            return _of_object(joined_chunks(events), chat)
    if response and all(kind_of(one) in _BLOCKS for one in response):
        return ResponseAnswer(({"role": "assistant", "content": response},))
    if response and all(is_message(one) and not kind_of(one) for one in response):
        return ResponseAnswer(tuple(response))
    if response and all(kind_of(one) for one in response):
        return ResponseAnswer(tuple(messages_of_items(response, chat.dropped)))
    raise NotAChat(NO_FORM)


def _of_object(value: Json, chat: Chat) -> ResponseAnswer:
    name = value["id"] if isinstance(value.get("id"), str) else ""
    choices = _choices(value)
    if choices:
        return _of_choices(choices, chat, name)
    if _is_items(value):
        details = value.get("incomplete_details")
        is_cut = isinstance(details, Mapping) and details.get("reason") in _CUT
        found = tuple(messages_of_items(value["output"], chat.dropped))
        return ResponseAnswer(found, is_cut, name=name, reason="" if found else AN_ERROR)
    ends = [value.get(key) for key in ("stop_reason", "finish_reason", "done_reason", "stop_type")]
    is_cut = any(isinstance(end, str) and end in _CUT for end in ends)
    if isinstance(value.get("message"), Mapping):
        return ResponseAnswer((_spoken(value["message"]),), is_cut, name=name)
    if _is_error(value) or value.get("error") is not None or kind_of(value) in _FAILED:
        return ResponseAnswer((), reason=AN_ERROR)
    if is_completion(value):
        return _said(value["content"], is_cut=is_cut, is_text=True)
    if "content" in value and (is_message(value) or value.get("type") == "message"):
        return ResponseAnswer((_spoken(value),), is_cut, name=name)
    for key in _ANSWERS:
        if has_text(value, key):
            return _said(value[key], is_cut=is_cut)
    if has_text(value, "content") and chat.messages:  # after a prompt it may be a raw text
        return _said(value["content"], is_cut=is_cut)
    raise NotAChat(NO_FORM)


def _of_choices(choices: Sequence[Any], chat: Chat, name: str) -> ResponseAnswer:
    """The first choice; the others are left out."""
    first = min(choices, key=lambda one: one["index"] if isinstance(one.get("index"), int) else 0)
    if len(choices) > 1:
        chat.dropped.add("further choice", n=len(choices) - 1)
    is_cut = first.get("finish_reason") in _CUT
    message = first.get("message")
    if isinstance(message, Mapping):
        return ResponseAnswer((_spoken(message),), is_cut, name=name)
    if isinstance(first.get("text"), str):
        return _said(first["text"], is_cut=is_cut, is_text=True)
    raise NotAChat(NO_FORM)


def _spoken(message: Json) -> Json:
    """A message; who says it is the assistant, though some do not say so."""
    return {**message, "role": message.get("role") or "assistant"}


def _said(text: str, *, is_cut: bool = False, is_text: bool = False) -> ResponseAnswer:
    return ResponseAnswer(({"role": "assistant", "content": text},), is_cut, is_text)


def _choices(value: Json) -> list[Any]:
    """The choices of a completion; none if they are something else."""
    found = value.get("choices")
    listed = found if isinstance(found, list) else []
    known = all(
        isinstance(one, Mapping)
        and (isinstance(one.get("message"), Mapping) or isinstance(one.get("text"), str))
        for one in listed
    )
    return listed if known else []


def _is_items(value: Json) -> bool:
    """Whether a value has the output of the Responses API."""
    items = value.get("output")
    if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
        return False
    kinds = [kind_of(one) for one in items]
    known = any(kind in ("message", "reasoning") or kind.endswith("_call") for kind in kinds)
    return value.get("object") == "response" or known


# ---- streams


def is_chunk(value: object) -> bool:
    """Whether a value is a piece of a stream."""
    if not isinstance(value, Mapping) or "messages" in value or "prompt" in value:
        return False
    return _is_delta(value) or _is_ollamas(value) or _is_event(value)


def _is_delta(value: Json) -> bool:
    choices = value.get("choices")
    if value.get("object") == "chat.completion.chunk":
        return isinstance(choices, list)
    listed = choices if isinstance(choices, list) and "message" not in value else []
    if choices == [] and "usage" in value:  # the last piece, of what it came to
        return True
    return bool(listed) and all(
        isinstance(one, Mapping) and isinstance(one.get("delta"), Mapping) and "message" not in one
        for one in listed
    )


def _is_ollamas(value: Json) -> bool:
    said = isinstance(value.get("message"), Mapping) or isinstance(value.get("response"), str)
    return isinstance(value.get("done"), bool) and said and "request" not in value


_EVENTS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop",
           "message_delta", "message_stop", "ping")  # fmt: skip


def _is_event(value: Json) -> bool:
    kind = kind_of(value)
    return kind in _EVENTS or (kind.startswith("response.") and "payload" not in value)


def is_end(value: Json) -> bool:
    """Whether a piece is the last of its stream."""
    choices = value.get("choices")
    ends = any(isinstance(one, Mapping) and one.get("finish_reason") for one in choices or ())
    return (
        ends
        or value.get("done") is True
        or kind_of(value) in ("message_stop", "response.completed")
    )


def stream_of(value: Json) -> str:
    """The name of the stream that a piece is of; "" if it does not say."""
    return value["id"] if _is_delta(value) and isinstance(value.get("id"), str) else ""


def joined_chunks(chunks: Sequence[Json]) -> Json:
    """The response that the pieces of one stream come to, in its form without a stream."""
    if _is_delta(chunks[0]):
        return _joined_deltas(chunks)
    if _is_ollamas(chunks[0]):
        return _joined_ollamas(chunks)
    return _joined_events(chunks)


def _joined_deltas(chunks: Sequence[Json]) -> Json:
    by_index: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                continue
            index = choice["index"] if isinstance(choice.get("index"), int) else 0
            made = by_index.setdefault(index, {"index": index, "message": {"role": "assistant"}})
            made["finish_reason"] = choice.get("finish_reason") or made.get("finish_reason")
            _add_delta(made["message"], delta)
    return {"id": chunks[0].get("id"), "choices": list(by_index.values())}


def _add_delta(message: dict[str, Any], delta: Json) -> None:
    for name in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(name), str):
            message[name] = message.get(name, "") + delta[name]
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, Mapping):
            continue
        known = message.setdefault("tool_calls", [])
        at = call["index"] if isinstance(call.get("index"), int) else len(known)
        if not 0 <= at <= len(known):
            raise NotAChat("a stream whose pieces do not fit together")
        if at == len(known):
            known.append({"function": {"name": "", "arguments": ""}})
        if isinstance(call.get("id"), str):
            known[at]["id"] = call["id"]
        function = call.get("function")
        for name in ("name", "arguments"):
            if isinstance(function, Mapping) and isinstance(function.get(name), str):
                known[at]["function"][name] += function[name]


def _joined_ollamas(chunks: Sequence[Json]) -> Json:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in chunks:
        said = chunk.get("message")
        said = said if isinstance(said, Mapping) else {"content": chunk.get("response")}
        for name in ("content", "thinking"):
            if isinstance(said.get(name), str):
                message[name] = message.get(name, "") + said[name]
        if isinstance(said.get("tool_calls"), list):
            message["tool_calls"] = message.get("tool_calls", []) + said["tool_calls"]
    return {"message": message, "done_reason": chunks[-1].get("done_reason")}


def _joined_events(chunks: Sequence[Json]) -> Json:
    whole = [one["response"] for one in chunks if isinstance(one.get("response"), Mapping)]
    if whole and _is_items(whole[-1]) and whole[-1]["output"]:
        return dict(whole[-1])
    if kind_of(chunks[0]).startswith("response."):
        texts = [one.get("delta") for one in chunks if kind_of(one) == "response.output_text.delta"]
        text = "".join(one for one in texts if isinstance(one, str))
        return {"output_text": text} if text else {"error": "no answer"}
    return _joined_blocks(chunks)


def _joined_blocks(chunks: Sequence[Json]) -> Json:
    """What Anthropic's events come to."""
    blocks: dict[Any, dict[str, Any]] = {}
    stop = None
    for one in chunks:
        block, delta = one.get("content_block"), one.get("delta")
        if isinstance(block, Mapping):
            blocks[str(one.get("index"))] = dict(block)
        if not isinstance(delta, Mapping):
            continue
        stop = delta.get("stop_reason") or stop
        made = blocks.setdefault(str(one.get("index")), {"type": "text"})
        for name, known in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
            if isinstance(delta.get(name), str):
                said = made.get(known)
                made[known] = (said if isinstance(said, str) else "") + delta[name]
    for made in blocks.values():
        if "json" in made:
            made["input"] = parsed(made.pop("json"))
    content = [one for one in blocks.values() if len(one) > 1]
    return {"role": "assistant", "content": content, "stop_reason": stop}
