"""Types of command line arguments that more than one script takes."""

from __future__ import annotations

import argparse

from draftsmith.engine.errors import UsageError
from draftsmith.engine.host import check_threads


def thread_count(text: str) -> int:
    """Return a number of threads that this machine has a use for."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads")
    try:
        return check_threads(int(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
