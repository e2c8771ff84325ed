"""A llama.cpp server that answers a list of prompts: job on stdin, JSON lines on stdout.

A process of its own, because llama.cpp ends the process that it lives in when it does not like a
cache. The job is one JSON object: ``model`` and ``cache`` (paths; an empty cache is none),
``prompts``, ``n_predict``. Each line that comes back holds ``text``, ``n_drafted`` and
``n_accepted``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import xllamacpp

N_CTX = 256


def start(job: dict[str, Any]) -> xllamacpp.Server:
    """Start a server with a slot for each prompt: a slot remembers what it has seen.

    (A second prompt in the same slot would be drafted from the first one's n-grams.) One thread,
    as two add up in another order, and busy-wait for each other on a busy machine.
    """
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_parallel = len(job["prompts"])
    params.n_ctx = N_CTX * params.n_parallel
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_CACHE
    params.speculative.types = [kind]
    params.speculative.ngram_cache.lookup_cache_static = job["cache"]
    return xllamacpp.Server(params)


def answer(server: xllamacpp.Server, slot: int, prompt: str, n_predict: int) -> dict[str, Any]:
    """Let the server continue one prompt.

    Without a penalty this small a model soon says the same line for ever, and that is drafted from
    its own context, whatever the cache holds.
    """
    reply = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": n_predict,
            "temperature": 0,
            "repeat_penalty": 1.1,
            "seed": 1,
            "cache_prompt": False,
            "id_slot": slot,
        }
    )
    if "timings" not in reply:
        sys.exit(f"the server answered {reply}")
    timings = reply["timings"]
    return {
        "text": reply["choices"][0]["text"],
        # left out by the server while nothing has been drafted
        "n_drafted": timings.get("draft_n", 0),
        "n_accepted": timings.get("draft_n_accepted", 0),
    }


def run() -> None:
    """Do the job."""
    job = json.load(sys.stdin)
    server = start(job)
    for slot, prompt in enumerate(job["prompts"]):
        reply = answer(server, slot, prompt, job["n_predict"])
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run()
