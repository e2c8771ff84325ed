"""Which tokens end a generation: those that llama.cpp (build 11434) takes for such.

The file names some by key; others are known by their text, for converters forgot many. Padding
and the separators of repositories and files count too: a model that writes one is done.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..gguf.file import GgufMetadata
from .vocabulary import (
    END_TEXTS,
    FILL_IN_TEXTS,
    Vocabulary,
    ids_of_marked_texts,
    read_vocabulary,
    special_id,
)

_END_KEYS = ("eot_token_id", "eom_token_id")
_END_FILL_IN_KEYS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")


def eog_ids(metadata: GgufMetadata, vocabulary: Vocabulary | None = None) -> frozenset[int]:
    """Ids of the tokens that end a generation, each below the vocabulary's size.

    Parameters
    ----------
    vocabulary : that of ``metadata``, if it has been read already.

    Raises
    ------
    ModelHasNoTokenizer, ModelUnsupported, ModelDamaged : see ``read_vocabulary``; or an id that is
        no integer.
    """
    vocabulary = vocabulary or read_vocabulary(metadata)
    n_vocab = len(vocabulary.tokens)
    id_of_text = ids_of_marked_texts(vocabulary.tokens)
    named = [special_id(metadata, key, None, n_vocab) for key in _END_KEYS]
    found = {
        *_known(id_of_text, END_TEXTS),
        *(token for token in (vocabulary.eos_id, *named) if token is not None),
        *_fill_in_ends(metadata, id_of_text, n_vocab),
    }
    text_of = {vocabulary.tokens[token]: token for token in found}
    return frozenset(found - _taken_back(text_of))


def _known(id_of_text: dict[bytes, int], texts: str) -> list[int]:
    """Ids of those of ``texts`` that the vocabulary holds."""
    return [id_of_text[text] for text in texts.encode().split() if text in id_of_text]


def _fill_in_ends(
    metadata: GgufMetadata, id_of_text: dict[bytes, int], n_vocab: int
) -> Iterable[int]:
    """Ids of padding and separators of fill-in-the-middle: by key, or else one by its text."""
    for key in _END_FILL_IN_KEYS:
        token = special_id(metadata, key, None, n_vocab)
        # Of several llama.cpp takes the first by the order of its hash map; here, the lowest.
        candidates = _known(id_of_text, FILL_IN_TEXTS[(key,)]) if token is None else [token]
        yield from sorted(candidates)[:1]


def _taken_back(end_of_text: dict[bytes, int]) -> set[int]:
    """Those of the ends that some families of models write in the middle of an answer."""
    taken_back = set()
    has_call = b"<|call|>" in end_of_text or b"<|calls|>" in end_of_text
    if has_call and (b"<|return|>" in end_of_text or b"<|flush|>" in end_of_text):
        taken_back.add(end_of_text.get(b"<|end|>", -1))
    if b"<|tool_response>" in end_of_text or b"<|plamo:eos|>" in end_of_text:
        taken_back.add(end_of_text.get(b"</s>", -1))
    return taken_back
