"""Heads that come with the package, for models that have no MTP layers of their own.

Which model a head is for is told by the model's weights, wherever its file lies and whatever its
name is.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..engine.errors import InputUnreadable, UsageError
from ..engine.gguf.file import GgufMetadata
from ..engine.gguf.identity import Identity, Kinship, Marks
from ..engine.models import KNOWN_MODELS
from ..engine.transformer.hparams import ModelParams
from .head_file import open_head_file

FOLDER = Path(__file__).with_name("heads")
# Name of a known model -> file in the folder.
SHIPPED = {"smollm2": "smollm2-135m-instruct.gguf"}


class ShippedHead(NamedTuple):
    """A head that fits a model's vocabulary and size.

    Attributes
    ----------
    model : name of the known model that it was made for
    kinship : what the given model is to that one
    """

    path: Path
    model: str
    kinship: Kinship


def shipped_head(
    metadata: GgufMetadata, params: ModelParams, fingerprint: str
) -> ShippedHead | None:
    """The head that comes along and is nearest to a model; None: none fits its size.

    Parameters
    ----------
    metadata, params : of the model
    fingerprint : of its vocabulary, hexadecimal

    Raises
    ------
    InputUnreadable : this installation lacks the file of the model's head
    ModelDamaged, ModelUnsupported, ... : the model's tensors, or the head's file
    """
    identity = Identity.of(metadata)
    for name, file_name in SHIPPED.items():
        path = FOLDER / file_name
        kinship = identity.kinship(Marks(KNOWN_MODELS[name].norms, KNOWN_MODELS[name].weights))
        if not path.is_file():
            if kinship is Kinship.SAME:
                raise InputUnreadable(
                    f"the MTP head for {name} is missing from this installation ({path})",
                    remedy="install draftsmith again, or name a head with --mtp-head",
                )
        elif _fits(path, metadata, params, fingerprint):
            return ShippedHead(path, name, kinship)
    return None


def _fits(path: Path, metadata: GgufMetadata, params: ModelParams, fingerprint: str) -> bool:
    try:
        open_head_file(path, metadata, params, fingerprint)
    except UsageError:  # it is for a model of another size or vocabulary
        return False
    return True
