"""The adapter for llama-cpp-python: in a loop like the library's, and in the library itself."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftsmith import ngram
from draftsmith.engine.errors import InputMalformed, UsageError
from draftsmith.ngram import LlamaCppDraftModel, NgramDrafter
from llama_cpp_loop import LoopLlama

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "scripts/prompts.jsonl"
API = (ROOT / "docs/python-api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", API, re.M | re.S)
N_VOCAB = 40
AGAIN = [1, 2, 3, 4, 1, 2, 3]  # goes on with 4


class Spy(NgramDrafter):
    """A drafter that writes down what it is told."""

    def __init__(self, n_vocab: int = N_VOCAB, *, draft_max: int = 6) -> None:
        self.told: list[list[int]] = []
        self.n_resets = -1  # one is the constructor's, one the adapter's
        super().__init__(n_vocab, draft_max=draft_max)

    def accept(self, tokens: np.ndarray) -> None:  # type: ignore[override]
        super().accept(tokens)
        self.told.append(np.asarray(tokens).tolist())

    def reset(self) -> None:
        super().reset()
        self.n_resets += 1
        self.told.clear()


def predict(text: list[int]) -> int:
    """A model that repeats itself often, but not always."""
    seed = (len(text) // 9, text[-1]) if len(text) % 9 < 3 else (text[-1],)
    return random.Random(repr(seed)).randrange(N_VOCAB)


def generated(llama: LoopLlama, prompt: list[int], n: int) -> list[int]:
    return list(itertools.islice(llama.generate(prompt), n))


def fresh_draft(text: list[int], n_max: int = 6) -> list[int]:
    """What a drafter says that was told the whole text at once."""
    drafter = NgramDrafter(N_VOCAB, draft_max=6)
    drafter.accept(text)
    return drafter.draft(n_max).tolist()


@pytest.fixture
def model() -> LlamaCppDraftModel:
    model = LlamaCppDraftModel(Spy(), paced=False)
    spy_of(model).n_resets = 0
    return model


def spy_of(model: LlamaCppDraftModel) -> Spy:
    assert isinstance(model.drafter, Spy)
    return model.drafter


def ask(model: LlamaCppDraftModel, text: list[int]) -> list[int]:
    return model(np.array(text, np.intc)).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_in_the_loop(model: LlamaCppDraftModel, seed: int) -> None:
    """A token told twice or never, a rejected draft learnt, the text changed, a wrong count."""
    prompt = random.Random(seed).choices(range(N_VOCAB), k=30)
    plain = generated(LoopLlama(predict), prompt, 400)
    drafts: list[list[int]] = []

    def watched(ids: np.ndarray) -> np.ndarray:
        drafts.append(model(ids).tolist())
        return np.array(drafts[-1], np.intc)

    llama = LoopLlama(predict, watched)
    assert generated(llama, prompt, 400) == plain
    assert llama.n_accepted > 100
    assert drafts == [fresh_draft(text) for text in llama.asked]
    spy = spy_of(model)
    told = [token for tokens in spy.told for token in tokens]
    assert told == llama.asked[-1]
    assert spy.n_resets == 0
    assert len(spy.told) == len(llama.asked) == model.n_calls
    assert model.n_drafts == sum(map(bool, drafts))
    assert model.n_drafted == llama.n_drafted
    expected = 0
    for draft, (a, b) in zip(drafts, itertools.pairwise(llama.asked), strict=False):
        n_new = len(b) - len(a)
        assert b[len(a) : -1] == draft[: n_new - 1]
        expected += n_new - 1
    assert model.n_accepted == expected
    assert model.draft_ns > 0


def texts(rng: random.Random) -> Iterator[list[int]]:
    """A text and what may come after it: more, less, another, parts exchanged, the same again."""
    text = rng.choices(range(6), k=rng.randrange(1, 300))
    while True:
        yield text
        kind = rng.randrange(7)
        if kind == 0:
            text = rng.choices(range(6), k=rng.randrange(1, 300))
        elif kind == 1:
            text = text[: rng.randrange(1, len(text) + 1)]
        elif kind == 2:
            text = text[: rng.randrange(1, len(text) + 1)] + rng.choices(range(6), k=20)
        elif kind == 3:  # as long as one that goes on
            text = rng.choices(range(6), k=len(text) + rng.randrange(-1, 4))
        elif kind == 4:
            text = [*text[-70:], *rng.choices(range(6), k=9)]
        else:
            text = text + (fresh_draft(text) + rng.choices(range(6), k=3))[: rng.randrange(7)]
        text = text or [1]


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_texts(model: LlamaCppDraftModel, seed: int) -> None:
    """N-grams of a text that is over, or was taken back, in the drafts of the next one."""
    for text in itertools.islice(texts(random.Random(seed)), 150):
        assert ask(model, text) == fresh_draft(text)


class Clock:
    """Time that passes where a batch is evaluated, and nowhere else."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.ns = 0
        self._cost = cost

    def evaluate(self, n: int) -> None:
        self.ns += int(1e6 * self._cost(n))

    def perf_counter_ns(self) -> int:
        return self.ns


