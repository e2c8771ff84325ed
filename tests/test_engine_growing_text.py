"""A text that changes at its end: the ids are those of the whole text, whatever was before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from draftsmith.engine.errors import WordTooLong
from draftsmith.engine.tokens import growing_text
from draftsmith.engine.tokens.growing_text import GrowingText
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from toy_gguf import KINDS, SAMPLE, write_toy

SPECIAL = "<|im_start|> <|im_end|> <|ab b|><|c <|user|> <|bos|> <| <unk>"
OTHERS = "\n,\n\n,\t\t\t,~,12345,caf\u00e9,\U0001f600,   ,\u2581\u2581"
PARTS = [
    part for text, by in ((SAMPLE, " "), (SPECIAL, " "), (OTHERS, ",")) for part in text.split(by)
]


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_whole_text(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that depend on where blocks end, or on the text that was there before."""
    monkeypatch.setattr(growing_text, "_END_BYTES", 40)
    monkeypatch.setattr(growing_text, "BLOCK_BYTES", 90)
    tokenizer = load_tokenizer(write_toy(tmp_path / "toy.gguf", kind))
    rng = random.Random(kind)
    n_blocks = 0
    for _ in range(12):
        growing = GrowingText(tokenizer)
        for _ in range(25):
            n_kept = rng.randrange(len(growing.text) + 1) if rng.random() < 0.5 else 10**9
            n_kept = min(n_kept, len(growing.text))
            rest = " ".join(rng.choice(PARTS) for _ in range(rng.randrange(12)))
            growing.change(n_kept, rest)
            whole = tokenizer.encode_part(growing.text.encode(), begins_text=True)
            assert growing.ids.tolist() == whole.tolist()
        n_blocks += len(growing._ends)
    assert n_blocks > 12


def test_a_special_token_over_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut that was right for what followed, and parts a special token that is there now."""
    monkeypatch.setattr(growing_text, "_END_BYTES", 4)
    monkeypatch.setattr(growing_text, "BLOCK_BYTES", 60)
    tokenizer = load_tokenizer(write_toy(tmp_path / "toy.gguf", "smollm"))
    special, text = "b|><|c", SAMPLE[:80]
    n_cuts = 0
    for at in range(20, 60):
        for known in range(1, len(special)):
            growing = GrowingText(tokenizer)
            growing.change(0, f"{text[:at]}{special[:known]}{text[at:]}")
            n_cuts += sum(at < end < at + known for end, _ in growing._ends)
            growing.change(at + known, f"{special[known:]} and")
            whole = tokenizer.encode_part(growing.text.encode(), begins_text=True)
            assert growing.ids.tolist() == whole.tolist()
    assert n_cuts


def test_bos_is_not_doubled(tmp_path: Path) -> None:
    """BOS twice, or a text without one, where a template writes it out."""
    tokenizer = load_tokenizer(write_toy(tmp_path / "toy.gguf", "qwen2"))
    assert tokenizer.add_bos
    growing = GrowingText(tokenizer, "<|bos|>")
    for text in ("<|bos|>Hello", "Hello", "<|bos|><|bos|>Hello", ""):
        growing.change(0, text)
        wanted = tokenizer.encode(text.removeprefix("<|bos|>"))
        assert growing.ids.tolist() == wanted.tolist()


def test_an_endless_word(tmp_path: Path) -> None:
    """All memory for a text that cannot be cut."""
    tokenizer = load_tokenizer(write_toy(tmp_path / "toy.gguf", "smollm"))
    growing = GrowingText(tokenizer)
    growing.change(0, "a" * 10**5)
    assert growing.ids.tolist() == tokenizer.encode("a" * 10**5).tolist()
    with pytest.raises(WordTooLong):
        growing.change(5, "b" * (5 << 20))


@pytest.mark.parametrize("text", ["", "a <|im b", "<|user|> \t\t\t"])
def test_control_tokens_are_seen(text: str, tmp_path: Path) -> None:
    """A control token in a text that is taken for words, or the other way round."""
    tokenizer = load_tokenizer(write_toy(tmp_path / "toy.gguf", "smollm"))
    assert not tokenizer.holds_control(text)
    for control in ("<|im_start|>", "<|bos|>", "<unk>", "<|im_end|>"):
        assert tokenizer.holds_control(f"{text}{control}{text}")
