"""``draftsmith lookup-run``: the text, its figures, what it teaches, and what it refuses."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
import toy_model
from cache_dicts import cache_of, dict_of
from conftest import Done
from draftsmith.cli.generate import stream
from draftsmith.cli.generate.options import Color
from draftsmith.engine.errors import DiskFull, ExitStatus
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from draftsmith.ngram.cache import shared as shared_cache
from draftsmith.ngram.cache.file import open_cache, write_cache
from draftsmith.ngram.conversations.conversation import Conversation, ReplayTexts
from draftsmith.ngram.drafters.replay import replay_texts
from draftsmith.ngram.drafters.settings import parse_specs

Cli = Callable[..., Done]
Run = Callable[..., Done]

CASES = Path(__file__).parent / "golden" / "cases" / "prompts"
INTERRUPTED = "error: interrupted; no file is left half-written\n"
CODE = """def add(a, b):
    result = a + b
    return result

def sub(a, b):
    result = a - b
    return result

def mul(a, b):
    result ="""


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of half a megabyte with a context of 256 that says anything."""
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    return toy_model.write_model(path, "llama", seed=3, **toy_model.SMALL, n_ctx=256)


@pytest.fixture(scope="session")
def toy_tokenizer(toy: Path) -> Tokenizer:
    return load_tokenizer(toy)


@pytest.fixture
def run(cli: Cli, toy: Path) -> Run:
    """Run the toy on one thread, greedily unless told otherwise."""

    def call(*args: str | Path) -> Done:
        return cli("lookup-run", "-m", toy, "-t", "1", "--ignore-eos", "--temp", "0", *args)

    return call


@pytest.fixture
def real(cli: Cli, smollm2: Path) -> Run:
    """Run the real model greedily."""

    def call(*args: str | Path) -> Done:
        return cli("lookup-run", "-m", "smollm2", "--temp", "0", *args)

    return call


def refused(done: Done, status: ExitStatus, message: str) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error


# --- the text and the figures ---------------------------------------------------------------------


def test_text_and_figures_go_apart(run: Run) -> None:
    """Tables in a file that was to hold the text, or a text that differs from the JSON's."""
    args = ("-p", "the cat", "-n", "20")
    shown = run(*args)
    for name in ("n_drafted ", "t_draft_flat ", "n_accept ", "prefill ", "decode ", "peak memory"):
        assert name in shown.stderr
        assert name not in shown.stdout
    assert shown.stdout.endswith("\n")
    assert "\x1b" not in shown.stdout
    quiet = run(*args, "-q")
    assert quiet == Done(0, shown.stdout, "")
    record = run(*args, "--json").record
    assert record["text"] in (shown.stdout, shown.stdout[:-1])
    assert len(record["tokens"]) == record["n_predict"] == 20
    assert record["stop_reason"] == "length"


def test_keys(run: Run, toy_tokenizer: Tokenizer) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = (Path(__file__).parent.parent / "docs" / "lookup-run.md").read_text()
    record = run("-p", "the cat " * 9, "-n", "200", "--draft-fixed", "--json").record
    for key in record:
        assert f"`{key}`" in documented, key
    assert list(record)[:5] == ["schema", "command", "n_draft", "n_predict", "n_drafted"]
    assert list(record)[-5:] == ["options", "inputs", "host", "compile_s", "peak_rss_bytes"]
    for kind in ("position", "source", "size"):
        for what, whole in (("drafted", "n_drafted"), ("accepted", "n_accept")):
            part = record[f"{what}_by_{kind}"]
            assert sum(part.values() if isinstance(part, dict) else part) == record[whole]
    assert record["n_drafted"] > record["n_accept"]
    assert record["n_input"] == len(toy_tokenizer.encode("the cat " * 9))
    assert record["n_rounds"] + record["n_accept"] == record["n_predict"] - 1


