"""A text ends before a stop string, wherever that lies in tokens, and however tokens come."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from draftsmith.engine.errors import ExitStatus, InputMalformed, UsageError
from draftsmith.engine.tokens.detokenise import TextStream
from draftsmith.engine.tokens.stop_strings import StopStrings, stop_field
from draftsmith.engine.tokens.tokenizer import Tokenizer, load_tokenizer
from toy_gguf import write_toy


@pytest.fixture(scope="module", params=["real", "spm"])
def tokenizer(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """A byte-level vocabulary, and one with a token a byte for what it does not know."""
    if request.param == "real":
        return load_tokenizer(smollm2)
    return load_tokenizer(write_toy(tmp_path_factory.mktemp("toy") / "toy.gguf", "spm"))


def naive(ids: list[int], stops: list[str], tokenizer: Tokenizer) -> tuple[int | None, str]:
    """Tokens until the text first holds a stop string, and the text before the first of them."""
    for n in range(1, len(ids) + 1):
        text = TextStream(tokenizer).feed(ids[:n])
        places = [text.index(stop) for stop in stops if stop in text]
        if places:
            return n, text[: min(places)]
    decoder = TextStream(tokenizer)
    return None, decoder.feed(ids) + decoder.finish()


def test_against_the_text_as_a_whole(tokenizer: Tokenizer) -> None:
    """A string that spans tokens or rounds, ends in a token, or is parted inside a character."""
    rng = random.Random(3)
    alphabet = ["a", "ab", " the", "\n", "。", "夜班", "é", "\U0001f600", "1", "User:", "\ufffd"]
    n_found = 0
    for _ in range(150):
        text = "".join(rng.choices(alphabet, k=40))
        ids = tokenizer.encode(text, add_special=False).tolist()
        if rng.random() < 0.5:  # other tokens than it would be made of, characters in parts
            ids = [int(t) for c in text for t in tokenizer.encode(c, add_special=False)]
        starts = [rng.randrange(len(text)) for _ in range(rng.choice((1, 1, 3)))]
        stops = [text[at : at + rng.randrange(1, 7)] for at in starts]
        if rng.random() < 0.3:
            stops = [stop + "never" for stop in stops]
        wanted_n, wanted = naive(ids, stops, tokenizer)
        n_found += wanted_n is not None
        strings = StopStrings(tuple(stops))
        assert strings.stream(tokenizer).n_until_stop(ids) == wanted_n
        shown, finder, rest, n = strings.stream(tokenizer), strings.stream(tokenizer), list(ids), 0
        so_far = ""
        while rest:
            size = rng.randrange(1, 6)
            n_kept = finder.n_until_stop(rest[:size])
            so_far += shown.feed(rest[:size])
            assert wanted.startswith(so_far)  # nothing is shown that is to be taken back
            n += size if n_kept is None else n_kept
            rest = [] if n_kept is not None else rest[size:]
        assert so_far + shown.finish() == wanted
        assert (finder.found is None) is (wanted_n is None)
        assert n == wanted_n or wanted_n is None
    assert 60 < n_found < 140


def test_nothing_is_held_back_for_ever(tokenizer: Tokenizer) -> None:
    """The end of a text that begins as a stop string does, and is not shown."""
    stream = StopStrings(("abac",)).stream(tokenizer)
    ids = tokenizer.encode("xabab", add_special=False).tolist()
    assert stream.feed(ids).strip() == "xab"
    assert stream.finish() == "ab"
    assert stream.found is None


def test_a_control_token(smollm2: Path) -> None:
    """A control token, which shows as nothing, that no string can name."""
    tokenizer = load_tokenizer(smollm2)
    ids = tokenizer.encode("Hi<|im_end|>there").tolist()
    stream = StopStrings(("<|im_end|>", "the")).stream(tokenizer)
    assert stream.feed(ids) == "Hi"
    assert stream.found == "<|im_end|>"


def test_what_is_refused() -> None:
    """An empty string, which every text holds; a request's field of another type."""
    for texts in (("",), ("a",) * 65, ("a" * 1025,)):
        with pytest.raises(UsageError):
            StopStrings(texts)
    assert stop_field(None) == ()
    assert stop_field("a") == ("a",)
    assert stop_field(["a", "b"]) == ("a", "b")
    for value in (1, [1], {"a": 1}, [""], ""):
        with pytest.raises(InputMalformed):
            stop_field(value)


def test_the_field_of_a_request(cli: Callable[..., Done], smollm2: Path, tmp_path: Path) -> None:
    """A request whose stop strings are ignored, or taken for a variable of the template."""
    path = tmp_path / "chat.json"
    message = {"role": "user", "content": "Say: Hello there, my friend."}
    asked = ("-m", "smollm2", "--chat-file", path, "-n", "24", "--temp", "0", "--json")
    texts = []
    for stop in (None, "there", [",", "!", "?"]):
        path.write_text(json.dumps({"messages": [message], "stop": stop}))
        for command in ("lookup-run", "prefill-run"):
            done = cli(command, *asked)
            assert "not used" not in done.stderr
            texts.append(done.record["text"])
            assert (done.record["stop_reason"] == "stop") is (
                done.record["stop_string"] is not None
            )
    assert texts[0] == texts[1]
    assert texts[4] == texts[5] != texts[0]
    assert not set(",!?") & set(texts[4])
    path.write_text(json.dumps({"messages": [message], "stop": 3}))
    done = cli("lookup-run", *asked)
    assert done.status == ExitStatus.INPUT_MALFORMED
    assert '"stop"' in done.error
