"""Many conversations through one chat template, in one process that outlives them.

What ``template.py`` says of the process holds for each conversation by itself: its limits of time
and memory are set anew for it, and one that breaks them ends the process, is answered with what was
wrong, and the others go on in a new process. Each conversation brings some time along, for what an
honest template needs; a template that uses up all of it, and some seconds more, is given up.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any

from ..host import process_usage
from . import template as chat
from .template import ChatTemplate

# What templates take on a slow machine, three times over: for each text and for its messages and
# characters. An average one takes a tenth of it.
_TEXT_S, _MESSAGE_S, _CHARACTER_S = 1e-3, 3e-4, 1e-8
_SPARE_S = 20.0
# A character takes up to 4 bytes, in the messages, in the pieces of a text, and in two texts.
_MEMORY_A_BYTE = 16
# Jobs on their way: enough that neither process waits for the other.
_WINDOW_JOBS, _WINDOW_BYTES = 512, 1 << 22
_SEND_BYTES = 1 << 16


@dataclass(frozen=True)
class BatchedChat:
    """What is to be rendered.

    Attributes
    ----------
    messages : plain JSON values, as for ``ChatTemplate.render``.
    prefixes : for each text the number of messages, from the first on, and whether to add the
        generation prompt.
    values : further variables of the template.
    """

    messages: Sequence[Mapping[str, Any]]
    prefixes: Sequence[tuple[int, bool]]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The texts of a conversation, or what is wrong.

    Attributes
    ----------
    texts : for each prefix, the number of characters that its text begins with as the one before
        does, and the rest; fewer than prefixes if they would be too much together.
    problem : why there is no text, or "".
    line : of the template that it comes from, 0 if unknown.
    """

    texts: tuple[tuple[int, str], ...] = ()
    problem: str = ""
    line: int = 0


@dataclass(frozen=True)
class _Job:
    """A conversation as it is sent, and what it may use."""

    frame: bytes
    processor_s: float
    memory_bytes: int


class BatchRenderer:
    """Renders conversations; a context, for the process has to end.

    Parameters
    ----------
    template : compiled at once.
    most_rest_characters : of all texts of a conversation together, each without what it begins
        with as the one before does.

    Attributes
    ----------
    variables : what the template asks for: the names that it does not set itself.

    Raises
    ------
    ChatTemplateUnusable : the template is wrong
    """

    def __init__(self, template: ChatTemplate, *, most_rest_characters: int = 1 << 27) -> None:
        self.variables: frozenset[str] = frozenset()
        self._template = template
        self._most_rest = most_rest_characters
        self._left_s = _SPARE_S
        self._waiting: deque[_Job] = deque()
        self._worker = self._start()

    def __enter__(self) -> BatchRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.close()

    def render_all(self, conversations: Iterable[BatchedChat]) -> Iterator[Rendered]:
        """Yield what each conversation comes to, in order; some are taken ahead.

        Raises
        ------
        ChatTemplateUnusable : the template takes too much altogether
        """
        self._waiting.clear()
        n_bytes = 0
        for conversation in conversations:
            job = self._job(conversation)
            self._waiting.append(job)
            self._worker.send(job)
            n_bytes += len(job.frame)
            while len(self._waiting) > _WINDOW_JOBS or n_bytes > _WINDOW_BYTES:
                n_bytes -= len(self._waiting[0].frame)
                yield self._next()
        while self._waiting:
            yield self._next()

    def _job(self, conversation: BatchedChat) -> _Job:
        """What the worker is sent."""
        prefixes = list(conversation.prefixes)
        values = {
            "messages": conversation.messages,
            "bos_token": self._template.bos_token,
            "eos_token": self._template.eos_token,
            "tools": None,
            "documents": None,
        } | dict(conversation.values)
        body = json.dumps({"values": values, "prefixes": prefixes})
        n_messages = sum(n for n, _ in prefixes)
        # Messages may differ in length; as if they did not, and twice that.
        n_characters = 2 * len(body) * n_messages // max(1, len(conversation.messages))
        needs_s = _TEXT_S * len(prefixes) + _MESSAGE_S * n_messages + _CHARACTER_S * n_characters
        memory_bytes = chat.MEMORY_BYTES + _MEMORY_A_BYTE * len(body)
        self._left_s += needs_s
        limits = {
            "processor_s": chat.PROCESSOR_S + needs_s,
            "memory_bytes": memory_bytes,
            "n_characters": chat.MAX_TEXT_CHARACTERS + 4 * len(body),
            "n_rest_characters": self._most_rest,
        }
        # The body goes on after the limits, and is not parsed twice.
        frame = _frame(f"{json.dumps(limits)[:-1]}, {body[1:]}".encode())
        return _Job(frame, chat.PROCESSOR_S + needs_s, memory_bytes)

    def _next(self) -> Rendered:
        """What the first of the waiting conversations comes to."""
        reply = self._worker.answer(self._waiting[0])
        job = self._waiting.popleft()
        self._left_s -= job.processor_s if reply is None else float(reply["processor_s"])
        if self._left_s < 0:
            raise self._template.unusable("it takes too much time for all conversations together")
        if reply is None:
            problem = self._worker.why_it_ended(job)
            self._restart()
            return Rendered(problem=problem)
        if "error" in reply:
            return Rendered(problem=str(reply["error"]), line=int(reply["line"]))
        return Rendered(tuple((int(n), str(rest)) for n, rest in reply["texts"]))

    def _start(self) -> _Worker:
        """A process that has compiled the template."""
        setup = {
            "path": [place for place in sys.path if place],
            "template": self._template.source,
            "processor_s": chat.PROCESSOR_S,
            "memory_bytes": chat.MEMORY_BYTES,
        }
        job = _Job(_frame(json.dumps(setup).encode()), chat.PROCESSOR_S, chat.MEMORY_BYTES)
        worker = _Worker()
        try:
            worker.send(job)
            reply = worker.answer(job)
            if reply is None:
                raise self._template.unusable(worker.why_it_ended(job))
            if "error" in reply:
                raise self._template.unusable(str(reply["error"]), int(reply["line"]))
        except BaseException:
            worker.close()
            raise
        self._left_s -= float(reply["processor_s"])
        self.variables = frozenset(map(str, reply.get("variables", ())))
        return worker

    def _restart(self) -> None:
        """A new process for the conversations that still wait."""
        self._worker.close()
        self._worker = self._start()
        for job in self._waiting:
            self._worker.send(job)


