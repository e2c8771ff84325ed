"""``draftsmith prefill-run``: what is read, what is answered, the figures, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_model
from conftest import Done
from draftsmith.engine import host
from draftsmith.engine.chat import template as chat
from draftsmith.engine.chat import worker as chat_worker
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import ExitStatus, UsageError
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer import model as engine_model
from draftsmith.prefill import scoring
from draftsmith.prefill.memory import Need
from draftsmith.prefill.score_request import ScorerKind
from draftsmith.prefill.scorers.attention import Head
from draftsmith.prefill.scorers.calibration_file import Calibration, calibration_text
from draftsmith.prefill.scorers.head_names import parse_heads
from toy_mtp import write_toy_head
from toy_projection import write_projection

Cli = Callable[..., Done]
Run = Callable[..., Done]

DOCUMENTED = Path(__file__).parent.parent / "docs" / "prefill-run.md"
INTERRUPTED = "error: interrupted; no file is left half-written\n"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}TOOLS {{ tools }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SENTENCE = "The dog number {} jumps over the lazy fox and the cat. "
NEEDLE = "They said that the quick brown text is fun. "
DOCUMENT = "".join(map(SENTENCE.format, range(30))) + NEEDLE
DOCUMENT += "".join(map(SENTENCE.format, range(30, 60)))
QUESTION = "What is fun?"
SMALL = {**toy_model.SMALL, "d_head": 32, "n_layers": 3, "n_ctx": 4096}


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, one that scores for it, two of another vocabulary and window, a head, a document."""
    folder = tmp_path_factory.mktemp("toys")
    toy_model.write_model(folder / "toy.gguf", "llama", seed=3, **SMALL)
    toy_model.write_model(folder / "other.gguf", "llama", seed=4, **{**SMALL, "n_layers": 2})
    toy_model.write_model(folder / "spm.gguf", "llama", **SMALL, vocabulary="spm")
    toy_model.write_model(folder / "short.gguf", "llama", seed=3, **{**SMALL, "n_ctx": 600})
    write_toy_head(folder / "head.gguf", "llama", **SMALL)
    (folder / "doc.txt").write_text(DOCUMENT)
    return folder


