"""A llama.cpp server asked about text: job on stdin, JSON lines on stdout, its log on stderr.

A process of its own, as llama.cpp may end the process that it lives in. The job is one JSON
object: ``model`` (path), ``n_ctx`` and ``requests``, pairs of an address such as "/tokenize" and a
body.
Each line that comes back is the answer to one of them. The log names the tokens that end a
generation.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

N_CTX = 64
LIMIT_S = 100
LOG_WITH_TOKENS = 5


class Peer(NamedTuple):
    """What the server answered, and its log."""

    answers: list[Any]
    log: str


def ask_peer(model: Path, requests: list[tuple[str, dict[str, Any]]], n_ctx: int = N_CTX) -> Peer:
    """Ask a server with ``model``; its failure is one of the test."""
    from peer_process import run_peer  # not in the server's own process

    job = {"model": str(model), "requests": requests, "n_ctx": n_ctx}
    answers, log = run_peer(Path(__file__), job, LIMIT_S)
    return Peer(answers, log)


def run() -> None:
    """Do the job."""
    import xllamacpp

    job = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx = job["n_ctx"]
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.verbosity = LOG_WITH_TOKENS
    server = xllamacpp.Server(params)
    for address, body in job["requests"]:
        request = urllib.request.Request(
            server.listening_address + address,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            sys.stdout.write(json.dumps(json.load(answer)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the server's own end may wait for ever for a loop that has not begun yet


if __name__ == "__main__":
    run()
