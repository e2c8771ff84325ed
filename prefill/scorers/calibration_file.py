"""Which heads of a model retrieve: found once for a model, kept in a small JSON file.

A file is for a model, whatever its quantisation, its name and its path: for a vocabulary, a size
and, where the file tells them, the norms. Those that a user's own calibration wrote lie beside
the fetched models, and go before those that come with the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import InputMalformed, InputUnreadable, UsageError
from ...engine.gguf.identity import UNTOLD, Identity, Kinship, Marks
from ...engine.models import cache_folder
from ...engine.plain_file import read_small, unique_keys
from ...engine.transformer.hparams import ModelParams
from .attention import AttentionRule, Head, Reduce
from .blocksparse import BlockRule

SCHEMA = 1
FOLDER = Path(__file__).parent.with_name("calibration")

_BYTES_MOST = 1 << 22
# What a file that is none comes to.
_BAD = (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError)
_REDUCES: tuple[Reduce, ...] = ("max", "mean")


class ForModel:
    """What is known of a model, whatever its quantisation.

    Attributes
    ----------
    vocabulary : fingerprint of its tokenizer, lower-case hex
    n_layers, n_embd : its size
    made_for : marks of its weights, as far as the file tells
    """

    model: str
    vocabulary: str
    n_layers: int
    n_embd: int
    made_for: Marks
    path: Path | None

    def fits(self, fingerprint: str, params: ModelParams) -> bool:
        """Whether it is for a model of this vocabulary (hex) and size."""
        found = (self.vocabulary, self.n_layers, self.n_embd)
        return found == (fingerprint, params.n_layers, params.n_embd)

    def fits_weights(self, identity: Identity | None) -> bool:
        """Whether a model of its size has the norms that it was made for, as far as is known."""
        return identity is None or identity.kinship(self.made_for) is not Kinship.OTHER


@dataclass(frozen=True)
class Calibration(ForModel):
    """Heads of a model to look at.

    Attributes
    ----------
    model : its name
    vocabulary, n_layers, n_embd : see ``ForModel``
    heads : one or more
    window, n_sink : tokens that a token of the document sees, as they were found with
    path : of the file
    made_for : see ``ForModel``
    """

    model: str
    vocabulary: str
    n_layers: int
    n_embd: int
    heads: tuple[Head, ...]
    window: int
    n_sink: int
    path: Path | None = None
    made_for: Marks = UNTOLD

    def rule(self, blocks: BlockRule | None = None) -> AttentionRule:
        """How to score with them: in a window, or in blocks."""
        return AttentionRule(self.heads, window=self.window, n_sink=self.n_sink, blocks=blocks)


def own_folder() -> Path:
    """Where a user's calibrations are kept."""
    return cache_folder() / "calibration"


def find_calibration(
    fingerprint: str,
    params: ModelParams,
    folders: Iterable[Path] | None = None,
    *,
    identity: Identity | None = None,
) -> Calibration | None:
    """The calibration of a model; None: there is none.

    Parameters
    ----------
    fingerprint : of its vocabulary, hex
    folders : to look in, one after the other; default: the user's, then the package's
    identity : of its weights; None: any of that vocabulary and size

    Raises
    ------
    InputUnreadable, InputMalformed : a file in one of them
    """
    for path in files_in(folders, "*.json"):
        found = read_calibration(path)
        if found.fits(fingerprint, params) and found.fits_weights(identity):
            return found
    return None


def files_in(folders: Iterable[Path] | None, pattern: str) -> Iterator[Path]:
    """The files of some folders; None: the user's calibrations, then the package's."""
    for folder in (own_folder(), FOLDER) if folders is None else folders:
        yield from sorted(folder.glob(pattern))


def read_calibration(path: Path | str) -> Calibration:
    """Read a calibration.

    Raises
    ------
    InputUnreadable : no such file
    InputMalformed : it does not hold one
    """
    remedy = "name a file of --calibrate"
    data = read_small(path, _BYTES_MOST, f"calibration {path}", remedy=remedy)
    try:
        record = json.loads(data.decode(), object_pairs_hook=unique_keys)
        return _calibration(record, Path(path))
    except UnicodeDecodeError as error:
        raise InputUnreadable(
            f"calibration {path} can't be read (it is no text)", remedy=remedy
        ) from error
    except _BAD as error:
        raise InputMalformed(
            f"{path} holds no calibration ({type(error).__name__}: {str(error)[:200]})",
            remedy="make it again with --calibrate",
        ) from error


def calibration_text(calibration: Calibration) -> str:
    """What a file of it holds; ``read_calibration`` gives the same back."""
    record = {
        "schema": SCHEMA,
        "model": calibration.model,
        "vocabulary": calibration.vocabulary,
        **{name: mark for name, mark in calibration.made_for._asdict().items() if mark},
        "n_layers": calibration.n_layers,
        "n_embd": calibration.n_embd,
        "window": calibration.window,
        "n_sink": calibration.n_sink,
        "heads": [vars(head) for head in calibration.heads],
    }
    return json.dumps(record, indent=2) + "\n"


def _calibration(record: dict[str, Any], path: Path) -> Calibration:
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']}, expected {SCHEMA}")
    found = Calibration(
        model=str(record["model"]),
        vocabulary=str(record["vocabulary"]),
        n_layers=_whole(record["n_layers"]),
        n_embd=_whole(record["n_embd"]),
        heads=tuple(_head(head) for head in record["heads"]),
        window=_whole(record["window"]),
        n_sink=_whole(record["n_sink"]),
        path=path,
        made_for=Marks(_text_or_none(record, "norms"), _text_or_none(record, "weights")),
    )
    found.rule()  # checks the numbers
    for head in found.heads:
        if not 0 <= head.layer < found.n_layers or head.head < 0:
            raise ValueError(f"{head} in a model of {found.n_layers} layers")
    return found


def _head(record: dict[str, Any]) -> Head:
    if record["reduce"] not in _REDUCES or not isinstance(record["rope"], bool):
        raise ValueError(f"not a head: {record}")
    return Head(_whole(record["layer"]), _whole(record["head"]), record["rope"], record["reduce"])


def _text_or_none(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, expected a string")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value
