"""Heads that come with the package, for models that have no MTP layers of their own."""

from __future__ import annotations

from pathlib import Path

from ..engine.errors import InputUnreadable
from ..engine.models import KNOWN_MODELS, cache_folder

FOLDER = Path(__file__).with_name("heads")
# Name of a known model -> file in the folder.
SHIPPED = {"smollm2": "smollm2-135m-instruct.gguf"}


def shipped_head(model: str | Path) -> Path | None:
    """Return the head that comes along for ``-m MODEL``; None: there is none for it.

    Parameters
    ----------
    model : a known name, or the file of one in the cache folder

    Raises
    ------
    InputUnreadable : this installation lacks the file
    """
    for name, file_name in SHIPPED.items():
        fetched = cache_folder() / KNOWN_MODELS[name].file_name
        if str(model) == name or Path(model) == fetched:
            path = FOLDER / file_name
            if not path.is_file():
                raise InputUnreadable(
                    f"the MTP head for {name} is missing from this installation ({path})",
                    remedy="install draftsmith again, or name a head with --mtp-head",
                )
            return path
    return None