@pytest.mark.parametrize("dear", [True, False])
def test_paced(monkeypatch: pytest.MonkeyPatch, dear: bool) -> None:
    """Drafts that cost more than they save, or none where they are for free; another text."""

    def run(paced: bool, drafts: bool = True) -> tuple[list[int], int]:
        clock = Clock(lambda n: n if dear else 1)
        monkeypatch.setattr("draftsmith.ngram.llama_cpp.time", clock)
        model = LlamaCppDraftModel(Spy(), paced=paced)
        llama = LoopLlama(predict, model if drafts else None, evaluated=clock.evaluate)
        found = generated(llama, [1, 2, 3], 400) + generated(llama, [4, 5, 6], 400)
        assert model.n_drafted == llama.n_drafted
        assert not drafts or [t for told in spy_of(model).told for t in told] == llama.asked[-1]
        return found, clock.ns

    plain, plain_ns = run(False, drafts=False)
    free, free_ns = run(False)
    paced, paced_ns = run(True)
    assert plain == free == paced
    if dear:
        assert free_ns > 1.2 * plain_ns
        assert paced_ns < 1.05 * plain_ns
    else:
        assert paced_ns < 1.2 * free_ns < 0.9 * plain_ns


def test_goes_on_without_a_reset(model: LlamaCppDraftModel) -> None:
    """A chat's next turn, which begins with all of the last one, learnt from its beginning."""
    text = [1, 2, 3, 4] * 10
    assert ask(model, text)[:3] == [1, 2, 3]
    more = [1, 2, *[7, 8, 9] * 500]
    ask(model, text + more)
    assert model.n_accepted == 2
    assert spy_of(model).n_resets == 0
    assert spy_of(model).told == [text, more]
    ask(model, text + more)
    assert len(spy_of(model).told) == 2
    ask(model, [*text, *more, 9, 9])  # the arrays have grown
    assert spy_of(model).told == [text, more, [9, 9]]


def test_text_that_is_taken_back(model: LlamaCppDraftModel) -> None:
    """Tokens that a caller sent, and that were not the model's, left in the drafter."""

    def loop(llama: LoopLlama) -> list[int]:
        tokens, sent = llama.generate([1, 2, 3]), None
        found = []
        for i in range(200):
            found.append(tokens.send(sent))  # type: ignore[attr-defined]
            sent = [5, 6, 5, 6] if i % 5 == 4 else None
        return found

    llama = LoopLlama(predict, model)
    assert loop(llama) == loop(LoopLlama(predict))
    assert any(len(b) <= len(a) for a, b in itertools.pairwise(llama.asked))
    told = [token for tokens in spy_of(model).told for token in tokens]
    assert told == llama.asked[-1]


def test_images_in_the_prompt(model: LlamaCppDraftModel) -> None:
    """Ids that the library never wrote, where an image stands, refused or drafted."""
    before, behind = [1, 2, 3, 4], [1, 2, 3]
    text = [*before, -559038737, N_VOCAB, 2**31 - 1, -1, *behind]
    assert ask(model, text) == fresh_draft(before + behind) == [4, 1, 2, 3, 4, 1]
    assert ask(model, [*text, 4]) == fresh_draft([*before, *behind, 4])
    assert spy_of(model).told == [before + behind, [4]]


