"""What chat templates take, of each kind that there is, and messages changed to be that.

The templates here are small ones that fail as real ones do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draftsmith.engine.chat.abilities import Abilities, adapted
from draftsmith.engine.chat.batch import BatchedChat, BatchRenderer
from draftsmith.engine.chat.messages import Chat, NotAChat, add_messages
from draftsmith.engine.chat.prompt import PromptTemplate, not_shown
from draftsmith.engine.chat.request import ChatRequest
from draftsmith.engine.chat.template import ChatTemplate
from draftsmith.engine.errors import ChatTemplateUnusable

Message = dict[str, Any]

SAID = "[{{ m.role }}] {{ m.content }}\n"
LOOP = "{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def calls(arguments: str = "{{ c.function.arguments | tojson }}") -> str:
    called = "<{{ c.function.name }} " + arguments + ">\n"
    return "{% for c in m.tool_calls or [] %}" + called + "{% endfor %}"


def each(said: str = SAID, called: str | None = None, *, before: str = "") -> str:
    """A template that says something for each message."""
    return LOOP + before + said + (calls() if called is None else called) + END


def but_for(roles: str, said: str = SAID) -> str:
    """One that says nothing for some roles."""
    return each("{% if m.role not in " + roles + " %}" + said, calls() + "{% endif %}")


PLAIN = each()
PART = "{% for p in m.content %}{{ p.text }}{% endfor %}"
TEXT = "{% if m.content is string %}{{ m.content }}"
FIRST = "{% if messages[0].role in ROLES %}[system] {{ messages[0].content }}\n{% endif %}"
SYSTEMS = "['system', 'developer']"

TEMPLATES = {
    # a text alone: neither parts nor null can be added to one
    "text": each("{{ '[' + m.role + '] ' + m.content + '\n' }}"),
    "parts as Python": PLAIN,
    "parts as JSON": each(
        "[{{ m.role }}] " + TEXT + "{% else %}{{ m.content | tojson }}{% endif %}\n"
    ),
    "parts": each("[{{ m.role }}] " + PART + "\n"),
    "parts of the user": each(
        "[{{ m.role }}] " + TEXT + "{% elif m.role == 'user' %}" + PART + "{% endif %}\n"
    ),
    "arguments as a text": each(called=calls("{{ '' + c.function.arguments }}")),
    "arguments as an object": each(
        called=calls("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}")
    ),
    "no system": each(
        before="{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    ),
    "system lost": but_for("['system']"),
    "first system alone": FIRST.replace("ROLES", "['system']") + but_for("['system']"),
    "system first": each(
        before="{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('system must be first') }}{% endif %}"
    ),
    "short ids": each(
        before="{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('ids have nine letters') }}{% endif %}{% endfor %}"
    ),
    "a list of tools": "{% for t in tools %}{{ t.function.name }}{% endfor %}" + PLAIN,
    "harmony": "<|channel|>" + FIRST.replace("ROLES", SYSTEMS) + but_for(SYSTEMS),
    "lists that change": "{% set seen = [] %}"
    + each("{% set _ = seen.append(m.content) %}[{{ m.role }}] {{ seen.pop() }}\n"),
    "a filter as JSON": each(
        called="{% if m.tool_calls %}"
        "{{ m.tool_calls | map(attribute='function') | tojson }}\n{% endif %}"
    ),
}

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "read_it", "arguments": '{"path": "a \\"b\\" wölf.txt"}'},
}
PARTS = (
    ("system", "be brief", "be kind"),
    ("user", "first", "more"),
    ("assistant", "an answer", "goes on"),
    ("user", "second", "last"),
)
CONVERSATIONS: dict[str, tuple[list[Message], list[str]]] = {
    "null": (
        [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "found"},
            {"role": "user", "content": "second"},
        ],
        ["first", "read_it", "wölf", "found", "second"],
    ),
    "no content": (
        [{"role": "user", "content": "first"}, {"role": "assistant", "tool_calls": [CALL]}],
        ["first", "read_it", "wölf"],
    ),
    "parts": (
        [
            {"role": role, "content": [{"type": "text", "text": text} for text in texts]}
            for role, *texts in PARTS
        ],
        [text for _, *texts in PARTS for text in texts],
    ),
    "parts of a tool": (
        [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": [{"type": "text", "text": one} for one in ("found", "more")],
            },
        ],
        ["first", "read_it", "found", "more"],
    ),
    "developer": (
        [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "first"}],
        ["be brief", "first"],
    ),
    "two systems": (
        [
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": "first"},
        ],
        ["be brief", "be kind", "first"],
    ),
    "a late system": (
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "an answer"},
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "second"},
        ],
        ["be brief", "first", "an answer", "be kind", "second"],
    ),
    "a last system": (
        [{"role": "user", "content": "first"}, {"role": "system", "content": "be kind"}],
        ["first", "be kind"],
    ),
}


def template_of(source: str, **values: Any) -> PromptTemplate:
    template = ChatTemplate(Path("toy.gguf"), source, "<s>", "</s>")
    return PromptTemplate.adapting(template, values)


@pytest.fixture(scope="module")
def templates() -> dict[str, PromptTemplate]:
    """All of them, each tried out once."""
    return {name: template_of(source) for name, source in TEMPLATES.items()}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_text_is_shown(name: str, templates: dict[str, PromptTemplate]) -> None:
    """A text that vanishes, a null or a list written as Python writes it, arguments in JSON that
    are written as JSON once more, or a conversation that the template refuses."""
    template = templates[name]
    jobs = []
    for messages, _ in CONVERSATIONS.values():
        chat = Chat()
        add_messages(chat, messages)
        taken = adapted(chat.messages, template.abilities)
        jobs.append(BatchedChat(taken, [(len(taken), True)], template.abilities.filled({})))
    with BatchRenderer(template) as renderer:
        rendered = list(renderer.render_all(jobs))
    for (_, wanted), one in zip(CONVERSATIONS.values(), rendered, strict=True):
        assert not one.problem
        ((_, text),) = one.texts
        for words in wanted:
            assert text.count(words) == 1, text
        for wrong in ("None", "'text'", '"text"', '{\\"'):
            assert wrong not in text
        assert text.endswith("[assistant]")


def test_abilities(templates: dict[str, PromptTemplate]) -> None:
    """An ability that is guessed and not seen."""
    seen = {name: template.abilities for name, template in templates.items()}
    takes_parts = [name for name, it in seen.items() if it.parts]
    assert takes_parts == ["parts", "parts of the user"]
    assert seen["parts of the user"].parts == {"user"}
    assert [name for name, it in seen.items() if not it.text] == ["parts"]
    assert [name for name, it in seen.items() if not it.system] == ["no system", "system lost"]
    assert [name for name, it in seen.items() if not it.any_id] == ["short ids"]
    assert [name for name, it in seen.items() if it.no_tools is not None] == ["a list of tools"]
    assert not seen["arguments as a text"].objects
    assert seen["arguments as an object"].objects
    late = [name for name, it in seen.items() if it.systems and not it.late_system]
    assert late == []
    assert not seen["first system alone"].systems
    assert seen["text"].systems
    assert seen["text"].late_system


def test_one_system_message_is_left_as_it_is(templates: dict[str, PromptTemplate]) -> None:
    """Messages that are changed although the template takes them."""
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    text = templates["first system alone"].render(messages)
    assert text == "[system] a\n[user] b\n[assistant]"
    assert templates["no system"].render(messages) == "[user] a\nb\n[assistant]"


def test_variables() -> None:
    """A variable that does not reach the template, or only by one of its names."""
    source = "{{ enable_thinking }} {{ preserve_thinking }} {{ reasoning_strength }} {{ x }}"
    template = template_of(source, x=1)
    assert template.render([{"role": "user", "content": "a"}]).split() == ["True", "1"]
    kwargs = {"enable_thinking": False, "preserve_reasoning": True, "reasoning_effort": "low"}
    text = template.with_values(kwargs).render([{"role": "user", "content": "a"}])
    assert text == "False True low 1"
    asks_for = template.abilities.asks_for
    assert [name for name in (*kwargs, "x", "y") if asks_for(name)] == [*kwargs, "x"]


def test_what_is_not_shown(templates: dict[str, PromptTemplate]) -> None:
    """A text that a template drops without a word; one that it writes as JSON taken for dropped."""
    messages, _ = CONVERSATIONS["null"]
    template = template_of(
        LOOP + "{% if m.role == 'user' %}{{ m.content }}{% elif m.role == 'tool' %}"
        "{{ m.content | tojson }}{% endif %}" + END
    )
    request = ChatRequest.of([*messages, {"role": "tool", "content": 'a "b"\nc'}], template)
    text = template.render(request.chat.messages)
    assert list(not_shown(text, request.chat.messages, template.abilities)) == [(1, "tool calls")]
    other = template_of(LOOP + "{% if loop.last %}{{ m.content }}{% endif %}" + END)
    text = other.render(messages)
    lost = list(not_shown(text, request.chat.messages[:4], other.abilities))
    assert lost == [(0, "text"), (1, "tool calls"), (2, "text")]
    shown = templates["text"]
    assert not list(not_shown(shown.render(messages), request.chat.messages[:4], shown.abilities))


def test_thoughts_of_the_history_are_no_loss(templates: dict[str, PromptTemplate]) -> None:
    """A warning for each template that drops thoughts as its model wants it."""
    template = template_of(LOOP + "{{ m.content.split('</think>')[-1] }}\n" + END)
    messages = [{"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}]
    assert not list(not_shown(template.render(messages), messages, Abilities()))


def test_a_message_that_makes_no_sense(templates: dict[str, PromptTemplate]) -> None:
    """A traceback from the library's own adaptation."""
    with pytest.raises(ChatTemplateUnusable, match="a message without a role"):
        templates["text"].render([{"content": "a"}])
    bad = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
    with pytest.raises(ChatTemplateUnusable, match="arguments are no JSON"):
        templates["arguments as an object"].render(bad)


