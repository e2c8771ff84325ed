"""The slow drafters against llama-server itself, and against examples small enough to do by hand.

tests/golden/spec_server.json has what llama-server drafted, and what of it came true, round by
round. One round of it is not to be had from the ids that came out, see `CUT_SHORT`.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import naive
import naive_drafters as upstream
import naive_repaired as repaired
import pytest
from naive_drafters import Drafter, Tokens
from naive_spec import EXACT, Round, Setting, count_accepted, make_slots, replay_request

GOLDEN = Path(__file__).parent / "golden"
RECORD = json.loads((GOLDEN / "spec_server.json").read_text())
TEXTS: list[Tokens] = RECORD["texts"]
RUNS = {run["name"]: run for run in RECORD["runs"]}
FIVE = tuple(EXACT)
# A request that ran into the end of its context. The server accepts the whole of the last draft,
# finds its context full, and says no more than the first of those tokens.
CUT_SHORT = ("narrow context", 2)


class Counted(Drafter):
    """A drafter, and how often it was asked and told."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.n_draft, self.n_accept = drafter, 0, 0

    def begin(self, prompt: Tokens) -> None:
        self.drafter.begin(prompt)

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.n_draft += 1
        return self.drafter.draft(text, limit)

    def accept(self, n_accepted: int, is_other: bool) -> None:
        self.n_accept += not is_other
        self.drafter.accept(n_accepted, is_other)


def golden_cache(name: str) -> naive.Cache:
    return naive.parse_llama_cache(gzip.decompress((GOLDEN / f"{name}.bin.gz").read_bytes()))


def slots_of(run: dict[str, Any]) -> list[list[Counted]]:
    static = golden_cache(f"{run['caches']}_train") if run["caches"] else None
    dynamic = golden_cache(f"{run['caches']}_train_dyn") if run["caches"] else None
    settings = [Setting(*drafter) for drafter in run["drafters"]]
    slots = make_slots(settings, exact=True, n_slots=run["n_slots"], static=static, dynamic=dynamic)
    return [[Counted(drafter) for drafter in slot] for slot in slots]


def replayed(run: dict[str, Any], i: int, slots: list[list[Counted]]) -> list[Round]:
    request = run["requests"][i]
    return replay_request(
        slots[request["slot"]],
        TEXTS[request["prompt"]],
        TEXTS[request["generated"]],
        n_predict=request["n_predict"],
        n_ctx=run["n_ctx"],
        end_tokens=RECORD["end_tokens"],
    )


def with_draft(rounds: list[Round]) -> list[list[int]]:
    return [[one.n_drafted, one.n_accepted] for one in rounds if one.n_drafted]


@pytest.mark.parametrize("name", RUNS)
def test_rounds_are_those_of_the_server(name: str) -> None:
    """The bug: a drafter, a limit or a state between requests that is not llama.cpp's."""
    run = RUNS[name]
    slots = slots_of(run)
    for i, request in enumerate(run["requests"]):
        if run["new_servers"]:
            slots = slots_of(run)
        rounds = with_draft(replayed(run, i, slots))
        if (name, i) == CUT_SHORT:
            assert request["rounds"][-1] == [3, 3]
            assert rounds[-1] == [3, 1]
            rounds[-1] = [3, 3]
        assert rounds == request["rounds"], i
        assert sum(drafted for drafted, _ in rounds) == request["draft_n"]
        assert sum(accepted for _, accepted in rounds) == request["draft_n_accepted"]


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run["n_slots"] == 1])
def test_drafters_are_asked_as_often_as_by_the_server(name: str) -> None:
    """The bug: one that is asked after another's draft, or where nothing can be verified.

    It would learn what it does not learn in the server, which adds up what its slots do.
    """
    run = RUNS[name]
    n_drafters = len(run["drafters"])
    slots, totals = slots_of(run), [[0] * 4 for _ in range(n_drafters)]
    for i, request in enumerate(run["requests"]):
        if run["new_servers"]:
            slots, totals = slots_of(run), [[0] * 4 for _ in range(n_drafters)]
        for n_drafted, n_accepted, who in replayed(run, i, slots):
            if who is not None:
                counts = (1, n_accepted > 0, n_drafted, n_accepted)
                totals[who] = [a + b for a, b in zip(totals[who], counts, strict=True)]
        if (name, i) == CUT_SHORT:
            totals[0][3] += 2
        pairs = zip(slots[0], totals, strict=True)
        counted = [[one.n_draft, one.n_accept, *total] for one, total in pairs]
        assert counted == request["statistics"], i


