"""llama-server with n-gram drafters: job on stdin, JSON lines on stdout, its log on stderr.

A process of its own, as llama.cpp may end the process that it lives in. The job is one JSON object:
``model`` (path), ``drafters`` (pairs of a name and parameters, spelt as on llama.cpp's command
line), ``static`` and ``dynamic`` (paths of caches; empty for none), ``n_ctx`` (of a slot),
``n_slots`` and ``requests``. A request has ``slot``, ``n_predict``, ``prompt`` (token ids) and
``after``: None, or the number of an earlier request whose prompt and answer come first, and then
the prompt, of which the first token is left out if the answer ends with it.

Each line that comes back has the ``prompt`` as it was, the ``tokens``, ``draft_n``,
``draft_n_accepted`` and ``stop`` ("eos" or "limit"). The log has each round's draft, and what each
drafter has come to; ``read_log`` takes them out of it.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

LOG_WITH_STATISTICS = 4
LIMIT_S = 400

_ROUND = re.compile(r"accepted +(\d+)/ *(\d+) draft tokens")
_STATISTICS = re.compile(
    r"statistics +(?P<name>[\w-]+): #calls\(b,g,a\) = +\d+ +(\d+) +(\d+), #gen drafts = +(\d+), "
    r"#acc drafts = +(\d+), #gen tokens = +(\d+), #acc tokens = +(\d+)"
)
_END = "stop processing"


class Logged(NamedTuple):
    """What the log says of one request.

    Attributes
    ----------
    rounds : (drafted, accepted) of each round that had a draft.
    statistics : of each drafter, in order of priority: calls of draft, calls of accept, drafts,
        drafts of which something was accepted, tokens drafted, tokens accepted; since the start.
    """

    rounds: list[list[int]]
    statistics: list[list[int]]


def ask_peer(job: dict[str, Any]) -> list[tuple[dict[str, Any], Logged]]:
    """The answers of a new server to the job's requests, each with what the log says of it."""
    from peer_process import run_peer  # not in the server's own process

    answers, log = run_peer(Path(__file__), job, LIMIT_S, LLAMA_TRACE="1")
    logged = read_log(log)
    if not len(answers) == len(logged) == len(job["requests"]):
        raise RuntimeError(f"{len(answers)} answers, {len(logged)} of them logged:\n{log[-3000:]}")
    return list(zip(answers, logged, strict=True))


def read_log(log: str) -> list[Logged]:
    """What the log says of each of the requests, which were one after the other."""
    requests = []
    now = Logged([], [])
    for line in log.splitlines():
        if found := _ROUND.search(line):
            now.rounds.append([int(found[2]), int(found[1])])
        elif found := _STATISTICS.search(line):
            now.statistics.append([int(count) for count in found.groups()[1:]])
        elif _END in line:
            requests.append(now)
            now = Logged([], [])
    return requests


def start(job: dict[str, Any]) -> Any:
    """A server with all drafters of the job. One thread: several may sum up in another order."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_parallel = job["n_slots"]
    params.n_ctx = job["n_ctx"] * job["n_slots"]
    params.kv_unified = False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = LOG_WITH_STATISTICS
    kinds = xllamacpp.common_speculative_type
    speculative = params.speculative
    names = [name.upper().replace("-", "_") for name, _ in job["drafters"]]
    speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name}") for name in names]
    for name, parameters in job["drafters"]:
        for parameter, value in parameters.items():
            drafter = getattr(speculative, name.replace("-", "_"))
            setattr(drafter, parameter.replace("-", "_"), value)
    speculative.ngram_cache.lookup_cache_static = job["static"]
    speculative.ngram_cache.lookup_cache_dynamic = job["dynamic"]
    return xllamacpp.Server(params)


def prompt_of(request: dict[str, Any], answers: list[dict[str, Any]]) -> list[int]:
    """The token ids that the server is to continue."""
    prompt: list[int] = request["prompt"]
    if request["after"] is None:
        return prompt
    before = answers[request["after"]]
    if before["tokens"][-1] == prompt[0]:
        prompt = prompt[1:]
    return before["prompt"] + before["tokens"] + prompt


def answer(address: str, request: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """Let the server continue a prompt greedily."""
    body = {
        "prompt": prompt,
        "n_predict": request["n_predict"],
        "id_slot": request["slot"],
        "temperature": 0,
        "return_tokens": True,
    }
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(address + "/completion", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as reply:
        said = json.load(reply)
    return {
        "prompt": prompt,
        "tokens": said["tokens"],
        # left out by the server while nothing has been drafted
        "draft_n": said["timings"].get("draft_n", 0),
        "draft_n_accepted": said["timings"].get("draft_n_accepted", 0),
        "stop": said["stop_type"],
    }


def run() -> None:
    """Do the job."""
    job = json.load(sys.stdin)
    server = start(job)
    answers: list[dict[str, Any]] = []
    for request in job["requests"]:
        prompt = prompt_of(request, answers)
        answers.append(answer(server.listening_address, request, prompt))
        sys.stdout.write(json.dumps(answers[-1]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run()
