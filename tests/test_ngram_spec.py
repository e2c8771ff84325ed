"""What --drafter names: grids, combinations, the two forms of llama.cpp's drafters, and typing
errors; and the command line of llama-server for each.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from draftsmith.engine.errors import UsageError
from draftsmith.ngram.advice.server_line import server_line
from draftsmith.ngram.cache.file import MAGIC
from draftsmith.ngram.drafters.settings import GRID_MOST, KINDS, DrafterSpec, parse_specs


def names(text: str, *, upstream_exact: bool = False) -> list[str]:
    return [str(spec) for spec in parse_specs(text, upstream_exact=upstream_exact)]


def one(text: str, *, upstream_exact: bool = False) -> DrafterSpec:
    (spec,) = parse_specs(text, upstream_exact=upstream_exact)
    return spec


def test_defaults_are_those_of_the_originals() -> None:
    """A default that is not llama.cpp's, vLLM's or transformers': rows of the wrong drafter."""
    known = {name: dict(one(name).names[0].params) for name in KINDS}
    assert known == {
        "ngram-simple": {"size-n": 12, "size-m": 48},
        "ngram-map-k": {"size-n": 12, "size-m": 48, "min-hits": 1},
        "ngram-map-k4v": {"size-n": 12, "size-m": 48, "min-hits": 1},
        "ngram-mod": {"n-match": 24, "n-min": 48, "n-max": 64},
        "ngram-cache": {"draft-max": 8},
        "suffix": {
            "max-tree-depth": 24,
            "max-spec-factor": 1.0,
            "min-token-prob": 0.1,
            "num-speculative-tokens": 24,
        },
        "prompt-lookup": {"ngram-max": 2, "draft-max": 10},
        "vllm-ngram": {
            "prompt-lookup-min": 5,
            "prompt-lookup-max": 5,
            "num-speculative-tokens": 5,
        },
    }


def test_kinds_are_numbered_by_their_places() -> None:
    """Kernels that take one drafter for another."""
    assert [kind.code for kind in KINDS.values()] == list(range(len(KINDS)))
    for kind in KINDS.values():
        assert kind.key(kind.draft_key).is_whole
        assert all(key.least <= key.default <= key.most for key in kind.keys)


def test_a_grid_expands_in_order() -> None:
    """A combination of values that is lost, or comes twice."""
    assert names("ngram-mod:n-match=16|24|32") == [
        "ngram-mod:n-match=16",
        "ngram-mod",
        "ngram-mod:n-match=32",
    ]
    rows = names("ngram-map-k:size-n=6|8,size-m=16|32")
    assert rows == [f"ngram-map-k:size-n={n},size-m={m}" for n in (6, 8) for m in (16, 32)]


def test_a_combination_keeps_the_order_and_each_its_keys() -> None:
    """Keys of one drafter given to the other; a grid in one of the two forgotten."""
    rows = names("suffix:min-token-prob=0.25+ngram-simple:size-n=4|8")
    assert rows == [f"suffix:min-token-prob=0.25+ngram-simple:size-n={n}" for n in (4, 8)]
    assert one(rows[0]).draft_max == 48


def test_text_reads_back() -> None:
    """A row's name in a record that stands for another row."""
    for text in ("ngram-mod:n-match=7,n-max=9+suffix:max-spec-factor=0.5", "vllm-ngram"):
        assert one(str(one(text))) == one(text)


def test_upstream_order_is_llama_servers() -> None:
    """Drafts of a combination that llama-server asks in its own order, whatever was typed."""
    spec = one("ngram-mod+ngram-simple", upstream_exact=True)
    assert str(spec) == "ngram-simple+ngram-mod"
    assert spec.upstream_exact
    assert not spec.repaired().upstream_exact
    assert str(one("ngram-mod+ngram-simple")) == "ngram-mod+ngram-simple"


def test_only_llama_cpps_have_an_upstream_form() -> None:
    """A row that is marked as llama.cpp's own, and is ours."""
    for name, kind in KINDS.items():
        spec = one(name, upstream_exact=True)
        assert spec.upstream_exact == kind.has_exact == name.startswith("ngram-")


