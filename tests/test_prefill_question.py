"""The question of a long turn is what the user asks, and with all that says how to answer it."""

from __future__ import annotations

import json
import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.prefill.prompt.asking import AskingKind, continues, kind_of, refers_back
from draftsmith.prefill.prompt.paragraphs import pieces_of
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.prompt.question import Source, find_question, named_question
from draftsmith.prefill.scorers.lexical import LexicalScorer
from draftsmith.prefill.scorers.scores import Scores
from draftsmith.prefill.select import Selection, select
from toy_gguf import write_toy

CASES = Path(__file__).parent / "golden" / "cases" / "prompts"
SAYS = "The bakery closed the long benches. The depot cleaned a row of lamps before noon."
DOCUMENT = "\n\n".join(f"{SAYS} It was day {day}." for day in range(40))
Q = "What is the code of the vault?"
FORMAT = "Answer with the number only."


def question_of(text: str) -> str:
    return text[slice(*find_question(text).question)]


def dropped_of(text: str) -> str:
    return "|".join(text[a:b] for a, b in find_question(text).documents)


# What follows a document, its question, and what else of it has to stay.
ENDS = {
    "thanks": (f"{Q}\n\nThanks!", Q),
    "thanks in German": (f"{Q}\n\nVielen Dank im Voraus!", Q),
    "signature": (f"{Q}\n\nBest regards,\nJohn Smith", Q),
    "signature in parts": (f"{Q}\n\nBest regards,\n\nJohn Smith\n\n-- \nACME", Q),
    "switch": (f"{Q}\n\n/no_think", Q),
    "switch in the line": (f"{Q} /nothink", f"{Q} /nothink"),
    "format": (f"{Q}\n\n{FORMAT}", Q),
    "formats": (f"{Q}\n\nPlease respond in German.\n\nUse at most 50 words.\n\nThanks", Q),
    "if not": (f"{Q}\n\nIf you don't know, say so.", Q),
    "schema": (f'{Q}\n\nUse this schema:\n\n```json\n{{\n\n  "code": "string"\n}}\n```', Q),
    "bare schema": (f'{Q}\n\nReply in JSON:\n\n{{\n  "code":\n\n  "string?"\n}}', Q),
    "answer": (f"Question: {Q}\n\nAnswer:", f"Question: {Q}"),
    "header": (f"## Question\n\n{Q}\n\n## Answer", f"## Question\n\n{Q}"),
    "header, no mark": ("Question:\n\ncode of the vault", "Question:\n\ncode of the vault"),
    "tags": (f"</document>\n\n<question>{Q}</question>", f"<question>{Q}</question>"),
    "several": (f"{Q}\n\nAnd who wrote it down?", f"{Q}\n\nAnd who wrote it down?"),
    "list": ("1. What is it?\n\n2. Name the ship.", "1. What is it?\n\n2. Name the ship."),
    "note": (f"{Q}\n\nIt is for my report.\n\nName the ship, too.",) * 2,
    "name": ("Name the code of the vault.",) * 2,
    "find": ("Find the first error in the log",) * 2,
    "summarise": ("Summarise.", "Summarise."),
    "based on": ("Based on the text above, name the ship.",) * 2,
    "need": ("I need the code of the vault.",) * 2,
    "no mark": ("what is the code of the vault",) * 2,
    "full width": ("金库的代码是什么\uff1f\n\n谢谢\uff01", "金库的代码是什么\uff1f"),
    "Chinese": ("请列出所有代码\u3002\n\n请只用数字回答\u3002", "请列出所有代码\u3002"),
    "Arabic": ("ما هو الرمز\u061f\n\n\u0634\u0643\u0631\u0627", "ما هو الرمز\u061f"),
    "Spanish": (
        "\u00bfCuál es el código?\n\nResponde sólo con el número. Gracias",
        "\u00bfCuál es el código?",
    ),
    "Chinese summary": ("请用中文总结上文\u3002",) * 2,
    "German": (
        "Nenne den Code des Tresors.\n\nAntworte nur mit der Zahl.", "Nenne den Code des Tresors."),
    "Russian": (
        ("\u041d\u0430\u0437\u043e\u0432\u0438 \u043a\u043e\u0434.\n\n"
        "\u0421\u043f\u0430\u0441\u0438\u0431\u043e!"),
        "\u041d\u0430\u0437\u043e\u0432\u0438 \u043a\u043e\u0434.",
    ),
    "a query": ("code of the Larkspur vault",) * 2,
    "greeting inside": (f"Hi, {Q}\n\nCheers", f"Hi, {Q}"),
}  # fmt: skip


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ENDS)
def test_a_question_at_the_end(name: str, breaks: str) -> None:
    """Thanks, a format or a switch that becomes the question, and drops the real one."""
    end, question = (text.replace("\n", breaks) for text in ENDS[name])
    text = f"{DOCUMENT}\n\n".replace("\n", breaks) + end
    found = find_question(text)
    assert text[slice(*found.question)] == question
    assert found.source is (Source.LAST if name == "a query" else Source.END)
    assert end.removeprefix("</document>").strip() in text[found.documents[-1][1] :]
    assert len(dropped_of(text)) > 0.8 * len(DOCUMENT)
    assert bool(found.doubt) is (name == "a query")