def test_the_record_has_what_it_is_for() -> None:
    """The bug: a recording in which nothing is drafted passes every test above."""
    for name in FIVE:
        alone = [run for run in RUNS.values() if [d[0] for d in run["drafters"]] == [name]]
        requests = [request for run in alone for request in run["requests"]]
        assert sum(request["draft_n_accepted"] > 0 for request in requests) >= 10, name
        assert any(len(run["requests"]) == 10 and run["new_servers"] for run in alone)
    statistics = RUNS["all five"]["requests"][-1]["statistics"]
    assert all(accepted > 0 for *_, accepted in statistics)


def replay_all(drafter: Drafter, prompt: Tokens, generated: Tokens) -> list[Tokens]:
    """The drafts of a request whose every draft is refused."""
    drafter.begin(prompt)
    drafts = []
    for n_done in range(1, len(generated)):
        drafts.append(drafter.draft(prompt + generated[:n_done], 100))
        if drafts[-1]:
            drafter.accept(0, False)
    return drafts


# --------------------------------------------------------------------------------------------------
# Each flaw of llama.cpp's drafters, and that it is gone from the repaired ones


def test_simple_wants_as_many_tokens_as_it_matched() -> None:
    """The bug: the repaired form inherits it, or llama.cpp's does not have it."""
    text = [9, 1, 2, 3, 4, 1, 2, 3]
    assert upstream.NgramSimple(3, 1).draft(text, 9) == []
    assert upstream.NgramSimple(1, 2).draft(text, 9) == [4, 1]
    assert repaired.NgramSimple(3, 1).draft(text, 9) == [4]
    assert repaired.NgramSimple(3, 9).draft(text, 9) == [4, 1, 2, 3]
    assert repaired.NgramSimple(3, 9).draft(text, 2) == [4, 1]


def test_simple_does_not_see_the_first_token() -> None:
    """The bug: the repaired form inherits it, or llama.cpp's does not have it."""
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    assert upstream.NgramSimple(2, 3).draft(text, 9) == []
    assert repaired.NgramSimple(2, 3).draft(text, 9) == [3, 4, 5]
    assert upstream.NgramSimple(2, 3).draft([0, *text], 9) == [3, 4, 5]


def test_simple_wants_a_text_of_some_length() -> None:
    """The bug: a length that is one off."""
    assert upstream.NgramSimple(2, 3).draft([0, 1, 2, 3, 4, 1, 2], 9) == []
    assert upstream.NgramSimple(2, 3).draft([0, 0, 1, 2, 3, 4, 1, 2], 9) == [3, 4, 1]


def test_map_wants_a_text_of_some_length() -> None:
    """The bug: a length that is one off; the first position that may match is 1."""
    for key_only in (True, False):
        short = upstream.NgramMap(3, 1, key_only=key_only)
        assert short.draft([0, 1, 1, 1, 1, 1, 1], 9) == []
        assert short.draft([0, 1, 1, 1, 1, 1, 1, 1], 9) == [1]


def test_map_overlooks_a_place_at_its_second_answer() -> None:
    """The bug: a cell that lies as late as a place may, which llama.cpp finds too late."""
    prompt = [*range(10, 20), 21, 22, 23, 24, 21]
    for key_only in (True, False):
        drafter = upstream.NgramMap(2, 2, key_only=key_only)
        for drafted in ([23, 24], []):
            drafter.begin(prompt)
            assert drafter.draft([*prompt, 22], 9) == drafted
            drafter.draft([*prompt, 22, 50], 9)


