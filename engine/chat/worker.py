"""Render one chat template: a job on standard input, its text on standard output, both JSON.

A script of its own, run by ``template.py`` as a process: it imports nothing of draftsmith. The job
holds ``path`` (where to import from), ``template``, ``values`` (its variables) and the limits
``processor_s``, ``memory_bytes`` and ``n_characters``; the answer either ``text``, or ``error``
and ``line`` (0: not known). A process that takes too long is killed and answers nothing.

With the argument ``many`` it renders many conversations, as ``batch.py`` asks: jobs and
answers are frames, 8 bytes of length before each. The first job holds ``path``, ``template`` and
limits, and is answered as soon as the template is compiled, by ``error`` if it is wrong, and else
by ``variables``, the names that it asks its caller for. Each
further one holds ``values``, its own limits, and ``prefixes``: for each a number of messages, and
whether to add the generation prompt. The answer's ``texts`` are, for each, the number of
characters that it begins with as the one before does, and the rest; fewer than were asked for when
the rests have more than ``n_rest_characters`` together. Times and limits are a job's own.

The environment is that of Hugging Face's transformers: the same options, filters and functions.
Beyond it a list may grow and shrink at its end, and what a filter yields be written as JSON:
llama.cpp's Jinja does both, and there are templates that need it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MESSAGE_CHARACTERS = 300
# Halves of a pair: no text may hold one, and a template may write it.
SURROGATE = re.compile("[\ud800-\udfff]")


class TextTooLong(Exception):
    """A template that writes more than it may."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """The text, or what is wrong with the template."""
    environment = make_environment()  # imports all that is needed, before the clock runs
    limit_resources(job["processor_s"], job["memory_bytes"])

    def text() -> dict[str, Any]:
        template = environment.from_string(job["template"])
        return {"text": rendered(template, job["values"], job["n_characters"])}

    return attempt(text, job["n_characters"])


def attempt(work: Callable[[], dict[str, Any]], n_characters: int) -> dict[str, Any]:
    """What the work returns, or what is wrong with the template."""
    import jinja2

    line = 0
    try:
        return work()
    except MemoryError:
        message = "it needs too much memory"
    except TextTooLong:
        message = f"its text has more than {n_characters} characters"
    except RecursionError:
        message = "it calls itself, or nests, too deeply"
    except jinja2.TemplateSyntaxError as error:
        message, line = str(error.message), error.lineno
    except jinja2.TemplateError as error:
        message, line = str(error), line_of(error)
    except Exception as error:  # a template may call what it likes, and that may fail as it likes
        message, line = f"{type(error).__name__}: {error}", line_of(error)
    return {"error": message[:MESSAGE_CHARACTERS], "line": line}


def make_environment() -> Environment:
    """Jinja as transformers sets it up."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlocks(Extension):
        """{% generation %}: transformers notes where the block stands; its text is as it is."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

        def parse(self, parser: Any) -> Scope:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    class Sandbox(ImmutableSandboxedEnvironment):
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            is_own = attr in ("append", "pop") and isinstance(obj, list)
            return is_own or super().is_safe_attribute(obj, attr, value)

    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a model to read: Jinja's own filter would write < and & as HTML needs them."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=to_list,
    )


def to_list(value: object) -> list[Any]:
    """What a filter of Jinja's yields, such as map."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def strftime_now(form: str) -> str:
    """The local time of now."""
    return datetime.now().strftime(form)


def limit_resources(processor_s: float, memory_bytes: int) -> None:
    """Have the system end this process when it uses more; where it cannot, the parent looks."""
    try:
        import resource
        import signal
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        least = memory_bytes if most < 0 else min(memory_bytes, most)  # below 0: no limit so far
        resource.setrlimit(resource.RLIMIT_DATA, (least, most))
    signal.setitimer(signal.ITIMER_PROF, processor_s)  # SIGPROF ends the process


def lift_limits() -> None:
    """Let this process use what it likes, for its own work between two jobs."""
    try:
        import resource
        import signal
    except ImportError:  # Windows
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def rendered(template: Template, values: dict[str, Any], n_characters: int) -> str:
    """The text, U+FFFD for halves of surrogate pairs; raises TextTooLong if it has more than
    ``n_characters``."""
    pieces = []
    for piece in template.generate(values):
        pieces.append(piece)
        n_characters -= len(piece)
        if n_characters < 0:
            raise TextTooLong
    text = "".join(pieces)
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def line_of(error: BaseException) -> int:
    """The line of the template that an error comes from, 0 if it comes from none."""
    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return line


def serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    """Answer one job after the other, until there are no more."""
    setup = read_frame(jobs)
    if setup is None:
        return
    sys.path[:] = setup["path"]
    environment = make_environment()
    compiled: list[Template] = []

    def compile_it() -> dict[str, Any]:
        from jinja2 import meta

        compiled.append(environment.from_string(setup["template"]))
        names = meta.find_undeclared_variables(environment.parse(setup["template"]))
        return {"variables": sorted(names)}

    write_frame(answers, limited(compile_it, setup))
    gc.freeze()
    # What a template changes in a message must not be so when it renders the next text.
    changes = re.search(r"\.\s*(append|pop)\b", setup["template"])
    copied: Callable[[list[Any]], list[Any]] = deepcopy if changes else list
    while (job := read_frame(jobs)) is not None:
        write_frame(answers, limited(partial(prefix_texts, compiled[0], job, copied), job))


def limited(work: Callable[[], dict[str, Any]], job: dict[str, Any]) -> dict[str, Any]:
    """What the work returns, or what is wrong, under the job's limits; and the time it took."""
    start_s = time.process_time()
    limit_resources(job["processor_s"], job["memory_bytes"])
    reply = attempt(work, job.get("n_characters", 0))
    lift_limits()
    if "error" in reply:
        gc.collect()  # what the failure holds must not count against the next job
    return reply | {"processor_s": time.process_time() - start_s}


def prefix_texts(
    template: Template, job: dict[str, Any], copied: Callable[[list[Any]], list[Any]]
) -> dict[str, Any]:
    """The texts that a job asks for, each without what it begins with as the one before does."""
    values, texts, before = job["values"], [], ""
    messages, n_left = values["messages"], job["n_rest_characters"]
    for n_messages, adds_prompt in job["prefixes"]:
        values["messages"] = copied(messages[:n_messages])
        values["add_generation_prompt"] = adds_prompt
        text = rendered(template, values, job["n_characters"])
        n_shared = shared(before, text)
        n_left -= len(text) - n_shared
        if n_left < 0:
            break
        texts.append((n_shared, text[n_shared:]))
        before = text
    return {"texts": texts}


def shared(one: str, other: str) -> int:
    """Characters that two texts have in common at their begin."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next job; None after the last."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return dict(json.loads(stream.read(int.from_bytes(head, "big"))))


def write_frame(stream: IO[bytes], reply: dict[str, Any]) -> None:
    """Send an answer."""
    data = to_bytes(reply)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def to_bytes(reply: dict[str, Any]) -> bytes:
    """An answer as JSON."""
    return json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")


def main() -> None:
    """Do the job, or the jobs."""
    if sys.argv[1:] == ["many"]:
        serve(sys.stdin.buffer, sys.stdout.buffer)
        return
    job = json.load(sys.stdin.buffer)
    sys.path[:] = job["path"]
    sys.stdout.buffer.write(to_bytes(answer(job)))


if __name__ == "__main__":
    main()
