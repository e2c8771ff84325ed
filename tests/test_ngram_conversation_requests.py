"""Requests with their responses, as APIs, proxies and tracing services log them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.messages import Chat, NotAChat
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.ngram.conversations.conversation import ReplayTexts
from draftsmith.ngram.conversations.files import ChatFiles, open_chats
from draftsmith.ngram.conversations.formats import chat_of
from draftsmith.ngram.conversations.reader import read_conversations
from draftsmith.ngram.conversations.requests import ANSWERS_ELSEWHERE, NO_PROMPT
from draftsmith.ngram.conversations.responses import AN_ERROR, NO_FORM
from draftsmith.ngram.conversations.threads import LOST_RESPONSE
from token_bytes import token_bytes

CASES = Path(__file__).parent / "golden" / "cases" / "logs"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def generated(chat: Chat) -> list[str]:
    places = chat.generated
    if places is None:
        first = 0 if chat.asked is None else chat.asked
        places = set(range(first, len(chat.messages)))
    return [
        one["content"] for i, one in enumerate(chat.messages)
        if i in places and one["role"] == "assistant"
    ]  # fmt: skip


def lines_of(folder: Path, *values: Any) -> list[list[tuple[str, Chat | str]]]:
    """The conversations in a file of these values, a line each."""
    path = folder / "log.jsonl"
    lines = [one if isinstance(one, str) else json.dumps(one) for one in values]
    path.write_text("\n".join(lines))
    return list(open_chats([str(path)]).conversations())


def answers(found: Iterable[list[tuple[str, Chat | str]]]) -> list[list[str]]:
    """What was generated in each conversation, or the reasons why it is none."""
    return [
        [text for _, chat in one for text in
         ([chat] if isinstance(chat, str) else generated(chat))]
        for one in found
    ]  # fmt: skip


# ---- the cases


class Real:
    """SmolLM2's vocabulary and template."""

    def __init__(self, path: Path) -> None:
        metadata = read_metadata(path)
        self.tokenizer: Tokenizer = load_tokenizer(path, metadata)
        self.template = ChatTemplate.of(metadata, self.tokenizer.vocabulary)
        self.ends = eog_ids(metadata, self.tokenizer.vocabulary)

    def read(self, *paths: Path) -> tuple[ReplayTexts, ChatFiles]:
        files = open_chats([str(path) for path in paths])
        texts, _ = read_conversations(files, self.tokenizer, self.template, self.ends)
        return texts, files

    def turns(self, *paths: Path) -> list[tuple[str, str]]:
        """Each turn's prompt, and what was generated."""
        texts, _ = self.read(*paths)
        pairs = zip(texts.prompts.tolist(), texts.turns.tolist(), strict=True)
        return [(self.text(texts, p, a), self.text(texts, a, b)) for p, (a, b) in pairs]

    def text(self, texts: ReplayTexts, start: int, stop: int) -> str:
        return token_bytes(self.tokenizer, texts.tokens[start:stop]).decode()


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Real:
    return Real(smollm2)


def same(one: ReplayTexts, other: ReplayTexts) -> bool:
    names = ("tokens", "starts", "turns", "prompts", "turn_of_conversation")
    return all(getattr(one, name).tolist() == getattr(other, name).tolist() for name in names)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("api_log_growing.jsonl", "ref_sys.jsonl"),
        ("api_log_ten.jsonl", "api_log_ten_ref.jsonl"),
        ("langfuse.jsonl", "ref_sys.jsonl"),
        ("langfuse_text.jsonl", "ref_sys.jsonl"),
        ("ollama_chat.jsonl", "ref_one.jsonl"),
        ("responses_api.jsonl", "ref_one.jsonl"),
        ("responses_api_request_response.jsonl", "ref_one.jsonl"),
    ],
)
def test_a_form_is_its_reference(name: str, reference: str, real: Real) -> None:
    """Figures that a form's own way of writing changes: 55 turns instead of 10, 1 instead of 2."""
    found, files = real.read(CASES / name)
    assert same(found, real.read(CASES / reference)[0])
    assert (files.stats.n_read, files.stats.n_bad) == (1, 0)


