"""A conversation put into words by the chat template of a GGUF file, and into token ids.

The template is a program by whoever made the file, so it runs in a process of its own, with
Jinja's sandbox against what it might touch and the system's limits against what it might use up:
a second of processor time, some memory. Nothing that it does can take this process along, be it an
endless loop, a string of gigabytes, or a comparison that Python cannot be asked to break off.
Where the system has no such limits (Windows; of memory, macOS), this process looks 20 times a
second at what the other one uses. A rendering takes about 0.1 s, nearly all of it the start.

The text has special tokens written out in it, as <|im_start|>, and they are tokenised as such. So
are those that a message holds: who may write a message may pretend to be the other side of the
conversation. llama.cpp does the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from ..errors import ChatTemplateUnusable, InputEmpty, InputMalformed
from ..gguf.file import GgufMetadata
from ..host import process_usage
from ..plain_file import read_small
from ..tokens.detokenise import token_piece
from ..tokens.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..tokens.tokenizer import Tokenizer

# The longest of the templates that llama.cpp keeps for its tests has 18,000 bytes.
MAX_TEMPLATE_BYTES = 1 << 20
PROCESSOR_S = 1.0
MEMORY_BYTES = 256 << 20  # of the process's own; Python and Jinja take 10 MB
MAX_TEXT_CHARACTERS = 1 << 22

WORKER = Path(__file__).with_name("worker.py")
GLANCE_S = 0.05
_KEY = "tokenizer.chat_template"
_RAW_REMEDY = "give a raw prompt, without --chat"
_FILE_REMEDY = "name a file that holds a template in Jinja, in UTF-8"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, not looked into yet.

    Attributes
    ----------
    path : the file it comes from.
    source : the template.
    bos_token, eos_token : texts of the tokens; empty where the vocabulary has none.
    """

    path: Path
    source: str
    bos_token: str
    eos_token: str

    @classmethod
    def of(
        cls,
        metadata: GgufMetadata,
        vocabulary: Vocabulary | None = None,
        *,
        name: str | None = None,
        file: str | None = None,
    ) -> ChatTemplate:
        """The template of a GGUF file, or one for it.

        Parameters
        ----------
        vocabulary : that of ``metadata``, if it has been read already.
        name : one of several, such as "tool_use"; by default the one without a name, or else
            "tool_use", as in llama.cpp.
        file : holds a template, which is taken in place of the model's.

        Raises
        ------
        ChatTemplateUnusable : the GGUF file has none (of that name), or one of more than
            ``MAX_TEMPLATE_BYTES``.
        InputUnreadable, InputMalformed, InputEmpty : ``file``.
        ModelHasNoTokenizer, ModelUnsupported, ModelDamaged : see ``read_vocabulary``.
        """
        path = metadata.path if file is None else Path(file)
        source = _find_source(metadata, name) if file is None else _read_source(file)
        if len(source) > MAX_TEMPLATE_BYTES or len(source.encode()) > MAX_TEMPLATE_BYTES:
            raise ChatTemplateUnusable(
                f"{metadata.path}: the chat template has more than {MAX_TEMPLATE_BYTES} bytes",
                remedy=_RAW_REMEDY,
            )
        vocabulary = vocabulary or read_vocabulary(metadata)
        bos_token, eos_token = (
            "" if token is None else token_piece(vocabulary, token).decode("utf-8", "replace")
            for token in (vocabulary.bos_id, vocabulary.eos_id)
        )
        return cls(path, source, bos_token, eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **values: Any,
    ) -> str:
        """The text of a conversation.

        Parameters
        ----------
        messages : of {"role": "system" | "user" | "assistant", "content": text} each, and what
            else the template knows of; plain JSON values.
        add_generation_prompt : end with the beginning of the assistant's answer.
        values : further variables of the template, plain JSON values; ``tools`` and ``documents``
            are None unless given.

        Raises
        ------
        ChatTemplateUnusable : the template is wrong, does not like the messages, or takes too much
            time or memory.
        """
        known = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "tools": None,
            "documents": None,
        }
        job = {
            "path": [place for place in sys.path if place],
            "template": self.source,
            "values": known | values,
            "processor_s": PROCESSOR_S,
            "memory_bytes": MEMORY_BYTES,
            "n_characters": MAX_TEXT_CHARACTERS,
        }
        reply = self._reply(json.dumps(job).encode())
        if "text" in reply:
            return str(reply["text"])
        raise self.unusable(reply["error"], int(reply["line"]))

    def encode(self, text: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
        """Ids of a rendered text, int32 [n_ids].

        A template may write BOS and EOS although the tokenizer puts a text between them: they
        are not doubled.
        """
        if tokenizer.add_bos:
            text = text.removeprefix(self.bos_token)
        if tokenizer.add_eos:
            text = text.removesuffix(self.eos_token)
        return tokenizer.encode(text, add_special=True, parse_special=True)

    def _reply(self, job: bytes) -> dict[str, Any]:
        """What the worker answers; raises ChatTemplateUnusable if it does not."""
        # -I and -S: neither the user's folder nor his settings come before the job's path.
        command = [sys.executable, "-I", "-S", str(WORKER)]
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as worker,
            _watched(worker) as was_ended,
        ):
            output, complaint = worker.communicate(job)
        if was_ended.is_set() or worker.returncode == -getattr(signal, "SIGPROF", 0):
            raise self.unusable(used_up(PROCESSOR_S))
        if worker.returncode:
            raise self.unusable(ended_with(worker.returncode, complaint))
        reply: dict[str, Any] = json.loads(output.decode("utf-8", "surrogatepass"))
        return reply

    def unusable(self, what: str, line: int = 0) -> ChatTemplateUnusable:
        """The error for what is wrong with it, and in which of its lines (0: unknown)."""
        place = f", line {line}" if line else ""
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(what.split()))
        return ChatTemplateUnusable(
            f"{self.path}: the chat template cannot be rendered{place}: {shown}",
            remedy=f"change the messages, name another template with --chat-template-file, or "
            f"{_RAW_REMEDY}",
        )


