"""Lines of a log as conversations: which line continues which, and what of it is generated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.messages import Chat
from draftsmith.ngram.conversations import marks as conversation_marks
from draftsmith.ngram.conversations import threads as conversation_threads
from draftsmith.ngram.conversations.formats import chat_of
from draftsmith.ngram.conversations.threads import threads_of

SYSTEM = {"role": "system", "content": "Be brief."}
# Long enough that two people do not say it by chance.
LONG = "The answer is forty two, and it is the same each time I am asked for it: forty two."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(messages: list[Any], answer: Any = None) -> dict[str, Any]:
    """A line of a log: a request, and its response if there is one."""
    line: dict[str, Any] = {"request": {"messages": messages}}
    if answer is not None:
        message = answer if isinstance(answer, dict) else said(answer)
        line["response"] = {"choices": [{"message": message}]}
    return line


def turns(*values: Any) -> list[list[str]]:
    """Of each conversation what was generated, in order."""
    lines = [(f"log:{number}", chat_of(value)) for number, value in enumerate(values, start=1)]
    return [
        [
            one["content"]
            for _, chat in conversation
            for i, one in enumerate(_chat(chat).messages)
            if i in (_chat(chat).generated or set())
        ]
        for conversation in threads_of(lines)
    ]


def flat(found: list[list[str]]) -> list[str]:
    return sorted(text for one in found for text in one)


def _chat(line: Chat | str) -> Chat:
    assert isinstance(line, Chat)
    return line


def growing(n: int, start: str = "q", answer: str = "a") -> list[dict[str, Any]]:
    """A log of one chat: each request has all before it."""
    history: list[Any] = [SYSTEM]
    lines = []
    for number in range(n):
        history.append(user(f"{start}{number}"))
        lines.append(call(list(history), f"{answer}{number}"))
        history.append(said(f"{answer}{number}"))
    return lines


def test_a_log_that_grows_counts_each_answer_once() -> None:
    """Histories that are replayed as generated text, 20,100 turns instead of 200."""
    assert turns(*growing(200)) == [[f"a{n}" for n in range(200)]]
    chat = _chat(next(threads_of([(str(n), chat_of(one)) for n, one in
                                  enumerate(growing(20))]))[0][1])  # fmt: skip
    assert len(chat.messages) == 41  # one line of messages: nothing is rendered twice


def test_requests_without_responses_that_grow() -> None:
    """The answer to a request is in the next one, and is counted once."""
    history = [SYSTEM]
    lines = []
    for n in range(5):
        history.append(user(f"q{n}"))
        lines.append({"messages": list(history)})
        history.append(said(f"a{n}"))
    assert turns(*lines) == [["a0", "a1", "a2", "a3"]]
    assert turns(*lines, {"messages": list(history)}) == [["a0", "a1", "a2", "a3", "a4"]]


def test_whole_conversations_that_grow() -> None:
    """A chat that was written down anew after each answer; its end is told apart from a branch."""
    talk = [user("q0"), said("a0"), user("q1"), said("a1"), user("q2"), said("a2")]
    lines = [{"messages": talk[:n]} for n in (2, 4, 6)]
    assert turns(*lines) == [["a0", "a1", "a2"]]
    other = [user("x0"), said(LONG), user("x1"), said("y1")]
    mixed = [lines[0], {"messages": other[:2]}, lines[1], {"messages": other}]
    # a short exchange may be anybody's, unless the line before has it
    assert turns(*mixed) == [["a0"], [LONG, "y1"], ["a0", "a1"]]


@pytest.mark.parametrize(
    "lines",
    [
        [[SYSTEM, user("q"), said("a")], [SYSTEM, user("r"), said("b")]],
        [[SYSTEM, user("q"), said("a")], [SYSTEM, user("q"), said("b")]],
        [[SYSTEM, user("q"), said("a")], [SYSTEM, user("q"), said("a")]],
        [[user("q"), said(LONG), user("r"), said("b")],
         [user("q"), said(LONG), user("s"), said("c")]],
    ],
)  # fmt: skip
def test_conversations_of_a_data_set_remain_apart(lines: list[Any]) -> None:
    """Two that share a system prompt, a question, an exchange, or all, as one."""
    found = turns(*({"messages": one} for one in lines))
    assert [len(one) for one in found] == [
        sum(m["role"] == "assistant" for m in one) for one in lines
    ]


def test_the_same_first_question_is_anybodys() -> None:
    """Two clients whose requests begin alike, each with its own answer, as one conversation."""
    first = [SYSTEM, user("hello")]
    assert turns(call(first, "Hi!"), call(first, "Hello!")) == [["Hi!"], ["Hello!"]]
    assert turns(call(first, "Hi!"), call([*first, said("Other."), user("q")], "a")) == [
        ["Hi!"],
        ["a"],
    ]


def test_sessions_that_take_turns() -> None:
    """Interleaved sessions, though they begin with the same words."""
    a, b = growing(4, "same "), growing(4, "same ", "b")
    mixed = [line for pair in zip(a, b, strict=True) for line in pair]
    assert turns(*mixed) == [["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]]
    # the same answers, too, up to where they part
    hello = call([user("hello")], "Hi!")
    history = [user("hello"), said("Hi!")]
    after = [call([*history, user(q)], f"{q}!") for q in ("x", "y")]
    assert sorted(turns(hello, hello, *after)) == [["Hi!", "x!"], ["Hi!", "y!"]]


def test_retries_and_regenerated_answers() -> None:
    """Each response was generated; each is a branch of the conversation that it belongs to."""
    lines = growing(2)
    history = [*lines[1]["request"]["messages"]]
    again = call(history, "a1 again")
    assert turns(*lines, again) == [["a0", "a1", "a1 again"]]
    assert turns(*lines, lines[1]) == [["a0", "a1", "a1"]]
    goes_on = call([*history, said("a1 again"), user("q2")], "a2")
    assert turns(*lines, again, goes_on) == [["a0", "a1", "a1 again", "a2"]]


def test_a_question_that_was_edited() -> None:
    """Another question after the same answers is a branch, and not a new conversation."""
    lines = growing(3, answer=LONG)
    history = lines[1]["request"]["messages"][:-1]
    edited = call([*history, user("another")], "b")
    assert turns(*lines, edited) == [[f"{LONG}{n}" for n in range(3)] + ["b"]]


def test_histories_that_were_trimmed() -> None:
    """The system prompt and the last messages only, or a system prompt that tells the time."""
    lines = growing(3, answer=LONG)
    history = lines[2]["request"]["messages"]
    trimmed = call([SYSTEM, *history[-3:]], "b")
    assert turns(*lines[:2], trimmed) == [[f"{LONG}0", f"{LONG}1", "b"]]
    for n, line in enumerate(lines):
        line["request"]["messages"] = [
            {"role": "system", "content": f"It is {n} o'clock."}, *line["request"]["messages"][1:]
        ]  # fmt: skip
    assert turns(*lines) == [[f"{LONG}{n}" for n in range(3)]]
    asked = [{"messages": line["request"]["messages"]} for line in lines]
    assert turns(*asked) == [[f"{LONG}0", f"{LONG}1"]]


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (said("a", reasoning_content="hm"), said("a")),
        (said("<think>hm</think>\n\na"), said("a")),
        (said("a\n"), said("a")),
        (said("a"), {"role": "assistant", "content": [{"type": "text", "text": "a"}]}),
        (said("", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}]),
         said(None, tool_calls=[{"id": "2", "function": {"name": "f", "arguments": {"x": 1}}}])),
        (said(LONG), said(LONG[:40])),
    ],
)  # fmt: skip
def test_answers_that_come_back_with_changes(answer: Any, sent: Any) -> None:
    """An answer that its client changed a little is counted again, or ends the conversation."""
    first = [SYSTEM, user("q0")]
    lines = [call(first, answer), call([*first, sent, user("q1")], "b"),
             call([*first, sent, user("q1"), said("b"), user("q2")], "c")]  # fmt: skip
    assert turns(*lines) == [[chat_of(lines[0]).messages[-1]["content"], "b", "c"]]


def test_a_request_whose_response_was_not_logged() -> None:
    """Its answer stands in the next request, and was generated; a failed request is no answer."""
    lines = growing(4)
    del lines[1]["response"]
    assert turns(*lines) == [["a0", "a1", "a2", "a3"]]
    assert turns(lines[0], lines[1], lines[1], *growing(4)[1:]) == [["a0", "a1", "a2", "a3"]]


def test_a_log_that_begins_in_the_middle() -> None:
    """With a response, what stands before it is history, though nobody saw it generated."""
    lines = growing(6)[3:]
    assert turns(*lines) == [["a3", "a4", "a5"]]
    assert turns({"messages": lines[0]["request"]["messages"]}) == [["a0", "a1", "a2"]]


def test_examples_in_the_prompt_do_not_join() -> None:
    """Requests that begin with the same made up exchange, as one conversation."""
    shots = [SYSTEM, user("2+2"), said(LONG)]
    assert turns(*(call([*shots, user(q)], q * 2) for q in "xyz")) == [["xx"], ["yy"], ["zz"]]


def test_values_of_the_template_are_each_lines_own() -> None:
    """Tools that a later request has, in the prompts of earlier ones."""
    lines = growing(3)
    lines[2]["request"]["tools"] = [{"type": "function", "function": {"name": "f"}}]
    (conversation,) = threads_of([(str(n), chat_of(one)) for n, one in enumerate(lines)])
    assert [len(_chat(chat).messages) for _, chat in conversation] == [5, 7]
    assert [place for place, _ in conversation] == ["0", "2"]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations that are all held to the end; what comes late is counted twice."""
    monkeypatch.setattr(conversation_threads, "_OPEN_REQUESTS", 20_000)
    logs = [growing(12, f"{n} ", f"{n}: {LONG}") for n in range(40)]
    lines = [(str(n), chat_of(line)) for n, line in enumerate(line for log in logs for line in log)]
    threads = conversation_threads.Threads()
    found, most = [], 0
    for place, line in lines:
        threads.add(place, line)
        found += list(threads.ready())
        most = max(most, sum(threads._size.values()))
    found += list(threads.rest())
    assert most < 40_000
    assert len(found) == 40
    # a conversation that goes on after it was handed out: the answers are not counted again
    late = [log[n] for n in range(12) for log in logs]
    assert flat(turns(*late)) == sorted(f"{n}: {LONG}{k}" for n in range(40)
                                                   for k in range(12))  # fmt: skip