def test_wrong_vocabulary(model: LlamaCppDraftModel) -> None:
    """Sampled tokens passed over without a word, and so a drafter that never says anything; or
    one that is out of step after the error."""
    for text in ([1, 2, N_VOCAB], [-1]):
        with pytest.raises(InputMalformed, match=f"outside the vocabulary of {N_VOCAB}"):
            ask(model, text)
    good = [1, 2, 3, 4, 1, 2]
    ask(model, good)
    for bad in ([*good, N_VOCAB], [*good, 3, 4, 9, 9, 9, 9, 9, -1], [5, N_VOCAB]):
        with pytest.raises(InputMalformed):
            ask(model, bad)
        assert ask(model, [*good, 3]) == fresh_draft([*good, 3])


def test_limits(model: LlamaCppDraftModel) -> None:
    """A draft longer than asked for, an empty text that is read after its end."""
    assert ask(model, []) == []
    assert len(ask(model, AGAIN)) == 6
    model.n_max = 2
    assert ask(model, AGAIN) == [4, 1]
    model.n_max = 0
    assert ask(model, AGAIN) == []
    assert ask(LlamaCppDraftModel(Spy(), n_max=1, paced=False), AGAIN) == [4]
    with pytest.raises(UsageError, match="n_max -1 is below 0"):
        LlamaCppDraftModel(Spy(), n_max=-1)


def test_draft_is_a_copy(model: LlamaCppDraftModel) -> None:
    """A draft that changes when the next one is made: the library keeps none, others may."""
    first = model(np.array(AGAIN, np.intc))
    kept = first.tolist()
    assert ask(model, [9 - token for token in AGAIN]) != kept
    assert first.tolist() == kept
    assert first.dtype == np.intc


def test_reset_and_clear(model: LlamaCppDraftModel) -> None:
    """Counts of a warm-up in the figures; a text that is still known after a reset."""
    ask(model, AGAIN)
    ask(model, [*AGAIN, 4, 1])
    assert (model.n_calls, model.n_drafts, model.n_drafted, model.n_accepted) == (2, 2, 12, 1)
    model.clear()
    assert (model.n_calls, model.n_drafts, model.n_drafted, model.n_accepted) == (0, 0, 0, 0)
    assert model.draft_ns == 0
    model.reset()
    assert len(spy_of(model)) == 0
    assert ask(model, AGAIN[:-1]) == []


def test_refuses_to_be_copied() -> None:
    """A copy whose kernels write into the memory of the first, or into what is no longer its."""
    model = LlamaCppDraftModel(NgramDrafter(N_VOCAB))
    for thing in (model, model.drafter):
        with pytest.raises(TypeError, match="can't be copied"):
            copy.deepcopy(thing)


def call_us(text: np.ndarray, n: int = 300, times: int = 5) -> list[float]:
    """Microseconds of a call of the adapter, of accept and of draft, after ``text``.

    The least of some medians, for others use this machine too.
    """
    more = np.resize(text, text.size + n * times)
    drafter = NgramDrafter(N_VOCAB, draft_max=8, n_tokens=more.size)
    model = LlamaCppDraftModel(drafter, paced=False)
    plain = NgramDrafter(N_VOCAB, draft_max=8, n_tokens=more.size)
    model(text)
    plain.accept(text)
    samples = np.empty((n * times, 3))
    for i, sample in enumerate(samples):
        stop = text.size + i + 1
        clock = [time.perf_counter_ns()]
        model(more[:stop])
        clock.append(time.perf_counter_ns())
        plain.accept(more[stop - 1 : stop])
        clock.append(time.perf_counter_ns())
        plain.draft()
        clock.append(time.perf_counter_ns())
        sample[:] = np.diff(clock)
    medians = np.median(samples.reshape(times, n, 3), axis=1) / 1e3
    return medians.min(axis=0).tolist()  # type: ignore[no-any-return]


