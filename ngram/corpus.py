"""Files to documents: paths in, each document's valid UTF-8 in blocks (or its token ids) out.

Text streams: one block, or one JSON line, is in memory at a time, whatever the size of the
corpus. No model is known here and nothing is tokenised. Every path is found and opened once
before the first document, so that a typing error shows before the long work.

What a document is: a text file (plain or compressed), standard input, the field of one JSON
line, or the ids of one ``.npy`` file. An empty file is a document without bytes, and counts.
A file named twice is two documents. Newlines, Windows ones too, and a byte order mark stay.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.errors import DraftsmithError, InputMalformed
from ..engine.pages import forget_pages
from .corpus_decode import drop_last_newline, json_line_texts, process_escapes, repair_utf8
from .corpus_files import (
    Source,
    check_unchanged,
    find_sources,
    read_blocks,
    read_head,
    total_bytes,
)
from .corpus_store import LOCAL, Store, show_path, unreadable

_IDS_BLOCK = 1 << 20
_MAX_ID = int(np.iinfo(np.int32).max)
_IDS_EXPECTED = "expected one row of int32 token ids"
_IDS_REMEDY = "save the ids with numpy.save(path, ids.astype(numpy.int32))"


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


@dataclass
class CorpusStats:
    """What a corpus has handed on so far.

    Attributes
    ----------
    n_documents : documents yielded, empty ones too.
    n_bytes : bytes of text, decompressed and repaired.
    invalid_by_file : replaced UTF-8 sequences of each file that has any, by its path.
    """

    n_documents: int = 0
    n_bytes: int = 0
    invalid_by_file: dict[str, int] = field(default_factory=dict)

    @property
    def n_invalid_utf8(self) -> int:
        """Invalid UTF-8 sequences that were replaced by U+FFFD."""
        return sum(self.invalid_by_file.values())

    @property
    def n_invalid_files(self) -> int:
        """Files that held at least one of them."""
        return len(self.invalid_by_file)

    def add_invalid(self, path: str, n_replaced: int) -> None:
        """Count ``n_replaced`` sequences of one file."""
        self.invalid_by_file[path] = self.invalid_by_file.get(path, 0) + n_replaced


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
        block_bytes: int = 1 << 20,
        store: Store = LOCAL,
    ) -> None:
        self.sources = tuple(sources)
        self._left_out = list(left_out)
        self.stats = CorpusStats()
        self.bytes_read = 0
        self.total_bytes = total_bytes(sources)
        self._field = field
        self._escape = escape
        self._strip_newline = strip_newline
        self._block_bytes = block_bytes
        self._store = store

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files in folders that are not text, as far as seen."""
        return tuple(self._left_out)

    def documents(self) -> Iterator[Document]:
        """Yield the documents; the blocks of each may be taken at any later time.

        A text file is opened when its first block is taken and closed after its last, or when
        the iterator is closed or forgotten.

        Raises
        ------
        InputUnreadable : a file is damaged, or has changed or gone since ``open_corpus``.
        InputMalformed : a line is not JSON with a text in the field, or a ``.npy`` file does
            not hold token ids.
        """
        for source in self.sources:
            if source.folder is not None and b"\0" in read_head(source, self._store):
                self._left_out.append(source.path)
            elif source.layout == "token-ids":
                tokens = load_token_ids(source, self._store)
                self._add_raw_bytes(source.size or 0)
                self.stats.n_documents += 1
                yield Document(source.path, None, tokens)
            elif self._field is not None:
                yield from self._json_documents(source, self._field)
            else:
                self.stats.n_documents += 1
                yield Document(source.path, self._file_text_blocks(source), None)

    def _json_documents(self, source: Source, field: str) -> Iterator[Document]:
        name = show_path(source.path)
        for line, text, n_replaced in json_line_texts(self._raw_blocks(source), field, name):
            if n_replaced:
                self.stats.add_invalid(source.path, n_replaced)
            self.stats.n_documents += 1
            blocks = self._text_blocks(source, _slices(text.encode(), self._block_bytes))
            yield Document(f"{source.path}:{line}", blocks, None)

    def _file_text_blocks(self, source: Source) -> Iterator[bytes]:
        # Not in documents(): what its frame refers to would stay open with it.
        blocks = self._raw_blocks(source)
        return self._text_blocks(
            source, drop_last_newline(blocks) if self._strip_newline else blocks
        )

    def _raw_blocks(self, source: Source) -> Iterator[bytes]:
        return read_blocks(source, self._block_bytes, self._add_raw_bytes, self._store)

    def _text_blocks(self, source: Source, blocks: Iterator[bytes]) -> Iterator[bytes]:
        if self._escape:
            blocks = process_escapes(blocks)

        def add_invalid(n_replaced: int) -> None:
            self.stats.add_invalid(source.path, n_replaced)

        for block in repair_utf8(blocks, add_invalid):
            self.stats.n_bytes += len(block)
            yield block

    def _add_raw_bytes(self, n_bytes: int) -> None:
        self.bytes_read += n_bytes