def test_prefixes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of a log of any length in memory."""
    monkeypatch.setattr(conversation_marks, "_MOST_PREFIXES", 50)
    marks: conversation_marks.MessageMarks[int] = conversation_marks.MessageMarks()
    for n in range(200):
        marks.put(str(n).encode(), conversation_marks.Mark(n))
        marks.put_exchange(str(n).encode(), n)
        marks.put(b"same", conversation_marks.Mark(n))
    assert len(marks._of) == len(marks._exchanges) == 50
    assert len(marks._of[b"same"]) <= 16


def test_random_logs_count_each_response_once() -> None:
    """Any order of sessions, retries and branches: a response is generated text exactly once."""
    rng = random.Random(5)
    for _ in range(60):
        histories = [[SYSTEM, user(f"first {n}")] for n in range(3)]
        lines, expected = [], []
        for number in range(25):
            n = rng.randrange(3)
            history = histories[n]
            answer = f"answer {number} {rng.random()}"
            lines.append(call(list(history), answer))
            expected.append(answer)
            if rng.random() < 0.8:
                histories[n] = [*history, said(answer), user(f"next {number}")]
            elif len(history) > 4:
                histories[n] = [*history[:-1], user(f"edited {number}")]
        assert flat(turns(*lines)) == sorted(expected)


def test_lines_keep_their_order(tmp_path: Path) -> None:
    """Reasons and conversations in another order than the file has them."""
    lines: list[tuple[str, Any]] = [("1", "bad"), ("2", chat_of(growing(1)[0])), ("3", "worse")]
    assert [one[0][0] for one in threads_of(lines)] == ["1", "2", "3"]
    assert json.dumps([len(one) for one in threads_of(lines)]) == "[1, 1, 1]"


def test_files_of_a_chat_each_are_as_many_chats() -> None:
    """A saved chat that begins as another one does, as one conversation with it."""
    talk = [user("q0"), said(LONG), user("q1"), said("a1")]
    lines = [("a.json:1", chat_of(talk[:2])), ("b.json:1", chat_of(talk))]
    assert len(list(threads_of(lines))) == 2
    asked = [
        ("a.json:1", chat_of(call(talk[:1], LONG))),
        ("b.json:1", chat_of(call(talk[:3], "a1"))),
    ]
    assert len(list(threads_of(asked))) == 1