def test_a_wrong_template() -> None:
    """A template that is wrong, told as if the messages were."""
    with pytest.raises(ChatTemplateUnusable, match="line 1"):
        template_of("{% for").render([{"role": "user", "content": "a"}])


# ---- requests


def test_a_request(templates: dict[str, PromptTemplate]) -> None:
    """A field of a request that is taken for used, or one that is used and named as unused."""
    template = template_of("{{ tools }}{{ documents }}{{ effort }}" + PLAIN)
    value = {
        "model": "m",
        "temperature": 0,
        "stop": ["x"],
        "system": "be brief",
        "documents": ["d"],
        "chat_template_kwargs": {"effort": 1, "enable_thinking": False},
        "functions": [{"name": "f"}],
        "messages": [{"role": "user", "content": "a", "weight": 1, "name": None}],
    }
    request = ChatRequest.of(value, template)
    assert request.unused == (
        *("model", "temperature", "chat_template_kwargs: enable_thinking"),
        "weight of messages",
    )
    assert request.stop == ("x",)
    assert request.chat.values == {
        "effort": 1,
        "enable_thinking": False,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "documents": ["d"],
    }
    assert [message["role"] for message in request.chat.messages] == ["system", "user"]
    named = template_of(LOOP + "{{ m.weight }}" + SAID + END)
    request = ChatRequest.of(value["messages"], named)
    assert request.unused == ()
    assert named.render(request.chat.messages).startswith("1[user] a")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (3, "neither an object nor a list"),
        ({}, "no list of messages"),
        ([], "no list of messages"),
        ({"messages": {}}, "no list of messages"),
        ([3], "message 1 is no object"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "message 2: a message without"),
        ({"messages": [{"role": "user"}], "bos_token": ""}, "bos_token, which cannot be set"),
        ({"messages": [{"role": "user"}], "tools": 3}, "tools that are no list"),
        ({"messages": [{"role": "user"}], "chat_template_kwargs": []}, "that are no object"),
        (
            {"messages": [{"role": "user"}], "chat_template_kwargs": {"messages": 1}},
            "messages, which cannot be set",
        ),
    ],
)
def test_no_request(value: object, reason: str, templates: dict[str, PromptTemplate]) -> None:
    """Something else taken for a request."""
    with pytest.raises(NotAChat, match=reason):
        ChatRequest.of(value, templates["text"])
