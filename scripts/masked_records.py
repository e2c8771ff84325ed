"""Records of calls with what measures masked, and the differences of two of them.

What depends on the clock, on free memory, on the machine or on a folder's name is masked by the
name of its key; all else - counts, tokens, texts, settings - stays to be compared.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

# JSON as it is compared: values, lists and objects.
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Keys whose values measure. Numbers below them become their type, names of keys stay.
MEASURED = (
    # times
    *("*_ms", "*_ms_least", "ttft_*", "*_ns_samples", "*_cpu_s", "draft_us_per_*"),
    *("compile_s", "count_s", "tokenize_s", "total_s", "write_s"),
    # speeds, and what is computed from times
    *("*tokens_per_s", "*tokens_per_s_*", "ratio", "ratio_*", "step_cost", "best_draft_max"),
    *("verify_cost", "draft_cost", "rest_cost", "draft_share", "verify_share", "rest_share"),
    *("gain_unexplained", "gain_within_spread"),
    # memory of the process and of the machine
    *("peak_rss_bytes", "program_bytes", "*_peak_bytes", "max_memory"),
    # the machine, and versions
    "host",
)


def is_measured(key: str, also: Sequence[str] = ()) -> bool:
    """Whether a key's value measures; ``also`` are patterns of one call."""
    return any(fnmatchcase(key, pattern) for pattern in (*MEASURED, *also))


def mask(value: Json, folders: Sequence[str] = (), also: Sequence[str] = ()) -> Json:
    """A value with what measures masked, and paths below ``folders`` by their last name."""
    if isinstance(value, dict):
        return {
            key: _blank(part) if is_measured(key, also) else mask(part, folders, also)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [mask(part, folders, also) for part in value]
    return mask_folders(value, folders) if isinstance(value, str) else value


def mask_folders(text: str, folders: Sequence[str]) -> str:
    """A text in which a path below one of ``folders`` is its last name alone."""
    for folder in sorted(folders, key=len, reverse=True):
        before, *rest = text.split(folder.rstrip("/") + "/")
        text = before + "".join("<folder>/" + _from_last_name(part) for part in rest)
    return text


def _from_last_name(text: str) -> str:
    """What begins with the rest of a path, without the folders of that path."""
    ends = [place for place in map(text.find, " \t\n,;:'\"") if place >= 0]
    end = min(ends, default=len(text))
    return text[:end].rsplit("/", 1)[-1] + text[end:]


def _blank(value: Json) -> Json:
    """The same shape with types in place of numbers and texts; null stays."""
    if isinstance(value, dict):
        return {key: _blank(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_blank(part) for part in value]
    return None if value is None else f"<{type(value).__name__}>"


def mask_csv(text: str, folders: Sequence[str] = (), also: Sequence[str] = ()) -> Json:
    """Rows of a CSV text by their columns, masked like ``mask``; columns of the host, too."""
    return [
        {
            column: "<cell>" if cell and _measures(column, also) else mask_folders(cell, folders)
            for column, cell in row.items()
        }
        for row in csv.DictReader(text.splitlines())
    ]


def _measures(column: str, also: Sequence[str]) -> bool:
    """Whether a column's cells measure: a list's are one cell, nested keys columns of their own."""
    return is_measured(column, also) or column.startswith("host_")


def differences(a: Json, b: Json, place: str = "") -> Iterator[tuple[str, Json, Json]]:
    """Where two values differ: the place such as ``stdout.rows[2].n_accept``, and both sides."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            inner = f"{place}.{key}" if place else key
            yield from differences(a.get(key, "<none>"), b.get(key, "<none>"), inner)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from differences(left, right, f"{place}[{index}]")
    elif type(a) is not type(b) or a != b:
        yield place, a, b


def compare(a: Mapping[str, Json], b: Mapping[str, Json]) -> list[str]:
    """Lines that say what differs between two records of calls, by call and key.

    A call of a record names in ``same_as`` the call whose output it has to have; such a call may
    be missing on the side that does not know its command yet, but not go away.
    """
    lines = []
    for name in sorted({*a, *b}):
        if name not in a and _partner(b[name]) is not None:
            continue
        if name not in a or name not in b:
            lines.append(f"{name}: only in {'A' if name in a else 'B'}")
            continue
        lines += _lines(name, a[name], b[name])
    for name, record in sorted(b.items()):
        partner = _partner(record)
        if partner is not None and partner in b:
            lines += _lines(f"{name} (B, beside {partner})", b[partner], record, _SPELLING)
    return lines


# What says how a call is spelled, not what came of it.
_SPELLING = ("argv", "same_as", "stdout.command")


def _partner(record: Json) -> str | None:
    """The call whose output a call has to have, if there is one."""
    partner = record.get("same_as") if isinstance(record, dict) else None
    return partner if isinstance(partner, str) else None


def _lines(name: str, a: Json, b: Json, but: Sequence[str] = ()) -> list[str]:
    """A line for each difference of two records, without those of the keys ``but``."""
    return [
        f"{name}: {place}: {_short(left)} -> {_short(right)}"
        for place, left, right in differences(a, b)
        if not any(place == key or place.startswith((f"{key}.", f"{key}[")) for key in but)
    ]


def _short(value: Json, n_shown: int = 160) -> str:
    """A value as a line has room for it."""
    text = repr(value)
    return text if len(text) <= n_shown else text[: n_shown - 3] + "..."