@pytest.mark.parametrize(
    "end",
    [
        "It was quiet then, and the lamps were out.",
        "\u041a\u043e\u0434 \u0441\u0435\u0439\u0444\u0430.",
    ],
)
def test_an_end_that_is_not_understood(end: str) -> None:
    """What may be the question dropped for it is in no language that is known."""
    found = find_question(f"{DOCUMENT}\n\n{Q}\n\n{end} {end}")
    text = f"{DOCUMENT}\n\n{Q}\n\n{end} {end}"
    assert text[slice(*found.question)].startswith(Q)
    assert found.documents[-1][1] <= text.index(Q)
    bare = f"{DOCUMENT}\n\n{end}"
    assert question_of(bare) == end
    assert "nothing in it asks" in find_question(bare).doubt


FRONTS = {
    "question": (f"{Q}\n\n", "", Q),
    "header": ("Summarise the following:\n\n", "", "Summarise the following:"),
    "greeting": (f"Hello!\n\nI have a question.\n\n{Q}\n\n{FORMAT}\n\n", "", Q),
    "thanks behind": (f"{Q}\n\n", "\n\nThanks!\n\n/no_think", Q),
    "format behind": ("Summarise this report:\n\n", f"\n\n{FORMAT}", "Summarise this report:"),
}


@pytest.mark.parametrize("name", FRONTS)
def test_a_question_at_the_beginning(name: str) -> None:
    """A document after the question that cannot be cut, or thanks after it that can."""
    before, behind, question = FRONTS[name]
    text = before + DOCUMENT + behind
    found = find_question(text)
    assert (text[slice(*found.question)], found.source) == (question, Source.BEGINNING)
    assert dropped_of(text).strip() == DOCUMENT
    assert not found.doubt


def test_a_question_in_the_middle() -> None:
    """Two documents of which neither may be cut, or a last paragraph that is the question."""
    text = f"{DOCUMENT}\n\n{Q}\n\n{DOCUMENT}"
    assert (question_of(text), find_question(text).source) == (Q, Source.MIDDLE)
    assert dropped_of(text).count("day 30") == 2
    assert find_question(text).doubt


def test_questions_that_are_the_documents() -> None:
    """A question of the document's taken for the user's, where the user's is dropped."""
    quoted = f'{DOCUMENT}\n\n"Who goes there?" he said.\n\nWhy not?\n\n{SAYS}\n\n{DOCUMENT}\n\n'
    text = f"{quoted}Name the code of the vault.\n\n{FORMAT}"
    assert question_of(text) == "Name the code of the vault."
    assert "Who goes there" in dropped_of(text)
    interview = f"Summarise the following interview:\n\n{DOCUMENT}\n\nAnd you?\n\n{SAYS}"
    found = find_question(interview)
    assert interview[slice(*found.question)] == "Summarise the following interview:"
    assert "And you?" not in dropped_of(interview)  # for it may be the question
    assert found.doubt