class _Worker:
    """The process, a thread that feeds it, and one that looks at what it uses.

    Where the system sets no limits the second ends a process that has used three times what all
    waiting jobs may since the last answer, or twice the memory that one of them may.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", str(chat.WORKER), "many"]
        pipe = subprocess.PIPE
        self._complaint = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._complaint)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._unsent = bytearray()
        self._n_answers, self._allowed_s, self._allowed_bytes = 0, 0.0, 0
        self._is_over, self._was_ended = Event(), Event()
        self._threads = [
            Thread(target=self._feed, name="feed-template", daemon=True),
            Thread(target=self._watch, name="watch-template", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def send(self, job: _Job) -> None:
        """Hand on a job; some are sent together."""
        self._allowed_s += job.processor_s
        self._allowed_bytes = max(self._allowed_bytes, job.memory_bytes)
        self._unsent += job.frame
        if len(self._unsent) >= _SEND_BYTES:
            self._flush()

    def answer(self, job: _Job) -> dict[str, Any] | None:
        """The answer to a job, the first of those not answered yet; None: the process ended."""
        self._flush()
        size = int.from_bytes(self._output.read(8), "big")
        data = self._output.read(size)
        if not data or len(data) < size:
            return None
        self._n_answers += 1
        self._allowed_s -= job.processor_s
        reply: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
        return reply

    def why_it_ended(self, job: _Job) -> str:
        """What to say of a job that got no answer."""
        self._process.wait()
        status = self._process.returncode
        if self._was_ended.is_set() or status == -getattr(signal, "SIGPROF", 0):
            return chat.used_up(job.processor_s)
        self._complaint.seek(0)
        return chat.ended_with(status, self._complaint.read())

    def close(self) -> None:
        """End the process and the threads."""
        self._is_over.set()
        self._process.kill()
        self._queue.put(None)
        for thread in self._threads:
            thread.join()
        with suppress(OSError):
            self._input.close()
        self._output.close()
        self._process.wait()
        self._complaint.close()

    def _flush(self) -> None:
        if self._unsent:
            self._queue.put(bytes(self._unsent))
            self._unsent.clear()

    def _feed(self) -> None:
        while (data := self._queue.get()) is not None:
            with suppress(OSError):  # it has ended, and is told by its answers
                self._input.write(data)
                self._input.flush()

    def _watch(self) -> None:
        n_answers, before_s = 0, 0.0
        while not self._is_over.wait(chat.GLANCE_S):
            used_s, memory_bytes = process_usage(self._process.pid)
            if self._n_answers > n_answers:
                n_answers, before_s = self._n_answers, used_s
            # More than the worker sets itself: its start is in it, and where the system has
            # limits they are to come first.
            if (
                used_s - before_s > 3 * self._allowed_s + chat.PROCESSOR_S
                or memory_bytes > 2 * self._allowed_bytes > 0
            ):
                self._was_ended.set()
                self._process.kill()


def _frame(data: bytes) -> bytes:
    """A job with its length before it."""
    return len(data).to_bytes(8, "big") + data
