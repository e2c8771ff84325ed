"""The parts of a prompt: the question is the user's, and what has to stay cannot be dropped."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.chat import worker as chat_worker
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import UsageError
from draftsmith.engine.gguf.file import GgufMetadata, read_metadata
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.prefill.prompt.document import ids_of_document, prompt_counter
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.select import Refusal, Refused, Selection, select
from toy_gguf import write_toy

KEY = "tokenizer.chat_template"
CASES = Path(__file__).parent / "golden" / "cases" / "prompts"
DOCUMENT = "The quick brown fox.\n\nIt jumps over \ud55c\uad6d\uc5b4 and e\u0301. " * 60
QUESTION = "Which animal jumps \U0001f600?"
# As Gemma's: the system goes into the first turn of the user, outer blanks go.
TRIMMED = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first, rest = messages[0].content ~ '\n\n', messages[1:] %}"
    "{% else %}{% set first, rest = '', messages %}{% endif %}"
    "{% for m in rest %}<|{{ m.role }}|>\n{{ first if loop.first else '' }}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TOOLS = (
    "{% if tools %}<|tools|>{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "<|assistant|>"
)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> GgufMetadata:
    """An SPM model, which puts BOS and a space before a text."""
    return read_metadata(write_toy(tmp_path_factory.mktemp("toy") / "toy.gguf", "spm"))


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """The tokenizer of SmolLM2."""
    return load_tokenizer(smollm2)


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Render in this process, and note what was asked."""
    asked: list[str] = []

    def reply(_: ChatTemplate, job: bytes) -> dict[str, Any]:
        asked.append(job.decode())
        return dict(json.loads(json.dumps(chat_worker.answer(json.loads(job)))))

    monkeypatch.setattr(ChatTemplate, "_reply", reply)
    monkeypatch.setattr(chat_worker, "limit_resources", lambda *_: None)
    return asked


def template_of(metadata: GgufMetadata, source: str) -> ChatTemplate:
    return ChatTemplate.of(replace(metadata, values=metadata.values | {KEY: source}))


def shown(parts: PromptParts, start: int, stop: int) -> str:
    assert parts.spans is not None
    return b"".join(parts.spans.text_of(np.arange(start, stop, dtype=np.int32))).decode()


def question_of(parts: PromptParts) -> str:
    return shown(parts, *parts.question)


def documents_of(parts: PromptParts) -> list[str]:
    return [shown(parts, *span) for span in parts.document]


def mandatory_of(parts: PromptParts) -> str:
    """Everything that has to stay, with a bar where something may go."""
    edges = [0, *(edge for span in parts.document for edge in span), parts.n]
    return "\u00a6".join(shown(parts, a, b) for a, b in zip(edges[::2], edges[1::2], strict=True))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# ---- a document and a question


@pytest.mark.usefixtures("renders")
def test_a_document_in_a_turn_of_the_real_model(smollm2: Path, real: Tokenizer) -> None:
    """A question that is the template's last words, or a document that takes some of them."""
    template = ChatTemplate.of(read_metadata(smollm2))
    parts = PromptParts.of_document(DOCUMENT, QUESTION, real, template, system="Be brief.")
    text = template.render(
        [{"role": "system", "content": "Be brief."}, user(f"{DOCUMENT}\n\n{QUESTION}")]
    )
    assert parts.spans is not None
    assert parts.spans.text.decode() == text
    assert parts.ids.tolist() == template.encode(text, real).tolist()
    assert question_of(parts) == QUESTION
    (document,) = documents_of(parts)
    assert document in DOCUMENT
    assert len(document) > len(DOCUMENT) - 5  # its end shares a token with the blank line
    before, behind = mandatory_of(parts).split("\u00a6")[0], mandatory_of(parts)[-60:]
    assert before.endswith("Be brief.<|im_end|>\n<|im_start|>user\n")
    assert behind.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert parts.n_document + parts.n_mandatory == parts.n == parts.is_document.size
    assert parts.is_document.sum() == parts.n_document