@pytest.fixture
def run(cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Ask the toy about the document, without a template, greedily, on one thread."""
    monkeypatch.chdir(toys)
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))

    def call(*args: str | Path) -> Done:
        given = [str(arg) for arg in args]
        for names, values in (
            (("-m",), ("toy.gguf",)),
            (("-f", "--chat-file"), ("doc.txt",)),
            (("-p", "--chat-file"), (QUESTION,)),
            (("-n",), ("8",)),
            (("--temp",), ("0",)),
            (("--min-tokens",), ("100",)),
            (("--keep",), ("0.2",)),
        ):
            if not any(name in given for name in names):
                given += [names[0], *values]
        more = () if {"--chat-file", "--template"} & set(given) else ("--raw",)
        given = [arg for arg in given if arg != "--template"]
        return cli("prefill-run", *given, *more, "-t", "1", "--ignore-eos")

    return call


@pytest.fixture
def templated(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same in a template, which the toys do not have."""

    def reply(_: ChatTemplate, job: bytes) -> dict[str, Any]:
        return dict(json.loads(json.dumps(chat_worker.answer(json.loads(job)))))

    monkeypatch.setattr(chat, "_find_source", lambda *_: TEMPLATE)
    monkeypatch.setattr(ChatTemplate, "_reply", reply)
    monkeypatch.setattr(chat_worker, "limit_resources", lambda *_: None)
    return run


LEXICAL = ("--scorer", "lexical")
HEADS = ("--heads", "1.0,2.1")


def refused(done: Done, message: str, status: ExitStatus = ExitStatus.USAGE) -> None:
    assert done.status == status, done.stderr
    assert done.stdout == ""
    assert message in done.error


# --- what is read ---------------------------------------------------------------------------------


def test_keys(run: Run) -> None:
    """A key of the record renamed or gone: somebody's script breaks."""
    documented = DOCUMENTED.read_text() + DOCUMENTED.with_name("lookup-run.md").read_text()
    record = run(*HEADS, "--compare", "--show-kept", "--json").record
    for key in record:
        assert f"`{key}`" in documented, key
    assert list(record)[:4] == ["schema", "command", "scorer", "fell_back"]
    assert list(record)[-5:] == ["options", "inputs", "host", "compile_s", "peak_rss_bytes"]
    assert record["scorer"] == "fused"
    assert record["n_kept"] <= record["n_budget"] == round(0.2 * record["n_prompt"])
    assert record["n_kept"] == record["n_mandatory"] + record["n_document_kept"]
    assert record["n_input"] == record["n_kept"]
    assert 0 < record["mass_kept"] <= 1
    assert record["n_layers_scored"] == 2
    stages = record["stage_ms"]
    assert list(stages) == ["tokenise", "score", "select", "target prefill", "first token"]
    assert all(ms > 0 for ms in stages.values())
    assert sum(stages.values()) <= record["ttft_ms"]
    assert all(record["stage_peak_bytes"].values())
    assert set(record["score_ms"]) == {"lexical score", "attention layers", "attention weigh"}


def test_what_was_asked_for_is_kept(run: Run) -> None:
    """A needle dropped, or a question; --show-kept that shows something else."""
    shown = run(*LEXICAL, "--show-kept")
    assert NEEDLE.strip() in shown.stderr
    assert QUESTION in shown.stderr
    assert re.search(r"\[\.\.\. \d+ tokens \.\.\.\]", shown.stderr)
    record = run(*LEXICAL, "--show-kept", "--json").record
    text = "".join(piece["text"] for piece in record["kept"])
    assert NEEDLE in text
    assert sum(p["stop"] - p["start"] for p in record["kept"]) == record["n_kept"]
    dim = run(*LEXICAL, "--show-kept", "--color", "on").stderr
    plain = re.sub("\x1b\\[2m|\x1b\\[0m", "", dim)
    assert f"{DOCUMENT}\n\n{QUESTION}" in plain
    assert "\x1b[2m" in dim


@pytest.mark.parametrize("positions", ["repacked", "original"])
def test_all_kept_is_a_prefill_in_full(run: Run, cli: Cli, toys: Path, positions: str) -> None:
    """A prompt that is not the document, a blank line and the question."""
    record = run("--keep", "1", "--compare", "--positions", positions, *LEXICAL, "--json").record
    assert record["first_token_kl"] == 0
    assert record["same_answer"] is True
    assert record["n_same_tokens"] == 8
    assert record["ttft_ratio"] > 0
    assert record["mass_kept"] is None
    args = ("-m", "toy.gguf", "-p", f"{DOCUMENT}\n\n{QUESTION}", "-n", "8", "--temp", "0")
    plain = cli("mtp-run", *args, "--drafter", "none", "-t", "1", "--ignore-eos", "--json").record
    assert record["tokens"] == plain["tokens"] == record["tokens_full"]


def test_compare(run: Run) -> None:
    """A ratio upside down, a KL of the wrong logits, or two answers that are one."""
    record = run(*LEXICAL, "--compare", "--repeat", "3", "--json").record
    assert len(record["ttft_ratio_samples"]) == 3
    ratios = [
        full / one
        for one, full in zip(record["ttft_samples_ms"], record["ttft_full_samples_ms"], strict=True)
    ]
    assert record["ttft_ratio_samples"] == pytest.approx(ratios)
    assert record["ttft_ratio"] == pytest.approx(sorted(ratios)[1])
    assert record["first_token_kl"] > 0
    same = record["tokens"] == record["tokens_full"]
    assert record["same_answer"] is same
    shown = run(*LEXICAL, "--compare").stdout
    for name in ("against a prefill in full", "KL of the first token", "same answer", "answers"):
        assert name in shown


def test_original_positions_change_the_answer(run: Run) -> None:
    """--positions that is parsed and forgotten."""
    records = [
        run(*LEXICAL, "--positions", positions, "--compare", "--json").record
        for positions in ("repacked", "original")
    ]
    assert [record["positions"] for record in records] == ["repacked", "original"]
    assert records[0]["first_token_kl"] != records[1]["first_token_kl"]
    assert records[0]["n_kept"] == records[1]["n_kept"]


@pytest.mark.parametrize("scorer", [kind for kind in ScorerKind if kind is not ScorerKind.AUTO])
def test_every_scorer(run: Run, scorer: ScorerKind, toys: Path, tmp_path: Path) -> None:
    """A name that ends in a traceback, or in another scorer."""
    more: tuple[Any, ...] = HEADS if scorer.needs_heads else ()
    if scorer.is_trained:
        fingerprint = load_tokenizer(toys / "toy.gguf").fingerprint.hex()
        layers = (0,) if scorer is ScorerKind.EMBEDDED else (2,)
        path = write_projection(
            tmp_path / "toy.gguf", fingerprint, n_layers=3, n_embd=64, document_layers=layers
        )
        more = ("--calibration", path)
    record = run("--scorer", scorer, *more, "--json").record
    assert record["scorer"] == scorer
    assert record["refused"] is None
    assert record["n_kept"] <= record["n_budget"]
    without = (ScorerKind.LEXICAL, ScorerKind.EMBEDDED)
    assert (record["n_layers_scored"] == 0) is (scorer in without)


@pytest.mark.parametrize("model", ["other", "spm", "toy"])
def test_another_model_scores(run: Run, model: str) -> None:
    """Ids of one vocabulary given to another's model; weights that are not let go."""
    args = ("--scorer", "attention", "--heads", "1.1", "--scorer-model", f"{model}.gguf", "--json")
    record = run(*args).record
    assert record["refused"] is None
    assert (record["drafter_bytes"] > 0) is (model != "toy")
    assert ("tokenise" in record["score_ms"]) is (model == "spm")
    own = run("--scorer", "attention", "--heads", "1.1", "--json").record
    assert (record["mass_kept"] == own["mass_kept"]) is (model == "toy")


def test_scorer_model_has_an_older_name(run: Run) -> None:
    """An old command line that the new name of the option breaks, or that says something else."""
    args = ("--scorer", "attention", "--heads", "1.1", "-s", "1", "--json")
    new, old = (run(*args, flag, "other.gguf") for flag in ("--scorer-model", "--drafter"))
    for key in ("options", "drafter_bytes", "mass_kept", "n_kept", "tokens"):
        assert new.record[key] == old.record[key], key
    assert new.record["options"]["drafter"] == "other.gguf"


@pytest.mark.parametrize("drafter", ["ngram", "mtp", "mtp+ngram"])
@pytest.mark.parametrize("positions", ["repacked", "original"])
def test_drafts_do_not_change_the_answer(run: Run, drafter: str, positions: str) -> None:
    """A draft that gets into the text; one that is never asked for."""
    args = (*LEXICAL, "-n", "40", "--positions", positions, "--json")
    head = ("--mtp-head", "head.gguf") if "mtp" in drafter else ()
    record = run(*args, "--decode-drafter", drafter, "--draft-fixed", *head).record
    assert record["tokens"] == run(*args).record["tokens"]
    assert set(record["drafted_by_origin"]) <= {"mtp", "ngram"}
    assert record["n_drafted"] > 0 or drafter == "ngram"


def test_one_pass(run: Run) -> None:
    """An option that is parsed and forgotten; states of an earlier prompt that are used again."""
    args = (*HEADS, "--compare", "--json")
    one = run("--one-pass", *args).record
    two = run("--positions", "original", *args).record
    assert (one["one_pass"], two["one_pass"]) == (True, False)
    assert one["positions"] == "original"
    assert one["n_kept"] == two["n_kept"] == one["n_input"]
    assert one["first_token_kl"] != two["first_token_kl"]
    assert sum(one["stage_ms"].values()) <= one["ttft_ms"]
    whole = run("--one-pass", *args, "--keep", "1").record
    assert (whole["one_pass"], whole["first_token_kl"]) == (False, 0)
    drafted = run("--one-pass", *args, "--decode-drafter", "ngram", "--draft-fixed").record
    assert drafted["tokens"] == one["tokens"]
    refused(run("-m", "short.gguf", "--one-pass", *HEADS), "original positions")


# --- all is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kind", "reason"),
    [
        (("-p", ""), "no-question", "asks no question"),
        (("--min-tokens", "5000"), "short", "pays from 5000 on"),
        (("--keep", "0.005"), "mandatory", "of 8 tokens that may be kept"),
        (("-p", "word " * 400), "mandatory", "more than 60%"),
        (("-p", "zz zz?"), "flat", "no part of the document scores above"),
    ],
)
def test_refusals_are_said(run: Run, args: tuple[str, ...], kind: str, reason: str) -> None:
    """A prompt cut where nothing says what matters; one that is read in full without a word."""
    done = run(*LEXICAL, *args, "--compare", "--json", "-q")
    assert "warning: the prompt is read in full: " in done.stderr
    assert reason in done.stderr
    record = done.record
    assert record["refused"] == kind
    assert reason in record["refused_reason"]
    assert record["n_kept"] == record["n_prompt"]
    assert record["same_answer"] is True
    assert record["first_token_kl"] == 0
    assert record["n_budget"] is record["mass_kept"] is None
    assert "read in full" in run(*LEXICAL, *args, "--compare").stdout


