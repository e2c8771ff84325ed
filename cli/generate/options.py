"""Option types of the commands that generate, under llama.cpp's names and with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ..chat_options import ChatFile, TemplateOptions
from ..options import (
    CTX_MOST,
    DRAFT_MAX_VARIABLES,
    DRAFT_MOST,
    REAL_MOST,
    WHOLE_MOST,
    Escape,
    finite,
    model_option,
    repeat_option,
    threads_option,
)
from .prompt import PromptRequest
from .session import RunRequest
from .stream import Color

Model = Annotated[str, model_option()]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", metavar="PROMPT", help="The prompt.")]
PromptFile = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="A file that holds the prompt, - for stdin. One final newline is dropped.",
    ),
]
Chat = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Put the prompt into the model's chat template, as what the user says. "
        "Off: the model goes on with the prompt as it stands.",
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "-sys",
        "--system",
        "--system-prompt",
        metavar="PROMPT",
        help="What the system says before the user; implies --chat.",
    ),
]
CtxSize = Annotated[
    int,
    typer.Option(
        "-c",
        "--ctx-size",
        min=0,
        max=CTX_MOST,
        metavar="N",
        envvar="LLAMA_ARG_CTX_SIZE",
        help="Tokens of prompt and text together; 0, the default: as many as the model was "
        "trained on.",
    ),
]
NPredict = Annotated[
    int,
    typer.Option(
        "-n",
        "--predict",
        "--n-predict",
        min=-1,
        max=WHOLE_MOST,
        metavar="N",
        envvar="LLAMA_ARG_N_PREDICT",
        help="Tokens to generate; -1, the default: until the model ends or the context is full.",
    ),
]
StaticCache = Annotated[
    str | None,
    typer.Option("-lcs", "--lookup-cache-static", metavar="CACHE", help="Static n-gram cache."),
]
DynamicCacheRead = Annotated[
    str | None,
    typer.Option(
        "-lcd",
        "--lookup-cache-dynamic",
        metavar="CACHE",
        help="Dynamic n-gram cache; not written.",
    ),
]
DraftMax = Annotated[
    int,
    typer.Option(
        "--draft-max",
        "--spec-draft-n-max",
        min=0,
        max=DRAFT_MOST,
        metavar="K",
        envvar=DRAFT_MAX_VARIABLES,
        help="Longest draft; 0: no drafting.",
    ),
]
DraftFixed = Annotated[
    bool,
    typer.Option(
        "--draft-fixed",
        help="Draft up to --draft-max tokens each round, whether that pays or not. Without it "
        "drafts get shorter, or stop, where measured times and acceptance say so.",
    ),
]
TEMPERATURE = 0.8  # llama.cpp's default
TURNS = 3  # of --compare


def temperature_option(more: str = "") -> Any:
    """The option --temp; ``more`` is said after what it is."""
    return typer.Option(
        "--temp",
        "--temperature",
        min=0.0,
        max=REAL_MOST,
        callback=finite,
        metavar="T",
        envvar="LLAMA_ARG_TEMPERATURE",
        help=f"Temperature; 0: the likeliest token{more}.",
    )


Temperature = Annotated[float, temperature_option()]
TopK = Annotated[
    int,
    typer.Option(
        "--top-k",
        min=0,
        max=WHOLE_MOST,
        metavar="K",
        envvar="LLAMA_ARG_TOP_K",
        help="Keep the K likeliest tokens; 0: all.",
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        callback=finite,
        metavar="P",
        envvar="LLAMA_ARG_TOP_P",
        help="Keep the likeliest, of P in sum; 1: all.",
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p",
        min=0.0,
        max=1.0,
        callback=finite,
        metavar="P",
        envvar="LLAMA_ARG_MIN_P",
        help="Keep tokens of at least P times the likeliest one's probability; 0: all.",
    ),
]
RepeatPenalty = Annotated[
    float,
    typer.Option(
        "--repeat-penalty",
        min=0.0,
        max=REAL_MOST,
        callback=finite,
        metavar="X",
        envvar="LLAMA_ARG_REPEAT_PENALTY",
        help="Penalty of repeated tokens; 1: none.",
    ),
]
RepeatLastN = Annotated[
    int,
    typer.Option(
        "--repeat-last-n",
        min=-1,
        max=WHOLE_MOST,
        metavar="N",
        help="Tokens that the penalty looks back; 0: no penalty, -1: the context.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "-s", "--seed", min=-1, max=2**32 - 1, metavar="SEED", help="Seed; -1: a new one each time."
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on after a token that ends the text."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        "-r",
        "--reverse-prompt",
        metavar="TEXT",
        help="End the text before TEXT, which may begin and end inside of tokens; may be given "
        "several times.",
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "-b",
        "--batch-size",
        min=1,
        max=WHOLE_MOST,
        metavar="N",
        envvar="LLAMA_ARG_BATCH",
        help="Prompt tokens that are evaluated at once.",
    ),
]
Threads = Annotated[int | None, threads_option("Threads; default: physical cores.")]
ColorOption = Annotated[
    Color,
    typer.Option(
        "--color", help="Colour accepted draft tokens; auto: in a terminal, without NO_COLOR."
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Generate with and without drafting, in turns, and report speeds, their ratio and "
        "whether the texts are the same.",
    ),
]
Repeat = Annotated[
    int | None,
    repeat_option(f"Turns of --compare; {TURNS} by default."),
]


@dataclass(frozen=True)
class PromptOptions:
    """The prompt of a text."""

    prompt: Prompt = None
    file: PromptFile = None
    chat_file: ChatFile = None
    chat: Chat = False
    system: System = None
    escape: Escape = False

    def request(self, template: TemplateOptions, context: typer.Context) -> PromptRequest:
        """The prompt that they name.

        Raises
        ------
        UsageError, InputEmpty : see ``PromptRequest.from_options``
        """
        return PromptRequest.from_options(
            self.prompt,
            self.file,
            self.chat_file,
            chat=self.chat,
            system=self.system,
            escape=self.escape,
            template=template.chosen,
            context=context,
        )

    @property
    def is_given(self) -> bool:
        """Whether any of them is."""
        return self != PromptOptions()


@dataclass(frozen=True)
class RunOptions:
    """How every command generates, apart from the temperature."""

    n_predict: NPredict = -1
    n_ctx: CtxSize = 0
    top_k: TopK = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05
    repeat_penalty: RepeatPenalty = 1.0
    repeat_last_n: RepeatLastN = 64
    seed: Seed = -1
    ignore_eos: IgnoreEos = False
    stop: Stop = None
    n_batch: BatchSize = 512
    threads: Threads = None

    def with_seed(self) -> RunOptions:
        """The same, with a seed of 0 where a new one each time was meant: for what measures."""
        return replace(self, seed=max(0, self.seed))

    def request(self, model: str, temperature: float, *, escape: bool = False) -> RunRequest:
        """What they ask for, of a model."""
        return RunRequest(
            model=model,
            n_ctx=self.n_ctx,
            n_predict=self.n_predict,
            temperature=temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            n_batch=self.n_batch,
            n_threads=self.threads,
            stop_texts=tuple(self.stop or ()),
            escape=escape,
        )


@dataclass(frozen=True)
class CacheOptions:
    """The n-gram caches that drafts come from; none of them is written."""

    static: StaticCache = None
    dynamic: DynamicCacheRead = None
