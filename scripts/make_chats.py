#!/usr/bin/env python3
"""Write conversations in which a small model answers: a stand-in for logs of one's own.

    scripts/make_chats.py [-m MODEL] [--temp T] [-n N] [-t N] [--most N] >chats.jsonl

Needs the installed package. Prints OpenAI's ``messages``, a conversation a line, as
docs/conversations.md describes them: passages of the King James Bible and of SQLite's header from
tests/golden, asked about twice each, and the prompts of scripts/prompts.jsonl. A text that ran to
``-n`` tokens ends there, in the middle of a word if need be. The same options give the same file
on processors of one kind. scripts/chats.jsonl was written by this with its defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from arguments import thread_count
from bench_prompts import PROMPTS, read_prompts
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.decode.generate import generate
from draftsmith.engine.decode.sampling import Sampler, SamplingParams
from draftsmith.engine.gguf.file import read_metadata
from draftsmith.engine.models import resolve_model
from draftsmith.engine.tokens.detokenise import TextStream
from draftsmith.engine.tokens.stop_tokens import eog_ids
from draftsmith.engine.tokens.tokenizer import load_tokenizer
from draftsmith.engine.transformer.model import load_model

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "tests" / "golden"
N_PASSAGES = 9
PASSAGE_CHARACTERS = 1200
N_CTX = 4096

# What is asked about a passage, and then about the answer.
ASKED = {
    "kjv": (
        ("Summarize this passage in plain modern English.", "List every person that it names."),
        ("Copy the first three verses, and explain each below it.", "Now shorter, please."),
        ("Rewrite this in modern English, verse by verse.", "Which verses did you change most?"),
    ),
    "sqlite": (
        ("What is this part of SQLite's header for?", "Show a short C program that uses it."),
        ("List what this declares, a sentence each.", "Make a Markdown table of your list."),
        ("Shorten the comments, and keep the code as it is.", "Now write it as a man page."),
    ),
}

Messages = list[dict[str, str]]


def questions() -> Iterator[tuple[str, list[str]]]:
    """Yield each conversation's kind, and what its user says."""
    for kind, pairs in ASKED.items():
        text = (GOLDEN / f"{kind}_test.txt").read_text(encoding="utf-8")
        for i in range(N_PASSAGES):
            start = text.find("\n", i * (len(text) - PASSAGE_CHARACTERS) // N_PASSAGES) + 1
            stop = text.rfind("\n", start, start + PASSAGE_CHARACTERS)
            first, then = pairs[i % len(pairs)]
            yield kind, [f"{first}\n\n{text[start:stop]}", then]
    for one in read_prompts(PROMPTS):
        yield "prompts", [one["prompt"]]


class Assistant:
    """A model that answers messages."""

    def __init__(self, options: argparse.Namespace) -> None:
        path = resolve_model(options.model)
        metadata = read_metadata(path)
        self._tokenizer = load_tokenizer(path, metadata)
        self._template = ChatTemplate.of(metadata, self._tokenizer.vocabulary)
        self._stop = eog_ids(metadata, self._tokenizer.vocabulary)
        self._model = load_model(path, metadata, n_threads=options.threads)
        self._cache = self._model.new_cache(N_CTX)
        self._sampling = SamplingParams(options.temp)
        self._n_predict = options.predict

    def answer(self, messages: Messages, seed: int) -> str:
        """Return what the model says next, without the token that ends it."""
        self._cache.truncate(0)
        ids: list[int] = []
        generate(
            self._model,
            self._cache,
            self._template.encode(self._template.render(messages), self._tokenizer),
            sampler=Sampler(replace(self._sampling, seed=seed)),
            n_predict=self._n_predict,
            stop=self._stop,
            on_tokens=lambda new, _: ids.extend(new),
        )
        decoder = TextStream(self._tokenizer)
        return decoder.feed(ids) + decoder.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("-n", "--predict", type=int, default=256, help="most tokens an answer")
    parser.add_argument(
        "-t", "--threads", type=thread_count, help="the text does not depend on them"
    )
    parser.add_argument("--most", type=int, help="conversations; default: all")
    options = parser.parse_args()
    assistant = Assistant(options)
    for seed, (kind, said) in enumerate(islice(questions(), options.most)):
        messages: Messages = []
        for text in said:
            messages.append({"role": "user", "content": text})
            answer = assistant.answer(messages, seed)
            messages.append({"role": "assistant", "content": answer})
        print(json.dumps({"kind": kind, "messages": messages}, ensure_ascii=False), flush=True)
        print(f"{seed + 1} conversations", end="\r", file=sys.stderr)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
