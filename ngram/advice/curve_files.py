"""Files that tell what a pass of the model costs: llama-bench's, and our own records.

Of ``llama-bench`` (llama.cpp build 11434): -o json, jsonl, csv and md, of runs such as
``-p 1,2,4,8,16,32,64 -n 0``, or ``-p 512 -n 0 -ub 1,2,4,8,16,32,64``, which takes each size at many
places of a text. Of ours: what ``lookup-run --compare --json`` and ``mtp-run --compare --json``
print (``step_ms``), and ``scripts/bench_engine.py`` (``batch_1_ms``, ...). Anything that measures
can write a CSV file with the columns ``batch`` and ``ms``.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from ...engine.errors import InputMalformed
from ...engine.plain_file import read_small
from .step_curve import LEAST, MOST, StepCurve, is_curve_text, parse_curve

BYTES_MOST = 1 << 26
SIZE_MOST = 10**9
# llama-bench's defaults, which its tables leave out.
N_BATCH, N_UBATCH = 2048, 512
# What two rows of llama-bench may differ in; in all else they would be of two curves.
_FREE = {
    *("n_prompt", "n_gen", "n_batch", "n_ubatch", "test", "t/s", "test_time", "avg_ns"),
    *("stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts", "peak_mb"),
}
_TEST = re.compile(r"(pp|tg)(\d+)(?: @ d(\d+))?")
_BATCH_KEY = re.compile(r"batch_(\d+)_ms")
# What numbers that are none come to.
_BAD = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, csv.Error)
REMEDY = (
    "give what llama-bench -o json|jsonl|csv|md, lookup-run --compare --json or "
    "scripts/bench_engine.py print, or a CSV file with the columns batch and ms"
)
_NAME_ONE = "name a file, or give the costs themselves, as 1:1.0,2:1.1,4:1.3"

Row = Mapping[str, Any]


def read_curve(given: str) -> StepCurve:
    """Return the curve of --cost: ``SIZE:COST,...`` itself, or a file that holds one.

    Raises
    ------
    UsageError : a curve without a pass over one token, or over more
    InputUnreadable : a file that can't be read
    InputMalformed : one that is none of those above, or that mixes several models or settings
    """
    if is_curve_text(given):
        return parse_curve(given)
    text = _text(given)
    try:
        points = _points(text, given)
    except _BAD as error:
        raise _malformed(given, f"what is no measurement ({str(error)[:200]})") from error
    return StepCurve.of(points, is_ms=True, origin=given)


def _text(path: str) -> str:
    data = read_small(path, BYTES_MOST, f"--cost {path}", remedy=_NAME_ONE)
    return data.decode("utf-8-sig", errors="replace")


def _points(text: str, path: str) -> dict[int, float]:
    """Return milliseconds by size of whatever the text holds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    records = _json_records(text, lines)
    if records:
        return _points_of_records(records, path)
    table = [line for line in lines if line.startswith("|")]
    if table:
        return _points_of_bench(_markdown_rows(table, path), path)
    reader = csv.DictReader(lines)
    names = {str(name).strip() for name in reader.fieldnames or ()}
    try:
        if {"n_prompt", "avg_ns"} <= names:
            return _points_of_bench(list(reader), path)
        if {"batch", "ms"} <= names:
            return _means((_whole(row["batch"]), _real(row["ms"])) for row in reader)
    except _BAD as error:
        raise _malformed(path, f"a line that is no measurement ({str(error)[:200]})") from error
    raise _malformed(path, "none of the formats that are known")


