"""The calls that scripts/record_outputs records.

Calls run in order in one folder: later ones read the caches of earlier ones. Whatever could depend
on the clock is fixed: drafts are of fixed lengths, the likeliest token or a seed is taken, threads
are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recorded_inputs import change, cut, of_newer_version, of_other_vocabulary

MODEL = ("-m", "smollm2")
GREEDY = (*MODEL, "--temp", "0", "-s", "1", "-t", "2")


@dataclass(frozen=True)
class Call:
    """One call of draftsmith.

    Attributes
    ----------
    name : of the record
    argv : without the program
    files : written by the call, relative to the folder of inputs
    measured : patterns of keys that measure in this call alone
    needs : a command or option without which the call is left out
    same_as : the call whose output this one has to have
    stdin : text of standard input
    file_limit : bytes that a file may have, for a disk that is full
    prepare : makes inputs of the call out of what earlier ones wrote
    keep_stderr : whether all of standard error is recorded
    """

    name: str
    argv: tuple[str, ...]
    files: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    needs: str | None = None
    same_as: str | None = None
    stdin: str | None = None
    file_limit: int | None = None
    prepare: Callable[[Path], None] | None = None
    keep_stderr: bool = False


def commands_of_help(text: str) -> list[str]:
    """The commands that the top help text lists."""
    return re.findall(r"^  ([a-z]+(?:-[a-z]+)+) ", text.partition("Commands:")[2], re.MULTILINE)


def all_calls() -> Iterator[Call]:
    """All calls, in the order in which they have to run."""
    for part in (_create, _merge, _stats, _drafters, _lookup_run, _mtp_run, _prefill_run, _needles):
        yield from part()
    yield Call("fetch-model", ("fetch-model", "--json"))
    yield from _mistakes()


def _create() -> Iterator[Call]:
    def create(name: str, *argv: str, out: str | None = None) -> Call:
        out = out or f"{name}.lcs"
        rest = ("-lcs", out, "-t", "2", "--max-memory", "600M", "--json")
        return Call(f"create {name}", ("lookup-create", *MODEL, *argv, *rest), (out,))

    yield create("text", "-f", "sqlite_train.txt")
    yield create("kjv", "-f", "kjv_train.txt")
    yield create("sizes", "-f", "short.txt", "--ngram-min", "1", "--ngram-max", "4")
    yield create("long", "-f", "short.txt", "--ngram-min", "3", "--ngram-max", "4")
    yield create("llama.cpp", "-f", "short.txt", "--format", "llama.cpp")
    yield create("folder", "-f", "folder")
    yield create("ids", "-f", "ids.npy")
    yield create("field", "-f", "cases/ref_corpus.jsonl", "--field", "text")
    yield create("utf16", "-f", "cases/corpus_utf16.txt")
    yield create("escape", "-f", "prompt.txt", "-e")
    yield create("chat", "-f", "cases/logs/ref_sys.jsonl", "--chat")
    yield create("answers", "-f", "cases/logs/ref_think.jsonl", "--answers")
    yield create("requests", "-f", "cases/requests_folder", "--chat")
    yield create("logs", "-f", "cases/logs/sse.jsonl", "cases/logs/librechat.json", "--chat")
    csv = ("lookup-create", *MODEL, "-f", "short.txt", "-lcs", "csv.lcs", "-t", "1", "--csv")
    yield Call("create csv", (*csv, "--max-memory", "600M"), ("csv.lcs",))


def _merge() -> Iterator[Call]:
    def merge(name: str, *argv: str) -> Call:
        return Call(f"merge {name}", ("lookup-merge", *argv, "--json"), (argv[-1],))

    yield merge("two", "text.lcs", "kjv.lcs", "both.lcs")
    yield merge("formats", "llama.cpp.lcs", "chat.lcs", "mixed.lcs")
    yield merge("convert", "--format", "llama.cpp", "sizes.lcs", "sizes_plain.lcs")


def _stats() -> Iterator[Call]:
    def stats(name: str, *argv: str, form: str = "--json") -> Call:
        return Call(f"stats {name}", ("lookup-stats", *MODEL, *argv, form))

    text = ("-f", "sqlite_test.txt", "-t", "2")
    sweep = (*text, "-lcs", "none", "-lcs", "text.lcs", "-c", "512,1024", "--draft-max", "3,8")
    yield stats("one", *text, "-lcs", "text.lcs", "-c", "512")
    yield stats("dynamic", *text, "-lcd", "sizes.lcs", "--verify")
    yield stats("llama.cpp", *text, "-lcs", "llama.cpp.lcs", "-c", "1024", "--repeat", "2")
    yield stats("sweep", *sweep)
    yield stats("sweep csv", *sweep, form="--csv")
    yield stats("field", "-f", "cases/ref_corpus.jsonl", "--field", "text", "-c", "256")


# A drafter of each kind, with keys that differ from the defaults, and two combinations.
DRAFTERS = (
    "ngram-simple:size-n=3,size-m=8",
    "ngram-map-k:size-n=3,size-m=8",
    "ngram-map-k4v:size-n=3,size-m=8,min-hits=2",
    "ngram-mod:n-match=4,n-min=2,n-max=8",
    "ngram-cache:draft-max=4",
    "suffix:max-tree-depth=16",
    "prompt-lookup:draft-max=6",
    "vllm-ngram:prompt-lookup-min=2,prompt-lookup-max=4",
    "ngram-simple:size-n=4+ngram-cache",
)


def _drafters() -> Iterator[Call]:
    def stats(name: str, *argv: str, form: str = "--json", ms: bool = False) -> Call:
        measured = ("predicted_*", "advice") if ms else ()
        return Call(f"drafters {name}", ("lookup-stats", *MODEL, *argv, form), measured=measured)

    every = tuple(word for drafter in DRAFTERS for word in ("--drafter", drafter))
    grid = ("--drafter", "ngram-simple:size-n=2|4,size-m=4|8", "--drafter", "suffix")
    curve = ("--cost", "1:1.0,2:1.1,4:1.3,8:1.9")
    log, chats = "cases/logs/ref_sys.jsonl", "cases/logs/api_log_growing.jsonl"
    yield stats("text", "-f", "short.txt", "-c", "1024", *every)
    # llama.cpp's own ngram-cache has no longest draft to set.
    own = (*every[:8], "--drafter", "ngram-cache", "--drafter", DRAFTERS[-1])
    yield stats("upstream", "-f", "short.txt", "-c", "1024", *own, "--upstream-exact")
    yield stats("caches", "-f", "short.txt", *every[8:10], "-lcs", "kjv.lcs", "-lcd", "sizes.lcs")
    yield stats("log", "-f", log, *every)
    yield stats("log csv", "-f", log, *every, form="--csv")
    yield stats("grid", "-f", chats, *grid, "--carry", "none")
    yield stats("server", "-f", "cases/requests_folder", *grid, "--server-like", "-c", "2048")
    yield stats("examples", "-f", chats, *grid, "--show-examples")
    yield stats("advice", "-f", "cases/logs", "--chat", *grid, *curve, "--upstream-exact")
    yield stats("curve in ms", "-f", log, *grid, "--cost", "1:25ms,2:27ms,4:33ms", ms=True)


def _lookup_run() -> Iterator[Call]:
    fixed = (*GREEDY, "--draft-fixed", "-n", "24")

    def run(name: str, *argv: str, files: tuple[str, ...] = (), form: str = "--json") -> Call:
        rest = (form,) if form else ("--color", "off", "-q")
        return Call(f"run {name}", ("lookup-run", *fixed, *argv, *rest), files)

    prompt = ("-f", "prompt.txt")
    yield run("plain", *prompt)
    yield run("text alone", *prompt, form="")
    yield run("caches", *prompt, "-lcs", "text.lcs", "-lcd", "sizes.lcs", files=("sizes.lcs",))
    yield run("chat", "-p", "Say A B C three times.", "--chat", "-sys", "Be brief.")
    yield run("chat file", "--chat-file", "cases/prompts/s_plain.json", "--stop", ".")
    yield run("sampled", *prompt, "--temp", "0.8", "-s", "7", "--repeat-penalty", "1.1")
    yield run("no draft", *prompt, "--draft-max", "0")
    yield run("compare", *prompt, "--compare", "--repeat", "1")
    for drafter in DRAFTERS:
        yield run(drafter, *prompt, "--drafter", drafter)
    yield run("upstream", *prompt, "--drafter", DRAFTERS[0], "--upstream-exact")


def _mtp_run() -> Iterator[Call]:
    fixed = (*GREEDY, "--draft-fixed", "-n", "20")

    def run(name: str, *argv: str, measured: tuple[str, ...] = ()) -> Call:
        return Call(f"mtp {name}", ("mtp-run", *fixed, *argv, "--json"), measured=measured)

    prompt = ("-f", "prompt.txt")
    for drafter in ("mtp", "ngram", "mtp+ngram", "none"):
        yield run(drafter, *prompt, "--drafter", drafter)
    yield run("caches", *prompt, "-lcs", "text.lcs", "-lcd", "sizes.lcs", "--ngram-min", "1")
    yield run("p-min", *prompt, "--draft-p-min", "0.4", "--draft-max", "5", "--drafter", "mtp")
    yield run("sampled", *prompt, "--temp", "0.9", "-s", "5")
    yield run("chat", "-p", "Count to five.", "--chat")
    yield run("compare", *prompt, "--compare", "--repeat", "1")
    # Shown overall is the draft length that was fastest; the rows have all of them.
    fastest = ("overall", "kinds")
    yield run("suite", "--suite", "suite.jsonl", "--draft-max", "2,3", measured=fastest)
    # Its prediction is made of measured times.
    yield run("bounds", "--suite", "suite.jsonl", "--bounds", measured=("predicted_ratio",))


def _prefill_run() -> Iterator[Call]:
    fixed = (*GREEDY, "-n", "6")
    asked = ("-f", "document.txt", "-p", "What did the angel of the LORD say?", "--keep", "0.3")

    def run(name: str, *argv: str, form: str = "--json") -> Call:
        rest = (form,) if form else ("--color", "off")
        return Call(f"prefill {name}", ("prefill-run", *fixed, *argv, *rest))

    scorers = "lexical attention blocksparse fused embedded trained pflash lucebox gemfilter"
    for scorer in (*scorers.split(), "specprefill"):
        yield run(scorer, *asked, "--scorer", scorer)
    yield run("raw", *asked, "--raw", "--keep", "0.1")
    yield run("chat file", "--chat-file", "chat.json", "--keep", "0.2")
    yield run("parts", "--chat-file", "cases/prompts/q_parts.json", "--min-tokens", "0")
    yield run("one pass", *asked, "--one-pass", "--scorer", "attention")
    yield run("original", *asked, "--positions", "original", "--window", "256")
    yield run("heads", *asked, "--scorer", "attention", "--heads", "4.3,3.1:nope:mean")
    yield run("drafted", *asked, "--decode-drafter", "mtp+ngram", "--draft-fixed")
    yield run("compare", *asked, "--compare", "--repeat", "1")
    yield run("short", "-f", "few.txt", "-p", "What?")
    yield run("drafter", *asked, "--drafter", "smollm2")
    alias = (*fixed, *asked, "--scorer-model", "smollm2", "--json")
    yield Call(
        "prefill scorer-model",
        ("prefill-run", *alias),
        needs="--scorer-model",
        same_as="prefill drafter",
    )
    kept = ("prefill-run", *fixed, *asked, "--show-kept", "--json", "-q")
    yield Call("prefill kept", kept, keep_stderr=True)


def _needles() -> Iterator[Call]:
    grid = ("--context", "640", "--depths", "50", "--kinds", "keyed,semantic", "--keep", "0.2,0.5")
    niah = (*MODEL, "-s", "1", "-t", "2", "--min-tokens", "0", *grid, "--json")
    heads = (*MODEL, "-s", "1", "-t", "2", "--context", "512", "--repeat", "2", "--layers", "4")
    yield Call("niah", ("prefill-run", "--niah", *niah))
    yield Call("niah no-full", ("prefill-run", "--niah", *niah, "--no-full", "--scorer", "lexical"))
    yield Call("prefill-niah", ("prefill-niah", *niah), needs="prefill-niah", same_as="niah")
    for command, needs, same_as in (
        (("prefill-run", "--calibrate"), None, None),
        (("prefill-calibrate",), "prefill-calibrate", "calibrate"),
    ):
        # The same name for both: the second writes the file anew.
        yield Call(
            "calibrate" if needs is None else needs,
            (*command, *heads, "--output", "heads.json", "--json"),
            ("heads.json",),
            needs=needs,
            same_as=same_as,
        )


def _mistakes() -> Iterator[Call]:
    def create(name: str, *argv: str, out: str = "mistake.lcs") -> Call:
        model = () if "-m" in argv else MODEL
        return Call(f"mistake {name}", ("lookup-create", *model, *argv, "-lcs", out), (out,))

    def merge(name: str, *argv: str, prepare: Callable[[Path], None] | None = None) -> Call:
        return Call(f"mistake {name}", ("lookup-merge", *argv), ("mistake.lcs",), prepare=prepare)

    def run(name: str, command: str, *argv: str) -> Call:
        return Call(f"mistake {name}", (command, *argv))

    text = ("-f", "short.txt")
    yield run("2 option", "lookup-run", *MODEL, "--no-such-option")
    yield run("2 range", "lookup-create", *MODEL, *text, "-lcs", "x.lcs", "--ngram-max", "9")
    yield run("2 together", "prefill-run", *MODEL, *text, "--niah", "--calibrate")
    yield run("2 prompt", "lookup-run", *MODEL)
    yield run("10 head", "mtp-run", *MODEL, "-p", "a", "--mtp-head", "document.txt")
    yield run("2 drafter", "lookup-stats", *MODEL, *text, "--drafter", "ngram-simple:size=3")
    yield create("3", "-f", "missing.txt")
    yield create("4 folder", "-f", "no_text")
    yield create("4 pattern", "-f", "nothing*.txt")
    yield create("5", "-f", "empty.txt")
    yield run("6", "lookup-stats", *MODEL, "-f", "few.txt")
    yield create("7 line", "-f", "bad.jsonl", "--field", "text")
    yield create("7 ids", "-f", "bad.npy")
    yield create("10", "-m", "no.gguf", *text)
    yield create("11", "-m", "damaged.gguf", *text)
    yield create("12", "-m", "no_tokenizer.gguf", *text)
    yield create("13", "-m", "unsupported.gguf", *text)
    yield create("14", "-m", "no-such-model", *text)
    template = ("--chat", "--chat-template-file", "bad.jinja")
    yield run("15", "lookup-run", *MODEL, "-p", "a", *template)
    yield merge("20", "not_a.lcs", "mistake.lcs")
    yield merge("21", "cut.lcs", "mistake.lcs", prepare=cut)
    yield merge("22", "changed.lcs", "mistake.lcs", prepare=change)
    yield merge("23", "bad_count.lcs", "mistake.lcs")
    yield run("24", "lookup-stats", *MODEL, *text, "-lcs", "bad_token.lcs")
    yield merge("25", "other.lcs", "text.lcs", "mistake.lcs", prepare=of_other_vocabulary)
    yield merge("26", "newer.lcs", "mistake.lcs", prepare=of_newer_version)
    yield run("27", "lookup-stats", *MODEL, *text, "-lcs", "long.lcs")
    yield create("30", *text, out="no_folder/mistake.lcs")
    yield create("31", *text, out="no_text")
    full = ("lookup-create", *MODEL, *text, "-lcs", "mistake.lcs")
    yield Call("mistake 32", full, ("mistake.lcs",), file_limit=4096)
    yield create("40", *text, "--dask", "127.0.0.1:9")
