"""``draftsmith lookup-stats --drafter``: replay texts with any n-gram drafters, a row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..drafter_request import DrafterRequest, check_caches
from ..memory_report import ReplayMemory, sweep_line
from ..options import GRID_MOST, too_many
from ..output import Output
from .drafter_report import drafter_figure, drafter_table, position_table, records_of
from .examples import example_lines, examples_of
from .inputs import ReadRequest, ReplayInputs
from .rows import Replaying

if TYPE_CHECKING:
    from ...engine.gguf.file import GgufMetadata
    from ...engine.stages import Stages
    from ...engine.tokens.tokenizer import Tokenizer
    from ...ngram.advice.step_curve import StepCurve
    from ...ngram.drafters.settings import DrafterSpec
    from .advice import Advice


def specs_of(drafters: Sequence[str], *, upstream_exact: bool) -> list[DrafterSpec]:
    """Return the rows, each once; llama.cpp's own forms stand before their repaired ones.

    Raises
    ------
    UsageError : what does not parse; more rows than GRID_MOST
    """
    from ...ngram.drafters.settings import parse_specs

    rows: dict[tuple[str, bool], DrafterSpec] = {}
    for text in drafters:
        for spec in parse_specs(text, upstream_exact=upstream_exact):
            for form in (spec, spec.repaired()):
                rows.setdefault((str(form), form.upstream_exact), form)
        if len(rows) > GRID_MOST:
            raise too_many("--drafter", len(rows), GRID_MOST, "rows and more")
    return list(rows.values())


def stats(request: DrafterRequest, out: Output) -> None:
    """Do what the command says and print the result."""
    from ...engine.host import n_usable_threads
    from ...engine.jit import CompileWatch
    from ...engine.models import resolve_model
    from ...engine.stages import Stages
    from ...engine.tokens.tokenizer import open_tokenizer
    from ...ngram.advice.curve_files import read_curve
    from ..inputs import COMPILE_NOTE, closing_keys, describe_files
    from ..plot import check_plot
    from .advice import Paths, advise
    from .inputs import read_texts

    specs = specs_of(request.drafters, upstream_exact=request.upstream_exact)
    check_caches(specs, request.static, request.dynamic)
    curve = None if request.curve is None else read_curve(request.curve)
    if request.plot is not None:
        check_plot(request.plot)
    model = resolve_model(request.model)
    n_threads = request.n_threads or n_usable_threads()
    with CompileWatch(on_first=lambda: out.note(COMPILE_NOTE)) as watch:
        stages = Stages(watch)
        with stages.stage("load"):
            metadata, tokenizer = open_tokenizer(model)
        stages.keep_memory("program")
        replaying = _replaying(request, metadata, tokenizer, curve, stages)
        named = [path for path in (request.static, request.dynamic) if path is not None]
        caches = describe_files(named)
        wanted = ReadRequest(
            files=request.files,
            n_ctx=request.n_ctx,
            chat=request.chat,
            template=request.template,
            field=request.field,
            escape=request.escape,
            is_text=request.is_text,
            strict=request.strict,
            n_threads=n_threads,
        )
        read = read_texts(wanted, metadata, tokenizer, stages, out)
        stages.keep_memory("read")
        rows = replaying.rows(read.texts, specs, out)
    inputs = read.inputs + caches
    tail = closing_keys(_chosen(request, n_threads), inputs, watch.seconds)
    advice = None
    if curve is not None:
        advice = advise(rows, curve, Paths(str(model), request.static, request.dynamic), out)
    examples = examples_of(rows, read.texts, tokenizer) if request.show_examples else None
    records = records_of(rows, read, advice, replaying.n_side_by_side, stages, tail)
    _show(records, read, advice, examples, ReplayMemory.of(stages), request, out)


def _replaying(
    request: DrafterRequest,
    metadata: GgufMetadata,
    tokenizer: Tokenizer,
    curve: StepCurve | None,
    stages: Stages,
) -> Replaying:
    """Open the caches, and say how rows are replayed."""
    from ...engine.tokens.stop_tokens import eog_ids
    from ..inputs import open_cache_for

    with stages.stage("load"):
        static, dynamic = (
            open_cache_for(tokenizer, path, verify=request.verify)
            for path in (request.static, request.dynamic)
        )
    return Replaying(
        n_vocab=tokenizer.n_vocab,
        ends=sorted(eog_ids(metadata, tokenizer.vocabulary)),
        carry=request.carry.value,
        repeat=request.repeat,
        n_side_by_side=request.n_threads or 1,
        static=static,
        dynamic=dynamic,
        curve=curve,
    )


def _chosen(request: DrafterRequest, n_threads: int) -> dict[str, Any]:
    """Return the options of the record, as they were understood."""
    return {
        "model": request.model,
        "drafter": request.drafters,
        "upstream_exact": request.upstream_exact,
        "carry": request.carry.value,
        "static": request.static,
        "dynamic": request.dynamic,
        "n_ctx": request.n_ctx,
        "repeat": request.repeat,
        "cost": request.curve,
        "chat": request.chat,
        **request.template.record,
        "field": request.field,
        "escape": request.escape,
        "text": request.is_text,
        "strict": request.strict,
        "threads": n_threads,
    }


def _show(
    records: Sequence[dict[str, Any]],
    read: ReplayInputs,
    advice: Advice | None,
    examples: Sequence[dict[str, Any]] | None,
    memory: ReplayMemory,
    request: DrafterRequest,
    out: Output,
) -> None:
    """Print the rows, what is advised, and the figure."""
    from ..plot import draw

    tables = [drafter_table(records)]
    if len(records) == 1:
        tables.append(position_table(records[0]))
    more: dict[str, Any] = {}
    lines = [sweep_line(records[0], memory, "the drafters, without caches")]
    if read.bad:
        more["bad"] = read.bad
    if read.dropped:
        more["dropped"] = read.dropped
    if advice is not None:
        more["advice"] = advice.record
        lines += advice.lines
    if examples is not None:
        more["examples"] = examples
        lines += example_lines(examples)
    out.results("lookup-stats", records, [*tables, *read.tables], more=more, lines=lines)
    if request.plot is not None:
        draw(drafter_figure(records), request.plot)
        out.note(f"wrote {request.plot}")