def test_a_prompt_shorter_than_a_chunk(run: Run, tmp_path: Path) -> None:
    """A document of three tokens: the first chunk is the last one, too."""
    (tmp_path / "short.txt").write_text("a b c")
    for min_tokens, kind in (("0", "mandatory"), ("100", "short")):
        args = (*LEXICAL, "-f", tmp_path / "short.txt", "--min-tokens", min_tokens, "--json")
        assert run(*args).record["refused"] == kind


def test_longer_than_the_window(run: Run) -> None:
    """A prompt that the model cannot read whole, refused or read beyond its context."""
    done = run("-m", "short.gguf", *HEADS, "--compare", "--keep", "0.9", "--json", "-q")
    assert "the context has room for 593 tokens of the prompt" in done.stderr
    assert "nothing to compare with" in done.stderr
    record = done.record
    assert record["n_prompt"] > 600
    assert record["n_kept"] <= record["n_budget"] == 593
    assert record["n_budget_cut"] == round(0.9 * record["n_prompt"]) - 593
    assert record["ttft_ratio"] is record["same_answer"] is None
    refused(
        run("-m", "short.gguf", *LEXICAL, "-p", ""),
        "the context has room for 593, and none can be dropped: the prompt asks no question",
    )
    refused(run("-m", "short.gguf", *LEXICAL, "--positions", "original"), "original positions")


