"""The texts that stand for a long prompt: all of the document, never too long, question after."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from draftsmith.engine.errors import UsageError
from draftsmith.prefill.prompt.parts import PromptParts
from draftsmith.prefill.scorers.windows import Windows, cut


def parts_of(n: int, question: tuple[int, int], *document: tuple[int, int]) -> PromptParts:
    """A prompt each of whose ids is its own place."""
    return PromptParts(np.arange(n, dtype=np.int32), question, document)


def test_a_short_prompt_is_one_text() -> None:
    """The bug: a prompt that is cut, or that loses what stands after its question."""
    parts = parts_of(8192, (8000, 8150), (20, 7990))
    (text,) = cut(parts, parts.question, Windows())
    assert (text.ids == np.arange(8150)).all()
    assert (text.places == text.ids).all()
    assert text.tail == (8000, 8150)


def test_a_question_before_the_document_moves_behind_it() -> None:
    """The bug: a question none of whose tokens sees the document."""
    parts = parts_of(700, (10, 30), (40, 600))
    (text,) = cut(parts, parts.question, Windows())
    assert (text.ids == [*range(10), *range(30, 600), *range(10, 30)]).all()
    assert text.tail == (580, 600)


@pytest.mark.parametrize("n", [8193, 8200, 12000, 20000, 200_000])
@pytest.mark.parametrize("windows", [Windows(), Windows(512, 512, 0), Windows(2000, 1000, 125)])
def test_windows_hold_all_of_the_document(n: int, windows: Windows) -> None:
    """The bug: tokens between two windows that no one reads; a window beyond its size."""
    parts = parts_of(n, (n - 40, n - 10), (100, n // 2), (n // 2 + 10, n - 45))
    texts = cut(parts, parts.question, windows)
    seen = np.zeros(n, bool)
    for text in texts:
        assert (text.ids == text.places).all()
        assert text.ids.size <= (windows.longest if len(texts) == 1 else windows.size)
        assert len(set(text.places.tolist())) == text.places.size
        assert (text.ids[:64] == np.arange(64)).all()
        assert (text.ids[slice(*text.tail)] == np.arange(n - 40, n - 10)).all()
        assert text.tail[1] == text.ids.size
        seen[text.places] = True
    assert seen[parts.is_document].all()
    sizes = [text.ids.size for text in texts]
    assert max(sizes) - min(sizes) <= len(texts)
    least = (n - 200) / (windows.size - 94)
    assert len(texts) <= 1 + least * windows.size / (windows.size - 94 - windows.overlap)


def test_windows_overlap() -> None:
    """The bug: what stands at a window's beginning seen without what is before it."""
    parts = parts_of(20000, (19900, 19930), (100, 19900))
    texts = cut(parts, parts.question, Windows(8192, 4096, 128))
    for before, behind in itertools.pairwise(texts):
        both = set(before.places[64 : before.tail[0]]) & set(behind.places[64 : behind.tail[0]])
        assert len(both) == 128


def test_odd_prompts() -> None:
    """The bug: no window, a negative step, or a window that the question fills."""
    windows = Windows(512, 512, 64)
    long_system = parts_of(3000, (2960, 2990), (2900, 2950))
    texts = cut(long_system, long_system.question, windows)
    assert len(texts) == 1
    assert set(range(2900, 2950)) <= set(texts[0].places.tolist())
    long_question = parts_of(3000, (1000, 2990), (10, 990))
    for text in cut(long_question, long_question.question, windows):
        assert text.ids.size <= 512
        assert text.tail[1] - text.tail[0] == 256
        assert text.ids[-1] == 2989
    tiny = parts_of(2000, (1900, 1990), (5, 6))
    assert len(cut(tiny, tiny.question, windows)) == 1
    apart = parts_of(9000, (8900, 8990), (5, 600), (8000, 8800))
    for text in cut(apart, apart.question, windows):  # none of what is mandatory alone
        assert apart.is_document[text.places].any()
    first = parts_of(3000, (10, 30), (40, 2990))
    texts = cut(first, first.question, windows)
    assert set(range(40, 2990)) <= {place for text in texts for place in text.places.tolist()}
    nothing = parts_of(3000, (10, 30))
    assert len(cut(nothing, nothing.question, windows)) == 1


def test_windows_fit_the_model() -> None:
    """The bug: texts beyond what a small model was trained on, or no windows for it."""
    assert Windows.of_model(8192) == Windows(8192, 4096, 128)
    assert Windows.of_model(131072) == Windows(8192, 4096, 128)
    assert Windows.of_model(2048) == Windows(2048, 2048, 128)
    assert Windows.of_model(64) == Windows(512, 512, 64)


@pytest.mark.parametrize("wrong", [(512, 511, 0), (512, 1024, 0), (512, 512, 65), (512, 512, -1)])
def test_windows_out_of_range_are_refused(wrong: tuple[int, int, int]) -> None:
    """The bug: windows that hold less than head and question, or only what the last one did."""
    with pytest.raises(UsageError) as caught:
        Windows(*wrong)
    assert caught.value.remedy
