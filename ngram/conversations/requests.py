"""Requests to an API with their responses, as proxies, servers and tracing services log them.

Only the response was generated for a request; what the request has is history. A prompt that went
to the model without a template (/completion, /v1/completions) is a text, and stays one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...engine.chat.abilities import text_of
from ...engine.chat.blocks import kind_of
from ...engine.chat.messages import (
    Chat,
    Json,
    NotAChat,
    add_messages,
    has_text,
    is_message,
    parsed,
)
from .agents import Line
from .items import messages_of_items
from .responses import (
    AN_ERROR,
    ResponseAnswer,
    answer_of,
    held_response,
    is_chunk,
    is_end,
    is_refused,
    is_response,
    joined_chunks,
    stream_of,
)
from .values import chat_with

NO_PROMPT = "prompt that the file does not hold"
ANSWERS_ELSEWHERE = "a request of a batch; its answer is in the batch's output, which is not given"
_REQUESTS = ("request", "requestBody", "request_body", "kwargs")
_RESPONSES = ("response", "responseBody", "response_body", "completion", "output")
# Names of a text that was answered; other texts beside a request may be anything.
_TEXTS = ("generated_text", "response_text", "response_content", "output_text", "reply",
          "content")  # fmt: skip
_WRAPPERS = ("body", "json", "params", "data")
_ASKED = ("messages", "prompt", "input")
_DEEPEST = 4
_EMPTY: tuple[object, ...] = (None, {}, "")  # what services write where they keep no messages
_Missing = object()


# ---- which values


def is_exchange(value: Json) -> bool:
    """Whether a value is a request, with its response if there is one, or a response alone."""
    if is_batch_request(value) or _is_nested(value.get("messages")):
        return True
    asked, answer = _halves(value)
    return answer is not _Missing or (asked is not None and asked is not value)


def is_batch_request(value: Json) -> bool:
    """Whether a value is a line of the input of a batch."""
    wrapped = any(isinstance(value.get(name), Mapping) for name in ("body", "params"))
    return "custom_id" in value and wrapped and not is_batch_response(value)


def is_batch_response(value: Json) -> bool:
    """Whether a value is a line of the output of a batch."""
    return "custom_id" in value and ("response" in value or "result" in value)


def is_trace(value: Json) -> bool:
    """Whether a value is a generation as tracing services record it: messages in, answer out."""
    given, out = _unwrapped(value.get("input")), value.get("output")
    if isinstance(given, Mapping):
        given = _unwrapped(given.get("messages"))
    is_asked = isinstance(given, list) and bool(given) and all(map(is_message, given))
    return is_asked and isinstance(out, str | list | Mapping)


def _halves(value: Json) -> tuple[Json | None, Any]:
    """The request that a value holds, or None; and the response, or _Missing."""
    for name in _REQUESTS:
        asked = _request(value.get(name))
        if asked is not None:
            return asked, _response(value)
    if value.get("messages") not in _EMPTY:
        return value, _response(value)
    if is_response(value):
        has_asked = any(value.get(name) is not None for name in _ASKED)
        return value if has_asked else _other_request(value), value
    found = value.get("response")
    if value.get("prompt") is not None:
        is_stream = isinstance(found, list) and bool(found) and all(map(is_chunk, found))
        is_one = isinstance(found, Mapping) and (
            isinstance(value["prompt"], str) or is_response(_bare(found))
        )
        is_known = is_one or is_stream or value.get("raw") is True
        return (value, found) if is_known and found is not None else (None, _Missing)
    if value.get("input") is not None:
        is_known = isinstance(found, Mapping) and is_response(_bare(found))
        asked = _with_messages(value["input"]) or value
        return (asked, found) if is_known else (None, _Missing)
    asked = _request(value.get("body")) if found is not None else None
    if asked is not None:
        return asked, found
    for wrapped in (found, value.get("result")):
        if isinstance(wrapped, Mapping) and (is_response(_bare(wrapped)) or "custom_id" in value):
            return _other_request(value), wrapped
    return None, _Missing


def _with_messages(found: object) -> Json | None:
    """The request in a value, if it has messages."""
    asked = _request(found)
    messages = _unwrapped(asked.get("messages")) if asked is not None else None
    return asked if isinstance(messages, list) and any(map(is_message, messages)) else None


def _other_request(value: Json) -> Json | None:
    """The request that stands under a name of its own beside a response; None if there is none."""
    held = (_with_messages(one) for name, one in value.items() if name not in _RESPONSES)
    return next((one for one in held if one is not None), None)


def _other_responses(value: Json) -> list[Any]:
    """The responses that stand under names of their own beside a request."""
    known = (*_ASKED, *_REQUESTS, *_RESPONSES, "message")
    return [one for name, one in value.items() if name not in known and held_response(one)]


def _request(found: object) -> Json | None:
    """The request in a value, taken out of what it is wrapped in; None if there is none."""
    for _ in range(_DEEPEST):
        found = _unwrapped(found)
        if not isinstance(found, Mapping):
            return None
        if any(found.get(name) is not None for name in _ASKED):
            return found
        found = next((found[name] for name in _WRAPPERS if found.get(name) is not None), None)
    return None


def _response(value: Json) -> Any:
    """The response beside a request; _Missing if there is none."""
    for name in _RESPONSES:
        if value.get(name) is not None:
            return value[name]
    found = value.get("result")
    if isinstance(found, Mapping) and is_response(_bare(found)):
        return found
    if is_response(value) or isinstance(value.get("message"), Mapping):
        return value
    if value.get("role") == "assistant" and value.get("content"):
        return value
    others = _other_responses(value)
    if others or _ends_with_answer(value):
        return others[0] if others else _Missing
    return next((value[name] for name in _TEXTS if has_text(value, name)), _Missing)


def _ends_with_answer(value: Json) -> bool:
    """Whether messages end with one of the assistant, so that a text beside them is none."""
    messages = _unwrapped(value.get("messages"))
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _is_nested(messages: object) -> bool:
    """Whether messages are a list in a list."""
    if not isinstance(messages, list) or not messages:
        return False
    return all(isinstance(one, list) and one for one in messages)


def _unwrapped(found: object) -> object:
    """A value that may be written as text."""
    if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
        inner = parsed(found)
        return found if inner is None else inner
    return found


def _bare(found: Json) -> Json:
    body = _unwrapped(found.get("body"))
    return body if isinstance(body, Mapping) else found


# ---- what they say


def of_exchange(value: Json) -> Chat:
    """A request and what was generated for it.

    Raises
    ------
    NotAChat : it is damaged, or of a form that says too little
    """
    if is_batch_request(value):
        raise NotAChat(ANSWERS_ELSEWHERE)
    asked, response = _halves(value)
    chat = Chat()
    if asked is not None and not _is_text_prompt(asked):
        chat = _asked(asked)
    if response is _Missing:
        answer = ResponseAnswer(())
    elif is_refused(value):
        answer = ResponseAnswer((), reason=AN_ERROR)
    else:
        answer = answer_of(response, chat)
        others = _other_responses(value) if asked is not None else []
        if others and others[0] is response and len(others) > 1:
            chat.dropped.add("further response", n=len(others) - 1)
    if asked is not None and _is_text_prompt(asked):
        _add_prompt(chat, asked, answer)
    if asked is None:
        _stand_in(chat)
    _add_answer(chat, answer)
    return chat


def of_trace(value: Json) -> Chat:
    """{"input": messages, "output": what was answered}: a conversation as a whole."""
    given = _unwrapped(value["input"])
    asked = given if isinstance(given, Mapping) else {"messages": given}
    chat = _asked(asked)
    _add_answer(chat, answer_of(value["output"], chat))
    chat.is_trace = True
    return chat


def _asked(asked: Json) -> Chat:
    """What a request has: its messages, and what stands beside them."""
    chat = chat_with(asked)
    messages = _unwrapped(asked.get("messages"))
    if messages is None:
        _add_input(chat, asked)
        return chat
    chat.beside = len(chat.messages)
    if isinstance(messages, list) and _is_nested(messages):
        if len(messages) > 1:
            raise NotAChat("several conversations in one request")
        messages = messages[0]
    if not isinstance(messages, list):
        raise NotAChat("no list of messages")
    add_messages(chat, messages)
    return chat


def _add_input(chat: Chat, asked: Json) -> None:
    """Add what a request of the Responses API has."""
    instructions, given = asked.get("instructions"), _unwrapped(asked.get("input"))
    if isinstance(instructions, str) and instructions:
        chat.messages.append({"role": "system", "content": instructions})
    chat.beside = len(chat.messages)
    tools = chat.values.get("tools")
    if isinstance(tools, list):
        chat.values["tools"] = [_tool(chat, one) for one in tools]
    if asked.get("conversation") is not None:
        raise NotAChat("a request whose history is with the server (conversation)")
    if isinstance(asked.get("previous_response_id"), str):
        chat.follows = asked["previous_response_id"]
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise NotAChat("no list of messages")
    add_messages(chat, messages_of_items(given, chat.dropped))


def _tool(chat: Chat, tool: Any) -> Any:
    """A tool as chat completions name it."""
    if not isinstance(tool, Mapping) or "function" in tool or "name" not in tool:
        if kind_of(tool) not in ("", "function"):
            chat.dropped.add("tool", kind_of(tool))
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _is_text_prompt(asked: Json) -> bool:
    """Whether a request has a prompt, and no messages."""
    return asked.get("messages") is None and asked.get("prompt") is not None


def _add_prompt(chat: Chat, asked: Json, answer: ResponseAnswer) -> None:
    """Add a prompt: a text that went to the model as it is, or what the user says in a chat."""
    prompt = _unwrapped(asked["prompt"]) if not answer.is_text else asked["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(map(is_message, prompt)):
        add_messages(chat, prompt)
        return
    if isinstance(prompt, list) and all(isinstance(one, str) for one in prompt):
        raise NotAChat("several prompts in one request")
    if not isinstance(prompt, str):
        raise NotAChat("a prompt that is no text, such as ids of tokens")
    if asked.get("suffix") or asked.get("input_suffix"):
        raise NotAChat("a request to fill in the middle of a text")
    chat.is_raw = answer.is_text or asked.get("raw") is True
    if not chat.is_raw:
        chat.messages += chat_with(asked).messages
        chat.beside = len(chat.messages)
    chat.messages.append({"role": "user", "content": prompt})


def _stand_in(chat: Chat) -> None:
    """Let an answer follow an empty question, for its own is not there, and say so."""
    chat.messages.append({"role": "user", "content": ""})
    chat.dropped.add(NO_PROMPT, of_answer=True)


def _add_answer(chat: Chat, answer: ResponseAnswer) -> None:
    """Add what was answered, after what of it the request has already."""
    chat.unanswered = answer.reason
    if not answer.messages:
        if answer.reason:
            chat.asked = len(chat.messages)
        return
    prefill = _taken_prefill(chat, answer)
    asked = len(chat.messages)
    add_messages(chat, answer.messages)
    chat.asked, chat.response_id = asked, answer.name
    said = [i for i in range(asked, len(chat.messages)) if chat.messages[i]["role"] == "assistant"]
    if not said:
        return
    if answer.is_cut:
        chat.cut = {said[-1]}
    if prefill:
        first = chat.messages[said[0]]
        text = text_of(first["content"])
        first["content"] = prefill + text.removeprefix(prefill)
        chat.prefills = {said[0]: prefill}
    if chat.is_raw:
        _check_text(chat)


def _taken_prefill(chat: Chat, answer: ResponseAnswer) -> str:
    """The begin of the answer, where the request ends with it, taken away; "" if there is none."""
    last = chat.messages[-1] if chat.messages else {"role": ""}
    if last["role"] != "assistant" or last.get("tool_calls") or last.get("reasoning_content"):
        return ""
    chat.messages.pop()
    text = text_of(last["content"])
    is_all = answer.messages[0].get("content") == text  # it was written down with its messages
    return "" if is_all else text


def _check_text(chat: Chat) -> None:
    """A text and its answer, without the text itself, which some servers repeat."""
    prompt, answer = (text_of(one["content"]) for one in chat.messages[:2])
    if not answer or len(chat.messages) != 2:
        raise NotAChat("no answer of the assistant")
    if len(answer) > len(prompt) and prompt and answer.startswith(prompt):
        chat.messages[1]["content"] = answer[len(prompt) :]


# ---- streams


def chats_of_stream(lines: Sequence[Line]) -> Iterator[tuple[str, Chat | str]]:
    """Yield (place, the answer, or the reason why it is none) of streams whose pieces are lines."""
    streams: dict[str, list[Line]] = {}
    n = 0
    for line in lines:
        name = stream_of(line.value)
        key = name or f"#{n}"
        streams.setdefault(key, []).append(line)
        n += not name and is_end(line.value)
    for pieces in streams.values():
        chat = Chat()
        try:
            answer = answer_of(joined_chunks([one.value for one in pieces]), chat)
            _stand_in(chat)
            _add_answer(chat, answer)
        except NotAChat as error:
            yield pieces[0].place, str(error)
            continue
        yield pieces[0].place, chat
