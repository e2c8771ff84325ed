"""Needles in haystacks for ``prefill-run --niah``: many prompts, kept in part and read in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...engine.errors import InputEmpty, UsageError
from ..options import CTX_MOST, GRID_MOST, numbers, too_many

if TYPE_CHECKING:
    from ...engine.tokens.tokenizer import Tokenizer
    from ...prefill.needles.figures import JudgedAnswer
    from ...prefill.needles.niah import Haystack, Probe
    from ...prefill.pipeline import Settings
    from ..chat_options import ChatOptions
    from ..generate.session import Target
    from ..output import Output
    from .asking import AnswerRequest, AskedOnce
    from .models import Models
    from .prompt import Ask

KINDS = "keyed,reworded,paraphrase,distractors,semantic"
# A haystack of more than these is read in part: some millions of tokens.
HAYSTACK_BYTES = 1 << 24
CONTEXTS, DEPTHS = "2048", "0,25,50,75,100"


@dataclass(frozen=True)
class NiahRequest:
    """The options that say which prompts.

    Attributes
    ----------
    contexts : tokens of prompt and answer together
    depths : where the first needle is, percent
    kinds : see ``prefill.niah.KINDS``
    haystack : a file; None: the bundled one
    repeat : prompts of a kind, context and depth
    full : read each in full, too
    plot : figure to draw; None: none
    """

    contexts: list[int]
    depths: list[int]
    kinds: list[str]
    haystack: str | None
    repeat: int
    full: bool
    plot: str | None

    @classmethod
    def from_options(
        cls,
        *,
        contexts: str,
        depths: str,
        kinds: str,
        haystack: str | None,
        repeat: int,
        full: bool,
        plot: str | None,
        what: str,
    ) -> NiahRequest:
        """Build the request that the options make; ``what`` asks, for an error.

        Raises
        ------
        UsageError : something that is no list of numbers, or of kinds; too many prompts
        """
        from ...prefill.needles.niah import KINDS as KNOWN

        words = [word.strip() for word in kinds.split(",")]
        for word in words:
            if word not in KNOWN:
                raise UsageError(
                    f"--kinds {kinds}: no kind of question is called {word!r}",
                    remedy=f"give some of {', '.join(KNOWN)}",
                )
        found = cls(
            list(dict.fromkeys(numbers("--context", [contexts], CTX_MOST))),
            list(dict.fromkeys(numbers("--depths", [depths], 100))),
            list(dict.fromkeys(words)),
            haystack,
            repeat,
            full,
            plot,
        )
        n_cells = len(found.contexts) * len(found.depths) * len(found.kinds)
        if n_cells * repeat > GRID_MOST:
            raise too_many(what, n_cells * repeat, GRID_MOST, "prompts")
        return found


@dataclass(frozen=True)
class NeedleTask:
    """A prompt with what asks and answers it."""

    probe: Probe
    ask: Ask
    answer: AnswerRequest

    @property
    def n_prompt(self) -> int:
        """Most tokens that its prompt has, the beginning of the answer left out."""
        return self.probe.context - self.probe.n_predict - self.answer.n_begin

    @property
    def n_tokens(self) -> int:
        """Most tokens that prompt and answer have."""
        return self.n_prompt + self.answer.n_begin + self.answer.n_predict


def make_tasks(
    request: NiahRequest,
    target: Target,
    n_predict: int,
    draft_max: int,
    options: ChatOptions | None,
    out: Output,
) -> list[NeedleTask]:
    """Make the prompts, of one kind after the other.

    Parameters
    ----------
    n_predict : most tokens of an answer; -1: as the kind needs
    options : of the chat template; None: raw prompts

    Raises
    ------
    InputUnreadable, InputEmpty, ... : the haystack
    InputTooShort : there are no sentences in it
    UsageError : a context that is too short
    """
    from ...prefill.needles.niah import Probes
    from ...prefill.prompt.document import prompt_counter
    from .asking import AnswerRequest
    from .prompt import Ask, find_template

    tokenizer = target.tokenizer
    template = find_template(target, options, out)
    seed = target.sampling.seed
    haystack = read_haystack(request.haystack, tokenizer, max(request.contexts), seed, out)
    probes = Probes(haystack, prompt_counter(tokenizer, template), seed)
    tasks = []
    for kind in request.kinds:
        for context in request.contexts:
            # Where nothing is hidden, there is no depth.
            depths = request.depths if kind != "common-words" else request.depths[:1]
            for depth in depths:
                for turn in range(request.repeat):
                    probe = probes.make(kind, context, depth / 100, turn)
                    begin = probe.answer_begin
                    ask = Ask(
                        tokenizer, template, probe.document, probe.question, answer_begin=begin
                    )
                    n = probe.n_predict if n_predict < 0 else n_predict
                    answer = AnswerRequest(target, n, draft_max, ask.begin().size)
                    tasks.append(NeedleTask(probe, ask, answer))
    return tasks


def read_haystack(
    name: str | None, tokenizer: Tokenizer, n_tokens: int, seed: int, out: Output
) -> Haystack:
    """Read a haystack, and warn where it has fewer than ``n_tokens``; None: the bundled one.

    Of a longer text than HAYSTACK_BYTES a part is drawn by ``seed``.

    Raises
    ------
    InputUnreadable, InputEmpty, ... : the file
    InputTooShort : there are no sentences in it
    """
    from ...prefill.needles.niah import Haystack, bundled_text

    text = bundled_text() if name is None else _read_part(name, seed, out)
    haystack = Haystack(text, tokenizer)
    if haystack.n_tokens < n_tokens:
        out.warn(
            f"the haystack has {haystack.n_tokens} tokens: for longer prompts it is repeated, "
            "which makes needles easier to find"
        )
    return haystack


def _read_part(name: str, seed: int, out: Output) -> str:
    """Read a text, or a part of it."""
    from ...ngram.corpus.documents import open_corpus
    from ...prefill.needles.part import draw_part
    from ..formats import size
    from ..inputs import show_read, warn_of_repairs

    corpus = open_corpus([name])

    def blocks() -> Iterator[bytes]:
        for number, document in enumerate(corpus.documents()):
            if document.blocks is None:
                raise UsageError(
                    f"--haystack {name} holds token ids", remedy="name a file that holds text"
                )
            if number:
                yield b"\n"
            for block in document.blocks:
                yield block
                show_read(bar, corpus)

    with out.progress("reading the haystack", unit="bytes", after_s=1.0) as bar:
        part = draw_part(blocks(), HAYSTACK_BYTES, seed)
    warn_of_repairs(corpus, out)
    if not part.data.strip():
        raise InputEmpty(f"--haystack {name} holds no text", remedy="name a file that holds text")
    if not part.is_whole:
        out.note(
            f"the haystack holds {size(part.n_text)}: {size(len(part.data))} from byte "
            f"{part.start} on are used, drawn by the seed {seed}"
        )
    return part.data.decode()


def measure(
    tasks: Sequence[NeedleTask],
    models: Models,
    settings: Sequence[Settings],
    full: bool,
    out: Output,
) -> tuple[list[JudgedAnswer], bool]:
    """Ask all prompts, by each of ``settings``.

    Returns what was found, the settings changing fastest, and whether Ctrl-C ended it early.
    """
    found: list[JudgedAnswer] = []
    try:
        with out.progress("asking", unit="tokens", after_s=1.0) as bar:
            done = 0
            for i, task in enumerate(tasks):
                found += _ask(task, models, settings, full, i, out)
                done += found[-1].n_prompt
                bar.update(done, done // (i + 1) * len(tasks))
    except KeyboardInterrupt:
        return found, True
    return found, False


def _ask(
    task: NeedleTask,
    models: Models,
    settings: Sequence[Settings],
    full: bool,
    turn: int,
    out: Output,
) -> list[JudgedAnswer]:
    """Ask one prompt; in odd turns in full first, so that neither always finds the machine warm."""
    from ...engine.tokens.detokenise import TextStream
    from ...prefill.scorers.cached import CachedScores
    from ..generate.stream import TextPrinter
    from ..output import Output as Silent
    from .asking import ask_in_full, ask_once

    silent = Silent(mode=out.mode, quiet=True)
    # one pass goes on from states that can be taken once only
    remembered = None if models.plan.one_pass else CachedScores(models.scoring)

    def printer() -> TextPrinter:
        return TextPrinter(TextStream(task.ask.tokenizer), shown=False)

    def in_full() -> AskedOnce | None:
        if not full or task.probe.context > task.answer.target.n_ctx:
            return None
        return _whole(ask_in_full(models, task.ask, task.answer, printer(), silent))

    def in_part(one: Settings) -> tuple[float, float, AskedOnce]:
        asked = _whole(
            ask_once(models, task.ask, one, task.answer, printer(), silent, open_scorer=remembered)
        )
        return one.keep, 0.0 if remembered is None else remembered.spared_s, asked

    other = in_full() if turn % 2 else None
    asked = [in_part(one) for one in settings]
    if turn % 2 == 0:
        other = in_full()
    return [_found(task, keep, spared_s, one, other) for keep, spared_s, one in asked]


def _found(
    task: NeedleTask, keep: float, spared_s: float, asked: AskedOnce, other: AskedOnce | None
) -> JudgedAnswer:
    from ...prefill.needles.figures import JudgedAnswer

    return JudgedAnswer.of(
        task.probe,
        asked.choice,
        keep,
        text=asked.text,
        text_full=None if other is None else other.text,
        ttft_s=None if asked.ttft_s is None else asked.ttft_s + spared_s,
        ttft_full_s=None if other is None else other.ttft_s,
    )


def _whole(asked: AskedOnce) -> AskedOnce:
    from ...engine.decode.generation import whole

    whole(asked.run)
    return asked