# --- heads ----------------------------------------------------------------------------------------


def test_without_a_calibration(run: Run) -> None:
    """Heads of another model, or an error, where words alone could do."""
    done = run("--json")
    assert "no calibration says which heads of toy.gguf retrieve" in done.stderr
    assert "--calibrate" in done.stderr
    record = done.record
    assert (record["scorer"], record["fell_back"]) == ("lexical", True)
    for scorer in ("attention", "blocksparse"):
        refused(run("--scorer", scorer), "--calibrate")


def test_with_a_calibration(run: Run, toys: Path, tmp_path: Path) -> None:
    """A file that is named or found, and not used; one for another model that is."""
    fingerprint = load_tokenizer(toys / "toy.gguf").fingerprint.hex()
    found = Calibration("toy", fingerprint, 3, 64, (Head(2, 1),), 32, 2)
    path = tmp_path / "toy.json"
    path.write_text(calibration_text(found))
    record = run("--calibration", path, "--json").record
    assert record["options"]["heads"] == ["L2H1 max"]
    assert record["options"]["window"] == 32
    assert run("--calibration", path, "--window", "9", "--json").record["options"]["window"] == 9
    folder = tmp_path / "cache" / "calibration"
    folder.mkdir(parents=True)
    (folder / "toy.json").write_text(path.read_text())
    assert run("--json").record["options"]["heads"] == ["L2H1 max"]
    assert run("-m", "other.gguf", "--json").record["fell_back"] is True
    refused(run("-m", "other.gguf", "--calibration", path), "is for toy, of 3 layers")
    path.write_text("{}")
    refused(run("--calibration", path), "holds no calibration", ExitStatus.INPUT_MALFORMED)