def test_a_raw_document(real: Tokenizer, toy: GgufMetadata, tmp_path: Path) -> None:
    """A BOS that may be dropped, or a space before the text that shifts everything."""
    spm = load_tokenizer(toy.path)
    for tokenizer in (real, spm):
        parts = PromptParts.of_document(DOCUMENT, QUESTION, tokenizer)
        assert parts.ids.tolist() == tokenizer.encode(f"{DOCUMENT}\n\n{QUESTION}").tolist()
        assert question_of(parts) == QUESTION
        assert parts.question[1] == parts.n
        (document,) = documents_of(parts)
        assert document in DOCUMENT
        assert len(document) > len(DOCUMENT) - 5
    assert parts.document[0][0] == 2  # after BOS, and the added space


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("question", ["assistant", "user", "u", "<|im_start|>assistant\n", "\n?"])
def test_questions_that_stand_elsewhere_too(question: str, smollm2: Path, real: Tokenizer) -> None:
    """The assistant's suffix, or the name of a role, taken for what the user said."""
    template = ChatTemplate.of(read_metadata(smollm2))
    for document in (DOCUMENT, "", question):
        parts = PromptParts.of_document(document, question, real, template)
        start, stop = parts.question
        assert question.strip() in shown(parts, start, stop)
        assert stop < parts.n - 2
        behind = shown(parts, stop, parts.n)
        assert "<|im_end|>\n<|im_start|>assistant\n".endswith(behind.lstrip())
        assert len(behind) > 20
    parts = PromptParts.of_messages([user("assistant"), user(question)], real, template)
    assert "<|im_start|>assistant\n".endswith(shown(parts, parts.question[1], parts.n)[-22:])
    assert question_of(parts).strip().startswith(question.strip()[:1])


@pytest.mark.usefixtures("renders")
def test_an_empty_question_or_document(smollm2: Path, real: Tokenizer) -> None:
    """A question made up of template, where there is none."""
    template = ChatTemplate.of(read_metadata(smollm2))
    parts = PromptParts.of_document(DOCUMENT, "", real, template)
    assert parts.question[0] == parts.question[1]
    assert len(parts.document) == 1
    found = select(parts, LexicalScorer(real).score(parts))
    assert isinstance(found, Refused)
    assert found.kind is Refusal.NO_QUESTION
    for raw in (None, template):
        parts = PromptParts.of_document("", QUESTION, real, raw)
        assert parts.document == ()
        assert question_of(parts) == QUESTION
        assert PromptParts.of_document("", "", real, raw).document == ()


# ---- conversations


def test_system_and_tools_stay(toy: GgufMetadata, renders: list[str]) -> None:
    """A tool's definition with a hole in it; a system text that is cut."""
    template, spm = template_of(toy, TOOLS), load_tokenizer(toy.path)
    tools = [{"name": "fox", "description": "jumps over the dog " * 50}]
    call = [{"function": {"name": "fox", "arguments": {"over": "the dog"}}}]
    messages = [
        {"role": "system", "content": "The system says so. " * 20},
        user("An old question about a fox?"),
        {"role": "assistant", "content": "An old answer about the dog."},
        {"role": "developer", "content": "Never forget this."},
        user(QUESTION),
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "tool", "content": "A long result of int main(void). " * 80 + "end"},
        {"role": "assistant", "content": "I begin"},
    ]
    parts = PromptParts.of_messages(messages, spm, template, tools=tools)
    assert len(renders) == 1  # all is found where it has to be
    assert question_of(parts) == QUESTION
    assert documents_of(parts) == [str(messages[i]["content"]).strip() for i in (1, 2, 6)]
    kept = mandatory_of(parts)
    assert kept == (
        f"<|tools|>{json.dumps(tools)}<|im_end|>\n<|system|>\n{messages[0]['content']}<|im_end|>\n"
        f"<|user|>\n\u00a6<|im_end|>\n<|assistant|>\n\u00a6<|im_end|>\n<|developer|>\n"
        f"Never forget this.<|im_end|>\n<|user|>\n{QUESTION}<|im_end|>\n<|assistant|>\n"
        f"{json.dumps(call[0])}<|im_end|>\n<|tool|>\n\u00a6<|im_end|>\n"
        "<|assistant|>\nI begin<|im_end|>\n<|assistant|>"
    )


