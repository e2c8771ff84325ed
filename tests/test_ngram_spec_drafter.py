"""Any drafter in a generation loop: what a replay says, it drafts."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from draftsmith.engine.errors import InputMalformed, UsageError
from draftsmith.ngram.conversations.conversation import ReplayTexts
from draftsmith.ngram.drafters.drafter import SpecDrafter
from draftsmith.ngram.drafters.settings import parse_specs
from naive_spec import Round
from spec_streams import cut_into_turns, naive_rounds, passages, streams

DRAFTERS = (
    "ngram-simple:size-n=3,size-m=8",
    "ngram-map-k:size-n=2,size-m=6",
    "ngram-map-k4v:size-n=2,size-m=4,min-hits=2",
    "ngram-mod:n-match=3,n-min=2,n-max=9",
    "ngram-cache",
    "prompt-lookup:ngram-max=3,draft-max=5",
    "vllm-ngram:prompt-lookup-min=2,prompt-lookup-max=4",
)
COMBINED = "ngram-simple:size-n=7,size-m=8+ngram-map-k4v:size-n=3,size-m=6+ngram-mod:n-match=2"


def rounds_of(drafter: SpecDrafter, prompt: list[int], turn: list[int]) -> list[Round]:
    """The rounds of a loop that generates ``turn`` after the prompt."""
    drafter.begin(prompt)
    rounds = []
    drafter.accept(turn[:1])
    at = 1
    while at < len(turn):
        draft = drafter.draft().tolist()
        left = turn[at:]
        right = 0
        while right < min(len(draft), len(left)) and draft[right] == left[right]:
            right += 1
        if right == len(left) < len(draft):
            right -= 1
        name = drafter.origins(1)[0][0] if draft else None
        names = [setting.name for setting in drafter.spec.names]
        rounds.append(Round(len(draft), right, names.index(name) if draft else None))
        drafter.accept(turn[at : at + right + 1])
        at += right + 1
    return rounds


@pytest.mark.parametrize("exact", [False, True], ids=["repaired", "exact"])
@pytest.mark.parametrize("text", [*DRAFTERS, COMBINED])
def test_a_loop_has_the_rounds_of_a_replay(text: str, exact: bool) -> None:
    """What is lost, or learnt twice, where arrays grow or a request begins."""
    (spec,) = parse_specs(text, upstream_exact=exact)
    if exact and not spec.upstream_exact:
        return
    rng = random.Random(3)
    talks = [passages(rng, n, 9) for n in (300, 70, 500)]
    texts = ReplayTexts.of(
        cut_into_turns(rng, talk, k) for talk, k in zip(talks, (3, 2, 4), strict=True)
    )
    drafter = SpecDrafter(9, spec, n_tokens=1)
    comp = []
    for conversation in texts:
        tokens = conversation.tokens.tolist()
        for start, stop in conversation.turns:
            comp += rounds_of(drafter, tokens[:start], tokens[start:stop])
    assert comp == naive_rounds(texts, spec, carry="all")


@pytest.mark.parametrize("text", [*DRAFTERS, "suffix"])
def test_reset_forgets(text: str) -> None:
    """What an older text taught, in a conversation that should not know of it."""
    (spec,) = parse_specs(text)
    rng = random.Random(4)
    one, other = passages(rng, 300, 5), passages(rng, 300, 5)
    used, fresh = SpecDrafter(5, spec), SpecDrafter(5, spec)
    rounds_of(used, one[:50], one[50:])
    used.reset()
    assert len(used) == 0
    comp, ref = (rounds_of(drafter, other[:30], other[30:]) for drafter in (used, fresh))
    assert comp == ref
    assert any(one.n_accepted for one in ref)


@pytest.mark.parametrize("text", [*DRAFTERS, "suffix"])
def test_asked_twice_it_says_the_same(text: str) -> None:
    """A draft that counts as refused because it was asked for again; one that stays cut."""
    (spec,) = parse_specs(text)
    tokens = passages(random.Random(5), 400, 4)
    drafter = SpecDrafter(4, spec)
    drafter.accept(tokens)
    first = drafter.draft().tolist()
    assert drafter.draft().tolist() == first
    assert drafter.draft(2).tolist() == first[:2]
    assert drafter.draft(0).size == 0
    assert drafter.draft().tolist() == first


def test_a_draft_that_was_evaluated_in_part_is_not_refused() -> None:
    """A drafter that learns from a pacer's choices that its drafts are bad."""
    (spec,) = parse_specs("ngram-map-k:size-n=2,size-m=8")
    text = list(range(12)) * 2

    def length_after(n: int, last: int) -> int:
        """Of the next draft of a key, when ``n`` tokens of its first one stood, and ``last``."""
        drafter = SpecDrafter(99, spec)
        drafter.accept(text)
        drafter.accept([0, 1])
        draft = drafter.draft().tolist()
        assert draft == [2, 3, 4, 5, 6, 7, 8, 9]
        drafter.accept([*draft[:n], last])
        drafter.draft()
        drafter.accept([50, 51, 0, 1])
        return drafter.draft().size

    assert length_after(3, 98) == 3  # refused
    assert length_after(3, 5) == 8  # not refused
    assert length_after(8, 10) == 8
    assert length_after(0, 98) == 1


def test_drafts_are_cut() -> None:
    """More tokens than the loop has room for."""
    (spec,) = parse_specs("ngram-simple:size-n=1,size-m=9")
    drafter = SpecDrafter(10, spec, draft_max=4)
    drafter.accept(list(range(10)) * 2)
    assert drafter.draft_max == 4
    assert drafter.draft().tolist() == [0, 1, 2, 3]
    assert drafter.draft(2).tolist() == [0, 1]
    assert drafter.origins(3) == [("ngram-simple", 0)] * 2


@pytest.mark.parametrize("text", [*DRAFTERS, "suffix"])
def test_texts_of_no_and_of_one_token(text: str) -> None:
    """A place before the text that a kernel reads."""
    (spec,) = parse_specs(text)
    drafter = SpecDrafter(10, spec)
    assert drafter.draft().size == 0
    drafter.accept([])
    assert drafter.draft().size == 0
    drafter.accept([9])
    assert drafter.draft().size == 0
    drafter.begin([])
    assert drafter.draft().size == 0


def test_ids_outside_the_vocabulary() -> None:
    """A place outside an array, at the first draft."""
    (spec,) = parse_specs("ngram-cache")
    drafter = SpecDrafter(10, spec)
    drafter.accept([1, 2, 3])
    for tokens in ([10], [-1], [3, 10], np.array([2**40])):
        with pytest.raises(InputMalformed):
            drafter.accept(tokens)
        with pytest.raises(InputMalformed):
            drafter.begin(tokens)
    assert len(drafter) == 3


def test_refuses_what_it_cannot_be() -> None:
    """A negative length; a copy that writes into the original's arrays."""
    (spec,) = parse_specs("ngram-cache")
    with pytest.raises(UsageError):
        SpecDrafter(10, spec, draft_max=-1)
    with pytest.raises(TypeError):
        pickle.dumps(SpecDrafter(10, spec))


def test_thousands_of_requests_keep_to_their_memory() -> None:
    """Room that grows with every request that a slot has ever had."""
    (spec,) = parse_specs("ngram-mod:n-match=2,n-min=1+ngram-simple:size-n=2,size-m=4")
    drafter = SpecDrafter(1000, spec, n_tokens=64)
    rng = random.Random(6)
    for _ in range(300):
        rounds_of(drafter, [rng.randrange(1000) for _ in range(30)], streams(0, 28)["period 2"])
    assert drafter.memory_bytes < 2_000_000