def test_with_a_projection(run: Run, toys: Path, tmp_path: Path) -> None:
    """A trained scorer that is found and not used, or for another model and used; one that is
    missing, and lets words alone score without a word."""
    fingerprint = load_tokenizer(toys / "toy.gguf").fingerprint.hex()
    folder = tmp_path / "cache" / "calibration"
    folder.mkdir(parents=True)
    refused(run("--scorer", "trained"), "no scorer of this kind was trained for toy.gguf")
    path = write_projection(folder / "toy.gguf", fingerprint, n_layers=3, n_embd=64)
    record = run("--scorer", "trained", "--json").record
    assert record["n_layers_scored"] == 2
    assert record["options"]["window"] == 24
    assert set(record["score_ms"]) == {"question", "layers", "compare"}
    named = run("--scorer", "trained", "--calibration", path, "--json").record
    assert named["mass_kept"] == record["mass_kept"]
    for more in ((), ("--scorer", "auto"), ("--calibration", path)):
        chosen = run(*more, "--json").record
        assert (chosen["scorer"], chosen["mass_kept"]) == ("trained", record["mass_kept"])
    for meant in (HEADS, (*HEADS, "--window", "9"), (*HEADS, "--one-pass")):
        assert run(*meant, "--json").record["scorer"] == "fused"
    assert run("-m", "other.gguf", "--json").record["scorer"] == "lexical"
    refused(run("--scorer", "embedded"), "no scorer of this kind")
    args = ("--scorer", "trained", "--calibration", path)
    refused(run("-m", "other.gguf", *args), "is for toy, of 3 layers")
    refused(run(*args, "--window", "9"), "--window is not for --scorer trained")
    refused(run(*args, "--one-pass"), "--one-pass goes on")
    refused(run(*args[:3], toys / "toy.gguf"), "holds no trained scorer")


def test_parse_heads() -> None:
    """A mark that is taken for another, or ignored."""
    found = parse_heads("15.6, 18.6:nope:mean,0.1:mean,2.3:nope,4.5:max")
    assert found == (
        Head(15, 6),
        Head(18, 6, False, "mean"),
        Head(0, 1, True, "mean"),
        Head(2, 3, False),
        Head(4, 5),
    )
    for text in ("", "15", "15.6:", "15.6;", "a.b", "15.6:sum", "15.6,"):
        with pytest.raises(UsageError, match="is no head"):
            parse_heads(text)


# --- memory ---------------------------------------------------------------------------------------


def test_a_limit_that_cannot_be_kept(run: Run) -> None:
    """A process that is killed half-way, where the least that would do could have been said."""
    done = run(*LEXICAL, "--memory-limit", "1M")
    refused(done, "--memory-limit 1.0 MB cannot be kept")
    # of the whole process, which may have grown by the tests before; told to one decimal
    least = re.search(r"give ([\d.]+) ([MG])B or more", done.error)
    assert least
    enough = str(float(least[1]) * {"M": 1, "G": 1000}[least[2]] * 1.06 + 30) + "M"
    assert run(*LEXICAL, "--memory-limit", enough, "--json").status == 0


