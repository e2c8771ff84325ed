"""Many conversations in one process: each as by itself, and none at the others' cost."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat import batch as chat_batch
from draftsmith.engine.chat import template as chat
from draftsmith.engine.chat.batch import BatchedChat, BatchRenderer, Rendered
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import ChatTemplateUnusable
from draftsmith.engine.gguf.file import read_metadata

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 < 2 & 'so' \"on\"?"},
    {"role": "assistant", "content": "Yes.\n"},
    {"role": "user", "content": "\u4f60\u597d \U0001f600\ud83d\n\n"},
    {"role": "assistant", "content": ""},
]
LOOP = "{% for i in range(99999) %}"
# What a template does to a conversation that says so, and to no other.
BOMBS = {
    "loops": f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
    "string": "{{ 'a' * 10**10 }}",
    "doubling": "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 60,
    "compare": "{% set x, y = 1, 1 %}" + "{% set x, y = [x, x], [y, y] %}" * 60 + "{{ x == y }}",
    "long text": f"{LOOP}{{{{ 'a' * 999 }}}}{{% endfor %}}",
    "objects": "{{ range(10**5)|batch(1)|map('list')|list|length }}" * 50,
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "refusal": "{{ raise_exception('no') }}",
}


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(Path("toy.gguf"), source, "<s>", "</s>")


def all_prefixes(messages: Sequence[dict[str, Any]]) -> BatchedChat:
    prefixes = [(n, adds) for n in range(1, len(messages) + 1) for adds in (True, False)]
    return BatchedChat(messages, prefixes, {})


def said(text: str) -> BatchedChat:
    return BatchedChat([{"role": "user", "content": text}], [(1, False)], {})


def render(source: str, conversations: Sequence[BatchedChat], **options: Any) -> list[Rendered]:
    with BatchRenderer(template_of(source), **options) as renderer:
        return list(renderer.render_all(conversations))


def joined(rendered: Rendered) -> list[str]:
    """The whole texts."""
    texts, before = [], ""
    for n_shared, rest in rendered.texts:
        before = before[:n_shared] + rest
        texts.append(before)
    return texts


def has_ended(renderer: BatchRenderer) -> bool:
    return renderer._worker._process.poll() is not None


# ---- the texts


def test_as_one_by_one(smollm2: Path) -> None:
    """A text that differs from that of a rendering by itself, at any prefix."""
    template = ChatTemplate.of(read_metadata(smollm2))
    chats = [TURNS, TURNS[1:3]]
    with BatchRenderer(template) as renderer:
        found = list(renderer.render_all(map(all_prefixes, chats)))
    for messages, rendered in zip(chats, found, strict=True):
        wanted = [
            template.render(messages[:n], adds)
            for n in range(1, len(messages) + 1)
            for adds in (True, False)
        ]
        assert joined(rendered) == wanted
    n_letters = sum(len(rest) for _, rest in found[0].texts)
    assert n_letters < 2 * len(joined(found[0])[-1])


def test_values_are_a_conversations_own() -> None:
    """Tools, or what the template sets, that reach the next conversation."""
    source = (
        "{{ tools }} {{ enable_thinking }} {{ x }}{% set x = 5 %}{{ bos_token }}{{ documents }}"
    )
    chats = [
        BatchedChat([], [(0, False)], {"tools": [1], "enable_thinking": True}),
        BatchedChat([], [(0, False), (0, True)], {}),
    ]
    assert [joined(one) for one in render(source, chats)] == [
        ["[1] True <s>None"],
        ["None  <s>None"] * 2,
    ]


def test_many_and_long() -> None:
    """Answers in another order, a pipe that is full at both ends, or a window that never moves."""
    sizes = [7 if n % 50 else 300_000 for n in range(2000)]
    chats = (said(f"{n} {'x' * size}") for n, size in enumerate(sizes))
    with BatchRenderer(template_of("{{ messages[0].content }}")) as renderer:
        for n, one in enumerate(renderer.render_all(chats)):
            assert one.texts == ((0, f"{n} {'x' * sizes[n]}"),)
        # and again, in the same process
        assert [one.texts for one in renderer.render_all([said("a")])] == [((0, "a"),)]


def test_a_text_of_megabytes() -> None:
    """Limits for a chat in the terminal that a long log does not fit into."""
    (one,) = render(CHATML, [said("\U0001f600\u4f60 x" * 2_000_000)])
    assert len(one.texts[0][1]) > 8_000_000


@pytest.mark.parametrize(
    ("one", "other"),
    [("", ""), ("", "a"), ("abc", "abc"), ("abc", "abd"), ("abcd", "ab"), ("xbc", "abc")],
)  # fmt: skip
def test_what_texts_share(one: str, other: str) -> None:
    """Texts that cannot be put together again."""
    source = "{{ messages[add_generation_prompt|int].content }}"
    chat = [{"content": one}, {"content": other}]
    (found,) = render(source, [BatchedChat(chat, [(2, False), (2, True)], {})])
    n_equal = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 99)
    assert found.texts[1][0] == min(n_equal, len(one), len(other))
    assert joined(found) == [one, other]


def test_texts_that_share_nothing_are_bounded() -> None:
    """A template that makes gigabytes of a few messages, by turning each text round."""
    source = "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    chat = [{"role": "user", "content": "x" * 100}] * 9
    (found,) = render(source, [all_prefixes(chat)], most_rest_characters=1000)
    assert [len(text) for text in joined(found)] == [101, 101, 201, 201, 301, 301]


# ---- what goes wrong


@pytest.mark.parametrize("name", BOMBS)
def test_others_go_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that takes those before and after it along, or their time and memory."""
    monkeypatch.setattr(chat, "PROCESSOR_S", 0.2)
    source = f"{{% if messages[0].content == 'bomb' %}}{BOMBS[name]}{{% endif %}}{CHATML}"
    texts = ["a", "b", "bomb", "c", "bomb", "bomb", "d" * 10**6]
    found = render(source, [said(text) for text in texts])
    for text, one in zip(texts, found, strict=True):
        assert bool(one.problem) == (text == "bomb"), one.problem
        assert joined(one) == ([] if one.problem else [f"<|im_start|>user\n{text}<|im_end|>\n"])
    assert [one.line for one in found if not one.problem] == [0] * 4