def test_calls_are_short() -> None:
    """A call that takes time with the text before it, or a drafter's of over 5 microseconds."""
    text = np.random.default_rng(1).integers(0, N_VOCAB, 400_000).astype(np.intc)
    (call, accept, draft), (long_call, *_) = call_us(text[:5000]), call_us(text)
    assert accept < 5
    assert draft < 5
    assert long_call < 2 * call + 20  # to compare the whole text would take 100 and more


def test_import_is_cheap() -> None:
    """The package, imported for one name, loading NumPy and Numba; a name that is not there."""
    code = (
        "import sys, draftsmith.ngram as ngram\n"
        "assert not {'numpy', 'numba'} & set(sys.modules)\n"
        "assert set(ngram.__all__) <= set(dir(ngram))\n"
        "assert all(callable(getattr(ngram, name)) for name in ngram.__all__)\n"
        "assert not hasattr(ngram, 'nothing')\n"
        "assert 'llama_cpp' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_docs_name_all_of_the_api() -> None:
    """A name that the page forgot, or that only the page has."""
    listed = "- " + API.partition("\n\nDocstrings have")[0].partition("\n\n- ")[2]
    names = [item.partition(": ")[0] for item in listed.split("\n- ")]
    assert {name for one in names for name in re.findall(r"`(\w+)", one)} == set(ngram.__all__)


@pytest.mark.parametrize("code", EXAMPLES, ids=str.__len__)
def test_documented_examples(
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    smollm2: Path,
) -> None:
    """An example that does not run, or prints something else than it says."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/python-api.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", code, re.M)


@pytest.fixture
def library() -> Any:
    """llama-cpp-python itself."""
    return pytest.importorskip("llama_cpp", reason="the extra llama-cpp is not installed")


@pytest.fixture
def llama(library: Any, smollm2: Path) -> Iterator[Any]:
    # One thread and flash attention: logits that do not depend on the size of a batch.
    threads = {"n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    llama = library.Llama(str(smollm2), n_ctx=1024, logits_all=True, verbose=False, **threads)
    yield llama
    llama.close()


@pytest.mark.slow
def test_chat_in_the_library(llama: Any) -> None:
    """Another answer than without drafts; a token that the drafter never heard of; a second
    turn that is learnt from its beginning."""
    translate = json.loads(PROMPTS.read_text().splitlines()[3])["prompt"]  # goes round in circles
    question = {"role": "user", "content": translate}
    options = {"temperature": 0, "max_tokens": 120}

    def talk() -> list[str]:
        first = llama.create_chat_completion([question], **options)["choices"][0]["message"]
        again = [question, first, {"role": "user", "content": "Once more, please."}]
        second = llama.create_chat_completion(again, **options)["choices"][0]["message"]
        return [first["content"], second["content"]]

    plain = talk()
    spy = Spy(llama.n_vocab(), draft_max=8)
    llama.draft_model = model = LlamaCppDraftModel(spy, paced=False)
    spy.n_resets = 0
    llama.reset()
    assert talk() == plain
    assert model.n_accepted > 40
    told = [token for tokens in spy.told for token in tokens]
    assert told == llama.input_ids[: len(told)].tolist()
    assert spy.n_resets == 0


@pytest.mark.slow
def test_benchmark_of_the_library(library: Any, smollm2: Path, tmp_path: Path) -> None:
    """Texts that drafts change, counts that contradict each other, a case left out."""
    prompts = tmp_path / "prompts.jsonl"
    lines = PROMPTS.read_text().splitlines()
    prompts.write_text("\n".join([lines[0], lines[3], lines[9]]))
    command = [sys.executable, ROOT / "scripts/bench_llama_cpp.py", "--prompts", prompts]
    command += ["-m", smollm2, "-n", "48", "-t", "1", "--lookup", "10"]
    command += ["--repeat", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    totals = {total["case"]: total for total in record["totals"]}
    assert {"plain", "prompt lookup, 10", "draftsmith, 8", "draftsmith, 8, fixed"} <= set(totals)
    for total in totals.values():
        assert total["n_identical"] == 3, [row["parts"] for row in record["rows"]]
        assert total["n_accepted"][0] <= total["n_drafted"][0]
        assert (total["n_calls"][0] > 0) == (total["case"] != "plain")
    assert totals["draftsmith, 8, fixed"]["n_accepted"][0] > 20
