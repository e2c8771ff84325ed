"""``--chat-file`` and the options of chat templates, in the commands that take them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import toy_model
from conftest import Done
from draftsmith.cli.chat_options import ChatOptions
from draftsmith.cli.generate.chat_input import ChatInput, read_chat
from draftsmith.cli.output import Output
from draftsmith.engine.errors import DraftsmithError, ExitStatus, InputMalformed, UsageError
from draftsmith.engine.gguf.file import GgufMetadata, read_metadata
from draftsmith.engine.tokens.vocabulary import Vocabulary, read_vocabulary

Cli = Callable[..., Done]

CASES = Path(__file__).parent / "golden" / "cases" / "prompts"
# Knows tools, whose arguments are objects, and whether to think.
TOOLS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>"
    "{% for k, v in c.function.arguments.items() %}{{ k }}: {{ v }}\n{% endfor %}{% endfor %}"
    "{% endfor %}[assistant]{% if not enable_thinking %}<think></think>{% endif %}"
)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> tuple[GgufMetadata, Vocabulary]:
    """Of SmolLM2, whose template knows neither tools nor parts nor thinking."""
    metadata = read_metadata(smollm2)
    return metadata, read_vocabulary(metadata)


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A template in a file."""
    path = tmp_path / "tools.jinja"
    path.write_text(TOOLS)
    return str(path)


def read(
    name: str | Path, model: tuple[GgufMetadata, Vocabulary], options: ChatOptions
) -> tuple[ChatInput, str]:
    """A conversation, and what is said about it."""
    with redirect_stderr(io.StringIO()) as said:
        out = Output.from_options(json=True, csv=False, no_header=False, quiet=False)
        template = options.prompt_template(*model, out)
        chat = read_chat(str(CASES / name), template, out)
    return chat, " ".join(said.getvalue().split())


def joined(name: str) -> list[dict[str, Any]]:
    found = json.loads((CASES / name).read_text())
    messages = found["messages"] if isinstance(found, dict) else found
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return list(messages)


@pytest.mark.parametrize("name", ["s_parts.json", "q_parts.json", "sys.jsonl"])
def test_parts(name: str, model: tuple[GgufMetadata, Vocabulary]) -> None:
    """A raw TypeError for a content that is a list, or parts joined otherwise than in replays."""
    chat, said = read(name, model, ChatOptions())
    for message in joined(name):
        assert f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" in chat.text
    assert ("ends with an answer" in said) == (name == "sys.jsonl")
    assert "left out" not in said


def test_null_and_calls(model: tuple[GgufMetadata, Vocabulary], other: str) -> None:
    """Status 15 for a content that is null, or arguments that are JSON in JSON."""
    chat, said = read("s_null.json", model, ChatOptions())
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nx<|im_end|>" in chat.text
    assert "does not show the tool calls of assistant (message 2)" in said
    chat, said = read("tools_openai.json", model, ChatOptions())
    assert "not used: tools" in said
    assert "tool calls of assistant (message 3, 5)" in said
    chat, said = read("tools_openai.json", model, ChatOptions(other))
    assert "<read_file>path: vault.txt\n" in chat.text
    assert chat.text.startswith('[{"type": "function"')
    assert "None" not in chat.text
    assert '\\"' not in chat.text
    assert said == ""
    chat, said = read("sys_parts.jsonl", model, ChatOptions(other))
    assert "[user] Who are you?\n[assistant] \n<f>a: 1\n[tool] x\n" in chat.text


def test_the_developer(model: tuple[GgufMetadata, Vocabulary]) -> None:
    """What the developer says taken for what the user says, or lost."""
    chat, said = read("q_developer.json", model, ChatOptions())
    assert chat.text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nThe")
    assert said == ""


@pytest.mark.parametrize("name", ["s_kwargs.json", "nothink_kwargs.json"])
def test_variables(name: str, model: tuple[GgufMetadata, Vocabulary], other: str) -> None:
    """``chat_template_kwargs`` that do not reach the template, or options that go before them."""
    chat, said = read(name, model, ChatOptions(other, reasoning="on"))
    assert chat.text.endswith("[assistant]<think></think>")
    assert said == ""
    chat, said = read(name, model, ChatOptions())
    assert "not used: chat_template_kwargs: enable_thinking" in said


