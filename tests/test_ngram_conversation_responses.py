"""Responses under any name, as text, and those that are errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.messages import Chat, NotAChat
from draftsmith.ngram.conversations.files import open_chats
from draftsmith.ngram.conversations.formats import chat_of
from draftsmith.ngram.conversations.responses import AN_ERROR, NO_FORM
from draftsmith.ngram.conversations.search import held_in
from draftsmith.ngram.corpus.find import find_sources

REQUEST = {"messages": [{"role": "user", "content": "Name a colour."}]}
WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Red."}}]}
PIECES: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"content": "Re"}}]},
    {"choices": [{"index": 0, "delta": {"content": "d."}, "finish_reason": "stop"}]},
]
OLLAMA: list[dict[str, Any]] = [
    {"message": {"role": "assistant", "content": "Re"}, "done": False},
    {"message": {"role": "assistant", "content": "d."}, "done": True},
]


def read(value: dict[str, Any]) -> Chat:
    chat = chat_of(value)
    assert isinstance(chat, Chat)
    return chat


def texts(value: dict[str, Any]) -> list[tuple[str, str]]:
    chat = read(value)
    assert chat.asked == len(chat.messages) - 1
    assert not chat.dropped.counts
    return [(one["role"], one["content"]) for one in chat.messages]


ALL = [("user", "Name a colour."), ("assistant", "Red.")]


@pytest.mark.parametrize("name", ["response", "reply", "raw_response", "chunks", "x"])
@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("response", [WHOLE, PIECES])
def test_response_is_read_whatever_its_name(name: str, is_text: bool, response: Any) -> None:
    """A last answer that is dropped without a word, since its field has another name."""
    held = json.dumps(response) if is_text else response
    assert texts({"request": REQUEST, name: held}) == ALL
    assert texts({**REQUEST, name: held}) == ALL


@pytest.mark.parametrize("name", ["req", "inputs", "input", "payload", "proxy_server_request"])
def test_request_is_read_whatever_its_name(name: str) -> None:
    """An answer that follows an empty question, though the line has its messages."""
    assert texts({name: REQUEST, "response": WHOLE}) == ALL
    assert texts({"messages": {}, name: json.dumps(REQUEST), "response": WHOLE}) == ALL


def test_further_responses_are_counted() -> None:
    """The second of two responses vanishes without a word."""
    chat = read({"request": REQUEST, "a": WHOLE, "b": PIECES})
    assert chat.messages[-1]["content"] == "Red."
    assert [one.what for one in chat.dropped.counts] == ["further response"]


def test_generated_text_beside_messages_is_the_answer() -> None:
    """A text that was generated is taken for a note."""
    for name in ("generated_text", "reply", "content"):
        assert texts({**REQUEST, name: "Red."}) == ALL
    blocks = [{"type": "text", "text": "Red."}]
    assert texts({**REQUEST, "role": "assistant", "content": blocks}) == ALL


def test_text_beside_an_answered_chat_is_no_answer() -> None:
    """A note beside a chat becomes an answer, and the answer that is there its begin."""
    chat = read(
        {"messages": [*REQUEST["messages"], WHOLE["choices"][0]["message"]], "content": "x"}
    )
    assert [(one["role"], one["content"]) for one in chat.messages] == ALL
    assert chat.asked is None


def events(pieces: list[dict[str, Any]], before: str = "") -> str:
    return before + "".join(f"data: {json.dumps(one)}\n\n" for one in pieces) + "data: [DONE]\n\n"


@pytest.mark.parametrize(
    "response",
    [
        events(PIECES),
        events(PIECES, ": PROCESSING\n\n"),
        events(PIECES, "id: 7\n"),
        events(PIECES).splitlines(),
        "".join(json.dumps(one) + "\n" for one in OLLAMA),
        json.dumps({"message": {"role": "assistant", "content": "Red."}, "done": True}),
        {"completion": "Red.", "reasoning": None},
        {"content": "Red.", "usage": {}},
        {"answer": "Red."},
    ],
)
def test_streams_as_text_are_put_together(response: Any) -> None:
    """The JSON of a stream is replayed as if the model had written it."""
    assert texts({"request": REQUEST, "response": response}) == ALL


def test_torn_piece_of_a_stream_is_counted() -> None:
    """The end of an answer is missing without a word, or its stream is replayed as text."""
    lines = "".join(json.dumps(one) + "\n" for one in OLLAMA)
    for text in (events(PIECES) + 'data: {"choices": [{"de', lines + '{"message": {"ro'):
        chat = read({"request": REQUEST, "response": text})
        assert chat.messages[-1]["content"] == "Red."
        [(kind, n)] = chat.dropped.counts.items()
        assert (kind.what, kind.of_answer, n) == ("torn piece of a stream", True, 1)


def test_separators_of_lines_in_a_stream_are_text() -> None:
    """A piece that holds U+2028 or U+0085 is torn, and lost, or its stream replayed as text."""
    said = "a\u2028b\x85c"
    delta = {"choices": [{"index": 0, "delta": {"content": said}}]}
    line = {"message": {"role": "assistant", "content": said}, "done": False}
    for one, before in ((delta, "data: "), (line, "")):
        text = (before + json.dumps(one, ensure_ascii=False) + "\r\n\r\n") * 2
        assert texts({"request": REQUEST, "response": text})[-1] == ("assistant", said * 2)


@pytest.mark.parametrize("text", ['{"colour": "red"}', '{"a": 1}\n{"b": 2}', ": red", '["red"]'])
def test_json_that_a_model_wrote_is_its_answer(text: str) -> None:
    """An answer in JSON is taken for a response, or for nothing."""
    assert texts({"request": REQUEST, "response": text})[-1] == ("assistant", text)


@pytest.mark.parametrize(
    "response",
    [
        {"error": {"message": "busy", "code": 429}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        {"object": "error", "message": "too long", "code": 400},
        {"error": "no such model"},
    ],
)
def test_errors_are_no_answers(response: dict[str, Any]) -> None:
    """The text of an error is replayed as if the model had written it."""
    for held in (response, json.dumps(response)):
        chat = read({"request": REQUEST, "response": held})
        assert chat.unanswered == AN_ERROR
        assert [one["role"] for one in chat.messages] == ["user"]


@pytest.mark.parametrize("name", ["status", "status_code", "statusCode"])
def test_status_of_an_error_makes_its_page_no_answer(name: str) -> None:
    """A proxy's page of an error is replayed as if the model had written it."""
    page = "<html>Bad Gateway</html>"
    inside = {"request": REQUEST, "response": {name: 502, "body": page}}
    beside = {"request": REQUEST, "response": page, name: "502"}
    for value in (inside, beside):
        assert read(value).unanswered == AN_ERROR
    assert texts({"request": REQUEST, "response": "Red.", name: 200}) == ALL


