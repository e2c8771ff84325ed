"""llama-server with n-gram drafters, from the wheel ``xllamacpp`` (extra ``peer``), now.

The recording of test_naive_spec.py holds for one version; this shows that the one that is installed
still drafts so, and that the server's figures are those of a replay of its own answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from naive_spec import EXACT, Setting, make_slots, replay_request
from peer_spec import ask_peer

RECORD = json.loads((Path(__file__).parent / "golden" / "spec_server.json").read_text())
N_CTX = 1024
SMALL: dict[str, dict[str, int]] = {
    "ngram-simple": {"size-n": 8, "size-m": 12},
    "ngram-map-k": {"size-n": 5, "size-m": 6},
    "ngram-map-k4v": {"size-n": 3, "size-m": 8},
    "ngram-mod": {"n-match": 3, "n-min": 0, "n-max": 16},
    "ngram-cache": {},
}


def recorded_prompts() -> list[list[int]]:
    """The prompts of the recorded conversations that no other request comes before."""
    [run] = [run for run in RECORD["runs"] if run["name"] == "simple, new servers"]
    return [RECORD["texts"][request["prompt"]] for request in run["requests"]]


def job_of(model: Path, drafters: list[tuple[str, dict[str, int]]]) -> dict[str, Any]:
    """Two prompts that end in repetition, and the first once more."""
    prompts = [prompt for prompt in recorded_prompts() if len(prompt) < 100]
    requests = [
        {"slot": 0, "n_predict": 48, "prompt": prompt, "after": None}
        for prompt in (*prompts[-2:], prompts[-2])
    ]
    return {
        "model": str(model),
        "drafters": drafters,
        "static": "",
        "dynamic": "",
        "n_ctx": N_CTX,
        "n_slots": 1,
        "requests": requests,
    }


@pytest.mark.parametrize("names", [*([name] for name in EXACT), list(EXACT)], ids="+".join)
def test_a_replay_has_the_figures_of_the_server(smollm2: Path, names: list[str]) -> None:
    """The bug: a newer llama.cpp that drafts otherwise, and a replay that goes by the old one."""
    drafters = [(name, SMALL[name]) for name in names]
    [slot] = make_slots([Setting(*drafter) for drafter in drafters], exact=True)
    n_drafted = 0
    for answer, logged in ask_peer(job_of(smollm2, drafters)):
        rounds = replay_request(
            slot,
            answer["prompt"],
            answer["tokens"],
            n_predict=48,
            n_ctx=N_CTX,
            end_tokens=RECORD["end_tokens"],
        )
        assert [[one.n_drafted, one.n_accepted] for one in rounds if one.n_drafted] == logged.rounds
        assert sum(one.n_drafted for one in rounds) == answer["draft_n"]
        assert sum(one.n_accepted for one in rounds) == answer["draft_n_accepted"]
        n_drafted += answer["draft_n"]
    assert n_drafted > 0