def used_up(processor_s: float) -> str:
    """What is wrong where the process was ended."""
    return f"it takes more than {processor_s:.3g} s, or too much memory"


def ended_with(status: int, complaint: bytes) -> str:
    """What is wrong where the process ended by itself, with this on its standard error."""
    lines = complaint.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "no message")
    return f"its process ended with status {status}: {last}"


def _find_source(metadata: GgufMetadata, name: str | None) -> str:
    keys = [_KEY, f"{_KEY}.tool_use"] if name is None else [f"{_KEY}.{name}"]
    for key in keys:
        source = metadata.text(key)
        if source:
            return source
    prefix = f"{_KEY}."
    names = sorted(key.removeprefix(prefix) for key in metadata.values if key.startswith(prefix))
    known = f", only {', '.join(names[:20])}" if names else ""
    wanted = "no chat template" if name is None else f"no chat template named {name!r}"
    raise ChatTemplateUnusable(
        f"{metadata.path} has {wanted}{known}",
        remedy=f"name one with --chat-template-file, or {_RAW_REMEDY}",
    )


def _read_source(file: str) -> str:
    data = read_small(
        file, MAX_TEMPLATE_BYTES, f"the chat template {file}", remedy=_FILE_REMEDY
    ).removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise InputEmpty(f"the chat template {file} is empty", remedy=_FILE_REMEDY)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputMalformed(
            f"the chat template {file} is not UTF-8 (byte {error.start})", remedy=_FILE_REMEDY
        ) from error


@contextmanager
def _watched(worker: subprocess.Popen[bytes]) -> Iterator[Event]:
    """End the worker when it uses too much, and set the event then; end it on Ctrl-C too."""
    is_over, was_ended = Event(), Event()

    def watch() -> None:
        while not is_over.wait(GLANCE_S):
            processor_s, memory_bytes = process_usage(worker.pid)
            # More than the worker sets itself: its start is in it, and where the system has
            # limits they are to come first.
            if processor_s > 3 * PROCESSOR_S or memory_bytes > 2 * MEMORY_BYTES:
                was_ended.set()
                worker.kill()

    watcher = Thread(target=watch, name="watch-template", daemon=True)
    watcher.start()
    try:
        yield was_ended
    except BaseException:
        worker.kill()
        raise
    finally:
        is_over.set()
        watcher.join()