def test_greedy_text_is_that_of_plain_decoding(real: Run) -> None:
    """A draft that gets into the text, or one that is never taken."""
    args = ("-p", CODE, "-n", "24", "--json")
    plain = real(*args, "--draft-max", "0").record
    fixed = real(*args, "--draft-fixed").record
    paced = real(*args).record
    assert plain["text"].startswith(" a * b\n    return result\n")
    assert plain["tokens"] == fixed["tokens"] == paced["tokens"]
    assert plain["n_drafted"] == 0
    assert fixed["accepted_by_source"]["context"] == fixed["n_accept"] >= 8
    assert fixed["n_rounds"] < plain["n_rounds"] == 23
    assert fixed["drafted_by_position"][7] > 0


@pytest.mark.parametrize("names", [("--stop",), ("-r",), ("--stop", "--reverse-prompt")])
def test_a_stop_string(run: Run, names: tuple[str, ...]) -> None:
    """A text that goes on after the string, shows it, or is another one with drafts."""
    args = ("-p", "the cat", "-n", "40")
    whole = run(*args, "--json").record
    string = whole["text"][12:15]
    stops = [item for name in names for item in (name, string)]
    wanted = whole["text"][: whole["text"].index(string)]
    for more in ((), ("--draft-max", "0"), ("--draft-fixed",)):
        record = run(*args, *stops, *more, "--json").record
        assert record["text"] == wanted
        assert (record["stop_reason"], record["stop_string"]) == ("stop", string)
        assert record["tokens"] == whole["tokens"][: len(record["tokens"])]
        assert record["options"]["stop"] == [string] * len(names)
    assert run(*args, *stops, "-q").stdout.removesuffix("\n") == wanted
    shown = run(*args, *stops, "--compare").stdout
    assert f"a stop string came: {string!r}" in shown
    record = run(*args, *stops, "--compare", "--json", "--repeat", "1").record
    assert record["identical"]
    assert (record["text"], record["stop_string"]) == (wanted, string)
    escaped = run(*args, "-e", "--stop", "".join(f"\\x{b:02x}" for b in string.encode()), "--json")
    assert escaped.record["text"] == wanted
    refused(run(*args, "--stop", ""), ExitStatus.USAGE, "a stop string is empty")


def test_eos_inside_a_draft(real: Run) -> None:
    """A text that ends elsewhere with drafts than without, where one holds the end."""
    for more in ((), ("--ignore-eos",)):
        args = ("-f", str(CASES / "eos.txt"), "-n", "40", *more, "--json")
        drafted, plain = real(*args, "--draft-fixed").record, real(*args, "--draft-max", "0").record
        assert drafted["tokens"] == plain["tokens"]
        assert drafted["stop_reason"] == plain["stop_reason"]
        assert (drafted["stop_reason"] == "eog") is not bool(more)


def test_the_model_ends_the_text(real: Run) -> None:
    """A text that goes on after its end, or ends although it was told not to."""
    args = ("-p", "The capital of France is", "-n", "40", "--json")
    ended = real(*args).record
    assert ended["stop_reason"] == "eog"
    assert ended["n_predict"] < 40
    assert "<|" not in ended["text"]
    on = real(*args, "--ignore-eos").record
    assert on["n_predict"] == 40
    assert on["tokens"][: ended["n_predict"]] == ended["tokens"]


def test_seeds(run: Run) -> None:
    """A draft that uses up random numbers; a seed that is not told, or has no effect."""
    args = ("-p", "the cat " * 9, "-n", "30", "--temp", "1.5", "--json")
    record = run(*args, "--draft-fixed").record
    again = run(*args, "--seed", str(record["seed"]), "--draft-max", "0").record
    other = run(*args, "-s", str(record["seed"] ^ 1)).record
    assert record["tokens"] == again["tokens"] != other["tokens"]
    assert run(*args).record["seed"] != record["seed"]


def test_options_reach_the_engine(run: Run) -> None:
    """An option that is parsed and forgotten."""
    args = ("--top-k", "7", "--top-p", "0.5", "--min-p", "0.25", "--repeat-penalty", "1.5")
    more = ("--repeat-last-n", "9", "-s", "5", "-b", "3", "-c", "99", "--draft-max", "2")
    record = run("-p", "the cat", "-n", "3", *args, *more, "--temp", "0.5", "--json").record
    expected = {
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.25,
        "repeat_penalty": 1.5,
        "repeat_last_n": 9,
        "temperature": 0.5,
        "seed": 5,
        "batch": 3,
        "n_ctx": 99,
        "draft_max": 2,
        "threads": 1,
        "ignore_eos": True,
    }
    assert {key: record["options"][key] for key in expected} == expected
    assert record["n_draft"] == len(record["drafted_by_position"]) == 2


