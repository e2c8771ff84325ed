"""A real client of the caches: llama.cpp's server, from the wheel ``xllamacpp`` (extra ``peer``).

What our own reader and replay cannot see, for they would share the mistake: fields in another
order or width than llama.cpp reads, n-grams of the wrong size for a static cache, ids of another
tokenizer. Such a cache loads, and never helps. The server runs in a process of its own
(``peer_server.py``), so that its abort fails one test here and nothing else.

Drafting only offers tokens, so the replies may not depend on the cache; what does is how many
offers the model takes. With xllamacpp 2026.10.11549 on x86-64 it took 65 of 396 without a cache,
and 91 of 558 with the cache of the training text, more for each of the ten prompts. Caches broken
on purpose: ids off by one 65, n-grams of one token 65, two ids of each n-gram swapped 72 (by
chance). The cache of C source came to 65 too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from draftsmith.cli.main import main
from peer_process import run_peer, start_peer

SERVER = Path(__file__).with_name("peer_server.py")
GOLDEN = Path(__file__).parent / "golden"
N_PROMPTS = 10
PROMPT_CHARACTERS = 400
N_PREDICT = 64
# Half a minute on two slow cores that have nothing else to do; this is for a busy machine.
LIMIT_S = 400


class Reply(NamedTuple):
    """What the server said to one prompt, and its count of tokens offered and taken."""

    text: str
    n_drafted: int
    n_accepted: int


def even_prompts(text: str) -> list[str]:
    """Cut passages that start at the line after each tenth of the text, and end with a word."""
    starts = [text.find("\n", len(text) * i // N_PROMPTS) + 1 for i in range(N_PROMPTS)]
    return [text[start : start + PROMPT_CHARACTERS].rsplit(" ", 1)[0] for start in starts]


def job_of(model: Path, prompts: list[str], cache: Path | None) -> dict[str, Any]:
    """Have a server that drafts from its context, and from `cache` if any, continue `prompts`."""
    return {
        "model": str(model),
        "cache": str(cache or ""),
        "prompts": prompts,
        "n_predict": N_PREDICT,
    }


def replies(model: Path, prompts: list[str], cache: Path | None) -> list[Reply]:
    """Return the reply to each prompt; fail with the server's last words if one is missing."""
    answers, log = run_peer(SERVER, job_of(model, prompts, cache), LIMIT_S)
    if len(answers) != len(prompts):
        pytest.fail(f"{len(answers)} replies to {len(prompts)} prompts:\n{log[-3000:]}")
    return [Reply(**answer) for answer in answers]


def create(model: Path, out: Path, *texts: Path) -> Path:
    """Write a llama.cpp cache of `texts` with the command line."""
    options = ["--format", "llama.cpp", "--quiet"]
    files = [argument for text in texts for argument in ("-f", str(text))]
    assert main(["lookup-create", "-m", str(model), *files, "-lcs", str(out), *options]) == 0
    return out


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return even_prompts((GOLDEN / "kjv_test.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cache(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peer") / "kjv.bin"
    return create(smollm2, out, GOLDEN / "kjv_train.txt")


@pytest.fixture(scope="module")
def both(smollm2: Path, prompts: list[str], cache: Path) -> tuple[list[Reply], list[Reply]]:
    """Replies without and with the cache, from two servers side by side."""
    with ThreadPoolExecutor(2) as pool:
        without, with_cache = pool.map(lambda name: replies(smollm2, prompts, name), (None, cache))
    return without, with_cache


def test_the_server_takes_more_tokens_with_the_cache(
    both: tuple[list[Reply], list[Reply]],
) -> None:
    """The bug: a file that llama.cpp loads and that holds nothing it can use.

    One token more a prompt is asked for, as a broken cache gains a few by chance.
    """
    without, with_cache = both
    assert all(reply.n_drafted > 0 for reply in with_cache)
    before = [reply.n_accepted for reply in without]
    after = [reply.n_accepted for reply in with_cache]
    assert sum(after) > sum(before) + N_PROMPTS, (before, after)


def test_the_cache_does_not_change_the_replies(both: tuple[list[Reply], list[Reply]]) -> None:
    """The bug: runs that cannot be compared, so that a longer reply passes for a better cache."""
    without, with_cache = both
    assert [reply.text for reply in with_cache] == [reply.text for reply in without]


def test_a_cache_of_the_reply_itself_drafts_most_of_it(
    smollm2: Path, prompts: list[str], both: tuple[list[Reply], list[Reply]], tmp_path: Path
) -> None:
    """The bug: wrong next tokens or counts that a corpus cache hides after the context's drafts.

    Twice the same text, as llama.cpp wants two samples of a bigram: 50 of the 64 tokens came from
    the cache here, and from each of those broken on purpose (also with counts of 1) at most 4.
    """
    plain = both[0][1]
    texts = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for text in texts:
        text.write_text(prompts[1] + plain.text, encoding="utf-8")
    own = create(smollm2, tmp_path / "own.bin", *texts)
    [reply] = replies(smollm2, prompts[1:2], own)
    assert reply.n_accepted > N_PREDICT // 2 > plain.n_accepted


def test_the_server_ends_over_a_cache_cut_short(
    smollm2: Path, prompts: list[str], cache: Path, tmp_path: Path
) -> None:
    """The bug: a server that never opens the file would pass for one that likes it.

    It also shows what a half-written file would do to people who serve from it.
    """
    cut = tmp_path / "cut.bin"
    cut.write_bytes(cache.read_bytes()[:-4])
    done = start_peer(SERVER, job_of(smollm2, prompts[:1], cut), LIMIT_S)
    assert done.returncode != 0
    assert "ngram-cache" in done.stderr
    assert done.stdout == ""