FAQ = "\n\n".join(f"Q: How is crate {i} opened?\n\nA: With a key of size {i}." for i in range(60))
NOVEL = "\n\n".join(
    f'"Where is he?" she asked.\n\n"Gone {i} days," he said. "Who knows?"' for i in range(40)
)
TALK = "\n".join(f"[12:{i:02}] Tom: did you see it?\n[12:{i:02}] Ann: yes" for i in range(60))


@pytest.mark.parametrize("document", [FAQ, NOVEL, NOVEL.replace("\n\n", "\n"), TALK])
@pytest.mark.parametrize("asked", [Q, "Name the largest key."])
def test_documents_that_are_full_of_questions(document: str, asked: str) -> None:
    """A share of the document that has to stay, since it asks as well."""
    breaks = "\n\n" if "\n\n" in document or document is TALK else "\n"
    text = f"{document}{breaks}{asked}{breaks}{FORMAT}"
    assert question_of(text) == asked
    assert len(dropped_of(text)) > 0.9 * len(document)


def test_prompts_of_frameworks() -> None:
    """The words around documents and question that widely used programs put there."""
    for before, after, question in (
        (
            (
                "Use the following pieces of context to answer the question at the end. "
                "If you don't know the answer, just say that you don't know.\n\n"
            ),
            f"\n\nQuestion: {Q}\nHelpful Answer:",
            f"Question: {Q}\nHelpful Answer:",
        ),
        (
            "Context information is below.\n-------\n",
            (
                "\n-------\nGiven the context information and not prior knowledge, answer the "
                f"query.\nQuery: {Q}\nAnswer: "
            ),
            f"Query: {Q}",
        ),
        (
            "<documents>\n",
            f"\n</documents>\n\n<rules>\nBe brief.\n</rules>\n\n<question>\n{Q}\n</question>",
            f"<question>\n{Q}\n</question>",
        ),
    ):
        for document in (DOCUMENT, DOCUMENT.replace("\n\n", "\n")):
            text = before + document + after
            assert question in question_of(text)
            assert len(question_of(text)) < 200
            assert before.split("\n")[0] in text[: find_question(text).documents[0][0]]
            assert len(dropped_of(text)) > 0.9 * len(document)


def test_a_long_block_is_a_document() -> None:
    """A block of code after the question that has to stay whole, be it all of the prompt."""
    lines = "\n\n".join(f"def f{i}(x):\n    return x\n    return f{i}(x + 1)" for i in range(80))
    for fence in ("```python", "```"):
        text = f"Fix the bug in this function:\n\n{fence}\n{lines}\n```"
        assert question_of(text) == "Fix the bug in this function:"
        assert len(dropped_of(text)) > 0.9 * len(lines)
    schema = ",\n".join(f'  "field {i}": {{\n    "type": "string"\n  }}' for i in range(40))
    text = f"{DOCUMENT}\n\n{DOCUMENT}\n\n{Q}\n\nAs JSON:\n\n{{\n{schema}\n}}\n\nThanks"
    assert question_of(text) == Q
    assert "field" not in dropped_of(text)


def test_texts_of_many_pieces() -> None:
    """A search that goes a level deeper for each piece, or over all of a text for each."""
    lines = "\n".join(f"It was day {day}, and the lamps were out." for day in range(30_000))
    for text in (f"{lines}\n{Q}\n{FORMAT}", f"{lines}\nThanks, {Q}", f"{Q}\n{lines}"):
        assert Q in question_of(text)
        assert len(dropped_of(text)) > 0.99 * len(lines)
    for text in (
        "Question:\n" * 20_000,
        "is it so?\n\n" * 20_000,
        "> a?\n" * 20_000,
        "{\n" * 20_000,
    ):
        assert find_question(text).question[1] <= len(text)


