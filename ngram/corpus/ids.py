"""Token ids of a corpus: ``.npy`` files, mapped where that is possible and checked before use."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.errors import DraftsmithError, InputMalformed
from ...engine.pages import forget_pages
from .files import Source, check_unchanged, read_blocks
from .store import LOCAL, Store, show_path, unreadable

_IDS_BLOCK = 1 << 20
_MAX_ID = int(np.iinfo(np.int32).max)
_IDS_EXPECTED = "expected one row of int32 token ids"
_IDS_REMEDY = "save the ids with numpy.save(path, ids.astype(numpy.int32))"


def load_token_ids(source: Source, store: Store = LOCAL) -> npt.NDArray[np.int32]:
    """Return the ids of a ``.npy`` file, int32 [n_tokens], each of them 0 or above.

    Native int32 is mapped, not read, from a local file, which must not be cut while the array
    lives; other integer types are copied when every id fits.

    Raises
    ------
    InputUnreadable, InputMalformed : as for ``open_corpus``, or an id is out of range.
    """
    mapped = map_ids(source) if store is LOCAL else _read_ids(source, store)
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


def map_ids(source: Source) -> npt.NDArray[np.integer]:
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
