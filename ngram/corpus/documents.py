"""Files to documents: paths in, each document's valid UTF-8 in blocks (or its token ids) out.

Text streams: one block, or one JSON line, is in memory at a time, whatever the size of the
corpus. No model is known here and nothing is tokenised. Every path is found and opened once
before the first document, so that a typing error shows before the long work.

What a document is: a text file (plain or compressed), standard input, the field of one JSON line
or row, a string of a JSON list, or the ids of one ``.npy`` file. An empty file is a document
without bytes, and counts. A file named twice is two documents. Newlines, Windows ones too, and a
byte order mark of UTF-8 stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.errors import InputMalformed, InputUnreadable, WordTooLong
from ...engine.tokens.blocks import LONGEST_WORD_BYTES
from .decode import (
    SURROGATE,
    drop_last_newline,
    field_text,
    json_line_texts,
    process_escapes,
    repair_utf8,
)
from .encodings import as_utf8, may_be_json, may_be_text
from .files import Source, read_blocks, read_head, total_bytes
from .find import find_sources
from .ids import load_token_ids, map_ids
from .json_texts import (
    json_head,
    kind_of,
    records_of_list,
    refuse_records,
    texts_of_list,
)
from .parquet import is_null, parquet_rows
from .stats import CorpusStats
from .store import LOCAL, Store, show_path

CheckWords = Callable[[Iterable[bytes]], None]
OnBad = Callable[[str, InputMalformed | None, bytes | None], bool]

# A shorter text has no word that is too long, and is held until it is known to be whole.
HELD_BYTES = LONGEST_WORD_BYTES


@dataclass(frozen=True)
class Document:
    """One sequence of the corpus: exactly one of ``blocks`` and ``tokens`` is not None.

    Attributes
    ----------
    name : the path as given or found, with ``:line`` for a JSON line; ``-`` is standard input.
    blocks : valid UTF-8, none of them empty, each ending at a character's end.
    tokens : int32 [n_tokens], 0 or above; read-only, mapped from the file where that is possible.
    """

    name: str
    blocks: Iterator[bytes] | None
    tokens: npt.NDArray[np.int32] | None


class Corpus:
    """The documents of some inputs, in the order given; one pass (``open_corpus`` makes it).

    Attributes
    ----------
    stats : counters, filled as documents and their blocks are taken.
    sources : the files found.
    bytes_read : bytes read from the files so far, before decompression.
    total_bytes : what ``bytes_read`` ends at; None with standard input or a pipe among them.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        left_out: Sequence[str],
        *,
        field: str | None,
        escape: bool,
        strip_newline: bool = True,
        is_text: bool = False,
        strict: bool = False,
        block_bytes: int = 1 << 20,
        store: Store = LOCAL,
        stats: CorpusStats | None = None,
    ) -> None:
        self.sources = tuple(sources)
        self._left_out = list(left_out)
        self.stats = stats or CorpusStats()
        self.bytes_read = 0
        self.total_bytes = total_bytes(sources)
        self._field = field
        self._escape = escape
        self._strip_newline = strip_newline
        self._is_text = is_text
        self._strict = strict
        self._block_bytes = block_bytes
        self._store = store

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files in folders that are not text, as far as seen."""
        return tuple(self._left_out)

    def documents(self, check_words: CheckWords | None = None) -> Iterator[Document]:
        """Yield the documents; the blocks of each may be taken at any later time.

        A text file is opened when its document is yielded and closed after its last block, or
        when the iterator is closed or forgotten. Of a file that was found in a folder or by a
        pattern all is read before its document is yielded, and what is wrong with it is counted
        in ``stats`` and left out, unless the corpus is strict.

        Parameters
        ----------
        check_words : raises WordTooLong for a text that cannot be tokenised.

        Raises
        ------
        InputUnreadable : a file is damaged, or has changed or gone since ``open_corpus``.
        InputMalformed : a line is not JSON with a text in the field, a text is in an encoding
            without a mark, or a ``.npy`` file does not hold token ids.
        """
        for source in self.sources:
            may_skip = source.is_found and not self._strict
            try:
                if source.folder is not None and not may_be_text(read_head(source, self._store)):
                    self._left_out.append(source.path)
                    continue
                documents = self._documents_of(source, check_words, may_skip)
            except (InputUnreadable, InputMalformed) as error:
                if not may_skip:
                    raise
                self.stats.skip(source.path, error)
                continue
            yield from documents

    def _documents_of(
        self, source: Source, check_words: CheckWords | None, may_skip: bool
    ) -> Iterator[Document]:
        """The documents of one file; all its faults but those of lines show before the first."""
        if source.layout == "token-ids":
            tokens = load_token_ids(source, self._store)
            self._add_raw_bytes(source.size or 0)
            return self._counted(iter((Document(source.path, None, tokens),)))
        on_bad = self._skip_place(source, check_words) if may_skip else None
        if source.layout == "parquet":
            if may_skip:
                for _ in parquet_rows(source, self._field, self._store):
                    pass
            return self._counted(self._rows(source, on_bad))
        blocks = self._utf8_blocks(source)
        if may_skip:
            blocks = self._checked_blocks(source, check_words)
        if self._field is not None:
            return self._counted(self._json_documents(source, blocks, on_bad))
        head, blocks = (b"", blocks) if self._is_text else json_head(blocks)
        kind = kind_of(head)
        if kind == "records":
            raise refuse_records(show_path(source.path))
        if kind == "strings":
            texts = texts_of_list(blocks, show_path(source.path))
            return self._counted(self._text_documents(source, texts, on_bad))
        return self._counted(iter((self._file_document(source, blocks),)))

    def _counted(self, documents: Iterator[Document]) -> Iterator[Document]:
        for document in documents:
            self.stats.n_documents += 1
            yield document

    def _json_documents(
        self, source: Source, blocks: Iterator[bytes], on_bad: OnBad | None
    ) -> Iterator[Document]:
        assert self._field is not None
        head, blocks = json_head(blocks, n_most=1)
        name = show_path(source.path)
        if may_be_json(head, b"["):
            values = records_of_list(repair_utf8(blocks, self._add_invalid(source)), name)
            yield from self._text_documents(source, self._fields(values, name, on_bad), on_bad)
            return
        lines = json_line_texts(
            blocks,
            self._field,
            name,
            on_bad=None if on_bad is None else partial(_bad_line, on_bad),
        )
        for line, text, n_replaced in lines:
            if n_replaced:
                self.stats.add_invalid(source.path, n_replaced)
            document = self._text_document(source, f":{line}", text, on_bad)
            if document is not None:
                yield document

    def _fields(
        self, values: Iterator[tuple[str, Any]], name: str, on_bad: OnBad | None
    ) -> Iterator[tuple[str, str]]:
        """The text in the field of each value."""
        assert self._field is not None
        for place, value in values:
            try:
                yield place, field_text(value, self._field, f"{name}{place}")
            except InputMalformed as error:
                if on_bad is None:
                    raise
                on_bad(place, error, None)

    def _rows(self, source: Source, on_bad: OnBad | None) -> Iterator[Document]:
        assert self._field is not None
        name, before = show_path(source.path), 0
        for row, value, at in parquet_rows(source, self._field, self._store):
            self._add_raw_bytes(max(0, at - before))
            before = max(at, before)
            place = f"[{row}]"
            if is_null(value, self._field):
                self.stats.n_null += 1
                continue
            yield from self._text_documents(
                source, self._fields(iter(((place, value),)), name, on_bad), on_bad
            )
        self._add_raw_bytes((source.size or 0) - before)

    def _text_documents(
        self, source: Source, texts: Iterator[tuple[str, str]], on_bad: OnBad | None
    ) -> Iterator[Document]:
        for place, text in texts:
            document = self._text_document(source, place, text, on_bad)
            if document is not None:
                yield document

    def _text_document(
        self, source: Source, place: str, text: str, on_bad: OnBad | None
    ) -> Document | None:
        """One text of several in a file; None: it is skipped."""
        text, n_surrogates = SURROGATE.subn("\ufffd", text)
        if n_surrogates:
            self.stats.add_invalid(source.path, n_surrogates)
        data = text.encode()
        if on_bad is not None and on_bad(place, None, data):
            return None
        blocks = self._text_blocks(source, _slices(data, self._block_bytes))
        return Document(f"{source.path}{place}", blocks, None)

    def _skip_place(self, source: Source, check_words: CheckWords | None) -> OnBad:
        """What is asked of each text in a file that was found: whether it is skipped."""

        def is_bad(place: str, error: InputMalformed | None, data: bytes | None) -> bool:
            if error is None and data is not None:
                error = self._word_error(source, iter((data,)), len(data), check_words)
            if error is not None:
                self.stats.skip(f"{source.path}{place}", error)
            return error is not None

        return is_bad

    def _file_document(self, source: Source, blocks: Iterator[bytes]) -> Document:
        # Not in documents(): what its frame refers to would stay open with it.
        return Document(source.path, self._file_text_blocks(source, blocks), None)

    def _file_text_blocks(self, source: Source, blocks: Iterator[bytes]) -> Iterator[bytes]:
        return self._text_blocks(
            source, drop_last_newline(blocks) if self._strip_newline else blocks
        )

    def _utf8_blocks(self, source: Source) -> Iterator[bytes]:
        blocks = read_blocks(source, self._block_bytes, self._add_raw_bytes, self._store)
        return as_utf8(blocks, show_path(source.path), self._add_invalid(source))

    def _checked_blocks(self, source: Source, check_words: CheckWords | None) -> Iterator[bytes]:
        """As ``_utf8_blocks``, after all of it has been read: a file is counted whole, or not.

        What is small is held. What is not is read twice.
        """
        trial = self._trial()
        held, n_bytes, blocks = [], 0, trial._utf8_blocks(source)
        for block in blocks:
            held.append(block)
            n_bytes += len(block)
            if n_bytes > HELD_BYTES:
                break
        else:
            self.bytes_read += trial.bytes_read
            self.stats.add(trial.stats)
            return iter(held)
        if self._field is None:
            text = trial._file_text_blocks(source, chain(held, blocks))
            error = self._word_error(source, text, n_bytes, check_words)
            if error is not None:
                raise error
        for _ in blocks:  # what a check of words has left
            pass
        return self._utf8_blocks(source)

    def _trial(self) -> Corpus:
        """The same way of reading, with counters of its own."""
        return Corpus(
            (),
            (),
            field=self._field,
            escape=self._escape,
            strip_newline=self._strip_newline,
            block_bytes=self._block_bytes,
            store=self._store,
        )

    def _word_error(
        self,
        source: Source,
        blocks: Iterator[bytes],
        n_bytes: int,
        check_words: CheckWords | None,
    ) -> WordTooLong | None:
        """What is wrong with the words of a text; one of few bytes has none that are too long."""
        if check_words is None or n_bytes <= HELD_BYTES:
            return None
        try:
            check_words(blocks)
        except WordTooLong as error:
            return error
        return None

    def _text_blocks(self, source: Source, blocks: Iterator[bytes]) -> Iterator[bytes]:
        if self._escape:
            blocks = process_escapes(blocks)
        for block in repair_utf8(blocks, self._add_invalid(source)):
            self.stats.n_bytes += len(block)
            yield block

    def _add_invalid(self, source: Source) -> Callable[[int], None]:
        return lambda n_replaced: self.stats.add_invalid(source.path, n_replaced)

    def _add_raw_bytes(self, n_bytes: int) -> None:
        self.bytes_read += n_bytes


def open_corpus(
    paths: Sequence[str],
    *,
    field: str | None = None,
    escape: bool = False,
    strip_newline: bool = True,
    is_text: bool = False,
    strict: bool = False,
    block_bytes: int = 1 << 20,
) -> Corpus:
    r"""Find every input and return the corpus, without reading it yet.

    Parameters
    ----------
    paths : files, folders (taken recursively), patterns (``**`` too) and ``-`` for stdin.
    field : read every text input as JSON lines, or as rows of a Parquet file, and this field
        (``a.b`` for b inside a) of each as a document; of a folder only such files are taken.
    escape : process llama.cpp's escapes (``\n``, ``\xHH``...) in each document, JSON or not.
    strip_newline : drop one final ``\n`` of each text file, before escapes, as llama.cpp does.
    is_text : read JSON as the text that it is, too.
    strict : what is wrong with a file in a folder is raised, as with one that is named.
    block_bytes : most bytes read at a time, after decompression.

    Raises
    ------
    InputUnreadable : an input is missing, cannot be opened, or is of a kind that is not read.
    InputHasNoText : a folder without text, or a pattern that matches no file.
    InputMalformed : JSON lines without ``field``, or a ``.npy`` file that holds no token ids.
    UsageError : no path, or standard input or a pipe named twice.
    """
    stats = CorpusStats()
    on_skip = None if strict else stats.skip
    sources, left_out = find_sources(paths, field, is_text=is_text, on_skip=on_skip)
    for source in sources:
        if source.layout == "token-ids" and (strict or not source.is_found):
            map_ids(source)
    return Corpus(
        sources,
        left_out,
        field=field,
        escape=escape,
        strip_newline=strip_newline,
        is_text=is_text,
        strict=strict,
        block_bytes=block_bytes,
        stats=stats,
    )


def _bad_line(on_bad: OnBad, line: int, error: InputMalformed) -> None:
    on_bad(f":{line}", error, None)


def _slices(data: bytes, block_bytes: int) -> Iterator[bytes]:
    for start in range(0, len(data), block_bytes):
        yield data[start : start + block_bytes]