def test_simple_takes_the_latest_match_or_none() -> None:
    """The bug: an older match that would leave enough tokens is tried."""
    text = [0, 7, 8, 9, 1, 2, 3, 4, 7, 8, 9]
    assert upstream.NgramSimple(3, 4).draft([*text, 7, 8, 9], 9) == []  # 7, 8 and no more
    assert upstream.NgramSimple(3, 4).draft([*text, 5, 7, 8, 9], 9) == [5, 7, 8]


def test_map_k_drops_a_key_for_ever() -> None:
    """The bug: llama.cpp's key comes back, or the repaired one does not."""
    loop = [1, 2, 3, 4, 5, 6] * 4
    exact = upstream.NgramMap(2, 3, key_only=True)
    drafts = replay_all(exact, loop, loop[:13])
    assert [len(one) for one in drafts] == [3] * 6 + [0] * 6
    drafts = replay_all(repaired.NgramMapK(2, 3), loop, loop[:13])
    assert [len(one) for one in drafts] == [3] * 6 + [1] * 6


def test_map_k_lengths_come_back() -> None:
    """The bug: a key whose drafts are all accepted stays at one token."""
    drafter = repaired.NgramMapK(1, 8)
    lengths = []
    for n_accepted in (8, 3, 3, 5, 0, 1):
        drafted = drafter.draft([5, *range(10, 30), 5], 100)
        lengths.append(len(drafted))
        drafter.accept(min(n_accepted, len(drafted)), False)
    assert lengths == [8, 8, 3, 6, 5, 1]


def test_map_k_does_not_count_hits() -> None:
    """The bug: min-hits is honoured where llama.cpp does not, or is not where it should be."""
    loop = [1, 2, 3, 4, 5, 6] * 4
    exact, ours = upstream.NgramMap(2, 3, 2, key_only=True), repaired.NgramMapK(2, 3, 2)
    assert replay_all(exact, loop, loop[:3]) == [[2, 3, 4], [3, 4, 5]]
    assert replay_all(ours, loop, loop[:8]) == [[]] * 6 + [[2, 3, 4]]


def test_map_leaves_out_where_the_answer_begins() -> None:
    """The bug: positions next to the end of the prompt that llama.cpp never looks at are found."""
    prompt = [*range(10, 20), 1, 2, 3]
    generated = [4, 5, 30, 31, 32, 33, 1, 2]
    exact, ours = upstream.NgramMap(2, 2, key_only=True), repaired.NgramMapK(2, 2)
    assert replay_all(exact, prompt, generated)[-1] == []
    assert replay_all(ours, prompt, [*generated, 0])[-1] == [3, 4]


def test_map_finds_only_what_it_first_put_into_a_cell() -> None:
    """The bug: a cell that a later position of the same n-gram takes over."""
    prompt = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 30, 31, 32, 33, 34, 35]
    exact = upstream.NgramMap(2, 2, key_only=True)
    assert replay_all(exact, prompt, [99, 1, 2, 0])[-1] == [30, 31]  # the latest, when first seen
    more = [99, 1, 2, 50, 51, 52, 53, 54, 1, 2, 0]
    exact = upstream.NgramMap(2, 2, key_only=True)
    exact.begin(prompt)
    assert [exact.draft(prompt + more[:n], 9) for n in range(1, 11)][-1] == [30, 31]
    assert repaired.NgramMapK(2, 2).draft(prompt + more[:10], 9) == [50, 51]


def test_map_k4v_drafts_what_followed_elsewhere() -> None:
    """The bug: llama.cpp's drafts the best value, or the repaired one does not."""
    prompt = [0, *[1, 2, 3, 4] * 3, 1, 2, 7, 8, 20, 21, 22, 23, 24]
    ours = repaired.NgramMapK4V(2, 2)
    assert ours.draft([*prompt, 1, 2], 9) == [3, 4]
    exact = upstream.NgramMap(2, 2, key_only=False)
    exact.begin(prompt)
    assert exact.draft([*prompt, 1, 2], 9) == [7, 8]  # three times 3, 4, and once 7, 8