def test_texts_that_stand_twice(toy: GgufMetadata, renders: list[str]) -> None:
    """The first of two equal questions; a word of the system dropped for a user's old one."""
    template, spm = template_of(toy, TOOLS), load_tokenizer(toy.path)
    messages = [
        {"role": "system", "content": "You jump over the dog?"},
        user("jump"),
        {"role": "assistant", "content": "the dog"},
        user("the dog"),
    ]
    parts = PromptParts.of_messages(messages, spm, template)
    assert len(renders) == 2
    assert mandatory_of(parts) == (
        "<|system|>\nYou jump over the dog?<|im_end|>\n<|user|>\n\u00a6<|im_end|>\n<|assistant|>\n"
        "\u00a6<|im_end|>\n<|user|>\nthe dog<|im_end|>\n<|assistant|>"
    )
    assert documents_of(parts) == ["jump", "the dog"]
    assert question_of(parts) == "the dog"
    assert parts.question[0] > parts.document[1][1]


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("question", ["  the fox?\n ", "assistant", " user"])
def test_a_template_that_trims_and_merges(question: str, toy: GgufMetadata) -> None:
    """Places shifted by blanks that the template cut off, or by a system text it moved."""
    template, spm = template_of(toy, TRIMMED), load_tokenizer(toy.path)
    system = {"role": "system", "content": "The user is an assistant."}
    for messages in ([system], []):
        old = [user("\n old fox "), {"role": "assistant", "content": "\told dog"}]
        parts = PromptParts.of_messages([*messages, *old, user(question)], spm, template)
        assert question_of(parts) == question.strip()
        assert documents_of(parts) == ["old fox", "old dog"]
        assert parts.ids[0] == spm.bos_id
        assert (parts.ids == spm.bos_id).sum() == 1
    parts = PromptParts.of_document("\n" + DOCUMENT, question, spm, template, system="assistant")
    assert question_of(parts).strip() == question.strip()
    assert documents_of(parts)[0].strip() == DOCUMENT.strip()


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.content | length }}{% endfor %}<|assistant|>fox",
        "{% for m in messages if m.content.startswith('the') %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content[0] ~ m.content[5] }}{% endfor %}",
        "nothing",
    ],
)
def test_templates_that_show_another_text(source: str, toy: GgufMetadata) -> None:
    """A guess at where the question may be; nothing is dropped then, with the reason."""
    template, spm = template_of(toy, source), load_tokenizer(toy.path)
    for parts in (
        PromptParts.of_messages([user("old " * 50), user("Quick fox?")], spm, template),
        PromptParts.of_document("old " * 50, "Quick fox?", spm, template),
    ):
        assert "does not show the last user turn as it is" in parts.problem
        assert parts.document == ()
        found = select(parts, LexicalScorer(spm).score(parts), min_tokens=0)
        assert isinstance(found, Refused)
        assert found.kind is Refusal.UNPLACED


@pytest.mark.usefixtures("renders")
def test_conversations_without_a_user(toy: GgufMetadata) -> None:
    """The system's text taken for a question."""
    template, spm = template_of(toy, TOOLS), load_tokenizer(toy.path)
    for messages in ([{"role": "system", "content": "Hi"}], [], [user("  ")]):
        parts = PromptParts.of_messages(messages, spm, template)
        assert parts.problem == "the conversation has no turn of a user"


PARAGRAPHS = "The fox jumps over the lazy dog. It is quick.\n \n" * 40
TURNS = {
    "short": ("The fox.\n\nIs it quick?", [], "The fox.\n\nIs it quick?"),
    "behind": (PARAGRAPHS + "Is it quick?", [PARAGRAPHS[48:]], "Is it quick?"),
    "before": ("Is it quick?\n\n" + PARAGRAPHS, [PARAGRAPHS], "Is it quick?"),
    "both": (f"Read:\n\n{PARAGRAPHS}Is it quick?", [PARAGRAPHS], "Is it quick?"),
    "one": ("x" * 1100, [], "x" * 1100),
    "first is long": (f"{'x ' * 600}\n\nWell?", ["x " * 600], "Well?"),
}


@pytest.mark.usefixtures("renders")
@pytest.mark.parametrize("name", TURNS)
def test_the_question_in_a_long_turn(name: str, toy: GgufMetadata) -> None:
    """A document that is asked with, or a question that is dropped with it."""
    template, spm = template_of(toy, TOOLS), load_tokenizer(toy.path)
    text, documents, question = TURNS[name]
    parts = PromptParts.of_messages([user(text)], spm, template)
    assert question_of(parts) == question
    assert [text.strip() for text in documents_of(parts)] == [d.strip() for d in documents]
    if "quick" in text:
        told = PromptParts.of_messages([user(text)], spm, template, question="quick")
        assert question_of(told) == "quick"
    else:
        with pytest.raises(UsageError, match="the user says no such words"):
            PromptParts.of_messages([user(text)], spm, template, question="quick")


@pytest.mark.usefixtures("renders")
def test_texts_in_parts(toy: GgufMetadata) -> None:
    """A message of several parts, as OpenAI's, that is taken for none."""
    source = "{% for m in messages %}{% for p in m.content %}<{{ p.text or p.url }}>{% endfor %}|"
    template = template_of(toy, source + "{% endfor %}<|assistant|>")
    spm = load_tokenizer(toy.path)
    picture = {"type": "image", "url": "fox.png"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "the old"}, picture]},
        {"role": "user", "content": [picture, {"type": "text", "text": "the fox?"}]},
    ]
    parts = PromptParts.of_messages(messages, spm, template)
    assert question_of(parts).strip("<>") == "the fox?"
    assert [text.strip("<>") for text in documents_of(parts)] == ["the old"]


# ---- other ids, other lengths