def test_models_take_turns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models' weights in memory where the limit has room for one; another answer for it."""
    args = ("--scorer", "attention", "--heads", "1.1", "--drafter", "other.gguf", "--json")
    args = (*args, "--decode-drafter", "mtp", "--mtp-head", "head.gguf")
    free = run(*args)
    open_models: list[engine_model.Model] = []
    most = []

    def load(*a: Any, **k: Any) -> engine_model.Model:
        open_models[:] = [model for model in open_models if model.arena.size]
        open_models.append(real(*a, **k))
        most.append(len(open_models))
        return open_models[-1]

    real = engine_model.load_model
    monkeypatch.setattr(engine_model, "load_model", load)
    monkeypatch.setattr(host, "rss_bytes", lambda: 0)
    monkeypatch.setattr(scoring, "estimate", lambda *_: Need(100, 20, 200, 30))
    turns = run(*args, "--memory-limit", "231")
    assert "in turns" in turns.stderr
    assert turns.record["tokens"] == free.record["tokens"]
    assert max(most) == 1
    assert turns.record["load_between_ms"] > 0
    assert free.record["load_between_ms"] == 0
    most.clear()
    assert run(*args, "--memory-limit", "330").record["load_between_ms"] == 0
    assert max(most) == 2
    refused(run(*args, "--memory-limit", "229"), "230 B more will be; give 230 B or more")
    compared = run(*args, "--memory-limit", "231", "--compare", "--repeat", "2").record
    assert compared["tokens"] == free.record["tokens"]


def test_a_refusal_that_the_limit_has_no_room_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is forgotten when all has to be read."""
    monkeypatch.setattr(host, "rss_bytes", lambda: 0)
    monkeypatch.setattr(scoring, "estimate", lambda *args: Need(0, 0, 10, args[3]))
    args = (*LEXICAL, "--memory-limit", "1000", "-p")
    assert run(*args, QUESTION).status == 0
    refused(run(*args, "zz zz?"), "cannot be kept where the prompt is read in full")


# --- conversations --------------------------------------------------------------------------------


def test_in_the_template(templated: Run) -> None:
    """A question that is looked for in the assistant's beginning; a system that is dropped."""
    args = (*LEXICAL, "--template", "--show-kept", "--json")
    record = templated(*args, "-sys", "Be brief about it.").record
    text = "".join(piece["text"] for piece in record["kept"])
    assert text.startswith("<|im_start|>system\nBe brief about it.<|im_end|>\n<|im_start|>user\n")
    assert text.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert NEEDLE in text
    compared = templated(*LEXICAL, "--template", "--keep", "1", "--compare", "--json").record
    assert compared["first_token_kl"] == 0


def test_a_conversation(templated: Run, tmp_path: Path) -> None:
    """Tools or the system dropped; the last question not the one that is looked for."""
    path = tmp_path / "chat.json"
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": DOCUMENT},
        {"role": "assistant", "content": "I have read it."},
        {"role": "user", "content": QUESTION},
    ]
    path.write_text(json.dumps(messages))
    args = (*LEXICAL, "--chat-file", path, "--show-kept", "--json", "--compare")
    record = templated(*args).record
    text = "".join(piece["text"] for piece in record["kept"])
    assert "Be brief." in text
    assert NEEDLE in text
    assert record["refused"] is None
    path.write_text(json.dumps({"messages": messages, "tools": ["hammer"]}))
    record = templated(*args).record
    text = "".join(piece["text"] for piece in record["kept"])
    assert "hammer" in text
    keep_all = templated(*LEXICAL, "--chat-file", path, "--keep", "1", "--compare", "--json").record
    assert keep_all["first_token_kl"] == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[]", "no list of messages"),
        ("{}", "no list of messages"),
        ("3", "neither an object nor a list"),
        ('{"messages": "hello"}', "no list of messages"),
        ('["hello"]', "message 1 is no object"),
        ('[{"role": "user", "content": "a"}, {"content": "b"}]', "message 2: a message without"),
        ('{"messages": [{"role": "user"}], "bos_token": "a"}', "bos_token, which cannot be set"),
    ],
)
def test_what_is_no_conversation(templated: Run, tmp_path: Path, text: str, what: str) -> None:
    """A traceback for a file that somebody wrote by hand."""
    path = tmp_path / "chat.json"
    path.write_text(text)
    refused(templated("--chat-file", path), what, ExitStatus.INPUT_MALFORMED)
    refused(templated("--chat-file", tmp_path / "none"), "No such", ExitStatus.INPUT_UNREADABLE)


