"""Zstandard files, through the optional package ``zstandard``: bounded memory, any frames."""

from __future__ import annotations

from typing import Any

from ...engine.errors import InputUnreadable

INSTALL = "pip install 'draftsmith[zstd]'"
# A frame may ask for a window of any size; that of zstd's --long (27) is 128 MiB.
_MOST_WINDOW = 1 << 27
# Four bytes may stand for 128 KiB: so many at a time come to 32 MiB at most.
_READ_BYTES = 1 << 10


class ZstdReader:
    """The decompressed bytes of a readable file; frames follow one another, as ``cat`` joins them.

    Raises
    ------
    InputUnreadable : zstandard is not installed.
    """

    def __init__(self, raw: Any, shown: str) -> None:
        self._zstd = _zstandard(shown)
        self._decompressor = self._zstd.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        self._raw = raw
        self._frame: Any = None  # the one that has begun
        self._input = b""
        self._output = bytearray()

    @property
    def damage(self) -> type[Exception]:
        """What reading raises for bad data, beside EOFError for a file that was cut."""
        error: type[Exception] = self._zstd.ZstdError
        return error

    def read(self, n_bytes: int) -> bytes:
        """Return up to ``n_bytes``; b"" at the end."""
        while len(self._output) < n_bytes and self._decompress():
            pass
        data = bytes(self._output[:n_bytes])
        del self._output[:n_bytes]
        return data

    def _decompress(self) -> bool:
        """Decompress a little more; False at the end of the file."""
        self._input = self._input or self._raw.read(_READ_BYTES)
        if not self._input:
            if self._frame is not None:
                raise EOFError("the file ends inside a frame")
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        self._output += self._frame.decompress(self._input)
        self._input = b""
        if self._frame.eof:
            self._input, self._frame = self._frame.unused_data, None
        return True


def _zstandard(shown: str) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise InputUnreadable(
            f"{shown}: reading .zst needs the package zstandard, which is not installed",
            remedy=f"{INSTALL}, or decompress it first (zstd -d)",
        ) from error
    return zstandard