@pytest.mark.usefixtures("renders")
def test_the_same_parts_in_another_tokenizer(
    smollm2: Path, real: Tokenizer, toy: GgufMetadata
) -> None:
    """A drafter of another family that is asked something else, or reads another document."""
    template, spm = ChatTemplate.of(read_metadata(smollm2)), load_tokenizer(toy.path)
    parts = PromptParts.of_document(DOCUMENT, QUESTION, real, template)
    other = parts.retokenised(spm)
    assert parts.spans is not None
    assert other.ids.tolist() == spm.encode(parts.spans.text).tolist()
    assert question_of(other) == QUESTION
    (document,), (expected,) = documents_of(other), documents_of(parts)
    assert document in expected
    assert len(expected) - len(document) < 8
    back = other.retokenised(real)
    assert back.ids.tolist() == parts.ids.tolist()
    assert back.question == parts.question


def test_a_long_document_takes_little_time(real: Tokenizer) -> None:
    """Something by character, or by token and part; 200,000 tokens take 0.2 s beside encoding."""
    document = "The quick brown fox jumps over the lazy dog. " * 20_000 + "Which?"
    start = time.perf_counter()
    real.encode(document)
    encoding_s = time.perf_counter() - start
    start = time.perf_counter()
    parts = PromptParts.of_document(document, "Which animal is lazy?", real)
    assert time.perf_counter() - start < encoding_s + 2
    assert parts.n > 200_000 - 1000
    found = select(parts, LexicalScorer(real).score(parts))
    assert isinstance(found, Selection)


def test_chunks() -> None:
    """A chunk that reaches into the next part, or an empty one after a full one."""
    parts = PromptParts(np.zeros(200, np.int32), (190, 195), ((1, 65), (65, 66), (70, 103)))
    assert parts.chunks().tolist() == [[1, 33], [33, 65], [65, 66], [70, 102], [102, 103]]
    assert parts.chunks(100).tolist() == [[1, 65], [65, 66], [70, 103]]
    assert PromptParts(np.zeros(5, np.int32), (0, 5), ()).chunks().shape == (0, 2)


# ---- texts that a template changes

JSON_TOOLS = (
    "{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.role == 'tool' %}{\"output\": {{ m.content | tojson }}}"
    "{% elif m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}<|assistant|>"
)


@pytest.mark.usefixtures("renders")
def test_messages_that_a_template_changes(toy: GgufMetadata) -> None:
    """The user blamed for a tool's text that is escaped, or all that stands around it kept."""
    template, spm = template_of(toy, JSON_TOOLS), load_tokenizer(toy.path)
    messages = json.loads((CASES / "s_llama.json").read_bytes())
    parts = PromptParts.of_messages(messages, spm, template)
    assert (parts.problem, parts.question_text) == ("", "What is the code?")
    assert parts.unplaced == ("message 3 (tool)",)
    assert parts.document == ()  # the tool's text stays whole
    old = "An old text of the user's, long enough to be known again.\nIt has two lines."
    thought = {"role": "assistant", "content": "<think>\nThe fox?\n</think>\n\nThe dog."}
    tool = {"role": "tool", "content": 'A "result"\nin lines.'}
    for middle in (
        [thought],
        [tool],
        [thought, tool],
        [tool, user(old), thought, user("x y"), tool],
    ):
        talk = [user(old), *middle, user(f"{old} Why?"), user(QUESTION)]
        parts = PromptParts.of_messages(talk, spm, template)
        assert parts.question_text == QUESTION
        changed = [i for i, m in enumerate(talk) if m in (thought, tool)]
        assert (
            parts.unplaced == tuple(f"message {i + 1} ({talk[i]['role']})" for i in changed)
            or len(middle) == 5
        )
        assert documents_of(parts)[0] == old
        assert documents_of(parts)[-1] == f"{old} Why?"
        assert "in lines" not in "".join(documents_of(parts))


@pytest.mark.parametrize("templated", [False, True])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_ids_alone_are_those_of_the_parts(
    real: Tokenizer, smollm2: Path, templated: bool, system: str | None
) -> None:
    """A prefill in full that reads another prompt than the one that was scored."""
    template = ChatTemplate.of(read_metadata(smollm2)) if templated else None
    parts = PromptParts.of_document(DOCUMENT, QUESTION, real, template, system=system)
    ids = ids_of_document(DOCUMENT, QUESTION, real, template, system=system)
    assert ids.tolist() == parts.ids.tolist()


@pytest.mark.parametrize("templated", [False, True])
def test_counter_is_near_the_truth(real: Tokenizer, smollm2: Path, templated: bool) -> None:
    """A template that is not counted, or counted with each piece."""
    template = ChatTemplate.of(read_metadata(smollm2)) if templated else None
    count = prompt_counter(real, template)
    exact = ids_of_document(DOCUMENT, QUESTION, real, template).size
    assert abs(count(DOCUMENT, QUESTION, "") - exact) <= 4
    assert count(DOCUMENT, QUESTION, "It is") - count(DOCUMENT, QUESTION, "") == 2