def test_the_figures_of_the_cases(real: Real) -> None:
    """Both a form and its reference that are wrong in the same way."""
    texts, _ = real.read(CASES / "api_log_growing.jsonl")
    assert (texts.n_conversations, texts.n_turns, texts.n_generated) == (1, 2, 430)
    texts, _ = real.read(CASES / "api_log_ten.jsonl")
    assert (texts.n_conversations, texts.n_turns, texts.n_generated) == (1, 10, 2481)
    texts, _ = real.read(CASES / "shorter.jsonl")  # two share a question, two are the same
    assert (texts.n_conversations, texts.n_turns, texts.n_generated) == (4, 4, 1616)


def test_a_response_alone_is_generated(real: Real) -> None:
    """The history of a request, replayed as if this model had generated it now."""
    (turn,) = real.turns(CASES / "proxy_body.jsonl")
    assert turn == real.turns(CASES / "ref_sys.jsonl")[1]


def test_answers_without_their_prompts(real: Real) -> None:
    """Answers that are lost, or whose prompt seems to be known."""
    answer = real.turns(CASES / "ref_one.jsonl")[0][1]
    for name, text in (("batch_output.jsonl", answer), ("sse.jsonl", "Here is it.<|im_end|>")):
        ((_, found),) = real.turns(CASES / name)
        assert found == text
        _, files = real.read(CASES / name)
        (kind,) = files.stats.dropped
        assert (kind.what, kind.of_answer) == (NO_PROMPT, True)


def test_a_batch_with_its_input(real: Real) -> None:
    """A prompt that stands in another file, and is not found; a half that counts as well."""
    expected = real.read(CASES / "ref_one.jsonl")[0]
    paths = [CASES / "batch_input.jsonl", CASES / "batch_output.jsonl"]
    for order in (paths, paths[::-1]):
        found, files = real.read(*order)
        assert same(found, expected)
        assert (files.stats.n_bad, files.stats.n_media) == (0, 0)
    ((_, reason),) = next(iter(open_chats([str(paths[0])]).conversations()))
    assert reason == ANSWERS_ELSEWHERE


def test_texts_that_went_to_the_model_as_they_are(real: Real) -> None:
    """A template around a prompt that never had one, or an end that was not generated."""
    for name in ("llama_completion.jsonl", "v1_completions.jsonl"):
        ((prompt, answer),) = real.turns(CASES / name)
        assert prompt.startswith("Rename the variable total")
        assert prompt.endswith("    return total + 5\n")
        assert answer.startswith("Here is the file")
        assert answer.endswith("    return product + 5\n")


def test_an_answer_that_goes_on_from_what_the_request_has(real: Real) -> None:
    """A prefill that counts as generated, and its continuation as an answer of its own."""
    ((prompt, answer),) = real.turns(CASES / "m_prefill.jsonl")
    assert prompt.endswith("<|im_start|>assistant\nThe answer is")
    assert answer.startswith(" forty two")
    assert answer.endswith("<|im_end|>")


def test_an_answer_that_a_limit_ended(real: Real) -> None:
    """A token that ends the answer, and that was never generated."""
    ((_, answer),) = real.turns(CASES / "m_n_predict_cut.jsonl")
    assert answer == "The answer is forty two, and the answer "


@pytest.mark.parametrize(
    "name",
    ["m_response_text", "m_response_msg", "m_litellm_str", "m_stringified", "m_nested"],
)
def test_small_cases(name: str) -> None:
    """A response that is a text, a message or written as JSON; messages in a list or a text."""
    ((line,),) = open_chats([str(CASES / f"{name}.jsonl")]).conversations()
    assert isinstance(line[1], Chat)
    assert [(one["role"], one["content"][:18]) for one in line[1].messages] == [
        ("user", "What is the answer"),
        ("assistant", "The answer is fort"),
    ]
    assert line[1].generated == {1}


# ---- forms

