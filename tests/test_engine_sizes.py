"""Sizes as people write them."""

from __future__ import annotations

import pytest
from draftsmith.engine.errors import UsageError
from draftsmith.engine.sizes import SIZE_MOST, parse_size


def test_every_spelling() -> None:
    """A unit of 1024 that is taken for 1000, or one that is ignored; a rounded fraction."""
    sizes = {
        "7": 7,
        "7B": 7,
        "800M": 800_000_000,
        "600mb": 600_000_000,
        "1.5g": 1_500_000_000,
        " 2 GB ": 2 * 10**9,
        "12kB": 12_000,
        "2GiB": 2 * 1024**3,
        "2gi": 2 * 1024**3,
        "1T": 10**12,
        "1.5 TiB": 3 * 1024**4 // 2,
        "1.5 G": 1_500_000_000,
        "0.29G": 290_000_000,
        "1.9": 1,
    }
    assert {text: parse_size("--x", text) for text in sizes} == sizes


@pytest.mark.parametrize(
    "text",
    [
        *("", "M", "-1M", "0", "0.0001", "1e9", "nan", "inf", "1_000", "1,5G", "1..5G", "G1", "1P"),
        *("1GM", "1iB", "1 i", "0x10", "+5G", "½G", "\u0661G", "1G\n2", "9" * 400, "9" * 20 + "T"),
    ],
)
def test_what_is_no_size(text: str) -> None:
    """A size that is read as another one, and numbers that are an internal error further on."""
    with pytest.raises(UsageError, match="no size"):
        parse_size("--x", text)


def test_the_largest() -> None:
    """A size beyond what an int64 holds."""
    assert parse_size("--x", str(SIZE_MOST)) == SIZE_MOST
    with pytest.raises(UsageError):
        parse_size("--x", str(SIZE_MOST + 1))