def test_a_conversation_without_a_user(templated: Run, tmp_path: Path) -> None:
    """A conversation that is cut though nobody asked anything."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "system", "content": DOCUMENT}]))
    record = templated(*LEXICAL, "--chat-file", path, "--json").record
    assert record["refused"] == "unplaced"


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--repeat", "2"), "--repeat is for --compare"),
        (("--keep", "0"), "--keep 0: '0' is no share"),
        (("--keep", "1.5"), "--keep 1.5: '1.5' is no share"),
        (("--keep", "nan"), "--keep nan: 'nan' is no share"),
        (("--keep", "0.1,x"), "--keep 0.1,x: 'x' is no share"),
        (("--keep", "0.1,0.2"), "--keep 0.1,0.2: several shares are for --niah"),
        (("--heads", "1.0", *LEXICAL), "--heads is not for --scorer lexical"),
        (("--window", "9", "--scorer", "pflash"), "--window is not for --scorer pflash"),
        (("--window", "9", "--scorer", "blocksparse", *HEADS), "which sees blocks"),
        (("--drafter", "other.gguf", *LEXICAL), "--scorer lexical asks no model"),
        (("--calibration", "a.json", *HEADS), "both name heads"),
        (("--heads", "3.0"), "the model has no head 0 in layer 3"),
        (("--heads", "x"), "'x' is no head"),
        (("--mtp-head", "head.gguf"), "--mtp-head cannot be used with --decode-drafter none"),
        (("-lcs", "a", "--decode-drafter", "mtp"), "-lcs and -lcd cannot be used"),
        (("--draft-max", "3"), "--draft-max cannot be used"),
        (("--draft-fixed",), "--draft-fixed cannot be used"),
        (("--chat-file", "a.json", "-f", "doc.txt"), "brings its own document"),
        (("--chat-file", "a.json", "--raw"), "need a chat template"),
        (("--niah", "--stop", "a"), "brings its own prompts"),
        (("--chat-file", "a.json", "-sys", "a"), "brings what the system says"),
        (("-sys", "a"), "need a chat template"),
        (("-n", "5000"), "leaves no room for a prompt"),
        (("--memory-limit", "much"), "no size"),
        (("--one-pass", *LEXICAL), "goes on from the model's own first layers"),
        (("--one-pass", "--drafter", "other.gguf"), "goes on from the model's own first layers"),
        (("--one-pass", "--decode-drafter", "mtp"), "an MTP head does not see the prompt"),
    ],
)
def test_refused_options(run: Run, args: tuple[str, ...], message: str) -> None:
    """Options that are ignored, or that end in a traceback."""
    refused(run(*args), message)


def test_what_is_missing(cli: Cli, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that does not say which option gives it."""
    monkeypatch.chdir(toys)
    given = ("prefill-run", "-m", "toy.gguf", "--raw")
    refused(cli(*given, "-p", "a"), "no document; give -f FILE -p QUESTION, or --chat-file")
    refused(cli(*given, "-f", "doc.txt"), "no question; give -f")
    done = cli("prefill-run", "-m", "toy.gguf", "-f", "doc.txt", "-p", "a")
    refused(done, "give --raw", ExitStatus.MODEL_CHAT_TEMPLATE)
    refused(cli(*given, "-f", "none.txt", "-p", "a"), "none.txt", ExitStatus.INPUT_UNREADABLE)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_stop_string(run: Run, drafter: str) -> None:
    """An answer that goes on after the string, or is another one with drafts."""
    whole = run("--scorer", "lexical", "-n", "20", "--json").record
    string = whole["text"][9:12]
    args = ("--scorer", "lexical", "-n", "20", "--stop", string, "--decode-drafter", drafter)
    record = run(*args, "--json").record
    assert record["text"] == whole["text"][: whole["text"].index(string)]
    assert (record["stop_reason"], record["stop_string"]) == ("stop", string)
    assert f"a stop string came: {string!r}" in run(*args).stderr


