"""From the options of a command that generates to a model with a prompt, and one generation.

All that can be wrong with options, prompt and model's header is found before the weights are
read. For every command that generates: they differ in their drafters, and in where prompts come
from.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from ...engine.errors import InputEmpty, UsageError
from .prompt import PromptRequest, plain_text, read_prompt

if TYPE_CHECKING:
    import numpy as np

    from ...engine.decode.drafting import DraftArguments, Drafting
    from ...engine.decode.generation import Generation
    from ...engine.decode.sampling import SamplingParams
    from ...engine.gguf.file import GgufMetadata
    from ...engine.stages import Stages
    from ...engine.tokens.stop_strings import StopStream, StopStrings
    from ...engine.tokens.tokenizer import Tokenizer
    from ...engine.transformer.kv_cache import KvCache
    from ...engine.transformer.model import Model
    from ..output import Output
    from .stream import Decoder, TextPrinter

BAR_AFTER_S = 1.0


@dataclass(frozen=True)
class RunRequest:
    """The options that all commands which generate have in common; see ``options``.

    Attributes
    ----------
    escape : process llama.cpp's escapes in ``stop_texts``
    """

    model: str
    n_ctx: int
    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int
    ignore_eos: bool
    n_batch: int
    n_threads: int | None
    stop_texts: tuple[str, ...] = ()
    escape: bool = False


@dataclass(frozen=True)
class Target:
    """A model and how it is to generate; its weights are not read yet.

    Attributes
    ----------
    n_ctx : most tokens of prompt and text together
    stop : tokens that end the text
    stop_strings : texts that end the text
    """

    metadata: GgufMetadata
    tokenizer: Tokenizer
    n_ctx: int
    sampling: SamplingParams
    stop: frozenset[int]
    n_batch: int
    n_threads: int
    stop_strings: StopStrings

    def decoder(self) -> Decoder:
        """What turns the tokens of a text that begins now into its characters."""
        from ...engine.tokens.detokenise import TextStream

        return self.stop_stream() or TextStream(self.tokenizer)

    def stop_stream(self) -> StopStream | None:
        """What looks for stop strings in a text that begins now; None: there are none."""
        return self.stop_strings.stream(self.tokenizer) if self.stop_strings else None

    def stopped_by(self, texts: Sequence[str]) -> Self:
        """The same, with more stop strings.

        Raises
        ------
        UsageError : they are too many, or too long
        """
        from ...engine.tokens.stop_strings import StopStrings

        more = StopStrings((*self.stop_strings.texts, *texts))
        return replace(self, stop_strings=more)

    def plan(self, prompt: np.ndarray, n_predict: int) -> Plan:
        """Return what is to be generated after a prompt; whether it fits has been checked."""
        return Plan(**vars(self), prompt=prompt, n_predict=n_predict)


@dataclass(frozen=True)
class Plan(Target):
    """What is to be generated with which model.

    Attributes
    ----------
    prompt : int32 [n], 1 or more
    n_predict : most tokens to generate; -1: until the context is full
    """

    prompt: np.ndarray
    n_predict: int

    @property
    def n_tokens(self) -> int:
        """Most tokens that prompt and text can have."""
        if self.n_predict < 0:
            return self.n_ctx
        return self.prompt.size + max(0, self.n_predict - 1)  # the last one is not evaluated


def read_target(request: RunRequest, stages: Stages, out: Output) -> Target:
    """Read the vocabulary, and check that the model and the options fit together.

    Raises
    ------
    UsageError : options out of range
    ModelUnknown, ModelNotGguf, ModelDamaged, ModelUnsupported, ... : the model
    """
    from ...engine.decode.ready import read_model_file
    from ...engine.decode.sampling import SamplingParams
    from ...engine.host import n_physical_cores
    from ...engine.models import resolve_model
    from ...engine.tokens.stop_strings import StopStrings

    stop_strings = StopStrings(
        tuple(plain_text(text, request.escape) for text in request.stop_texts)
    )
    path = resolve_model(request.model)
    seed = secrets.randbelow(2**32) if request.seed < 0 else request.seed
    sampling = SamplingParams(
        request.temperature,
        request.top_k,
        request.top_p,
        request.min_p,
        request.repeat_penalty,
        request.repeat_last_n,
        seed,
    )
    with stages.stage("load"):
        file = read_model_file(path)
        n_trained = file.params.n_ctx_train
    n_ctx = request.n_ctx or n_trained
    if n_ctx > n_trained:
        out.warn(f"-c {n_ctx} is more than the {n_trained} tokens that the model was trained on")
    return Target(
        metadata=file.metadata,
        tokenizer=file.tokenizer,
        n_ctx=n_ctx,
        sampling=sampling,
        stop=frozenset() if request.ignore_eos else file.ends,
        n_batch=request.n_batch,
        n_threads=request.n_threads or n_physical_cores(),
        stop_strings=stop_strings,
    )


def plan(request: RunRequest, prompt: PromptRequest, stages: Stages, out: Output) -> Plan:
    """Read the vocabulary and the prompt, and check that they and the options fit together.

    Raises
    ------
    UsageError : options out of range; a prompt, or -n tokens, that do not fit into the context
    InputEmpty, InputUnreadable, ... : the prompt
    ModelUnknown, ModelNotGguf, ModelDamaged, ModelUnsupported, ... : the model
    """
    target = read_target(request, stages, out)
    ids, stop_texts = _prompt_ids(prompt, target, stages, out)
    target = target.stopped_by(stop_texts)
    warn_of_ends(ids, target, out)
    _check_room(ids.size, request.n_predict, target.n_ctx)
    return target.plan(ids, request.n_predict)


def warn_of_ends(ids: np.ndarray, target: Target, out: Output) -> None:
    """Warn of what the tokenizer adds to a prompt, int32 [n], that may not be meant."""
    from ...engine.tokens.prompt_ends import doubts_of_prompt

    for doubt in doubts_of_prompt(ids, target.tokenizer):
        out.warn(doubt)


def _prompt_ids(
    request: PromptRequest, target: Target, stages: Stages, out: Output
) -> tuple[np.ndarray, Sequence[str]]:
    """Return the ids of the prompt, int32 [n], in the chat template if that is wanted; and the
    stop strings that a conversation's file names."""
    from .chat_input import read_chat

    tokenizer, options = target.tokenizer, request.template
    if request.chat_file is not None:
        with stages.stage("tokenize"):
            template = options.prompt_template(target.metadata, tokenizer.vocabulary, out)
            asked = read_chat(request.chat_file, template, out)
            return asked.template.encode(asked.text, tokenizer), asked.stop
    most_bytes = target.n_ctx * max(map(len, tokenizer.vocabulary.tokens))
    text = read_prompt(request, most_bytes, f"the context of {target.n_ctx} tokens", out)
    with stages.stage("tokenize"):
        if not request.chat:
            return tokenizer.encode(text), ()
        messages = [{"role": "user", "content": text}]
        if request.system is not None:
            system = plain_text(request.system, request.escape)
            messages.insert(0, {"role": "system", "content": system})
        template = options.prompt_template(target.metadata, tokenizer.vocabulary, out)
        return template.encode(template.render(messages), tokenizer), ()