def test_one_bound_of_vllms_sets_the_other() -> None:
    """prompt-lookup-max=3 refused, or silently without effect: vLLM takes both to be 3."""
    for end in ("min", "max"):
        params = one(f"vllm-ngram:prompt-lookup-{end}=3").names[0].params
        assert (params["prompt-lookup-min"], params["prompt-lookup-max"]) == (3, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram-mid", "did you mean ngram-mod?"),
        ("NGRAM-MOD", "did you mean ngram-mod?"),
        ("ngram-simple,suffix", "did you mean ngram-simple+suffix?"),
        ("suffix:max-tree-depth=8, ngram-mod", "did you mean suffix:max-tree-depth=8+ngram-mod?"),
        ("suffix:max-tree-depth=8,ngram-mod:n-min=2,n-max=3", "=8+ngram-mod:n-min=2,n-max=3?"),
        ("sufix,ngram-mdo", "did you mean suffix+ngram-mod?"),
        ("vllm-ngram:prompt-lookup-max=4,prompt-lookup-min", "'prompt-lookup-min' is no key"),
        ("", "there is no drafter ''; name one of ngram-simple, ngram-map-k,"),
        ("suffix+", "there is no drafter ''"),
        ("ngram-mod:", "'' is no key of ngram-mod with a value"),
        ("ngram-mod:n-match", "'n-match' is no key of ngram-mod with a value; give"),
        ("ngram-mod:size-n=8", "ngram-mod has n-match, n-min, n-max"),
        ("ngram-map-k:min-hit=2", "did you mean min-hits?"),
        ("ngram-simple:size-n=0", "size-n=0 is not a whole number from 1 to 1024"),
        ("ngram-simple:size-n=1025", "is not a whole number"),
        ("ngram-simple:size-n=8|", "size-n= is not a whole number"),
        ("ngram-simple:size-n=1_0", "is not a whole number"),
        ("ngram-simple:size-n=\u0663", "is not a whole number"),
        ("ngram-simple:size-n=2.5", "is not a whole number"),
        ("ngram-simple:size-n=" + "9" * 5000, "is not a whole number"),
        ("suffix:min-token-prob=nan", "is not a number from 0.0 to 1.0"),
        ("suffix:max-spec-factor=inf", "is not a number"),
        ("ngram-simple:size-n=8,size-n=9", "size-n is given twice; put | between"),
        ("ngram-mod+suffix+ngram-mod", "combines ngram-mod with itself"),
        ("vllm-ngram:prompt-lookup-min=6,prompt-lookup-max=5", "is above prompt-lookup-max=5"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    """A typing error that runs with other values, or a message that does not help."""
    with pytest.raises(UsageError) as caught:
        parse_specs(text)
    assert message in str(caught.value)


def test_a_grid_is_bounded() -> None:
    """Memory and hours for a grid of a million rows, built before anybody notices."""
    hundred = "|".join(map(str, range(1, 101)))
    text = f"ngram-map-k:size-n={hundred},size-m={hundred},min-hits={hundred}"
    with pytest.raises(UsageError, match=f"1000000 settings, more than {GRID_MOST}"):
        parse_specs(text)


def test_what_llama_server_cannot_is_not_called_its_own() -> None:
    """A draft length that llama-server's ngram-cache does not have, in a row marked as its own."""
    with pytest.raises(UsageError, match="always drafts up to 8 tokens"):
        parse_specs("ngram-cache:draft-max=4|8", upstream_exact=True)
    assert len(parse_specs("ngram-cache:draft-max=4|8")) == 2


# --- llama-server's command line ------------------------------------------------------------------


def test_the_line_spells_every_key() -> None:
    """A setting that is left to llama-server's default, which the next build may change."""
    spec = one("ngram-map-k4v:size-n=8+ngram-mod", upstream_exact=True)
    shown = server_line(spec, "/models/my model.gguf")
    assert (shown.is_exact, shown.remarks, shown.elsewhere) == (True, (), None)
    assert shlex.split(shown.line) == [
        *("llama-server", "-m", "/models/my model.gguf"),
        *("--spec-type", "ngram-map-k4v,ngram-mod"),
        *("--spec-ngram-map-k4v-size-n", "8", "--spec-ngram-map-k4v-size-m", "48"),
        *("--spec-ngram-map-k4v-min-hits", "1", "--spec-ngram-mod-n-match", "24"),
        *("--spec-ngram-mod-n-min", "48", "--spec-ngram-mod-n-max", "64"),
    ]


def test_the_line_of_a_repaired_row_says_what_is_not_repaired_there() -> None:
    """A promise that llama-server does not keep."""
    shown = server_line(one("ngram-mod+ngram-simple"), "m.gguf")
    assert not shown.is_exact
    assert len(shown.remarks) == 3
    assert "in an order of its own" in shown.remarks[-1]
    shown = server_line(one("ngram-cache:draft-max=20"), "m.gguf")
    assert "drafts up to 8 tokens" in shown.remarks[-1]
    assert "20" not in shown.line


def test_caches_are_named_to_who_reads_them(tmp_path: Path) -> None:
    """-lcs for a drafter that ignores it; a native cache that llama-server aborts on."""
    cache = tmp_path / "native"
    cache.write_bytes(MAGIC + b"rest")
    spec = one("ngram-cache", upstream_exact=True)
    shown = server_line(spec, "m.gguf", str(cache), "other")
    assert shlex.split(shown.line)[-4:] == ["-lcs", str(cache), "-lcd", "other"]
    assert len(shown.remarks) == 1
    assert "lookup-merge --format llama.cpp" in shown.remarks[0]
    assert "-lcs" not in server_line(one("ngram-mod"), "m.gguf", str(cache)).line


@pytest.mark.parametrize(
    ("text", "nearest", "home"),
    [
        ("suffix", "--spec-type ngram-cache", "suffix_decoding_min_token_prob"),
        ("prompt-lookup", "--spec-ngram-simple-size-m 10", "prompt_lookup_num_tokens=10"),
        ("vllm-ngram", "--spec-ngram-simple-size-n 5", '"prompt_lookup_min": 5'),
    ],
)
def test_who_has_no_such_drafter_says_so(text: str, nearest: str, home: str) -> None:
    """A command line that does something else, without a word."""
    shown = server_line(one(text), "m.gguf")
    assert not shown.is_exact
    assert nearest in shown.line
    assert f"llama-server has no {text}" in shown.remarks[0]
    assert shown.elsewhere is not None
    assert home in shown.elsewhere
