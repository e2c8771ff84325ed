"""Render one chat template: a job on standard input, its text on standard output, both JSON.

A script of its own, run by ``chat.py`` as a process: it imports nothing of draftsmith. The job
holds ``path`` (where to import from), ``template``, ``values`` (its variables) and the limits
``processor_s``, ``memory_bytes`` and ``n_characters``; the answer either ``text``, or ``error``
and ``line`` (0: not known). A process that takes too long is killed and answers nothing.

The environment is that of Hugging Face's transformers: the same options, filters and functions.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template

MESSAGE_CHARACTERS = 300


class TextTooLong(Exception):
    """A template that writes more than it may."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """The text, or what is wrong with the template."""
    import jinja2

    environment = make_environment()  # imports all that is needed, before the clock runs
    limit_resources(job["processor_s"], job["memory_bytes"])
    line = 0
    try:
        template = environment.from_string(job["template"])
        return {"text": rendered(template, job["values"], job["n_characters"])}
    except MemoryError:
        message = "it needs too much memory"
    except TextTooLong:
        message = f"its text has more than {job['n_characters']} characters"
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

    environment = ImmutableSandboxedEnvironment(
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
    )


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
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    signal.setitimer(signal.ITIMER_PROF, processor_s)  # SIGPROF ends the process


def rendered(template: Template, values: dict[str, Any], n_characters: int) -> str:
    """The text; raises TextTooLong if it has more than ``n_characters``."""
    pieces = []
    for piece in template.generate(values):
        pieces.append(piece)
        n_characters -= len(piece)
        if n_characters < 0:
            raise TextTooLong
    return "".join(pieces)


def line_of(error: BaseException) -> int:
    """The line of the template that an error comes from, 0 if it comes from none."""
    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return line


def main() -> None:
    """Do the job."""
    job = json.load(sys.stdin.buffer)
    sys.path[:] = job["path"]
    reply = json.dumps(answer(job), ensure_ascii=False)
    sys.stdout.buffer.write(reply.encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    main()