ASKED = {"model": "m", "messages": [user("q")]}
WHOLE = {"choices": [{"index": 0, "message": said("a"), "finish_reason": "stop"}]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CHUNKS = [
    {"id": "s", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"id": "s", "choices": [{"index": 0, "delta": {"content": "a"}}]},
    {"id": "s", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "s", "choices": [], "usage": {}},
]


@pytest.mark.parametrize(
    "value",
    [
        {"request": ASKED, "response": WHOLE},
        {"request": json.dumps(ASKED), "response": json.dumps(WHOLE)},
        {"request": {"body": ASKED}, "response": {"status": 200, "body": WHOLE}},
        {"request": {"body": json.dumps(ASKED)}, "response": {"body": json.dumps(WHOLE)}},
        {"request_body": ASKED, "response_body": WHOLE},
        {"body": ASKED, "response": WHOLE},
        {"request": ASKED, "response": CHUNKS},
        {"request": ASKED,
         "response": "".join(f"data: {json.dumps(c)}\n\n" for c in CHUNKS) + "data: [DONE]\n"},
        {**ASKED, "response": "a"},
        {**ASKED, "response": [said("a")]},
        {**ASKED, "completion": "a"},
        {**ASKED, **WHOLE},
        {**ASKED, "message": said("a"), "done": True},
        {"messages": [user("q"), said("a")], "response": "a"},
        {"request": ASKED, "response": {"role": "assistant", "type": "message",
                                        "content": [{"type": "text", "text": "a"}]}},
        {"request": {"input": "q"}, "response": {"object": "response", "output": [
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "a"}]}]}},
        {"request": {"prompt": "q"}, "response": {"choices": [{"text": "a"}]}},
        {"prompt": "q", "content": "a", "timings": {}},
        {"prompt": "q", "raw": True, "response": "a", "done": True},
        {"prompt": ["q"], "choices": [{"text": "a"}]},
        {"prompt": "q", "response": WHOLE},
        {"input": [user("q")], "output": WHOLE},
        {"input": {"messages": [user("q")]}, "output": said("a")},
        {"custom_id": "1", "request": ASKED, "response": {"body": WHOLE}},
    ],
)  # fmt: skip
def test_forms(value: Any) -> None:
    """A form that is refused, or read as another."""
    chat = chat_of(value)
    assert [(one["role"], one["content"]) for one in chat.messages] == [
        ("user", "q"),
        ("assistant", "a"),
    ]
    assert (generated(chat), chat.asked, chat.dropped.n) == (["a"], 1, 0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"request": ASKED, "response": 5}, NO_FORM),
        ({"request": ASKED, "response": {"foo": 1}}, NO_FORM),
        ({"request": {"input": "q", "conversation": "c"}, "response": {"object": "response",
          "output": []}}, "a request whose history is with the server (conversation)"),
        ({"prompt": [1, 2], "choices": [{"text": "a"}]},
         "a prompt that is no text, such as ids of tokens"),
        ({"prompt": ["q", "r"], "choices": [{"text": "a"}]}, "several prompts in one request"),
        ({"prompt": "q", "suffix": "z", "choices": [{"text": "a"}]},
         "a request to fill in the middle of a text"),
        ({"messages": [[user("q")], [user("r")]]}, "several conversations in one request"),
        ({"custom_id": "1", "url": "/v1", "body": ASKED}, ANSWERS_ELSEWHERE),
        ({"custom_id": "1", "params": ASKED}, ANSWERS_ELSEWHERE),
    ],
)  # fmt: skip
def test_what_is_refused(value: Any, reason: str) -> None:
    """A guess, where a log says too little."""
    with pytest.raises(NotAChat) as error:
        chat_of(value)
    assert str(error.value) == reason


def test_errors_are_no_answers(tmp_path: Path) -> None:
    """A request that failed as an answer, or as one without a reason."""
    failed = {"request": ASKED, "response": {"status": 500, "error": {"message": "secret"}}}
    assert generated(chat_of(failed)) == []
    assert chat_of(failed).unanswered == AN_ERROR
    assert answers(lines_of(tmp_path, failed, {"request": ASKED, "response": WHOLE})) == [["a"]]