def test_breaks() -> None:
    """A text without blank lines of which nothing may be dropped."""
    lines = DOCUMENT.replace("\n\n", "\n")
    for breaks in ("\n", "\r\n", "\r", "\u2028"):
        text = f"Context:\n{lines}\nQuestion: {Q}".replace("\n", breaks)
        assert question_of(text) == f"Question: {Q}"
        assert dropped_of(text) == lines.replace("\n", breaks)
    flat = DOCUMENT.replace("\n\n", " ")
    assert question_of(f"{flat} {Q}") == Q
    assert dropped_of(f"{flat} {Q}") == flat
    chinese = "夜班人员清点了四箱瓷砖\u3002" * 100
    asked = "夜班清点了什么\uff1f"
    assert question_of(chinese + asked) == asked
    assert dropped_of(chinese + asked) == chinese


def test_code_asks_nothing() -> None:
    """``return x`` taken for a request, and ``a ? b : c`` for a question."""
    code = "\n".join(
        f"int f{i}(int a) {{\n  // odd\n  int b = a ? {i} : 1;\n  return the_b(b);\n}}"
        for i in range(60)
    )
    text = f"What does f7 return?\n\n{code}"
    assert question_of(text) == "What does f7 return?"
    assert len(dropped_of(text)) > len(code) - 5


def test_a_named_question() -> None:
    """Words that are spaced otherwise in the prompt, and a format after them that is dropped."""
    text = f"{DOCUMENT}\n\nthe code\nof the vault\n\n{DOCUMENT}\n\n{FORMAT}"
    found = named_question(text, " the code of  the vault ")
    assert found is not None
    assert text[slice(*found.question)] == "the code\nof the vault"
    kept = text[: found.documents[0][0]] + text[found.documents[-1][1] :]
    assert FORMAT in kept
    assert len(kept) < 300
    assert named_question(text, "no such words") is None


def test_kinds() -> None:
    """The words of a paragraph alone."""
    for text in ("", "---", "\U0001f600", "Thanks a lot for your help!", "Can you help me?", "A:"):
        assert kind_of(text) is AskingKind.TRAILS, text
    for text in ("> What is it?", "Context:", "The dog.", "State officials were sure. " * 5):
        assert kind_of(text) is AskingKind.SAYS, text
    for text in ("continue", "Go on, please.", "yes", "继续", "why?"):
        assert continues(text), text
    for text in ("and in 1850?", "What about Rome?"):
        assert refers_back(text), text
        assert not continues(text), text
    assert not continues("the dog")


def test_pieces_are_all_of_the_text() -> None:
    """A piece that is lost, or found twice, among breaks, fences and brackets."""
    rng = random.Random(5)
    bits = [
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        " ",
        "```",
        "{\n",
        "}",
        "[\n",
        "a b. ",
        "c? ",
        "\u3002",
        "x" * 300,
    ]
    for _ in range(300):
        text = "".join(rng.choices(bits, k=rng.randrange(60)))
        pieces = pieces_of(text)
        assert "".join("".join(text[p.start : p.stop].split()) for p in pieces) == "".join(
            text.split()
        )
        assert all(a.stop <= b.start for a, b in pairwise(pieces))


# ---- conversations, in the real model's template


@pytest.fixture(scope="module")
def real(smollm2: Path) -> tuple[Tokenizer, ChatTemplate]:
    return load_tokenizer(smollm2), ChatTemplate.of(read_metadata(smollm2))


def parts_of(real: tuple[Tokenizer, ChatTemplate], *said: tuple[str, str]) -> PromptParts:
    return PromptParts.of_messages([{"role": a, "content": b} for a, b in said], *real)


def kept_of(parts: PromptParts) -> str:
    assert parts.spans is not None
    mandatory = np.flatnonzero(~parts.is_document).astype(np.int32)
    return b"|".join(parts.spans.text_of(mandatory)).decode()


