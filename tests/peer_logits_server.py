"""A llama.cpp server that continues token histories: job on stdin, JSON lines on stdout.

The job is one JSON object: ``model`` (a path), ``prompts`` (token ids), ``n_predict``, ``n_top``,
``banned`` (tokens that are not to be chosen) and ``settings`` (of CommonParams). A line comes back
for each prompt, which holds the ``tokens`` chosen greedily and their ``logprobs``, and the
``top_ids`` and ``top_logprobs`` at each of their places, over the whole vocabulary and before any
sampler.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import xllamacpp


def start(job: dict[str, Any]) -> xllamacpp.Server:
    """Start a server with a slot for each prompt."""
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_parallel = len(job["prompts"])
    longest = max(len(prompt) for prompt in job["prompts"])
    params.n_ctx = -(-(longest + job["n_predict"] + 1) // 256) * 256 * params.n_parallel
    params.kv_unified = False
    params.n_gpu_layers = 0
    # One thread: several wait for each other busily on a busy machine.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    for name, value in job["settings"].items():
        kind = type(getattr(params, name))
        setattr(params, name, value if isinstance(value, kind) else kind(value))
    return xllamacpp.Server(params)


def run() -> None:
    """Do the job."""
    job = json.load(sys.stdin)
    reply = start(job).handle_completions(
        {
            "prompt": job["prompts"],
            "max_tokens": job["n_predict"],
            "temperature": 0,
            "logit_bias": [[token, False] for token in job["banned"]],
            "ignore_eos": True,
            "n_probs": job["n_top"],
            "post_sampling_probs": False,
            "cache_prompt": False,
        }
    )
    if "choices" not in reply:
        sys.exit(f"the server answered {reply}")
    for choice in sorted(reply["choices"], key=lambda choice: choice["index"]):
        places = choice["logprobs"]["content"]
        answer = {
            "tokens": [place["id"] for place in places],
            "logprobs": [place["logprob"] for place in places],
            "top_ids": [[top["id"] for top in place["top_logprobs"]] for place in places],
            "top_logprobs": [[top["logprob"] for top in place["top_logprobs"]] for place in places],
        }
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    run()