def open_corpus(
    paths: Sequence[str],
    *,
    field: str | None = None,
    escape: bool = False,
    strip_newline: bool = True,
    block_bytes: int = 1 << 20,
) -> Corpus:
    r"""Find every input and return the corpus, without reading it yet.

    Parameters
    ----------
    paths : files, folders (taken recursively), patterns (``**`` too) and ``-`` for stdin.
    field : read every text input as JSON lines, and this field (``a.b`` for b inside a) of
        each line as a document; of a folder only its JSON lines files are taken then.
    escape : process llama.cpp's escapes (``\n``, ``\xHH``...) in each document, JSON or not.
    strip_newline : drop one final ``\n`` of each text file, before escapes, as llama.cpp does.
    block_bytes : most bytes read at a time, after decompression.

    Raises
    ------
    InputUnreadable : an input is missing, cannot be opened, or is of a kind that is not read.
    InputHasNoText : a folder without text, or a pattern that matches no file.
    InputMalformed : JSON lines without ``field``, or a ``.npy`` file that holds no token ids.
    UsageError : no path, or standard input or a pipe named twice.
    """
    sources, left_out = find_sources(paths, field)
    for source in sources:
        if source.layout == "token-ids":
            _map_ids(source)
    return Corpus(
        sources,
        left_out,
        field=field,
        escape=escape,
        strip_newline=strip_newline,
        block_bytes=block_bytes,
    )


def load_token_ids(source: Source, store: Store = LOCAL) -> npt.NDArray[np.int32]:
    """Return the ids of a ``.npy`` file, int32 [n_tokens], each of them 0 or above.

    Native int32 is mapped, not read, from a local file, which must not be cut while the array
    lives; other integer types are copied when every id fits.

    Raises
    ------
    InputUnreadable, InputMalformed : as for ``open_corpus``, or an id is out of range.
    """
    mapped = _map_ids(source) if store is LOCAL else _read_ids(source, store)
    for start in range(0, len(mapped), _IDS_BLOCK):
        block = mapped[start : start + _IDS_BLOCK]
        if block.min() < 0 or block.max() > _MAX_ID:
            offset = int(np.argmax((block < 0) | (block > _MAX_ID)))
            raise InputMalformed(
                f"{show_path(source.path)}: {int(block[offset])} at position {start + offset} "
                f"is not a token id (0 to {_MAX_ID})",
                remedy="make the file again with the model's own token ids",
            )
        forget_pages(mapped)
    tokens = np.ascontiguousarray(mapped, dtype=np.int32)
    tokens.flags.writeable = False
    return tokens


def id_blocks(tokens: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the ids of a document block by block, one at least.

    Of a mapped file no more than a block or two are in memory.
    """
    for start in range(0, max(1, len(tokens)), _IDS_BLOCK):
        yield tokens[start : start + _IDS_BLOCK]
        forget_pages(tokens)


def _map_ids(source: Source) -> npt.NDArray[np.integer]:
    """Map a ``.npy`` file after checking its type, shape and size; its values are not read."""
    path = source.path
    try:
        check_unchanged(source, LOCAL.status(path))
        # Pickled objects are refused here; the header's text is read by Python's own parser,
        # which raises what it likes about a damaged one.
        mapped = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise unreadable(path, error) from error
    except DraftsmithError:
        raise
    except Exception:
        raise _not_whole(path) from None
    _check_ids(path, mapped.dtype, mapped.shape)
    _check_size(path, source.size, mapped.offset + mapped.nbytes)
    return mapped


def _read_ids(source: Source, store: Store) -> npt.NDArray[np.integer]:
    """Read a ``.npy`` file that cannot be mapped, with the same checks."""
    data = b"".join(read_blocks(source, _IDS_BLOCK, lambda n_bytes: None, store))
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except Exception:
        raise _not_whole(source.path) from None
    _check_ids(source.path, dtype, shape)
    _check_size(source.path, len(data), stream.tell() + shape[0] * dtype.itemsize)
    return np.frombuffer(data, dtype, offset=stream.tell())


def _not_whole(path: str) -> InputMalformed:
    return InputMalformed(
        f"{show_path(path)}: not a whole .npy file; {_IDS_EXPECTED}", remedy=_IDS_REMEDY
    )


def _check_ids(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if dtype.kind not in "iu" or len(shape) != 1:
        raise InputMalformed(
            f"{show_path(path)}: holds {dtype} of shape {shape}; {_IDS_EXPECTED}",
            remedy=_IDS_REMEDY,
        )


def _check_size(path: str, n_bytes: int | None, n_told: int) -> None:
    if n_told != n_bytes:
        raise InputMalformed(
            f"{show_path(path)}: {n_bytes} bytes, where its header tells {n_told}; {_IDS_EXPECTED}",
            remedy=_IDS_REMEDY,
        )


def _slices(data: bytes, block_bytes: int) -> Iterator[bytes]:
    for start in range(0, len(data), block_bytes):
        yield data[start : start + block_bytes]
