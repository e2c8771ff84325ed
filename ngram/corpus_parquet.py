"""Parquet files, through the optional package pyarrow: rows as JSON-like objects, streamed.

A few rows are in memory at a time, whatever the size of a row group; text columns stay packed by
pyarrow's dictionaries until a row is taken.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..engine.errors import InputMalformed, InputUnreadable
from .corpus_decode import LINE_LIMIT_BYTES
from .corpus_files import Source, check_unchanged
from .corpus_store import LOCAL, Store, show_path, unreadable

INSTALL = "pip install 'draftsmith[parquet]'"
_BATCH_ROWS = 64
_BUFFER_BYTES = 1 << 20


def parquet_rows(
    source: Source, column: str | None, store: Store = LOCAL
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Yield (row from 1 on, its columns as JSON would have them, bytes of the file so far).

    Parameters
    ----------
    column : the only one that is read; ``a.b`` is ``b`` inside ``a``. None: all.

    Raises
    ------
    InputUnreadable : pyarrow is not installed, or the file is no Parquet, damaged or changed.
    InputMalformed : there is no such column, or a value is too long.
    """
    arrow, parquet = _pyarrow(source)
    shown = show_path(source.path)
    if store is not LOCAL and "://" in source.path:
        raise InputUnreadable(
            f"{shown}: .parquet is not read behind a URL", remedy="copy it to a shared folder first"
        )
    with _refusing(source, arrow), open(source.path, "rb") as raw:
        check_unchanged(source, LOCAL.status(source.path, raw))
        file = parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        names = file.schema_arrow.names
        wanted = None if column is None else [_top(column, names, shown)]
        row = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False):
            if batch.nbytes > LINE_LIMIT_BYTES * 4:
                raise InputMalformed(
                    f"{shown}[{row + 1}]: rows of {batch.nbytes // len(batch)} bytes",
                    remedy="write shorter texts, or JSON lines",
                )
            for value in batch.to_pylist():
                row += 1
                yield row, {name: _plain(one) for name, one in value.items()}, raw.tell()
        check_unchanged(source, LOCAL.status(source.path, raw))


def is_null(row: dict[str, Any], column: str) -> bool:
    """Whether a row has no value in a column, or in what holds it."""
    value: Any = row
    for name in [column] if column in row else column.split("."):
        value = value.get(name) if isinstance(value, dict) else value
    return value is None


def _top(column: str, names: list[str], shown: str) -> str:
    """The column of the file that holds ``column``."""
    top = column if column in names else column.split(".")[0]
    if top not in names:
        listed = ", ".join(ascii(name[:40]) for name in names[:8])
        raise InputMalformed(
            f"{shown}: no column {column!r}; the file has {listed or 'none'}",
            remedy="name the column that holds the text with --field (a.b for b inside a)",
        )
    return top


def _plain(value: Any) -> Any:
    """A value as JSON would have it."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, decimal.Decimal) else value


@contextmanager
def _refusing(source: Source, arrow: Any) -> Iterator[None]:
    """Turn what pyarrow raises into our errors."""
    try:
        yield
    except (arrow.ArrowException, OverflowError, MemoryError) as error:
        reason = " ".join((str(error) or type(error).__name__).split())[:200]
        raise InputUnreadable(
            f"{show_path(source.path)}: damaged Parquet data, or none ({reason})",
            remedy="get the file again, or write it again",
        ) from error
    except OSError as error:  # Arrow's own of this kind have no errno
        if error.errno is not None:
            raise unreadable(source.path, error) from error
        reason = " ".join(str(error).split())[:200]
        raise InputUnreadable(
            f"{show_path(source.path)}: damaged Parquet data ({reason})",
            remedy="get the file again, or write it again",
        ) from error


def _pyarrow(source: Source) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputUnreadable(
            f"{show_path(source.path)}: reading .parquet needs the package pyarrow, which is not "
            "installed",
            remedy=f"{INSTALL}, or write JSON lines",
        ) from error
    return pyarrow, pyarrow.parquet
