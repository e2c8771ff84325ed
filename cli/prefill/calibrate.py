"""``prefill-run --calibrate``: find which heads of a model retrieve, and write that down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import UsageError
from ..chat_options import ChatOptions
from ..formats import number
from ..generate.session import RunRequest
from ..options import CTX_MOST, numbers
from ..output import Output, Table
from .niah import read_haystack

if TYPE_CHECKING:
    from ...engine.chat.template import ChatTemplate
    from ...engine.stages import Stages
    from ...engine.transformer.model import Model
    from ...prefill.calibration.calibrate import Findings, Question, Seen
    from ...prefill.scorers.attention import AttentionRule
    from ..generate.session import Target

N_DOCUMENTS, CONTEXT, WINDOW, N_SINK = 12, 2048, 256, 4
_MARK = " *"


@dataclass(frozen=True)
class CalibrateRequest:
    """The options of one call.

    Attributes
    ----------
    template : what the options say about the chat template; None: none, raw prompts
    n_documents : to ask about, 2 or more
    context : most tokens of a prompt
    haystack : a file; None: the bundled one
    n_layers : so many first layers are looked at; None: two thirds
    window : tokens that a token of the document sees
    output : file to write; None: where later calls find it
    command : as the record says it
    """

    run: RunRequest
    template: ChatOptions | None
    n_documents: int
    context: int
    haystack: str | None
    n_layers: int | None
    window: int
    output: str | None
    command: str

    @classmethod
    def from_options(
        cls,
        run: RunRequest,
        *,
        template: ChatOptions | None,
        repeat: int | None,
        context: str | None,
        haystack: str | None,
        n_layers: int | None,
        window: int | None,
        output: str | None,
        command: str,
    ) -> CalibrateRequest:
        """Build the request that the options make.

        Raises
        ------
        UsageError : one document, or no length of a prompt
        """
        what = "--calibrate" if command == "prefill-run" else command
        contexts = numbers("--context", [str(CONTEXT) if context is None else context], CTX_MOST)
        if len(contexts) != 1:
            raise UsageError(
                f"--context {context}: {what} takes one length", remedy="give one number"
            )
        if repeat == 1:
            raise UsageError(
                "--repeat 1: heads that one document chose need another to be tried on",
                remedy="give 2 or more",
            )
        return cls(
            run=run,
            template=template,
            n_documents=repeat or N_DOCUMENTS,
            context=contexts[0],
            haystack=haystack,
            n_layers=n_layers,
            window=WINDOW if window is None else window,
            output=output,
            command=command,
        )


def run_calibrate(request: CalibrateRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    import numpy as np

    from ...engine.jit import CompileWatch
    from ...engine.stages import Stages
    from ...engine.transformer.hparams import read_params
    from ...prefill.calibration.calibrate import Trials, candidates, questions
    from ...prefill.calibration.search import record_of
    from ...prefill.prompt.document import prompt_counter
    from ...prefill.scorers.attention import AttentionRule
    from ..generate.session import opened, read_target
    from ..inputs import COMPILE_NOTE, closing_keys, describe_files
    from .prompt import find_template

    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        target = read_target(request.run, stages, out)
        params = read_params(target.metadata, target.tokenizer.n_vocab)
        n_layers = request.n_layers or -(-2 * params.n_layers // 3)
        heads = candidates(min(n_layers, params.n_layers), params.n_head)
        rule = AttentionRule(heads, window=request.window, n_sink=N_SINK)
        path = _path(request, target)
        template = find_template(target, request.template, out)
        asked = questions(
            read_haystack(
                request.haystack, target.tokenizer, request.context, target.sampling.seed, out
            ),
            prompt_counter(target.tokenizer, template),
            n_documents=request.n_documents,
            context=request.context,
            seed=target.sampling.seed,
        )
        named = [request.haystack] if request.haystack else []
        inputs = describe_files([name for name in named if Path(name).is_file()])
        with opened(target.plan(np.zeros(1, np.int32), 1), stages, out) as session:
            seen = _look_at_all(asked, session.model, rule, target, template, stages, out)
        with stages.stage("choose"), out.busy("choosing heads"):
            found = Trials(seen, heads).find()
    written = _write(found, path, rule, target, out)
    record: dict[str, Any] = {"command": request.command, "calibration": written}
    record |= record_of(found, rule)
    record |= {f"{name}_ms": stages.seconds(name) * 1e3 for name in ("look", "choose", "load")}
    record |= {"seed": target.sampling.seed}
    record |= closing_keys(_chosen(request, target), inputs, watch.seconds)
    out.result(record, tables_of(record))


def _path(request: CalibrateRequest, target: Target) -> Path:
    """Where to write, found out before long work.

    Raises
    ------
    OutputNoFolder, OutputNotWritable : it cannot be written
    """
    from ...engine.atomic_file import check_writable
    from ...prefill.calibration.search import own_path

    own = request.output is None
    path = own_path(target.metadata, target.tokenizer) if own else Path(request.output or "")
    check_writable(path)
    return path


def _look_at_all(
    asked: Sequence[Question],
    model: Model,
    rule: AttentionRule,
    target: Target,
    template: ChatTemplate | None,
    stages: Stages,
    out: Output,
) -> list[Seen]:
    """Score all prompts by all heads."""
    from ...prefill.calibration.search import look_at_all

    with stages.stage("look"), out.progress("asking", unit="tokens", after_s=1.0) as bar:
        return look_at_all(asked, model, rule, target.tokenizer, template, bar.update)


def _write(
    found: Findings, path: Path, rule: AttentionRule, target: Target, out: Output
) -> str | None:
    """Write what was found; returns the file, or None: no head adds to words.

    Raises
    ------
    OutputNoFolder, OutputNotWritable, DiskFull : it cannot be written
    """
    from ...engine.atomic_file import write_atomically
    from ...prefill.calibration.search import calibration_of
    from ...prefill.scorers.calibration_file import calibration_text

    if found.chosen is None:
        out.warn(
            f"no head of the first {rule.n_layers + 1} layers finds what words do not: no "
            "calibration is written"
        )
        return None
    calibration = calibration_of(found.chosen.heads, rule, target.metadata, target.tokenizer)
    write_atomically(path, [calibration_text(calibration).encode()])
    out.note(f"wrote {path}")
    return str(path)


def tables_of(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables that show a record."""
    kinds = [f"{kind} {100 * keep:g}%" for kind in record["words"] for keep in record["keeps"]]
    tables = []
    for name, key in (("held out", "held_out"), ("in sample", "in_sample")):
        rows: list[Sequence[str] | None] = [("words alone", "", *_cells(record["words"])), None]
        last = None
        for depth in record["by_layers"]:
            told = ", ".join(depth["heads"]), *_cells(depth[key])
            # A layer that changes nothing is no news, unless it is the one.
            if told != last or depth["chosen"]:
                mark = _MARK if depth["chosen"] else ""
                rows.append((f"{depth['n_layers']} layers{mark}", *told))
            last = told
        columns = ("with words", "heads", *kinds)
        tables.append(Table(f"needles kept whole, {name}", columns, rows, expendable=(1,)))
    alone = [(one["head"], *_cells(one["in_sample"])) for one in record["heads_alone"]]
    tables.append(Table("heads without words, in sample", ("head", *kinds), alone))
    return [*tables, _summary(record)]


def _cells(shares: Mapping[str, Sequence[float]]) -> list[str]:
    return [number(100 * share, 0, "%") for by_keep in shares.values() for share in by_keep]


def _summary(record: Mapping[str, Any]) -> Table:
    prompts = ", ".join(f"{n} {kind}" for kind, n in record["n_prompts"].items())
    return Table(
        "calibration",
        (),
        [
            ("heads" + _MARK, ", ".join(record["heads"]) or "-"),
            ("layers that run to score", number(record["n_layers_scored"])),
            ("window", number(record["window"])),
            ("prompts", prompts),
            ("heads that were looked at", number(record["n_heads"])),
            ("took", number((record["look_ms"] + record["choose_ms"]) / 1e3, 0, " s")),
            ("written", record["calibration"] or "-"),
        ],
    )


def _chosen(request: CalibrateRequest, target: Target) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    return {
        "model": request.run.model,
        "raw": request.template is None,
        **(request.template or ChatOptions()).record,
        "calibrate": True,
        "repeat": request.n_documents,
        "context": request.context,
        "haystack": request.haystack,
        "layers": request.n_layers,
        "window": request.window,
        "output": request.output,
        "seed": target.sampling.seed,
        "threads": target.n_threads,
    }