def test_a_turn_that_goes_on(real: tuple[Tokenizer, ChatTemplate]) -> None:
    """ "Continue" as the question, with the real one dropped."""
    asked = ("user", f"{DOCUMENT}\n\n{Q}")
    parts = parts_of(real, asked, ("assistant", "It is an old one."), ("user", "continue"))
    assert (parts.question_text, parts.source) == (Q, Source.EARLIER)
    assert "old one" in kept_of(parts)
    assert "day 30" not in kept_of(parts)
    parts = parts_of(real, asked, ("assistant", "It is 1."), ("user", "And in 1850?"))
    assert parts.question_text.startswith(Q)
    assert parts.question_text.endswith("And in 1850?")
    parts = parts_of(real, asked, ("assistant", SAYS * 40), ("user", "And in 1850?"))
    assert parts.question_text == "And in 1850?"
    assert Q in kept_of(parts)
    parts = parts_of(real, asked, ("assistant", "It is 1."), ("user", "Who wrote the note?"))
    assert parts.question_text == "Who wrote the note?"
    assert Q not in kept_of(parts)


@pytest.mark.parametrize(
    "name", ["s_thanks", "s_crlf", "q_crlf", "q_single_newline", "q_then_thanks", "q_then_format"]
)
def test_cases(name: str, real: tuple[Tokenizer, ChatTemplate]) -> None:
    """The needle is dropped, or the question, or nothing may be."""
    messages = json.loads((CASES / f"{name}.json").read_bytes())
    parts = PromptParts.of_messages(messages, *real)
    assert parts.question_text.endswith("vault?")
    assert "\n" not in parts.question_text
    found = select(
        parts,
        LexicalScorer(real[0]).score(parts),
        keep=0.4 if name[0] == "s" else 0.1,
        min_tokens=0,
    )
    assert isinstance(found, Selection)
    assert parts.spans is not None
    kept = b"".join(parts.spans.text_of(found.kept)).decode()
    assert "48213" in kept
    assert messages[-1]["content"][-30:] in kept


# ---- whole characters


def random_text(rng: random.Random, n: int) -> str:
    """Characters of all planes, marks among them."""
    found = []
    while len(found) < n:
        c = chr(rng.choice((rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x20000))))
        if unicodedata.category(c) not in ("Cs", "Cn"):
            found.append(c)
    return "".join(found)


@pytest.mark.parametrize("name", ["gpt2", "spm"])
def test_no_piece_begins_inside_a_character(
    name: str, real: tuple[Tokenizer, ChatTemplate], tmp_path: Path
) -> None:
    """A chunk, or what completes it, that begins with the second byte of a character."""
    tokenizer = real[0] if name == "gpt2" else load_tokenizer(write_toy(tmp_path / "t.gguf", "spm"))
    rng = random.Random(11)
    for seed in range(8):
        text = random_text(rng, 400) + "夜班人员\u3002" * 40
        parts = PromptParts.of_document(text, "什么\uff1f", tokenizer)
        values = np.random.default_rng(seed).random(parts.n, np.float32)
        for keep in (0.2, 0.5):
            found = select(
                parts, Scores("test", values, np.empty(0, np.int32)), keep=keep, min_tokens=0
            )
            assert isinstance(found, Selection)
            assert parts.spans is not None
            starts = found.kept[np.diff(found.kept, prepend=-2) != 1]
            stops = found.kept[np.diff(found.kept, append=parts.n + 1) != 1]
            for edge in (*parts.spans.start[starts], *parts.spans.stop[stops]):
                parts.spans.text[:edge].decode()  # raises inside of a character


def test_chinese_cases(real: tuple[Tokenizer, ChatTemplate]) -> None:
    """The cases whose kept pieces began with a replacement character."""
    for name in ("zh_3", "zh_5", "zh_8"):
        text = (CASES / f"{name}.txt").read_text(encoding="utf-8").strip()
        parts = PromptParts.of_document(text, "夜班人员清点了什么\uff1f", *real)
        scores = LexicalScorer(real[0]).score(parts)
        for widen in (True, False):
            for keep in (0.3, 0.4, 0.5):
                found = select(parts, scores, keep=keep, min_tokens=0, widen=widen)
                assert isinstance(found, Selection)
                assert parts.spans is not None
                starts = found.kept[np.diff(found.kept, prepend=-2) != 1]
                places = parts.spans.start[starts]
                assert all(parts.spans.text[at] & 0xC0 != 0x80 for at in places)