def _check_room(n_prompt: int, n_predict: int, n_ctx: int) -> None:
    if not n_prompt:
        raise InputEmpty("the prompt comes to no token", remedy="give a prompt")
    if n_prompt > n_ctx:
        raise UsageError(
            f"the prompt has {n_prompt} tokens, but the context has room for {n_ctx}",
            remedy="give a shorter prompt or a larger -c",
        )
    most = n_ctx - n_prompt + 1
    if n_predict > most:
        raise UsageError(
            f"-n {n_predict} is too much: after the prompt's {n_prompt} tokens the context of "
            f"{n_ctx} has room for {most}",
            remedy=f"give -n {most} or less, -1 for as many as there is room for, or a larger -c",
        )


class Session:
    """A model that is loaded and has run, the plan, and a KV cache with room for it.

    Parameters
    ----------
    n_extra : tokens that the cache has room for beyond the plan's
    """

    def __init__(self, plan: Plan, model: Model, n_extra: int = 0) -> None:
        self.plan = plan
        self.model = model
        self.cache: KvCache = model.new_cache(plan.n_tokens + n_extra)

    def run(self, drafting: Drafting | None, printer: TextPrinter, out: Output) -> Generation:
        """Generate the text once, showing it as it comes."""
        from ...engine.decode.generate import generate
        from ...engine.decode.sampling import Sampler

        more: DraftArguments = {} if drafting is None else drafting.arguments
        with prefill_bar(out) as on_prefill:
            return generate(
                self.model,
                self.cache,
                self.plan.prompt,
                sampler=Sampler(self.plan.sampling),
                n_predict=self.plan.n_predict,
                stop=self.plan.stop,
                stop_text=self.plan.stop_stream(),
                on_tokens=printer.add,
                on_prefill=on_prefill,
                n_batch=self.plan.n_batch,
                **more,
            )


class PrefillBar:
    """The callback of a prefill; the bar is gone when the prompt is done, before any text."""

    def __init__(self, out: Output, stack: ExitStack) -> None:
        self._stack = stack
        self._bar = stack.enter_context(
            out.progress("evaluating the prompt", unit="tokens", after_s=BAR_AFTER_S)
        )

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(done, total)
        if done == total:
            self._stack.close()


@contextmanager
def prefill_bar(out: Output) -> Iterator[PrefillBar]:
    """Show a bar while a prompt is evaluated, if that takes long."""
    with ExitStack() as stack:
        yield PrefillBar(out, stack)


@contextmanager
def opened(plan: Plan, stages: Stages, out: Output, n_extra: int = 0) -> Iterator[Session]:
    """Load the model, and let go of it after the block.

    Raises
    ------
    ModelDamaged, ModelUnsupported, ... : the weights
    UsageError : the context does not fit into memory
    """
    from ...engine.decode.ready import warm_up
    from ...engine.transformer.model import load_model

    stages.keep_memory("program")
    with (
        stages.stage("load"),
        out.progress("unpacking weights", unit="bytes", after_s=BAR_AFTER_S) as bar,
    ):
        model = load_model(
            plan.metadata.path,
            plan.metadata,
            n_threads=plan.n_threads,
            on_progress=bar.update,
        )
    try:
        with stages.stage("load"), out.busy("compiling kernels"):
            session = Session(plan, model, n_extra)
            warm_up(model)
        yield session
    finally:
        model.close()