def test_map_k4v_counts_a_place_again_at_each_hit() -> None:
    """The bug: a place that counts once with llama.cpp, or more than once with us."""
    prompt = [0, 1, 2, 3, 4, 1, 2, 7, 8, 20, 21, 22, 23, 24, 25]
    exact, ours = upstream.NgramMap(2, 2, key_only=False), repaired.NgramMapK4V(2, 2)
    exact.begin(prompt)
    assert exact.draft([*prompt, 1, 2], 9) == []  # one each
    assert exact.draft([*prompt, 1, 2], 9) == [7, 8]  # now that one counts two
    for _ in range(3):
        assert ours.draft([*prompt, 1, 2], 9) == []


def test_map_keeps_what_another_prompt_makes_wrong() -> None:
    """The bug: a state that begins anew with a longer prompt, as it does in no llama.cpp."""
    first, other = [*range(10, 30)] * 2, [*range(40, 120)]
    exact, ours = upstream.NgramMap(2, 2, key_only=True), repaired.NgramMapK(2, 2)
    for drafter in (exact, ours):
        drafter.begin(first)
        assert drafter.draft([*first, 10, 11], 9) == [12, 13]
        drafter.begin(other)
    assert exact.cells_to == 36  # what lies before is not looked at again
    assert exact.draft([*other, 45, 46], 9) == []
    assert exact.draft([*other, 100, 101], 9) == [102, 103]
    assert ours.draft([*other, 45, 46], 9) == [47, 48]
    assert len(exact.keys) == 2
    exact.begin(other[:10])  # shorter: all is forgotten
    assert not exact.keys
    assert not exact.cells


def test_map_k_counts_anew_for_another_text() -> None:
    """The bug: the repaired form takes hits along to a text that does not continue the last."""
    ours = repaired.NgramMapK(2, 2, 2)
    text = [*range(10)] * 2
    for prompt, n_drafted in ((text, 0), ([*text, 0, 1, 5], 2), (text, 0)):
        ours.begin(prompt)
        assert len(ours.draft([*prompt, 0, 1], 9)) == n_drafted


def test_map_does_not_read_behind_its_text() -> None:
    """The bug: a key of a longer text that matches what comes later, or an error."""
    text = [*[1, 2, 3, 4, 5, 6] * 3, 1, 2]
    exact = upstream.NgramMap(3, 2, key_only=True)
    exact.begin(text[:10])
    exact.draft(text[:14], 9)
    exact.begin(text[:10])
    exact.keys.append(upstream.Key(9, values=[upstream.Value(0, 0, 2)]))
    assert exact.draft(text[:11], 9) == [6, 1]
    assert exact.keys[0].start == 9 or len(exact.keys) == 2


def test_mod_gives_the_token_of_another_ngram() -> None:
    """The bug: a pool that tells n-grams apart where llama.cpp's does not, or does not where we do.

    An n-gram's last token is added to the others' hash, so that of 1, 5 is that of 0, hash + 5.
    """
    first, second = [1, 5], [0, (6364136223846793005 + 5) % upstream.N_POOL]
    text = [*first, 9, 8, 7, 6, *second]
    exact, ours = upstream.NgramMod(2, 1, 4), repaired.NgramMod(2, 1, 4)
    exact.begin(text[:-1])
    ours.begin(text[:-1])
    assert exact.draft(text, 9)[:1] == [9]
    assert ours.draft(text, 9) == []


def test_mod_learns_each_33_less_n_tokens() -> None:
    """The bug: what is generated can be drafted earlier, or later, than llama.cpp does."""
    prompt = list(range(10))
    for n_match, first in ((3, 30), (24, 9), (40, 1)):
        drafter = upstream.NgramMod(n_match, 0, 1)
        long = [*range(100, 140), *prompt]
        drafter.begin(long)
        n = 1
        while len(drafter.pool.entries) == len(long) - n_match:
            drafter.draft([*long, *range(1000, 1000 + n)], 9)
            n += 1
        assert n - 2 == first, n_match


