"""Sentences to hide and questions about them, for training a scorer (train_scorer.py).

Written for this: other facts, names and templates than those of ``prefill-run --niah`` and
``--calibrate``, by which quality is measured. Some sentences are frames that take any nouns; what
a question calls a noun is another name for it, a wider term or its definition, from the files of
WordNet (Princeton University; Debian's package wordnet-base). So are names of people and places.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.prefill.calibration import texts as calibrate_texts
from draftsmith.prefill.needles import texts as niah_texts

TEXTS: dict[str, list[Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
SEMANTIC, PARAPHRASE, KEYED = "semantic", "paraphrase", "keyed"
TRAIN, DEV = "train", "dev"
HELD = 0.2  # of facts, frames, names and nouns, for the half that is not trained on

# Never trained on: names that --niah and --calibrate ask about.
MEASURED = {
    *(name for pair in niah_texts.CAPITALS for name in pair),
    *(key for key, _ in calibrate_texts.PAIRS),
}

# WordNet's lexicographer files of nouns (lexnames), by the slot that they fill in a frame.
_PERSON, _PLACE = 18, 15
_SLOTS = {_PERSON: "p", 5: "a", 13: "f", 20: "f", 6: "t"}
_LEAST_NOUNS = 10  # of a slot: two for a frame, in either half
_SAME_SLOT = {"q": "p", "u": "t", "m": "l"}
_HOUSES, _HOLDERS = ("structure",), ("container", "furniture")
_TOO_WIDE, _LITTLE_WORDS = set(TEXTS["too_wide"]), set(TEXTS["little_words"])
_UNFIT = {"taxonomic_group", "unpleasant_person"}


@dataclass(frozen=True)
class Told:
    """A sentence, and questions about it: (kind, question)."""

    sentence: str
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Synset:
    """A meaning of WordNet's."""

    file: int
    words: tuple[str, ...]
    wider: tuple[str, ...]
    instance_of: tuple[str, ...]
    gloss: str


def read_wordnet(folder: Path) -> tuple[dict[str, Synset], dict[str, tuple[str, bool]]]:
    """Meanings by number; and by noun the number of the commonest one, and whether it is attested.

    Formats: wndb(5WN).
    """
    synsets, nouns = {}, {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        n_words = int(fields[3], 16)
        at = 4 + 2 * n_words
        pointers = fields[at + 1 : at + 1 + 4 * int(fields[at])]
        links = list(zip(pointers[::4], pointers[1::4], strict=True))
        synsets[fields[0]] = Synset(
            int(fields[1]),
            tuple(fields[4:at:2]),
            tuple(number for link, number in links if link == "@"),
            tuple(number for link, number in links if link == "@i"),
            gloss.strip(),
        )
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            n_tagged = int(fields[5 + int(fields[3])])
            nouns[fields[0]] = (fields[-int(fields[2])], n_tagged > 0)
    return synsets, nouns


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z]+", text.lower()) if word not in _LITTLE_WORDS}


class Nouns:
    """Nouns that a small model knows, by slot and half, and what else they may be called.

    Parameters
    ----------
    n_tokens : of a word
    """

    def __init__(self, folder: Path, n_tokens: Callable[[str], int]) -> None:
        self._synsets, nouns = read_wordnet(folder)
        self._n_tokens = n_tokens
        self._others: dict[str, list[tuple[int, str]]] = {}
        by_slot: dict[str, list[str]] = defaultdict(list)
        for noun, (number, is_attested) in nouns.items():
            slot = self._slot(noun, number, is_attested)
            if slot:
                others = self._names(noun, number)
                if others:
                    self._others[noun] = others
                    by_slot[slot].append(noun)
        self.pools = {slot: halves(sorted(some), slot) for slot, some in by_slot.items()}
        if any(len(by_slot[slot]) < _LEAST_NOUNS for slot in "patflc"):
            raise ValueError(f"{folder} has too few nouns")

    def _slot(self, noun: str, number: str, is_attested: bool) -> str:
        synset = self._synsets[number]
        if not noun.isalpha() or len(noun) < 3 or noun not in synset.words:
            return ""
        if synset.instance_of or synset.file not in _SLOTS:
            return ""
        n_tokens = self._n_tokens(noun)
        if n_tokens > 2 or not (is_attested or n_tokens == 1):
            return ""
        wider = {word for above in self._above(number) for word in self._synsets[above].words}
        if wider & _UNFIT or any("genus" in word for word in wider):
            return ""
        if synset.file == 6 and wider.intersection(_HOUSES):
            return "l"
        if synset.file == 6 and wider.intersection(_HOLDERS):
            return "c"
        return _SLOTS[synset.file]

    def _above(self, number: str) -> list[str]:
        """Wider meanings, the nearest first."""
        found: list[str] = []
        todo = [number]
        while todo:
            for above in self._synsets[todo.pop(0)].wider:
                if above not in found:
                    found.append(above)
                    todo.append(above)
        return found

    def _names(self, noun: str, number: str) -> list[tuple[int, str]]:
        """What else a noun may be called, and how often to call it that."""
        synset = self._synsets[number]
        names = [(3, word) for word in synset.words]
        for i, above in enumerate(self._above(number)[:4]):
            words = self._synsets[above].words[:2]
            names += [(2 if i < 2 else 1, word) for word in words if word not in _TOO_WIDE]
        gloss = re.split(r"[;(]|, ", synset.gloss)[0].strip()
        gloss = re.sub(r"^(someone|somebody) who", "person who", gloss)
        gloss = re.sub(r"^(a|an|the|any of various|any of several|one of) ", "", gloss)
        if 2 <= len(gloss.split()) <= 9:
            names.append((3, gloss))
        told = [(weight, name.replace("_", " ")) for weight, name in names if name.islower()]
        return [pair for pair in told if noun not in pair[1] and not _stems(pair[1]) & _stems(noun)]

    def draw(self, slot: str, half: str, rng: random.Random) -> str:
        return rng.choice(self.pools[_SAME_SLOT.get(slot, slot)][half])

    def other(self, noun: str, rng: random.Random) -> str:
        """Another name for a noun."""
        weights, names = zip(*self._others[noun], strict=True)
        return rng.choices(names, weights)[0]

    def names(self) -> list[tuple[str, str]]:
        """People and places, and who or what they are."""
        found = []
        for synset in self._synsets.values():
            if not synset.instance_of or synset.file not in (_PERSON, _PLACE):
                continue
            gloss = re.sub(r"^(a|an|the) ", "", re.split(r"[;(]", synset.gloss)[0].strip())
            fits = (word for word in synset.words if word.isalpha() and word[0].isupper())
            name = next((word for word in fits if word not in gloss), "")
            if 3 <= len(gloss.split()) <= 14 and name and self._n_tokens(name) <= 2:
                found.append((name, f"the {gloss}"))
        return found


