"""Run a script that lives with llama.cpp, from the wheel ``xllamacpp`` (extra ``peer``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest


def start_peer(
    script: Path, job: dict[str, Any], limit_s: float, **variables: str
) -> CompletedProcess[str]:
    """Run a script with a job on stdin, and with environment variables, to its end.

    In a process of its own, for llama.cpp ends the process that it lives in when it does not like
    something.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.fail("xllamacpp is not installed; run scripts/test, or pip install -e '.[peer]'")
    return subprocess.run(
        [sys.executable, script],
        input=json.dumps(job),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=limit_s,
        # no debugger is to be started when llama.cpp aborts
        env=os.environ | {"GGML_NO_BACKTRACE": "1"} | variables,
    )


def run_peer(
    script: Path, job: dict[str, Any], limit_s: float, **variables: str
) -> tuple[list[Any], str]:
    """The JSON lines that a script answers a job with, and its log; its failure is the test's."""
    done = start_peer(script, job, limit_s, **variables)
    if done.returncode:
        pytest.fail(f"llama.cpp ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr
