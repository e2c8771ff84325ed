"""Parts of haystacks that are too long to be read whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from draftsmith.prefill.needles.part import Part, draw_part

TEXT = "".join(f"Line {i} says äöü €.\n" for i in range(400)).encode()


def cut(data: bytes, n: int) -> Iterator[bytes]:
    for start in range(0, len(data), n):
        yield data[start : start + n]


@pytest.mark.parametrize("n_bytes", [len(TEXT), len(TEXT) + 1, 10**9])
@pytest.mark.parametrize("n", [1, 7, 10**6])
def test_what_fits_is_whole(n_bytes: int, n: int) -> None:
    """A text that is cut at its last line though all of it fits."""
    part = draw_part(cut(TEXT, n), n_bytes, 1)
    assert part == Part(TEXT, 0, len(TEXT))
    assert part.is_whole


def test_no_text() -> None:
    """Nothing, divided into windows."""
    assert draw_part(iter([]), 10, 0) == Part(b"", 0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_whole_lines_of_the_text(seed: int) -> None:
    """A part that begins inside of a character, is longer than asked, or depends on how the text
    came."""
    part = draw_part(cut(TEXT, 1000), 1000, seed)
    assert part == draw_part(cut(TEXT, 3), 1000, seed)
    assert 900 < len(part.data) <= 1000
    assert part.n_text == len(TEXT)
    assert TEXT[part.start :].startswith(part.data)
    assert part.data.decode().startswith("Line ")
    assert part.data.endswith(b".\n")


def test_every_window_is_as_likely() -> None:
    """A reservoir that prefers the first, or the last."""
    starts = Counter(draw_part(cut(TEXT, 512), 2000, seed).start // 2000 for seed in range(1200))
    n_windows = len(TEXT) // 2000
    assert set(starts) == set(range(n_windows))
    assert all(0.7 < n * n_windows / 1200 < 1.3 for n in starts.values())


@pytest.mark.parametrize("character", ["€", "a", "𐀀"])
def test_a_text_without_breaks(character: str) -> None:
    """A part of no bytes, or with half a character at an end."""
    data = character.encode() * 9000
    for seed in range(8):
        part = draw_part(cut(data, 100), 1000, seed)
        assert set(part.data.decode()) == {character}
        assert len(part.data) > 990
