"""Nested corpora of given sizes from a folder of text, and the text to replay, which none holds.

    python nested_corpora.py FOLDER TEXT OUT BYTES SEED

writes OUT/replay.txt and OUT/corpus.txt, whose prefixes are the smaller corpora. A process of its
own, for what one process held once counts in the peak memory of all that it starts. The same
folder, seed and sizes give the same bytes on every machine. Only files that are UTF-8 throughout
are taken, so that tools that treat invalid bytes differently read the same text.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

MB = 1_000_000
_PROBE_BYTES = 8192


class NotEnoughText(Exception):
    """What there is, and what would have been needed."""


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted by path; hidden ones and links are left out."""
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(parent, name) for name in names if not name.startswith(".")]
    paths = [path for path in paths if not path.is_symlink()]
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def text_of(path: Path) -> bytes:
    """Return the content of a text file; nothing for what is not one or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_PROBE_BYTES)
            if b"\0" in head:
                return b""
            content = head + file.read()
        content.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return b""
    return content


def write_replay_text(source: Path, target: Path) -> set[Path]:
    """Write the text to replay, a file or all of a folder; return the files it was made of.

    Line ends at its end are dropped: llama.cpp's tools drop one.
    """
    paths = files_below(source) if source.is_dir() else [source]
    content = b"".join(map(text_of, paths)).rstrip(b"\n")
    if not content:
        raise NotEnoughText(f"{source} holds no UTF-8 text to replay; name a text file or a folder")
    target.write_bytes(content)
    return {path.resolve() for path in paths}


class Exclusion:
    """Tells the files that the replayed text was made of, by path or by content."""

    def __init__(self, text: bytes, paths: set[Path]) -> None:
        self._text = text
        self._lines = set(text.split(b"\n"))
        self._paths = paths

    def holds(self, path: Path, content: bytes) -> bool:
        """Tell whether the text holds this file; most are told apart by an early line."""
        if path.resolve() in self._paths:
            return True
        inner = content.strip(b"\n")
        if not inner or len(inner) > len(self._text):
            return False
        return all(line in self._lines for line in inner.split(b"\n")) and inner in self._text


def write_corpus(
    folder: Path, target: Path, *, n_bytes: int, seed: int, without: Exclusion
) -> None:
    """Write at least ``n_bytes`` of a folder's text, file by file in shuffled order."""
    paths = files_below(folder)
    random.Random(seed).shuffle(paths)
    n_written = 0
    with target.open("wb") as file:
        for path in paths:
            content = text_of(path)
            if without.holds(path, content):
                continue
            if content and not content.endswith(b"\n"):
                content += b"\n"
            n_written += file.write(content)
            if n_written >= n_bytes:
                break
    if n_written < n_bytes:
        raise NotEnoughText(
            f"{folder} holds {n_written / MB:.2f} MB of text apart from what is replayed, "
            f"the largest corpus needs {n_bytes / MB:g}; give smaller --sizes"
        )


def cut(whole: Path, target: Path, n_bytes: int) -> int:
    """Write the first ``n_bytes`` of a corpus, whole characters only; return how many."""
    with whole.open("rb") as source, target.open("wb") as file:
        left = n_bytes
        while left and (block := source.read(min(left, 1 << 20))):
            left -= file.write(block)
        # A character of UTF-8 has at most 4 bytes; its first is not 10xxxxxx.
        end = n_bytes
        while end > 0 and _is_inside(whole, end):
            end -= 1
        file.truncate(end)
    return end


def _is_inside(path: Path, at: int) -> bool:
    with path.open("rb") as file:
        file.seek(at)
        byte = file.read(1)
    return bool(byte) and byte[0] & 0xC0 == 0x80


def main(folder: Path, text: Path, out: Path, n_bytes: int, seed: int) -> None:
    """Write both files; end with a line on stderr where there is not enough text."""
    try:
        paths = write_replay_text(text, out / "replay.txt")
        without = Exclusion((out / "replay.txt").read_bytes(), paths)
        write_corpus(folder, out / "corpus.txt", n_bytes=n_bytes, seed=seed, without=without)
    except (NotEnoughText, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    )