def test_options_of_the_template(model: tuple[GgufMetadata, Vocabulary], other: str) -> None:
    """--reasoning or --chat-template-kwargs without an effect, or one that nobody hears of."""
    for word, closes in (("off", True), ("0", True), ("ON", False), ("auto", False)):
        chat, _ = read("s_parts.json", model, ChatOptions(other, reasoning=word))
        assert chat.text.endswith("<think></think>") == closes, word
    kwargs = '{"enable_thinking": false}'
    chat, said = read("s_parts.json", model, ChatOptions(other, kwargs))
    assert chat.text.endswith("<think></think>")
    chat, said = read("s_parts.json", model, ChatOptions(other, kwargs, "on"))
    assert chat.text.endswith("[assistant]")
    chat, said = read("s_parts.json", model, ChatOptions(reasoning="off"))
    assert "the chat template does not ask for enable_thinking" in said


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (ChatOptions(reasoning="perhaps"), "neither on, off nor auto"),
        (ChatOptions(kwargs="{"), "is no JSON"),
        (ChatOptions(kwargs="[]"), "is no JSON object"),
        (ChatOptions(kwargs='{"messages": 1}'), "sets messages, which cannot be set"),
        (ChatOptions(kwargs="[" * 100_000), "is no JSON"),
        (ChatOptions(kwargs='{"a": ' + "1" * 5000 + "}"), "is no JSON"),
    ],
)
def test_wrong_options(
    options: ChatOptions, what: str, model: tuple[GgufMetadata, Vocabulary]
) -> None:
    """A traceback for a word that somebody mistyped."""
    with pytest.raises(UsageError) as caught:
        read("s_parts.json", model, options)
    assert what in caught.value.message


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", ExitStatus.INPUT_EMPTY),
        (b"\xff\xfe{", ExitStatus.INPUT_MALFORMED),
        (b"a" * ((1 << 20) + 1), ExitStatus.INPUT_MALFORMED),
        (b"{% for", ExitStatus.MODEL_CHAT_TEMPLATE),
        (None, ExitStatus.INPUT_UNREADABLE),
    ],
    ids=["empty", "bytes", "large", "wrong", "missing"],
)
def test_wrong_template_files(
    data: bytes | None,
    status: ExitStatus,
    tmp_path: Path,
    model: tuple[GgufMetadata, Vocabulary],
) -> None:
    """A template of any size or kind read, or the model blamed for it."""
    path = tmp_path / "x.jinja"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DraftsmithError) as caught:
        read("s_parts.json", model, ChatOptions(str(path)))
    assert caught.value.exit_status is status
    assert str(path) in caught.value.message


def test_what_is_left_out(tmp_path: Path, model: tuple[GgufMetadata, Vocabulary]) -> None:
    """An image dropped without its name; a field of the request taken for used."""
    path = tmp_path / "chat.json"
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    content = [{"type": "text", "text": "What is it?"}, image, image]
    path.write_text(
        json.dumps(
            {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": content}]}
        )
    )
    chat, said = read(path, model, ChatOptions())
    assert "What is it?<|im_end|>" in chat.text
    assert "not used: model, temperature" in said
    assert "left out: 2 times block 'image_url'" in said
    path.write_text('{"messages": [{"role": "user", "content": 3}]}')
    with pytest.raises(InputMalformed, match="message 1: a content that is no text"):
        read(path, model, ChatOptions())


def test_lookup_run_and_mtp_run(cli: Cli, tmp_path: Path, other: str) -> None:
    """A conversation that one command takes and another does not."""
    toy_model.write_model(tmp_path / "toy.gguf", "llama", seed=3, **toy_model.SMALL)
    case = tmp_path / "chat.json"
    case.write_text(json.dumps([{"role": "user", "content": [{"type": "text", "text": "cat"}]}]))
    more = ("-m", tmp_path / "toy.gguf", "-n", "4", "--temp", "0", "-t", "1", "--json")
    asked = ("--chat-file", case, "--chat-template-file", other)
    record = cli("lookup-run", *asked, *more).record
    assert record["options"]["chat_file"] == str(case)
    assert record["options"]["chat"]
    assert [one["path"] for one in record["inputs"]] == [str(case), other]
    prompt = ("-p", "cat", "--chat", "--chat-template-file", other)
    assert record["n_input"] == cli("lookup-run", *prompt, *more).record["n_input"]
    ngram = ("--drafter", "ngram")
    assert cli("mtp-run", *asked, *ngram, *more).record["n_input"] == record["n_input"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--chat-file", "a", "-p", "b"), "-p and --chat-file both give a prompt"),
        (("--chat-file", "a", "-sys", "b"), "brings what the system says"),
        (("-p", "a", "--reasoning", "off"), "--reasoning is for a chat template"),
        (("-p", "a", "--chat-template-file", "x"), "--chat-template-file is for a chat template"),
    ],
)
def test_refused(args: tuple[str, ...], message: str, cli: Cli) -> None:
    """Options that are ignored without a word."""
    for command in ("lookup-run", "mtp-run"):
        done = cli(command, "-m", "none.gguf", *args)
        assert done.status == ExitStatus.USAGE
        assert message in done.error