def test_responses_that_name_the_one_before(tmp_path: Path) -> None:
    """A history that stands in earlier lines alone (previous_response_id)."""

    def line(text: str, name: str, before: str | None, output: list[Any]) -> dict[str, Any]:
        request = {"instructions": "Be.", "input": text, "previous_response_id": before}
        return {"request": request, "response": {"id": name, "object": "response",
                                                 "output": output}}  # fmt: skip

    def words(text: str) -> list[Any]:
        return [{"type": "message", "role": "assistant",
                 "content": [{"type": "output_text", "text": text}]}]  # fmt: skip

    log = [line("q0", "r0", None, words("a0")), line("q1", "r1", "r0", [CALL]),
           line("q2", "r2", "r1", words("a2")), line("x", "r9", "r8", words("b"))]  # fmt: skip
    found = lines_of(tmp_path, *log)
    (place, chat), *others = found[0]
    assert isinstance(chat, Chat)
    assert not others
    assert place.endswith(":1")
    roles = ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert [one["role"] for one in chat.messages] == roles
    assert chat.generated == {2, 4, 6}
    assert [reason for _, reason in found[1]] == [LOST_RESPONSE]


def test_what_a_response_has_beside_its_text() -> None:
    """Thoughts and calls of a response that are lost; further choices that nobody hears of."""
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    chat = chat_of({"request": {"input": "q", "tools": [{"type": "function", "name": "f"}]},
                    "response": {"output": [thought, CALL]}})  # fmt: skip
    assert chat.messages[1]["reasoning_content"] == "hm"
    assert chat.messages[1]["tool_calls"][0]["function"]["name"] == "f"
    assert chat.values["tools"] == [{"type": "function", "function": {"name": "f"}}]
    chat = chat_of({**ASKED, "choices": [{"index": 1, "message": said("b")},
                                         {"index": 0, "message": said("a")}]})  # fmt: skip
    assert generated(chat) == ["a"]
    assert [(kind.what, n) for kind, n in chat.dropped.counts.items()] == [("further choice", 1)]
    chat = chat_of({"request": ASKED, "response": {"output": [
        {"type": "web_search_call"}, {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "a"}]}]}})  # fmt: skip
    assert [(kind.what, kind.of_answer) for kind in chat.dropped.counts] == [
        ("item 'web_search_call'", True)
    ]


# ---- streams


def test_pieces_that_are_lines(tmp_path: Path) -> None:
    """Each piece as an answer of its own; two streams whose pieces take turns, as one."""

    def piece(name: str, text: str) -> dict[str, Any]:
        return {"id": name, "choices": [{"index": 0, "delta": {"content": text}}]}

    mixed = [piece(name, f"{name}{n} ") for n in range(3) for name in "ab"]
    assert answers(lines_of(tmp_path, *mixed)) == [["a0 a1 a2 "], ["b0 b1 b2 "]]
    lines = ["event: x", *(f"data: {json.dumps(one)}" for one in CHUNKS), "data: [DONE]", ": ping"]
    assert answers(lines_of(tmp_path, *lines)) == [["a"]]
    bare = [{"choices": one["choices"]} for one in CHUNKS[:3]]
    assert answers(lines_of(tmp_path, *bare, *bare)) == [["a"], ["a"]]


def test_streams_of_other_apis(tmp_path: Path) -> None:
    """Ollama's pieces, and the events of Anthropic's and of OpenAI's Responses."""
    ollama = [{"model": "m", "message": said(text), "done": text == ""} for text in ("a", "b", "")]
    assert answers(lines_of(tmp_path, *ollama, *ollama)) == [["ab"], ["ab"]]
    events = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
          for t in "ab"),
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "c", "name": "f", "input": {}}},
        {"type": "content_block_delta", "index": 1,
         "delta": {"type": "input_json_delta", "partial_json": '{"x": 1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]  # fmt: skip
    found = lines_of(tmp_path, *events)
    assert answers(found) == [["ab"]]
    chat = found[0][0][1]
    assert isinstance(chat, Chat)
    assert chat.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in "ab"]
    whole = {"type": "response.completed", "response": {"object": "response", "output": [
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "ab"}]}]}}  # fmt: skip
    assert answers(lines_of(tmp_path, {"type": "response.created"}, *deltas)) == [["ab"]]
    assert answers(lines_of(tmp_path, {"type": "response.created"}, *deltas, whole)) == [["ab"]]