def test_a_question_by_name(templated: Run, tmp_path: Path) -> None:
    """Another question than the named one, or a name that is nowhere and not refused."""
    path = tmp_path / "chat.json"
    text = f"{DOCUMENT}\n\nthe slow\nbrown text\n\n{DOCUMENT}\n\nThanks!"
    path.write_text(json.dumps([{"role": "user", "content": text}]))
    args = ("--scorer", "lexical", "--chat-file", path)
    done = templated(*args, "--json")
    assert done.record["question_source"] == "last"
    assert "warning: the question is taken to be" in done.stderr
    done = templated(*args, "--question", "the slow brown text", "--json")
    assert done.record["question_source"] == "given"
    assert done.record["question_text"] == "the slow\nbrown text"
    assert "the question is taken" not in done.stderr
    assert "what was given" in templated(*args, "--question", "the slow brown").stderr
    refused(templated(*args, "--question", "nowhere"), "the user says no such words")
    refused(templated(*args, "--question", " "), "--question is empty")
    refused(templated("--question", "a"), "--question is for --chat-file")


def test_text_and_figures_go_apart(run: Run) -> None:
    """Tables in a file that was to hold the answer."""
    shown = run(*LEXICAL)
    for name in ("target prefill", "time to first token", "share of the scores", "peak memory"):
        assert name in shown.stderr
        assert name not in shown.stdout
    assert run(*LEXICAL, "-q") == Done(0, shown.stdout, "")
    record = run(*LEXICAL, "--json").record
    assert shown.stdout.rstrip("\n") == record["text"].rstrip("\n")


def test_a_seed_repeats_the_answer(run: Run) -> None:
    """An answer that differs from run to run; --temp that is forgotten."""
    args = (*LEXICAL, "--temp", "1.5", "-s", "5", "-n", "20", "--json")
    assert run(*args).record["tokens"] == run(*args).record["tokens"]
    assert run(*args).record["tokens"] != run(*LEXICAL, "-n", "20", "--json").record["tokens"]


def test_until_the_context_is_full(run: Run) -> None:
    """Original positions that run out of the context, which the cache does not notice."""
    args = ("-m", "short.gguf", "-n", "-1", "--keep", "0.5", "--json", *LEXICAL)
    record = run(*args).record
    assert record["stop_reason"] == "context"
    assert record["n_kept"] + record["n_predict"] == 601
    short = ("-c", "2000", "-n", "-1", "--keep", "0.5", "--json", *LEXICAL)
    record = run(*short, "--positions", "original").record
    assert record["n_prompt"] + record["n_predict"] == 2001


def test_interrupted(run: Run, interrupt_after: Callable[[int], None]) -> None:
    """Ctrl-C that loses what was generated so far, or that a script takes for success."""
    interrupt_after(3)
    done = run(*LEXICAL, "--json", "-q")
    assert (done.status, done.stderr) == (ExitStatus.INTERRUPTED, INTERRUPTED)
    assert done.record["n_predict"] == 3
    done = run(*LEXICAL, "--json", "-q", "--compare")
    assert (done.status, done.stdout) == (ExitStatus.INTERRUPTED, "")


def test_scores_that_are_not_finite(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN that chooses the first chunks, in silence."""
    from draftsmith.prefill.scorers import lexical

    monkeypatch.setattr(lexical, "overlap_values", lambda *args: args[-1].fill(np.nan))
    done = run(*LEXICAL, "--json")
    assert "scores of 'lexical' are not finite" in done.stderr
    assert done.record["refused"] == "not-finite"
