"""Replays with ``upstream_exact`` against what llama-server drafted, number for number.

The recording is that of test_naive_spec.py. Left out are a server of two slots, which a replay has
none of, and the request that its context cut short, whose end is not in its ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_dicts import golden_bin
from draftsmith.ngram.cache.llama_format import read_llama
from draftsmith.ngram.cache.ngram_cache import NgramCache
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.drafters.replay import replay_texts
from draftsmith.ngram.drafters.settings import DrafterSpec, parse_specs

RECORD = json.loads((Path(__file__).parent / "golden" / "spec_server.json").read_text())
N_VOCAB = 49152
RUNS = {
    run["name"]: run
    for run in RECORD["runs"]
    if run["n_slots"] == 1 and len({request["n_predict"] for request in run["requests"]}) == 1
}


def spec_of(run: dict[str, Any]) -> DrafterSpec:
    """The run's drafters as a user writes them."""
    drafters = [
        name + "".join(f"{',' if i else ':'}{k}={v}" for i, (k, v) in enumerate(params.items()))
        for name, params in run["drafters"]
    ]
    (spec,) = parse_specs("+".join(drafters), upstream_exact=True)
    return spec


def golden_cache(name: str) -> NgramCache:
    return read_llama(np.frombuffer(golden_bin(name), np.uint8), name)


def texts_of(run: dict[str, Any]) -> ReplayTexts:
    """Each request as a conversation of its prompt and one turn."""
    conversations = []
    for request in run["requests"]:
        prompt, generated = (RECORD["texts"][request[key]] for key in ("prompt", "generated"))
        tokens = np.array(prompt + generated, np.int32)
        turns = np.array([[len(prompt), tokens.size]], np.int64)
        conversations.append(Conversation(tokens, turns, np.zeros(1, np.int64)))
    return ReplayTexts.of(conversations)


@pytest.mark.parametrize("name", RUNS)
def test_a_replay_has_the_figures_of_the_server(name: str) -> None:
    """The bug: figures of a drafter that are not those that its users would see."""
    run = RUNS[name]
    caches = {}
    if run["caches"]:
        caches["static"] = golden_cache(f"{run['caches']}_train")
        caches["dynamic"] = golden_cache(f"{run['caches']}_train_dyn")
    stats = replay_texts(
        texts_of(run),
        spec_of(run),
        n_vocab=N_VOCAB,
        carry="none" if run["new_servers"] else "all",
        n_predict=run["requests"][0]["n_predict"],
        n_ctx=run["n_ctx"],
        ends=RECORD["end_tokens"],
        **caches,
    )
    drafted_accepted = stats.by_row[:, 3:].tolist()
    assert drafted_accepted == [[r["draft_n"], r["draft_n_accepted"]] for r in run["requests"]]
