"""GGUF files that hold something else than a model of text, told by their keys.

Nearly all have no vocabulary, so that a command would only say that it is missing.
"""

from __future__ import annotations

from ..errors import ModelHasNoTokenizer, ModelUnsupported
from .file import GgufMetadata
from .other_files import FileKind


def kind_of_gguf(metadata: GgufMetadata) -> FileKind | None:
    """What a GGUF file is that holds no model of text; None: it may hold one.

    The types and architectures are those of llama.cpp's converters and tools.
    """
    kind = _named(metadata, "general.type")
    architecture = _named(metadata, "general.architecture")
    if kind == "adapter" or _named(metadata, "adapter.type"):
        lora = _named(metadata, "adapter.type") in ("", "lora")
        return FileKind(
            "a LoRA adapter" if lora else "an adapter",
            "name the model that it was made for; adapters are not applied here, but llama.cpp's "
            "llama-export-lora merges the two",
        )
    if architecture == "controlvector":
        return FileKind("a control vector", "name the model that it was made for")
    if kind in ("mmproj", "clip-vision") or architecture == "clip":
        return FileKind(
            "a projector of images or sound (mmproj)",
            "name the text model that it goes with",
        )
    if kind == "imatrix" or architecture == "imatrix" or "imatrix.datasets" in metadata.values:
        return FileKind(
            "an importance matrix, which quantising takes and running does not",
            "name the model itself",
        )
    if architecture == "draftsmith-scorer":
        return FileKind("a trained scorer", "name it with prefill-run --calibration")
    is_head = f"{architecture}.nextn_predict_layers" in metadata.values
    if is_head and "tokenizer.ggml.model" not in metadata.values:
        return FileKind("an MTP head alone", "name its model, and the head with --mtp-head")
    return None


def check_is_model(metadata: GgufMetadata) -> None:
    """Refuse a GGUF file that is something else than a model of text.

    Raises
    ------
    ModelHasNoTokenizer : so it is, and it has no vocabulary either
    ModelUnsupported : so it is
    """
    kind = kind_of_gguf(metadata)
    if kind is not None:
        has_vocabulary = "tokenizer.ggml.model" in metadata.values
        error = ModelUnsupported if has_vocabulary else ModelHasNoTokenizer
        raise error(f"{metadata.path} is {kind.what}, and no model", remedy=kind.remedy)


def check_has_weights(metadata: GgufMetadata) -> None:
    """Refuse a GGUF file that holds a vocabulary only, where a model is to run.

    Raises
    ------
    ModelUnsupported : it has no tensor, nor has another part of it
    """
    is_split = (metadata.integer("split.count") or 1) > 1
    if not metadata.n_tensors and not is_split:
        raise ModelUnsupported(
            f"{metadata.path} holds a vocabulary only, no weights",
            remedy="name a model with weights; lookup-create and lookup-stats take this one",
        )


def _named(metadata: GgufMetadata, key: str) -> str:
    value = metadata.values.get(key)
    return value if isinstance(value, str) else ""
