"""Errors that a user can cause, one type a kind, and the exit status of each.

The library raises these; ``cli/main.py`` holds the one ``except`` that turns them into a line
on stderr and an exit status. A message says what was found and what was expected; ``remedy``
says what to do about it. Both are single lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

# Of what is wrong with a model file: bytes that went astray, or a converter of old.
REMEDY_DAMAGED = "download or convert the model again"
REMEDY_CONVERT = "convert the model again with current tools"


class ExitStatus(IntEnum):
    """Exit statuses of the command line, stable across releases (docs/exit-status.md)."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INPUT_UNREADABLE = 3
    INPUT_NO_TEXT = 4
    INPUT_EMPTY = 5
    INPUT_TOO_SHORT = 6
    INPUT_MALFORMED = 7
    MODEL_NOT_GGUF = 10
    MODEL_DAMAGED = 11
    MODEL_NO_TOKENIZER = 12
    MODEL_UNSUPPORTED = 13
    MODEL_UNKNOWN = 14
    MODEL_CHAT_TEMPLATE = 15
    CACHE_NOT_A_CACHE = 20
    CACHE_TRUNCATED = 21
    CACHE_DAMAGED = 22
    CACHE_BAD_COUNT = 23
    CACHE_BAD_TOKEN = 24
    CACHE_OTHER_VOCABULARY = 25
    CACHE_NEWER_VERSION = 26
    CACHE_UNSUITABLE = 27
    OUTPUT_NO_FOLDER = 30
    OUTPUT_NOT_WRITABLE = 31
    DISK_FULL = 32
    CLUSTER_UNREACHABLE = 40
    CLUSTER_UNFIT = 41
    CLUSTER_LOST = 42
    INTERRUPTED = 130


class DraftsmithError(Exception):
    """Base of every error that a user can cause and mend.

    Parameters
    ----------
    message : what was found, and what was expected; one line.
    remedy : what to do; one line, shown after the message.
    """

    exit_status: ExitStatus = ExitStatus.INTERNAL

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their positional arguments, and remedy is none.
        return partial(type(self), remedy=self.remedy), (self.message,)


class UsageError(DraftsmithError):
    """Options that do not fit together or are out of range."""

    exit_status = ExitStatus.USAGE


class InputUnreadable(DraftsmithError):
    """A named input is missing or cannot be opened or decompressed."""

    exit_status = ExitStatus.INPUT_UNREADABLE


class InputHasNoText(DraftsmithError):
    """A folder or a glob holds no text file."""

    exit_status = ExitStatus.INPUT_NO_TEXT


class InputEmpty(DraftsmithError):
    """The input holds no token at all."""

    exit_status = ExitStatus.INPUT_EMPTY


class InputTooShort(DraftsmithError):
    """The text is shorter than one chunk, or than one n-gram of a file that needs one."""

    exit_status = ExitStatus.INPUT_TOO_SHORT


class InputMalformed(DraftsmithError):
    """A JSON line, field or .npy file is not what it has to be."""

    exit_status = ExitStatus.INPUT_MALFORMED


class WordTooLong(InputMalformed):
    """A text goes on without a place to cut it: an endless word, or an endless run of blanks."""


class ModelNotGguf(DraftsmithError):
    """The model file does not begin as a GGUF file."""

    exit_status = ExitStatus.MODEL_NOT_GGUF


class ModelDamaged(DraftsmithError):
    """A GGUF file that ends too early or contradicts itself."""

    exit_status = ExitStatus.MODEL_DAMAGED


class ModelHasNoTokenizer(DraftsmithError):
    """A GGUF file without tokenizer metadata."""

    exit_status = ExitStatus.MODEL_NO_TOKENIZER


class ModelUnsupported(DraftsmithError):
    """A tokenizer, pre-tokenizer or architecture that this release does not know."""

    exit_status = ExitStatus.MODEL_UNSUPPORTED


@contextmanager
def naming_model(path: Path | str) -> Iterator[None]:
    """Put the file before the errors of its tensors, which do not know where they are from.

    Raises
    ------
    ModelDamaged, ModelUnsupported : those of what is done inside
    """
    try:
        yield
    except (ModelDamaged, ModelUnsupported) as error:
        raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from error


class ModelUnknown(DraftsmithError):
    """A model name that is neither a file nor a known name, or is not fetched yet."""

    exit_status = ExitStatus.MODEL_UNKNOWN


class ChatTemplateUnusable(DraftsmithError):
    """A model without a chat template, or with one that cannot be rendered."""

    exit_status = ExitStatus.MODEL_CHAT_TEMPLATE


class CacheNotACache(DraftsmithError):
    """A file that is neither a native nor a llama.cpp n-gram cache."""

    exit_status = ExitStatus.CACHE_NOT_A_CACHE


class CacheTruncated(DraftsmithError):
    """An n-gram cache that ends too early."""

    exit_status = ExitStatus.CACHE_TRUNCATED


class CacheDamaged(DraftsmithError):
    """An n-gram cache whose checksum or structure is wrong."""

    exit_status = ExitStatus.CACHE_DAMAGED


class CacheBadCount(DraftsmithError):
    """An n-gram cache that holds a count of 0 or below."""

    exit_status = ExitStatus.CACHE_BAD_COUNT


class CacheBadToken(DraftsmithError):
    """An n-gram cache that holds a token outside the vocabulary."""

    exit_status = ExitStatus.CACHE_BAD_TOKEN


class CacheOtherVocabulary(DraftsmithError):
    """An n-gram cache of another vocabulary than the model's or the other caches'."""

    exit_status = ExitStatus.CACHE_OTHER_VOCABULARY


class CacheNewerVersion(DraftsmithError):
    """An n-gram cache written by a newer release."""

    exit_status = ExitStatus.CACHE_NEWER_VERSION


class CacheUnsuitable(DraftsmithError):
    """An n-gram cache that cannot serve the purpose it was named for."""

    exit_status = ExitStatus.CACHE_UNSUITABLE


class OutputNoFolder(DraftsmithError):
    """The folder of an output file does not exist."""

    exit_status = ExitStatus.OUTPUT_NO_FOLDER


class OutputNotWritable(DraftsmithError):
    """An output file or its folder cannot be written."""

    exit_status = ExitStatus.OUTPUT_NOT_WRITABLE


class DiskFull(DraftsmithError):
    """No space left for an output file."""

    exit_status = ExitStatus.DISK_FULL


class ClusterUnreachable(DraftsmithError):
    """No Dask scheduler answers at the address, or it has no workers."""

    exit_status = ExitStatus.CLUSTER_UNREACHABLE


class ClusterUnfit(DraftsmithError):
    """A Dask worker lacks draftsmith, or has another version of it."""

    exit_status = ExitStatus.CLUSTER_UNFIT


class ClusterLost(DraftsmithError):
    """The Dask scheduler or its workers went away during the work."""

    exit_status = ExitStatus.CLUSTER_LOST