def test_mod_wants_n_min_tokens() -> None:
    """The bug: a shorter draft passes."""
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    for n_min, drafted in ((0, [3, 4, 5]), (3, [3, 4, 5]), (4, [])):
        for kind in (upstream.NgramMod, repaired.NgramMod):
            drafter = kind(2, n_min, 8)
            drafter.begin(text[:5])
            assert drafter.draft(text[:5] + text[-2:], 9) == drafted


def test_mod_forgets_after_five_bad_rounds() -> None:
    """The bug: rounds that need not follow each other, or a count that ends with a request."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    drafter = upstream.NgramMod(2, 0, 4)
    for accepted, n_low in ((0, 1), (0, 2), (1, 0), (0, 1), (0, 2), (0, 3), (0, 4)):
        drafter.begin(text)
        assert drafter.draft([*text, 1, 2], 9) == [3, 4, 5, 6]
        drafter.accept(0, True)
        drafter.accept(accepted, False)
        assert drafter.n_low == n_low
    drafter.accept(0, False)
    assert not drafter.pool.entries
    assert (drafter.n_low, drafter.added_to) == (0, 0)


def test_mod_judges_the_draft_that_it_made() -> None:
    """The bug: llama.cpp's is told what was verified, or the repaired one is not."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    for kind, n_low in ((upstream.NgramMod, 1), (repaired.NgramMod, 0)):
        drafter = kind(2, 0, 5)
        drafter.begin(text)
        drafter.draft([*text, 1, 2], 1)
        drafter.accept(1, False)
        assert drafter.n_low == n_low


def test_mod_throws_the_prompt_away_with_the_rest() -> None:
    """The bug: the repaired form inherits it, or llama.cpp's does not have it."""
    prompt, other = list(range(6)), list(range(20, 26))
    for module, left in ((upstream, 0), (repaired, 4)):
        size = 16 if module is upstream else 4
        drafter = module.NgramMod(2, 0, 4, module.Pool(2, size))
        drafter.begin(other)
        drafter.begin(prompt)
        assert len(drafter.pool.entries) == left
        assert drafter.added_to == 4


def test_cache_learns_nothing_across_rounds() -> None:
    """The bug: llama.cpp's context spans rounds, or the repaired one does not."""
    exact, ours = upstream.NgramCache(), repaired.NgramCache()
    text = [1, 2, 3, 4, 5, 6]
    for n in range(1, len(text) + 1):
        exact.draft(text[:n], 9)
    assert exact.context == {}
    assert exact.draft([*text, 3, 4], 9) == []
    assert exact.context == {(3,): {4: 1}}
    assert ours.draft([*text, 2, 3, 4], 9) == [5, 6, 2, 3, 4, 5, 6, 2]


def test_cache_keeps_the_last_request() -> None:
    """The bug: llama.cpp's begins anew, or the repaired one does not."""
    exact, ours = upstream.NgramCache(), repaired.NgramCache()
    first, second = [1, 2, 3, 4, 5, 6, 7, 8], [9, 2, 3, 4]
    for drafter in (exact, ours):
        drafter.draft(first, 9)
        drafter.begin(second)
    assert exact.draft(second, 9) == [5, 6, 7, 8]
    assert exact.n_seen == 8
    assert ours.draft(second, 9) == []


def test_cache_ties_fall_as_in_libstdcxx() -> None:
    """The bug: the lowest id wins in llama.cpp's too, where the one seen later does."""
    text = [1, 2, 3, 7, 1, 2, 3, 5, 1, 2, 3]
    assert upstream.NgramCache().draft([1, 2, 3, 5, 1, 2, 3, 7, 1, 2, 3], 1)[:1] == [7]
    assert repaired.NgramCache().draft([1, 2, 3, 5, 1, 2, 3, 7, 1, 2, 3], 1) == [5]
    assert upstream.NgramCache().draft(text, 1)[:1] == [5]


# --------------------------------------------------------------------------------------------------
# Other people's drafters