# ---- texts that grow


def test_texts_that_grow_are_one_conversation(tmp_path: Path, real: Real) -> None:
    """A log of /completion whose prompts have all before them: each answer is counted once."""
    text, lines, expected = "Once", [], []
    for n in range(4):
        answer = f" upon a time {n},"
        lines.append({"prompt": text, "content": answer, "tokens_predicted": 5})
        expected.append((text, answer))
        text += f"{answer} there"
    other = {"prompt": "Twice", "content": " or so", "tokens_predicted": 2}
    found = lines_of(tmp_path, lines[0], other, *lines[1:])
    assert answers(found) == [[answer for _, answer in expected], [" or so"]]
    chat = found[0][0][1]
    assert isinstance(chat, Chat)
    assert len(chat.messages) == 8  # nothing is held twice
    turns = real.turns(tmp_path / "log.jsonl")
    assert turns == [*expected, ("Twice", " or so")]


# ---- anything


def test_any_value_is_a_conversation_or_none() -> None:
    """An internal error, from a value that is almost a request."""
    rng = random.Random(11)
    names = ["request", "response", "messages", "choices", "message", "body", "input", "output",
             "prompt", "content", "role", "type", "delta", "custom_id", "params", "result", "id",
             "index", "text", "instructions", "previous_response_id", "tools", "done", "raw",
             "tool_calls", "function", "name", "arguments", "summary", "error", "object",
             "finish_reason", "conversation", "timings", "suffix", "content_block"]  # fmt: skip
    words = ["a", "", "user", "assistant", "message", "reasoning", "function_call", "text",
             "response", "tool_use", "length", "data: {}", "{}", "[]", '{"choices": 1}',
             '[{"role": "user", "content": "q"}]', "message_start",
             "response.completed"]  # fmt: skip

    def value(depth: int) -> Any:
        kind = rng.randrange(9 if depth else 5)
        if kind > 6:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        if kind > 4:
            return {rng.choice(names): value(depth - 1) for _ in range(rng.randrange(7))}
        return [None, True, rng.choice([0, -1, 7, 1.5]), rng.choice(words), rng.choice(words)][kind]

    n_read = 0
    for _ in range(12_000):
        made = {rng.choice(names): value(4) for _ in range(rng.randrange(1, 7))}
        with suppress(NotAChat):
            chat = chat_of(made)
            assert all(isinstance(one["role"], str) for one in chat.messages)
            assert chat.asked is None or 0 <= chat.asked <= len(chat.messages)
            n_read += 1
    assert n_read > 30


def test_any_lines_are_conversations_or_reasons(tmp_path: Path) -> None:
    """An internal error, from lines that are almost pieces of a stream, or halves of a batch."""
    rng = random.Random(12)
    pieces: list[Any] = [
        *CHUNKS, {"request": ASKED, "response": WHOLE}, {"custom_id": "1", "body": ASKED},
        {"custom_id": "1", "response": {"body": WHOLE}}, {"custom_id": "1", "response": None},
        {"type": "message_start"}, {"type": "content_block_delta", "delta": {"text": "a"}},
        {"type": "response.created"}, {"type": "response.completed", "response": {"output": []}},
        {"done": True, "message": {}}, {"done": False, "response": "a"},
        {"id": 5, "choices": [{"delta": {"tool_calls": [{"index": 3}]}}]},
        {"choices": [{"delta": {"tool_calls": [5, {"function": 5}]}, "index": "x"}]},
        {"choices": [5, {"delta": {}}], "object": "chat.completion.chunk"},
        {"prompt": "a", "content": "b", "timings": {}},
        {"prompt": "", "content": "", "timings": {}},
        {"input": "q", "previous_response_id": "r", "output": [], "object": "response"},
        {"messages": []}, [], 5, "data: x", "event: y",
    ]  # fmt: skip
    for _ in range(60):
        for one in lines_of(tmp_path, *rng.choices(pieces, k=30)):
            assert one
            assert all(isinstance(chat, Chat | str) for _, chat in one)