def halves(items: Sequence[Any], seed: str) -> dict[str, list[Any]]:
    """Those to train on and those that are held out."""
    order = list(items)
    random.Random(seed).shuffle(order)
    n_held = max(1, int(len(order) * HELD))
    return {DEV: order[:n_held], TRAIN: order[n_held:]}


class Source:
    """Draws sentences with questions, of one half.

    Parameters
    ----------
    nouns : None: no frames are filled
    """

    def __init__(self, half: str, nouns: Nouns | None) -> None:
        self.half, self._nouns = half, nouns
        self._facts = halves(TEXTS["facts"] + TEXTS["more_facts"], "facts")[half]
        self._frames = halves(TEXTS["frames"], "frames")[half]
        self._templates = halves(TEXTS["templates"], "templates")[half]
        own = [(key, other) for key, other in TEXTS["pairs"] if key not in MEASURED]
        taken = MEASURED | {key for key, _ in own}
        more = [] if nouns is None else [pair for pair in nouns.names() if pair[0] not in taken]
        self._pairs = [halves(own, "pairs")[half]]
        if more:
            self._pairs.append(halves(more, "names")[half])

    def draw(self, rng: random.Random) -> list[Told]:
        """What to hide in a document, each sentence once."""
        found = [self._fact(rng) for _ in range(rng.randint(3, 7))]
        if self._nouns is not None:
            found += [self._filled(self._nouns, rng) for _ in range(rng.randint(5, 14))]
        found += self._about_names(rng.randint(3, 6), rng)
        if rng.random() < 0.4:
            found += self._about_names(rng.randint(3, 5), rng)
        once = list({told.sentence: told for told in found}.values())
        rng.shuffle(once)
        return once

    def _fact(self, rng: random.Random) -> Told:
        sentence, question = rng.choice(self._facts)
        return Told(sentence, ((SEMANTIC, _asked(question, rng)),))

    def _filled(self, nouns: Nouns, rng: random.Random) -> Told:
        """A frame with nouns in it."""
        sentence, *questions = rng.choice(self._frames)
        slots = sorted(set(re.findall(r"<(\w)>", sentence)))
        words: dict[str, str] = {}
        while len(set(words.values())) < len(slots):
            words = {slot: nouns.draw(slot, self.half, rng) for slot in slots}
        for slot, word in words.items():
            sentence = sentence.replace(f"<{slot}>", word)
            others = (nouns.other(word, rng) for _ in questions)
            questions = [
                question.replace(f"<{slot}'>", other)
                for question, other in zip(questions, others, strict=True)
            ]
        sentence = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)
        some = rng.sample(questions, min(2, len(questions)))
        return Told(sentence, tuple((SEMANTIC, _asked(question, rng)) for question in some))

    def _about_names(self, n: int, rng: random.Random) -> Iterator[Told]:
        """Sentences that differ in a name and a number: each is a distractor for the others."""
        sentence, same, reworded = rng.choice(self._templates)
        pairs: list[tuple[str, str]] = []
        for i, pool in enumerate(self._pairs):
            pairs += rng.sample(pool, min(len(pool), (n + 1 - i) // len(self._pairs)))
        for key, other in dict(pairs).items():
            asked = [(PARAPHRASE, reworded.format(key=other))]
            if rng.random() < 0.4:
                asked.append((KEYED, same.format(key=key)))
            yield Told(
                sentence.format(key=key, number=rng.randint(10_000, 99_999)),
                tuple((kind, _asked(question, rng)) for kind, question in asked),
            )


def _asked(question: str, rng: random.Random) -> str:
    return rng.choice(TEXTS["asking"]).format(question=question)
