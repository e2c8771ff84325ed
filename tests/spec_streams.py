"""Token streams that drafting kernels are held against, and their rounds, one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import naive_spec
import numpy as np
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.drafters.replay import CARRY, Carry, caches_of, new_tally, room_of
from draftsmith.ngram.drafters.session_kernels import N_CURSOR, Texts, replay_turns
from draftsmith.ngram.drafters.settings import DrafterSpec
from draftsmith.ngram.drafters.slots import make_bank
from draftsmith.ngram.lookup.replay import CLOCK_ID
from naive_spec import Round

HUGE = 2**31 - 1


def de_bruijn(k: int, n: int) -> list[int]:
    """Every n-gram over k tokens once: the greedy sequence."""
    text = [0] * n
    seen = {tuple(text)}
    while True:
        tail = text[len(text) - n + 1 :]
        following = [t for t in range(k - 1, -1, -1) if (*tail, t) not in seen]
        if not following:
            return text
        text.append(following[0])
        seen.add(tuple(text[-n:]))


def passages(rng: random.Random, n: int, n_vocab: int, longest: int = 40) -> list[int]:
    """Random text that often repeats what stood before, sometimes with an error in it."""
    text = [rng.randrange(n_vocab) for _ in range(8)]
    while len(text) < n:
        if rng.random() < 0.6:
            start = rng.randrange(len(text))
            piece = text[start : start + rng.randint(1, longest)]
            if rng.random() < 0.3:
                piece[rng.randrange(len(piece))] = rng.randrange(n_vocab)
            text += piece
        else:
            text.append(rng.randrange(n_vocab))
    return text[:n]


def streams(seed: int, n: int = 400) -> dict[str, list[int]]:
    """Adversarial and random streams by what they are."""
    rng = random.Random(seed)
    return {
        "one token": [7] * n,
        "period 2": [3, 9] * (n // 2),
        "period 7": [3, 9, 3, 3, 9, 9, 1] * (n // 7),
        "de Bruijn": (de_bruijn(3, 4) * 6)[:n],
        "no repeats": list(range(n)),
        "huge ids": [HUGE - 1 - t for t in passages(rng, n, 3)],
        "two tokens": [rng.randrange(2) for _ in range(n)],
        "three tokens": [rng.randrange(3) for _ in range(n)],
        "passages": passages(rng, n, 50),
        "passages of few tokens": passages(rng, n, 4),
        "a's and a b": ([1] * 23 + [2]) * (n // 24),
    }


# For drafts after every prefix.
SHORT_STREAMS = {
    **streams(1, 150),
    "nothing": [],
    "a token": [7],
    "two alike": [7, 7],
    "one token, then another": [5] * 70 + [4] + [5] * 70 + [6],
}


def cut_into_turns(
    rng: random.Random, text: Sequence[int], n_turns: int, *, moving: bool = False
) -> Conversation:
    """A conversation of that many turns; ``moving``: prompts do not all begin with the text."""
    cuts = [*sorted(rng.sample(range(1, len(text)), 2 * n_turns - 1)), len(text)]
    turns = np.array(cuts, np.int64).reshape(-1, 2)
    prompts = np.zeros(n_turns, np.int64)
    if moving:
        for i in range(1, n_turns):
            prompts[i] = rng.choice([prompts[i - 1], turns[i - 1, 1] - 1])
    return Conversation(np.array(text, np.int32), turns, prompts)


def kernel_rounds(
    texts: ReplayTexts,
    spec: DrafterSpec,
    *,
    n_vocab: int,
    carry: Carry,
    n_predict: int | None = None,
    n_ctx: int | None = None,
    static=None,
    dynamic=None,
) -> list[Round]:
    """All rounds of the replay kernel, which is called for one at a time."""
    bank = make_bank(spec, room_of(texts, n_vocab, carry))
    tally = new_tally(spec, 1)
    caches = caches_of(static, dynamic, n_vocab, spec.draft_max)
    all_texts = Texts(texts.tokens, texts.turns, texts.prompts, texts.turn_of_conversation)
    cursor = np.zeros(N_CURSOR, np.int64)
    limits = np.array([n_predict or 0, n_ctx or 0], np.int64)
    out = np.empty(spec.draft_max, np.int32)
    rounds: list[Round] = []
    while cursor[0] < len(texts.turns):
        before = tally.total.copy(), tally.drafter.copy()
        replay_turns(
            bank, caches, all_texts, limits, CARRY.index(carry), cursor, 1, out, tally, CLOCK_ID,
            np.zeros(2, np.int64),
        )  # fmt: skip
        n_rounds, _, _, drafted, accepted, _ = tally.total - before[0]
        if n_rounds:
            assert n_rounds == 1
            who = np.flatnonzero((tally.drafter - before[1])[:, 0])
            rounds.append(Round(int(drafted), int(accepted), int(who[0]) if who.size else None))
    return rounds


def naive_rounds(
    texts: ReplayTexts,
    spec: DrafterSpec,
    *,
    carry: Carry,
    n_predict: int | None = None,
    n_ctx: int | None = None,
    static=None,
    dynamic=None,
) -> list[Round]:
    """The same rounds, of the slow and obvious drafters."""

    def fresh():
        settings = [naive_spec.Setting(one.name, one.params) for one in spec.names]
        (slot,) = naive_spec.make_slots(
            settings, exact=spec.upstream_exact, static=static, dynamic=dynamic
        )
        return slot

    rounds: list[Round] = []
    drafters = fresh()
    for conversation in texts:
        if carry == "conversation":
            drafters = fresh()
        tokens = conversation.tokens.tolist()
        for (start, stop), prompt in zip(conversation.turns, conversation.prompts, strict=True):
            if carry == "none":
                drafters = fresh()
            rounds += _replay_turn(
                drafters, tokens[prompt:start], tokens[start:stop], n_predict, n_ctx
            )
    return rounds


def _replay_turn(
    drafters: list[naive_spec.Drafter],
    prompt: list[int],
    generated: list[int],
    n_predict: int | None,
    n_ctx: int | None,
) -> list[Round]:
    """``naive_spec.replay_request``, but that the last token ends the turn whatever its id is."""
    for drafter in drafters:
        drafter.begin(prompt)
    rounds: list[Round] = []
    n_done = 1
    while n_done < len(generated):
        text = prompt + generated[:n_done]
        limit = naive_spec.draft_limit(len(text), n_done, n_predict, n_ctx)
        drafted, who = naive_spec.first_draft(drafters, text, limit)
        coming = generated[n_done:]
        n_accepted = naive_spec.count_accepted(drafted, coming, [])
        if n_accepted == len(coming) < len(drafted):
            n_accepted -= 1
        if who is not None:
            for i, drafter in enumerate(drafters):
                drafter.accept(n_accepted, i != who)
        rounds.append(Round(len(drafted), n_accepted, who))
        n_done += n_accepted + 1
    return rounds
