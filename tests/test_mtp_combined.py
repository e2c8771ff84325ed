"""Lookup and MTP as one drafter: who drafts when, and what both are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from draftsmith.engine.decode.protocols import ConfidentDrafter, SourcedDrafter, TrunkReader
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.transformer.model import load_model
from draftsmith.mtp.combined import CombinedDrafter
from draftsmith.mtp.drafter import MtpDrafter
from draftsmith.mtp.head import MtpHead, open_head
from draftsmith.ngram.lookup.drafter import NgramDrafter
from numpy.typing import NDArray
from toy_model import write_model
from toy_mtp import Story, ToyHead, write_toy_head

SMALL: dict[str, Any] = {"n_embd": 64, "n_ff": 96, "n_head": 4, "n_head_kv": 2, "d_head": 16}
TEXT = np.random.default_rng(3).integers(0, 400, 30).tolist()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MtpHead]:
    folder = tmp_path_factory.mktemp("combined")
    path = write_model(folder / "model.gguf", **SMALL)
    toy = ToyHead(feature_layers=(1,))
    model = load_model(path, n_threads=1)
    head_path = write_toy_head(folder / "head.gguf", head=toy, **SMALL)
    yield open_head(head_path, read_metadata(path), model, "")
    model.close()


class ListLookup:
    """Drafts what it is given."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.found: list[int] = []
        self.size = 0

    def draft(self, n_max: int) -> NDArray[np.int32]:
        return np.array(self.found[:n_max], np.int32)

    def origins(self, n: int) -> list[tuple[str, int]]:
        return [("context", self.size)] * min(n, len(self.found))

    def accept(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.text += [int(token) for token in tokens]

    def reset(self) -> None:
        self.text = []


def told(
    head: MtpHead, text: Sequence[int], **options: float
) -> tuple[CombinedDrafter, ListLookup, Story]:
    """A drafter, told a text through the combination; its lookup; the text."""
    lookup = ListLookup()
    both = CombinedDrafter(lookup, MtpDrafter(head, 64, **options))  # type: ignore[arg-type]
    story = Story(head.model, both.mtp)
    story.drafter = both  # type: ignore[assignment]
    story.tell(text)
    return both, lookup, story


def alone(head: MtpHead, text: Sequence[int]) -> list[int]:
    story = Story(head.model, MtpDrafter(head, 64))
    story.tell(text)
    return story.drafter.draft(4).tolist()


def test_it_wants_to_see(head: MtpHead) -> None:
    """The bug: a head that never gets a hidden state, because the loop asks the combination."""
    both, _, _ = told(head, TEXT)
    assert isinstance(both, TrunkReader)
    assert both.feature_layers == (1,)


def test_lookup_comes_first(head: MtpHead) -> None:
    """The bug: a draft of one drafter under the name of the other; one token that is looked up
    taken for a draft of its own where the n-gram is too short."""
    expected = alone(head, TEXT)
    for found, size, origin in (
        ([5, 6, 7], 3, "ngram"),
        ([5], 2, "ngram"),
        ([5, 6, 7], 1, "mtp"),
        ([], 0, "mtp"),
    ):
        both, lookup, _ = told(head, TEXT)
        lookup.found, lookup.size = found, size
        assert both.draft(4).tolist() == (found if origin == "ngram" else expected)
        assert both.last_origin == origin


def test_a_pacer_may_choose(head: MtpHead) -> None:
    """The bug: a source that is offered and does not draft, or confidences of another's draft."""
    expected = alone(head, TEXT)
    both, lookup, _ = told(head, TEXT)
    assert isinstance(both, SourcedDrafter)
    assert isinstance(both, ConfidentDrafter)
    for found, size, offered in (
        ([5, 6, 7], 3, ["ngram 3", "mtp"]),
        ([5, 6, 7], 1, ["mtp"]),
        ([], 0, ["mtp"]),
    ):
        lookup.found, lookup.size = found, size
        assert both.offers() == offered
        assert both.draft_from("mtp", 4).tolist() == expected
        assert (both.last_origin, both.confidences.size) == ("mtp", 4)
        if len(offered) == 2:
            assert both.draft_from(offered[0], 2).tolist() == found[:2]
            assert (both.last_origin, both.confidences.size) == ("ngram", 0)


def test_both_hear_of_all(head: MtpHead) -> None:
    """The bug: a head that misses the rounds in which the lookup drafted."""
    both, lookup, story = told(head, TEXT[:20])
    for start in range(20, 28, 2):
        lookup.found, lookup.size = [TEXT[start], 0, 1], 4
        assert both.draft(3).size == 3
        story.round(lookup.found, TEXT[start : start + 2])
    lookup.found = []
    assert both.draft(4).tolist() == alone(head, TEXT[:28])
    assert lookup.text == TEXT[:28]
    assert len(both.mtp) == 28


def test_nothing_found(head: MtpHead) -> None:
    """The bug: the origin of the draft before."""
    both, lookup, _ = told(head, TEXT, p_min=1.0)
    lookup.found, lookup.size = [4], 4
    both.draft(1)
    lookup.found = []
    assert both.draft(4).size == 0
    assert both.last_origin == ""
    both.reset()
    assert lookup.text == []
    assert len(both.mtp) == 0


def test_proposals_are_of_the_last_draft(head: MtpHead) -> None:
    """The bug: a looked-up token taken for one that the head drew."""
    both, lookup, _ = told(head, TEXT, temperature=1.0)
    lookup.found, lookup.size = [4, 5], 4
    both.draft(2)
    assert both.proposals(2) is None
    lookup.found = []
    n = both.draft(2).size
    proposed = both.proposals(n)
    assert proposed is not None
    assert proposed[1].shape == (2, both.mtp.d2t.size)
    greedy, _, _ = told(head, TEXT)
    greedy.draft(2)
    assert greedy.proposals(2) is None


def test_with_the_ngram_drafter(head: MtpHead) -> None:
    """The bug: a protocol that the real drafter does not follow."""
    lookup = NgramDrafter(head.params.n_vocab, draft_max=4)
    both = CombinedDrafter(lookup, MtpDrafter(head, 64))
    both.accept([1, 2, 3, 4] * 8)
    assert both.draft(4).tolist() == [1, 2, 3, 4]
    assert both.last_origin == "ngram"
    assert len(lookup) == len(both.mtp) == 32