def test_the_context_fills(run: Run) -> None:
    """A text that runs out of its context, or stops short of it."""
    record = run("-p", "the cat", "-c", "30", "--json").record
    assert record["stop_reason"] == "context"
    assert record["n_predict"] == 30 - record["n_input"] + 1
    exact = run("-p", "the cat", "-c", "30", "-n", str(record["n_predict"]), "--json").record
    assert exact["tokens"] == record["tokens"]
    assert exact["stop_reason"] == "length"


def test_a_context_beyond_training_is_warned_of(run: Run) -> None:
    """Nonsense after token 256 that nobody explains."""
    done = run("-p", "the cat", "-c", "300", "-n", "2", "-q")
    assert "warning: -c 300 is more than the 256 tokens" in done.stderr


def test_nothing_to_generate(run: Run) -> None:
    """nan, inf or a crash where there is no token but the prompt's."""
    record = run("-p", "the cat", "-n", "0", "--json").record
    assert record["tokens"] == []
    assert record["text"] == ""
    for key in ("decode_tokens_per_s", "first_token_ms", "accept", "tokens_per_round"):
        assert record[key] is None
    assert record["prefill_tokens_per_s"] > 0
    done = run("-p", "the cat", "-n", "0")
    assert done.stdout == "\n"
    assert "nan" not in done.stderr


# --- the prompt -----------------------------------------------------------------------------------