def test_a_problem_is_told_with_its_line() -> None:
    """The wrong place in the template, or of another conversation."""
    source = "\n{% if messages[0].content == 'bad' %}\n{{ raise_exception('no!') }}{% endif %}x"
    assert render(source, [said("good"), said("bad"), said("good")])[1] == Rendered((), "no!", 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "line 1: Expected an expression"),
        ("{{ " + "[" * 10**5 + " }}", "too deeply|too much memory|MemoryError"),
        ("{{ 'a' * 10**10 }}", ""),  # Jinja works out what is constant, and leaves what fails
    ],
)
def test_wrong_templates(source: str, message: str) -> None:
    """A template that is wrong for all, told for each; or a compiler that hangs."""
    if not message:
        assert "too much memory" in render(source, [said("a")])[0].problem
        return
    with pytest.raises(ChatTemplateUnusable, match=message):
        BatchRenderer(template_of(source))


def test_slow_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that takes just less than it may, for a hundred thousand conversations."""
    monkeypatch.setattr(chat_batch, "_SPARE_S", 0.5)
    start = time.perf_counter()
    source = "{% for i in range(90000) %}{% for j in range(9) %}{% endfor %}{% endfor %}"
    with (
        BatchRenderer(template_of(source)) as renderer,
        pytest.raises(ChatTemplateUnusable, match="all conversations together"),
    ):
        for _ in renderer.render_all(said("a") for _ in range(10**5)):
            pass
    assert time.perf_counter() - start < 60


def test_ended_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that ends the process for every conversation, a second each."""
    monkeypatch.setattr(chat_batch, "_SPARE_S", 1.0)
    monkeypatch.setattr(chat, "PROCESSOR_S", 0.2)
    with pytest.raises(ChatTemplateUnusable, match="all conversations together"):
        render(BOMBS["loops"], [said("a")] * 100)


def as_worker(path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """A worker that says it is ready, and ``then`` does something else."""
    path.write_text(
        "import os, sys, time\n"
        "out = b'{\"processor_s\": 0}'\n"
        "sys.stdout.buffer.write(len(out).to_bytes(8, 'big') + out)\n"
        f"sys.stdout.flush()\n{then}"
    )
    monkeypatch.setattr(chat, "WORKER", path)


@pytest.mark.parametrize(
    "then", ["while True: pass", "x = b'a' * 10**9\ntime.sleep(600)"], ids=["time", "memory"]
)
def test_without_limits_of_the_system(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs on where the system does not end it."""
    monkeypatch.setattr(chat, "PROCESSOR_S", 0.1)
    monkeypatch.setattr(chat, "MEMORY_BYTES", 64 << 20)
    as_worker(tmp_path / "worker.py", monkeypatch, then)
    (found,) = render(CHATML, [said("a")])
    assert "s, or too much memory" in found.problem


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        ("os.abort()", "ended with status -6: no message"),
        ("raise ValueError('no')", "ended with status 1: ValueError: no"),
        (
            "sys.stdout.buffer.write(bytes([0, 0, 0, 0, 0, 0, 0, 9]) + b'{}'); sys.stdout.flush()",
            "ended with status 0",
        ),
    ],
)
def test_a_process_that_dies(
    then: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback, or a wait for ever, where the other process crashes or answers half."""
    as_worker(tmp_path / "worker.py", monkeypatch, then)
    found = render(CHATML, [said("a"), said("b" * 10**6), said("c")])
    assert all(problem in one.problem for one in found)
    assert len(found) == 3


def test_the_process_ends_with_the_context() -> None:
    """A process left behind: after the last, after an error in between, and after Ctrl-C."""
    with BatchRenderer(template_of(CHATML)) as renderer:
        assert not has_ended(renderer)
    assert has_ended(renderer)
    chats = (said("a" * 1000) for _ in range(1000))
    with pytest.raises(KeyboardInterrupt), BatchRenderer(template_of(CHATML)) as renderer:
        next(signal.raise_signal(signal.SIGINT) for _ in renderer.render_all(chats))
    assert has_ended(renderer)
    with pytest.raises(ZeroDivisionError), BatchRenderer(template_of(CHATML)) as renderer:
        list(renderer.render_all(said(str(1 // n)) for n in (1, 0)))
    assert has_ended(renderer)