def _json_records(text: str, lines: Sequence[str]) -> list[Row]:
    """Return the objects of JSON, of JSON lines, or of a last line after other output."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = [record for line in lines if (record := _object(line)) is not None]
    if isinstance(whole, Mapping):
        whole = [whole]
    return [record for record in whole if isinstance(record, Mapping)] if whole else []


def _object(line: str) -> Any:
    try:
        return json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None


def _points_of_records(records: Sequence[Row], path: str) -> dict[int, float]:
    try:
        if "n_prompt" in records[0]:
            return _points_of_bench(records, path)
        last = records[-1]
        if "step_ms" in last:
            return _points_of_run(last, path)
        figures = last.get("figures")
        if isinstance(figures, Mapping):
            found = ((_BATCH_KEY.fullmatch(key), value) for key, value in figures.items())
            return _means((int(key[1]), median(value)) for key, value in found if key)
    except _BAD as error:
        raise _malformed(path, f"a record that is no measurement ({repr(error)[:200]})") from error
    raise _malformed(path, "JSON without measured passes")


def _points_of_run(record: Row, path: str) -> dict[int, float]:
    """Return times of a run that compared.

    Passes were timed after the whole text, plain decoding all along it, with what a round takes
    besides its pass: that is the step that drafting competes with, and what more tokens cost
    comes on top.
    """
    if not record["step_ms"]:
        raise _malformed(path, "a run without --compare, which times no passes")
    step_ms = {_whole(n): _real(ms) for n, ms in record["step_ms"].items()}
    speed = record.get("plain_tokens_per_s")
    extra_ms = 1000 / speed - step_ms[1] if speed else 0.0
    return _means((n, ms + extra_ms) for n, ms in step_ms.items())


def _points_of_bench(rows: Sequence[Row], path: str) -> dict[int, float]:
    """Return times of llama-bench's rows."""
    odd = sorted(
        str(key)
        for key in {key for row in rows for key in row} - _FREE
        if len({str(row.get(key)) for row in rows}) > 1
    )
    if odd:
        raise _malformed(path, f"measurements that differ in {', '.join(odd)[:200]}")
    try:
        evaluated, generated = [], []
        for row in rows:
            n_prompt, n_gen = _whole(row["n_prompt"]), _whole(row["n_gen"])
            if n_prompt and not n_gen:
                size = min(n_prompt, _whole(row["n_batch"]), _whole(row["n_ubatch"]))
                evaluated.append((size, _row_ms(row) / math.ceil(n_prompt / size)))
            elif n_gen and not n_prompt:
                generated.append((1, _row_ms(row) / n_gen))
        # Generation is passes over one token, too, but not quite of the kind of the others.
        return _means(generated) | _means(evaluated)
    except _BAD as error:
        raise _malformed(
            path, f"a row of llama-bench that is none ({repr(error)[:200]})"
        ) from error


def _row_ms(row: Row) -> float:
    """Milliseconds of one test: the median where each run is told, else the mean."""
    samples = row.get("samples_ns")
    return _real(median(samples) if samples else row["avg_ns"]) / 1e6


def _markdown_rows(table: Sequence[str], path: str) -> list[Row]:
    """Return the rows of llama-bench's table, with the keys of its other formats."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    names = cells[0]
    if not {"test", "t/s"} <= set(names):
        raise _malformed(path, "a table without the columns test and t/s")
    rows: list[Row] = []
    for line in cells[1:]:
        row: dict[str, Any] = dict(zip(names, line, strict=False))
        test = _TEST.fullmatch(row.get("test", ""))
        speed = row.get("t/s", "").partition("±")[0].strip()
        if test is None or not _is_number(speed):
            continue  # the rule under the heading; pp512+tg128
        n_tokens = int(test[2])
        row["n_prompt"], row["n_gen"] = (n_tokens, 0) if test[1] == "pp" else (0, n_tokens)
        row["avg_ns"] = 1e9 * n_tokens / float(speed)
        row["n_depth"] = int(test[3] or 0)
        rows.append({"n_batch": N_BATCH, "n_ubatch": N_UBATCH} | row)
    return rows


def _means(found: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return the mean by size; a size may be measured more than once."""
    by_size: dict[int, list[float]] = {}
    for size, ms in found:
        if not (1 <= size <= SIZE_MOST and LEAST <= ms <= MOST):
            raise ValueError(f"a pass over {size} tokens in {ms} ms")
        by_size.setdefault(size, []).append(ms)
    return {size: fmean(times) for size, times in by_size.items()}


def _whole(value: Any) -> int:
    """A whole number, or the text of one; JSON's true is none."""
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _is_number(word: str) -> bool:
    try:
        return 0 < float(word) < math.inf
    except ValueError:
        return False


def _malformed(path: str, what: str) -> InputMalformed:
    return InputMalformed(f"--cost {path}: {what}", remedy=REMEDY)
