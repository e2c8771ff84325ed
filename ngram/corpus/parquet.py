"""Parquet files, through the optional package pyarrow: rows as JSON-like objects, streamed.

A few rows are in memory at a time, whatever the size of a row group; text columns stay packed by
pyarrow's dictionaries until a row is taken.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from ...engine.errors import InputMalformed, InputUnreadable
from .decode import LINE_LIMIT_BYTES
from .files import Source, check_unchanged
from .store import LOCAL, Store, show_path, unreadable

INSTALL = "pip install 'draftsmith[parquet]'"
_BATCH_ROWS = 256
_MOST_ROWS_BYTES = 128 << 20
_MOST_BATCH_BYTES = 4 * LINE_LIMIT_BYTES
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
            f"{shown}: .parquet is not read at a URL", remedy="copy it to a shared folder first"
        )
    with _refusing(source, arrow), open(source.path, "rb") as raw:
        check_unchanged(source, LOCAL.status(source.path, raw))
        reader = _RowReader(raw, arrow, parquet)
        names = reader.names
        wanted = None if column is None else [_top(column, names, shown)]
        row = 0
        for batch in reader.batches(wanted):
            _check_size(batch, shown, row)
            # a text that many rows share is one in their dictionary, and may be in each row
            n_rows = max(1, _MOST_ROWS_BYTES // max(1, batch.nbytes))
            for start in range(0, len(batch), n_rows):
                for value in batch.slice(start, n_rows).to_pylist():
                    row += 1
                    yield row, {name: _plain(one) for name, one in value.items()}, raw.tell()
        check_unchanged(source, LOCAL.status(source.path, raw))


class _RowReader:
    """Batches of a file, row group by row group, its texts packed as they are in the file.

    A few bytes may stand for one long text in each of many rows. Texts inside lists cannot always
    be left packed (some writers stop packing in the middle of a row group): then it is a row at a
    time.
    """

    def __init__(self, raw: Any, arrow: Any, parquet: Any) -> None:
        self._not_implemented = arrow.ArrowNotImplementedError
        self._open = partial(parquet.ParquetFile, raw, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        plain = self._open()
        columns = [plain.schema.column(i) for i in range(len(plain.schema))]
        self._texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
        self.names: list[str] = plain.schema_arrow.names
        self._n_groups: int = plain.num_row_groups

    def batches(self, columns: list[str] | None) -> Iterator[Any]:
        packed = self._open(read_dictionary=self._texts)
        for group in range(self._n_groups):
            n_rows = 0
            try:
                for batch in packed.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
                ):
                    yield batch
                    n_rows += len(batch)
            except self._not_implemented:
                top = [path for path in self._texts if "." not in path]
                single = self._open(read_dictionary=top).iter_batches(
                    1, row_groups=[group], columns=columns, use_threads=False
                )
                yield from islice(single, n_rows, None)


def _check_size(batch: Any, shown: str, row: int) -> None:
    if batch.nbytes > _MOST_BATCH_BYTES:
        raise InputMalformed(
            f"{shown}[{row + 1}]: rows of {batch.nbytes // len(batch)} bytes",
            remedy="write shorter texts, or JSON lines",
        )


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