def test_content_behind_a_prompt_may_be_a_raw_text() -> None:
    """The text of /completion, without what the server says beside it, is put into a chat."""
    with pytest.raises(NotAChat, match=NO_FORM):
        chat_of({"prompt": "Red, green,", "response": {"content": " blue.", "stop": True}})


@pytest.mark.parametrize("name", ["response", "responses", "attempts"])
def test_response_is_found_among_attempts(name: str) -> None:
    """A list of attempts is dropped without a word, or its error taken for the answer."""
    error = {"error": {"message": "busy"}}
    assert texts({"request": REQUEST, name: [error, WHOLE]}) == ALL
    chat = read({"request": REQUEST, name: [WHOLE, error, WHOLE]})
    assert chat.messages[-1]["content"] == "Red."
    assert [one.what for one in chat.dropped.counts] == ["further response"]


@pytest.mark.parametrize("name", ["system", "system_message", "systemInstruction"])
@pytest.mark.parametrize(
    "said",
    [
        "Be brief.",
        {"parts": [{"text": "Be brief."}]},
        {"role": "system", "content": "Be brief."},
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    ],
)
def test_system_beside_messages_is_read_in_each_form(name: str, said: Any) -> None:
    """A system prompt that is no plain text is missing in the prompts without a word."""
    value = {name: said, "messages": [*REQUEST["messages"], WHOLE["choices"][0]["message"]]}
    assert read(value).messages[0] == {"role": "system", "content": "Be brief."}


def test_system_that_is_no_text_is_counted() -> None:
    """An image in a system prompt vanishes, and the text beside it, without a word."""
    chat = read({"system": [{"type": "image"}], **REQUEST, "response": "Red."})
    assert [one.what for one in chat.dropped.counts] == ["field 'system'"]


def test_stream_with_comments_is_known_as_one(tmp_path: Path) -> None:
    """A saved stream that begins with a comment is replayed as the text of its JSON."""
    path = tmp_path / "stream.txt"
    path.write_text(events(PIECES, ": PLEASE WAIT\n\n"))
    assert held_in(find_sources([str(path)], None, is_text=True)[0][0]) == "chats"
    [[(place, chat)]] = open_chats([str(path)]).conversations()
    assert isinstance(chat, Chat)
    assert chat.messages[-1]["content"] == "Red."
    assert place == f"{path}:3"