def test_prompt_lookup_by_hand() -> None:
    """The bug: the latest match, a shorter n-gram first, or a draft of the end of the text."""
    text = [1, 2, 3, 4, 2, 5, 1, 2]
    assert repaired.PromptLookup(2, 3).draft(text, 9) == [3, 4, 2]
    assert repaired.PromptLookup(1, 3).draft(text, 9) == [3, 4, 2]
    assert repaired.PromptLookup(5, 10).draft(text, 9) == [3, 4, 2, 5, 1, 2]
    assert repaired.PromptLookup(2, 3).draft(text, 1) == [3]
    assert repaired.PromptLookup(2, 9, end_tokens=[5]).draft(text, 9) == [3, 4, 2]
    assert repaired.PromptLookup(2, 9, end_tokens=[3]).draft(text, 9) == []
    assert repaired.PromptLookup(2, 9).draft([1, 2, 3], 9) == []
    assert repaired.PromptLookup(2, 9).draft([4], 9) == []
    assert repaired.PromptLookup(2, 9).draft([4, 4], 9) == [4]


def test_vllm_by_hand() -> None:
    """The bug: another place than vLLM's; the first line is the example in its source."""
    assert repaired.VllmNgram(2, 3, 4).draft([1, 2, 3, 4, 2, 3], 9) == [4, 2, 3]
    assert repaired.VllmNgram(2, 3, 4).draft([1, 2, 3, 4, 2, 3], 2) == [4, 2]
    assert repaired.VllmNgram(3, 3, 4).draft([1, 2, 3, 4, 2, 3], 9) == []
    assert repaired.VllmNgram(1, 2, 2).draft([2, 9, 1, 2, 5, 1, 2, 6, 1, 2], 9) == [5, 1]
    assert repaired.VllmNgram(5, 5, 5).draft([4] * 9, 9) == [4, 4, 4, 4]


# --------------------------------------------------------------------------------------------------
# The server's rounds


def test_the_end_of_a_text_within_a_draft() -> None:
    """The bug: the token that ends a text is accepted, or what is drafted after it counts."""
    assert count_accepted([1, 2, 3], [1, 2, 4], [2]) == 1
    assert count_accepted([1, 2], [1, 2], [2]) == 2
    assert count_accepted([1, 2, 3], [1, 2], []) == 2
    assert count_accepted([], [1], []) == 0


class Fixed(Drafter):
    """Drafts what it is told to, and keeps what it is told."""

    def __init__(self, *drafts: Tokens) -> None:
        self.drafts, self.log = list(drafts), list[Any]()

    def begin(self, prompt: Tokens) -> None:
        self.log.append(("begin", prompt))

    def draft(self, text: Tokens, limit: int) -> Tokens:
        self.log.append(("draft", len(text), limit))
        return self.drafts.pop(0) if self.drafts else []

    def accept(self, n_accepted: int, is_other: bool) -> None:
        self.log.append(("accept", n_accepted, is_other))


def test_rounds_by_hand() -> None:
    """The bug: a limit off by one, a drafter asked after the winner, or told of nothing."""
    first = Fixed([], [3, 4, 9])
    second = Fixed([], [6, 7, 8])
    generated = [1, 2, 3, 4, 5, 6, 7]
    rounds = replay_request([first, second], [10, 11], generated, n_predict=7, n_ctx=100)
    assert rounds == [Round(0, 0, None), Round(3, 2, 0), Round(1, 1, 1)]
    assert first.log == [
        *(("begin", [10, 11]), ("draft", 3, 5), ("draft", 4, 4), ("accept", 2, False)),
        *(("draft", 7, 1), ("accept", 1, True)),
    ]
    assert second.log == [
        *(("begin", [10, 11]), ("draft", 3, 5), ("accept", 2, True)),
        *(("draft", 7, 1), ("accept", 1, False)),
    ]


def test_no_drafter_is_asked_for_the_last_token() -> None:
    """The bug: one that is asked where nothing can be verified, and learns from that."""
    drafter = Fixed()
    assert replay_request([drafter], [0], [1, 2, 3], n_predict=3) == [Round(0, 0, None)] * 2
    assert drafter.log == [("begin", [0]), ("draft", 2, 1)]
    narrow = Fixed()
    replay_request([narrow], [0], [1, 2, 3], n_ctx=4)
    assert narrow.log == [("begin", [0]), ("draft", 2, 1)]
