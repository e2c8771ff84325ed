"""Figures and names as the text that tables and notes show."""

from __future__ import annotations

import math

_BAR = 7
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def one_line(text: str) -> str:
    """Return text with control characters escaped: a file name may hold a line break."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Format a number with thousands separators; a dash for what is undefined."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits}f}{unit}"


def percent(part: float, whole: float) -> str:
    """Format part of whole as a percentage; a dash where whole is 0."""
    return number(100 * part / whole if whole else None, 1, "%")


def size(n_bytes: float | None) -> str:
    """Format a size in bytes with a unit that keeps it short (powers of 1000)."""
    if n_bytes is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            break
        n_bytes /= 1000
    return number(n_bytes, 0 if unit == "B" else 1, f" {unit}")


def bar(value: float | None, full: float) -> str:
    """Draw value as a bar of up to _BAR characters, which stand for ``full``."""
    if not value or not full:
        return ""
    eighths = max(1, round(8 * _BAR * min(1, value / full)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