def test_prompts_of_every_kind(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that depends on how it is given: an escape, a newline at the end, stdin."""
    (tmp_path / "x.txt").write_bytes(b"a\tb\n\n")
    args = ("-n", "1", "--json")
    wanted = run("-p", "a\tb\n", *args).record
    assert run("-f", tmp_path / "x.txt", *args).record["tokens"] == wanted["tokens"]
    assert run("-p", r"a\tb\n", "-e", *args).record["n_input"] == wanted["n_input"]
    assert run("-p", r"a\tb\n", *args).record["n_input"] != wanted["n_input"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\n\n")))
    piped = run("-f", "-", *args).record
    assert piped["n_input"] == wanted["n_input"]
    assert piped["options"]["file"] == "-"


def test_special_tokens_alone(run: Run, toy_tokenizer: Tokenizer) -> None:
    """A prompt without text that counts as empty, or is spelled out."""
    special = toy_tokenizer.vocabulary.tokens[toy_tokenizer.eos_id or 0].decode()
    assert run("-p", special * 2, "-n", "2", "--json").record["n_input"] <= 3


def test_chat(real: Run, smollm2: Path) -> None:
    """A prompt that is not put into the template, or a system prompt that is dropped."""
    encode = load_tokenizer(smollm2).encode
    args = ("-p", "Hi", "-n", "1", "--json")
    system = real(*args, "-sys", r"Be\nkind", "-e").record
    text = (
        "<|im_start|>system\nBe\nkind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert system["n_input"] == len(encode(text))
    assert system["options"]["chat"] is True
    raw = real(*args).record["n_input"]
    assert raw == len(encode("Hi"))


# --- the caches -----------------------------------------------------------------------------------


def test_learns_what_was_generated(run: Run, toy_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The prompt's n-grams counted each time it is asked, or a run that overwrites the last one's
    counts.
    """
    path = tmp_path / "x.lcd"
    args = ("-p", "the cat sat", "-n", "30", "-lcd", path)
    first = run(*args, "--json")
    assert first.stderr == f"{path} does not exist yet: it is made at the end\n"
    assert first.record["dynamic_file_bytes"] == path.stat().st_size
    prompt, tokens = toy_tokenizer.encode("the cat sat").tolist(), first.record["tokens"]
    ref: naive.Cache = {}
    naive.update(ref, naive.ALL_SIZES, (*prompt, *tokens), len(tokens))
    kept = open_cache(path, n_vocab=toy_tokenizer.n_vocab, fingerprint=toy_tokenizer.fingerprint)
    assert dict_of(kept) == ref
    assert run(*args, "-q") == Done(0, first.record["text"] + "\n", "")
    twice = {
        ngram: {token: 2 * count for token, count in part.items()} for ngram, part in ref.items()
    }
    assert dict_of(open_cache(path)) == twice
    third = run(*args, "--draft-fixed", "--json").record
    assert third["tokens"] == tokens, "a learnt draft changed the text"
    assert third["accepted_by_source"]["dynamic"] > 10
    assert [one["path"] for one in third["inputs"]] == [str(path)]
    assert list(tmp_path.iterdir()) == [path]


def test_the_static_cache_drafts(run: Run, toy_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """-lcs that is opened and not used."""
    tokens = run("-p", "the cat sat", "-n", "20", "--json").record["tokens"]
    counts = naive.count_ngrams([tokens, tokens], (2,))
    write_cache(
        tmp_path / "x.lcs",
        cache_of(counts, n_vocab=toy_tokenizer.n_vocab, fingerprint=toy_tokenizer.fingerprint),
    )
    args = ("-p", "the cat sat", "-n", "20", "-lcs", tmp_path / "x.lcs", "--draft-fixed")
    record = run(*args, "--json").record
    assert record["tokens"] == tokens
    assert record["accepted_by_source"]["static"] > 0


def test_llama_cpp_s_format_stays(run: Run, tmp_path: Path) -> None:
    """A cache that llama.cpp made and can no longer read."""
    path = tmp_path / "x.lcd"
    write_cache(path, cache_of({(1, 2): {3: 4}}), format="llama.cpp")
    run("-p", "the cat", "-n", "5", "-lcd", path)
    cache = open_cache(path)
    assert cache.format == "llama.cpp"
    assert dict_of(cache)[1, 2] == {3: 4}
    assert cache.orders == (1, 2, 3, 4)


def test_nothing_generated_teaches_nothing(run: Run, tmp_path: Path) -> None:
    """A cache file without an n-gram in it."""
    assert run("-p", "the cat", "-n", "0", "-lcd", tmp_path / "x.lcd", "-q").status == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_in_the_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures lost with the cache."""

    def full(*args: object, **options: object) -> int:
        raise DiskFull("no space", remedy="free some")

    monkeypatch.setattr(shared_cache, "write_cache", full)
    done = run("-p", "the cat", "-n", "5", "-lcd", tmp_path / "x.lcd", "--json")
    assert done.status == ExitStatus.DISK_FULL
    assert done.record["dynamic_file_bytes"] is None
    assert done.error == "error: no space; free some"


# --- any drafter ----------------------------------------------------------------------------------

DRAFTERS = (
    "ngram-simple:size-n=2,size-m=8",
    "ngram-map-k:size-n=2,size-m=6",
    "ngram-map-k4v:size-n=2,size-m=4",
    "ngram-mod:n-match=2,n-min=1,n-max=9",
    "ngram-cache:draft-max=5",
    "suffix",
    "prompt-lookup",
    "vllm-ngram:prompt-lookup-min=2,prompt-lookup-max=4",
    "ngram-simple:size-n=5,size-m=100+suffix",
)
SERVER_S = ("ngram-map-k:size-n=2,size-m=6", "ngram-mod:n-match=3,n-min=2+ngram-cache")
CATS = ("-p", "the cat " * 9, "-n", "120", "--json")


@pytest.mark.parametrize("drafter", [*DRAFTERS, *(f"{spec} exact" for spec in SERVER_S)])
def test_a_drafter_drafts_what_a_replay_says(
    run: Run, toy_tokenizer: Tokenizer, drafter: str
) -> None:
    """A text that a drafter changed; a setting, a form or a limit that does not reach the loop."""
    name, _, exact = drafter.partition(" ")
    more = ("--drafter", name, *(["--upstream-exact"] if exact else []))
    plain = run(*CATS, "--draft-max", "0").record
    fixed = run(*CATS, *more, "--draft-fixed").record
    paced = run(*CATS, *more).record
    assert plain["tokens"] == fixed["tokens"] == paced["tokens"]
    prompt = toy_tokenizer.encode("the cat " * 9)
    tokens = np.append(prompt, plain["tokens"]).astype(np.int32)
    turns = np.array([[prompt.size, tokens.size]])
    texts = ReplayTexts.of([Conversation(tokens, turns, np.zeros(1, np.int64))])
    (spec,) = parse_specs(name, upstream_exact=bool(exact))
    ref = replay_texts(texts, spec, n_vocab=toy_tokenizer.n_vocab, n_predict=120)
    assert fixed["drafted_by_position"] == ref.drafted_at.tolist()
    assert fixed["accepted_by_position"] == ref.accepted_at.tolist()
    assert fixed["n_rounds"] == ref.n_rounds
    assert ref.n_drafted > 0
    assert list(fixed["drafted_by_drafter"].values()) == ref.by_drafter[:, 1].tolist()
    assert list(fixed["accepted_by_drafter"].values()) == ref.by_drafter[:, 2].tolist()
    assert sum(paced["drafted_by_drafter"].values()) == paced["n_drafted"]
    assert (paced["drafter"], paced["upstream_exact"]) == (str(spec), bool(exact))
    assert paced["options"]["drafter"] == str(spec)
    assert paced["n_draft"] == spec.draft_max


def test_a_drafter_keeps_the_real_text(real: Run) -> None:
    """A draft that gets into the text of a model that ends it."""
    args = ("-p", CODE, "-n", "24", "--json")
    plain = real(*args, "--draft-max", "0").record
    done = real(*args, "--drafter", "ngram-simple:size-n=3,size-m=8", "--draft-fixed").record
    assert done["tokens"] == plain["tokens"]
    assert done["n_accept"] >= 8
    shown = real(*args[:-1], "--drafter", "prompt-lookup", "--compare", "--repeat", "1").stdout
    for part in ("drafter ", "by prompt-lookup", "same text", "yes"):
        assert part in shown


def test_a_drafter_reads_and_teaches_caches(run: Run, tmp_path: Path) -> None:
    """Caches that only llama-lookup's drafting hears of, or a text that is not learnt."""
    path = tmp_path / "x.lcd"
    args = ("-p", "the cat sat", "-n", "30", "-lcd", path, "--drafter", "ngram-cache", "--json")
    first = run(*args, "--draft-fixed").record
    assert first["dynamic_file_bytes"] == path.stat().st_size
    for _ in range(2):
        again = run(*args, "--draft-fixed").record
    assert again["tokens"] == first["tokens"]
    assert again["n_accept"] > first["n_accept"]


def test_a_drafter_minds_no_draft_max_of_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that a setting for other commands forbids."""
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "3")
    assert run("-p", "x", "-n", "2", "--json").record["n_draft"] == 3
    assert run("-p", "x", "-n", "2", "--json", "--drafter", "suffix").record["n_draft"] == 24


# --- comparing ------------------------------------------------------------------------------------


def test_compare(real: Run) -> None:
    """A text that drafting changed and nobody noticed; figures of unequal work."""
    done = real("-p", CODE, "-n", "20", "--compare", "--repeat", "2", "--json")
    record = done.record
    # a machine that does other work meanwhile may be told so
    assert [line for line in done.stderr.splitlines() if "noise" not in line] == []
    assert record["identical"] is True
    assert record["n_predict"] == len(record["tokens"]) == 20
    for name in ("plain_tokens_per_s", "draft_tokens_per_s", "ratio"):
        samples = record[f"{name}_samples"]
        assert len(samples) == 2
        assert record[name] == pytest.approx(sum(samples) / 2)
    for a, b, ratio in zip(
        record["draft_tokens_per_s_samples"],
        record["plain_tokens_per_s_samples"],
        record["ratio_samples"],
        strict=True,
    ):
        assert ratio == pytest.approx(a / b)
    assert list(record["step_ms"]) == ["1", "2", "4", "8", "16"]
    assert record["step_cost"]["1"] == 1
    assert record["step_n_past"] == record["n_input"] + 19
    assert record["options"]["repeat"] == 2


def test_compare_learns_nothing(run: Run, tmp_path: Path) -> None:
    """Turns that learn from each other, or a measurement that changes what it measures with."""
    path = tmp_path / "x.lcd"
    for _ in range(2):
        run("-p", "the cat sat", "-n", "30", "-lcd", path)
    before = path.read_bytes()
    args = ("-p", "the cat sat", "-n", "30", "-lcd", path, "--compare")
    record = run(*args, "--json").record
    assert path.read_bytes() == before
    assert record["identical"] is True
    assert record["accepted_by_source"]["dynamic"] > 0
    assert len(record["ratio_samples"]) == 3
    shown = run(*args, "-q")
    assert "same text" in shown.stdout
    assert record["text"] not in shown.stdout
    assert shown.stderr == ""
    refused(
        run("-p", "x", "-lcd", tmp_path / "none", "--compare"), ExitStatus.INPUT_UNREADABLE, "none"
    )


def test_compare_of_a_text_that_differs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``identical`` that is always true."""
    from draftsmith.engine.decode import comparison

    real = comparison.generate

    def wrong_with_drafts(*args: Any, **options: Any) -> Any:
        done = real(*args, **options)
        if options.get("drafter") is not None and done.tokens:
            done.tokens[-1] ^= 1
        return done

    monkeypatch.setattr(comparison, "generate", wrong_with_drafts)
    done = run("-p", "the cat", "-n", "5", "--compare", "--repeat", "1", "--json")
    assert done.record["identical"] is False


def test_compare_fills_the_context(run: Run) -> None:
    """Room for timed steps that the text takes for its own, and a prompt of a single token."""
    plain = run("-p", "a", "-c", "20", "--json").record
    record = run("-p", "a", "-c", "20", "--compare", "--repeat", "1", "--json").record
    assert record["tokens"] == plain["tokens"]
    assert record["n_input"] == plain["n_input"]


# --- interruptions --------------------------------------------------------------------------------


def test_interrupted(run: Run, tmp_path: Path, interrupt_after: Callable[[int], None]) -> None:
    """Ctrl-C that loses what was generated so far, or that a script takes for success."""
    path = tmp_path / "x.lcd"
    whole = run("-p", "the cat", "-n", "30", "--json").record["tokens"]
    interrupt_after(7)
    done = run("-p", "the cat", "-n", "30", "-lcd", path, "--json", "-q")
    assert (done.status, done.stderr) == (ExitStatus.INTERRUPTED, INTERRUPTED)
    assert done.record["stop_reason"] == "interrupted"
    n = done.record["n_predict"]
    assert 7 <= n < 30
    assert done.record["tokens"] == whole[:n]
    assert sum(sum(part.values()) for part in dict_of(open_cache(path)).values()) > n
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_that_has_enough(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``| head -1``: an error, or a cache that learnt nothing."""
    add = stream.TextPrinter.add

    def add_and_break(printer: stream.TextPrinter, ids: list[int], n: int) -> None:
        add(printer, ids, n)
        raise BrokenPipeError

    monkeypatch.setattr(stream.TextPrinter, "add", add_and_break)
    done = run("-p", "the cat", "-n", "30", "-lcd", tmp_path / "x.lcd", "-q")
    assert (done.status, done.stderr) == (0, "")
    assert dict_of(open_cache(tmp_path / "x.lcd"))


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_interrupted_from_outside(toy: Path, tmp_path: Path) -> None:
    """The same, from the keyboard: a lost signal, a thread that goes on, half a file."""
    args = ("-m", str(toy), "-p", "the cat", "-lcd", "x.lcd", "--ignore-eos", "-c", "100000", "-q")
    with subprocess.Popen(
        [sys.executable, "-m", "draftsmith.cli", "lookup-run", *args],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
        stderr = process.stderr.read().decode()
        status = process.wait(timeout=60)
    assert status == ExitStatus.INTERRUPTED
    assert stderr.splitlines()[1:] == [INTERRUPTED.rstrip()]  # the first one warns of -c
    assert os.listdir(tmp_path) == ["x.lcd"]
    cache = open_cache(tmp_path / "x.lcd", verify=True)
    assert cache.n_entries > 0
    assert text.endswith(b"\n")


# --- colours --------------------------------------------------------------------------------------


class Words:
    """A decoder of one-letter tokens."""

    def feed(self, ids: Any) -> str:
        return "".join(map(chr, ids))

    def finish(self) -> str:
        return "?"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(color: Color, monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO) -> str:
    monkeypatch.setattr("sys.stdout", stdout)
    printer = stream.TextPrinter(Words(), shown=True, color=color)
    printer.add([65, 66, 67], 2)
    printer.add([27, 9, 10], 0)
    printer.finish()
    assert printer.text == "ABC\x1b\t\n?"
    assert printer.tokens == [65, 66, 67, 27, 9, 10]
    return stdout.getvalue()


def test_accepted_tokens_are_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colour codes in a file, a colour that NO_COLOR forbids, or the model's own tokens coloured;
    a model that sends the terminal what it likes.
    """
    blue = f"{stream.BLUE}AB{stream.PLAIN}C"
    assert printed(Color.AUTO, monkeypatch, Terminal()) == blue + "\\x1b\t\n?\n"
    assert printed(Color.OFF, monkeypatch, Terminal()) == "ABC\\x1b\t\n?\n"
    assert printed(Color.AUTO, monkeypatch, io.StringIO()) == "ABC\x1b\t\n?\n"
    assert printed(Color.ON, monkeypatch, io.StringIO()) == blue + "\x1b\t\n?\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(Color.AUTO, monkeypatch, Terminal()) == "ABC\\x1b\t\n?\n"
    assert printed(Color.ON, monkeypatch, Terminal()) == blue + "\\x1b\t\n?\n"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert printed(Color.AUTO, monkeypatch, Terminal()) == "ABC\\x1b\t\n?\n"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], ExitStatus.USAGE, "no prompt; give -p PROMPT, -f FILE or --chat-file FILE.json"),
        (["-p", "a", "-f", "b"], ExitStatus.USAGE, "-p and -f both"),
        (["-p", ""], ExitStatus.INPUT_EMPTY, "the prompt is empty"),
        (["-f", "empty.txt"], ExitStatus.INPUT_EMPTY, "empty.txt holds no text"),
        (["-f", "newline.txt"], ExitStatus.INPUT_EMPTY, "newline.txt holds no text"),
        (["-f", "none.txt"], ExitStatus.INPUT_UNREADABLE, "none.txt"),
        (["-f", "*.txt"], ExitStatus.USAGE, "names 3 files"),
        (["-f", "ids.npy"], ExitStatus.USAGE, "holds token ids"),
        (["-f", "long.txt"], ExitStatus.USAGE, "fits into the context"),
        (["-p", "a " * 300], ExitStatus.USAGE, "but the context has room for 256"),
        (["-p", "a b c", "-c", "2"], ExitStatus.USAGE, "room for 2"),
        (["-p", "a", "-n", "300"], ExitStatus.USAGE, "-n 300 is too much"),
        (["-p", "a", "-n", "-2"], ExitStatus.USAGE, "'-n'"),
        (["-p", "a", "-c", "-1"], ExitStatus.USAGE, "'-c'"),
        (["-p", "a", "--temp", "-0.1"], ExitStatus.USAGE, "'--temp'"),
        (["-p", "a", "--temp", "nan"], ExitStatus.USAGE, "'--temp'"),
        (["-p", "a", "--top-p", "1.5"], ExitStatus.USAGE, "'--top-p'"),
        (["-p", "a", "--min-p", "nan"], ExitStatus.USAGE, "'--min-p'"),
        (["-p", "a", "--top-k", "-1"], ExitStatus.USAGE, "'--top-k'"),
        (["-p", "a", "--repeat-penalty", "0"], ExitStatus.USAGE, "repeat_penalty is 0"),
        (["-p", "a", "--repeat-last-n", "-2"], ExitStatus.USAGE, "'--repeat-last-n'"),
        (["-p", "a", "-s", "-2"], ExitStatus.USAGE, "'-s'"),
        (["-p", "a", "-b", "0"], ExitStatus.USAGE, "'-b'"),
        (["-p", "a", "-t", "0"], ExitStatus.USAGE, "'-t'"),
        (["-p", "a", "--draft-max", "-1"], ExitStatus.USAGE, "'--draft-max'"),
        (["-p", "a", "--draft-max", "4097"], ExitStatus.USAGE, "'--draft-max'"),
        (["-p", "a", "--color", "maybe"], ExitStatus.USAGE, "'--color'"),
        (["-p", "a", "--repeat", "2"], ExitStatus.USAGE, "--repeat is for --compare"),
        (["-p", "a", "--compare", "--draft-max", "0"], ExitStatus.USAGE, "compares nothing"),
        (["-p", "a", "--drafter", "x"], ExitStatus.USAGE, "there is no drafter 'x'"),
        (["-p", "a", "--drafter", "ngram-mod:n-match=8|9"], ExitStatus.USAGE, "one value for each"),
        (["-p", "a", *("--drafter", "suffix") * 2], ExitStatus.USAGE, "combine them: suffix+"),
        (["-p", "a", "--drafter", "ngram-mod:n-max=0"], ExitStatus.USAGE, "give n-max=1 or more"),
        (["-p", "a", "--drafter", "suffix", "--draft-max", "8"], ExitStatus.USAGE, "of their own"),
        (["-p", "a", "--drafter", "suffix", "-lcs", "x"], ExitStatus.USAGE, "are for ngram-cache"),
        (["-p", "a", "--drafter", "suffix", "-lcd", "x"], ExitStatus.USAGE, "are for ngram-cache"),
        (["-p", "a", "--drafter", "suffix", "--upstream-exact"], ExitStatus.USAGE, "not have"),
        (["-p", "a", "--upstream-exact"], ExitStatus.USAGE, "--upstream-exact is for --drafter"),
        (["-p", "a", "--chat"], ExitStatus.MODEL_CHAT_TEMPLATE, "no chat template"),
        (["-p", "a", "-lcd", "none/x"], ExitStatus.OUTPUT_NO_FOLDER, "none"),
        (["-p", "a", "-lcd", "."], ExitStatus.OUTPUT_NOT_WRITABLE, "is a folder"),
        (["-p", "a", "-lcs", "none"], ExitStatus.INPUT_UNREADABLE, "none"),
        (["-p", "a", "-lcd", "other.lcd"], ExitStatus.CACHE_OTHER_VOCABULARY, "other.lcd"),
        (["-p", "a", "-lcs", "other.lcd"], ExitStatus.CACHE_OTHER_VOCABULARY, "other.lcd"),
        (["-p", "a", "-lcd", "empty.txt"], ExitStatus.CACHE_TRUNCATED, "empty.txt"),
        (["-p", "a", "-lcd", "long.txt"], ExitStatus.CACHE_NOT_A_CACHE, "long.txt"),
    ],
    ids=str,
)
def test_mistakes(
    args: list[str],
    status: ExitStatus,
    message: str,
    cli: Cli,
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake that shows as a traceback, as nonsense, or when the weights have been read."""
    from draftsmith.engine.transformer import model

    def too_late(*args: object, **options: object) -> None:
        pytest.fail("the weights were read")

    monkeypatch.setattr(model, "load_model", too_late)
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_bytes(b"")
    Path("newline.txt").write_bytes(b"\n")
    Path("long.txt").write_text("word " * 30_000)
    np.save("ids.npy", np.zeros(3, np.int32))
    write_cache("other.lcd", cache_of({(1, 2): {3: 1}}, n_vocab=9, fingerprint=bytes([7] * 32)))
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    refused(cli("lookup-run", "-m", toy, *args), status, message)
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


def test_an_unknown_model(cli: Cli) -> None:
    """A traceback instead of the names there are."""
    refused(cli("lookup-run", "-m", "nope", "-p", "a"), ExitStatus.MODEL_UNKNOWN, "smollm2")


def test_a_model_that_computes_nonsense(cli: Cli, tmp_path: Path) -> None:
    """NaN in a tensor: a text of token 0, for ever."""
    weights = np.full(64, np.nan, np.float32)
    path = toy_model.write_model(
        tmp_path / "nan.gguf", **toy_model.SMALL, tensors={"output_norm.weight": weights}
    )
    done = cli("lookup-run", "-m", path, "-p", "a", "-n", "3", "-q")
    assert done.status == ExitStatus.MODEL_DAMAGED
    assert done.stdout == ""
