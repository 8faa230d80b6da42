"""Grammars, schemas and tools hold, and what is said under them does not hang on the drafter."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion
from tiny import Pair

from server.answers import accepted, drafted

Open: TypeAlias = Callable[..., Server]

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["lattice", "walk", "verify"]},
        "fused": {"type": "boolean"},
        "depths": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 15},
            "minItems": 2,
            "maxItems": 5,
        },
    },
    "required": ["kind", "fused", "depths"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "describe", "description": "Describes it.", "parameters": SCHEMA},
}
MESSAGES = [{"role": "user", "content": "abc"}]
# the least that llama.cpp reads a way to call tools out of
TEMPLATE = """\
{%- if tools %}{% for tool in tools %}<tool>{{ tool | tojson }}</tool>
{% endfor %}{% endif -%}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content or "" }}
{%- for call in message.tool_calls or [] -%}{%- set it = call.function -%}
<|filler3|>{"name": "{{ it.name }}", "arguments": {{ it.arguments | tojson }}}<|filler4|>
{%- endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""
CALL = 263  # <|filler3|>
# with the token that starts a call above all others, a call it is
TOOLS = {"tools": [TOOL], "logit_bias": [[CALL, 50.0]]}


def check_schema(value: dict[str, Any]) -> None:
    assert set(value) == {"kind", "fused", "depths"}
    assert value["kind"] in SCHEMA["properties"]["kind"]["enum"]  # type: ignore[index]
    assert isinstance(value["fused"], bool)
    assert 2 <= len(value["depths"]) <= 5
    assert all(isinstance(depth, int) and 0 <= depth <= 15 for depth in value["depths"])


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= ([a-h] [a-p] "\\n"?)+',
        'root ::= "a" [b-d]* "." | "e" [f-p]+ "."',
        'root ::= "abcdefghijklmnopabcdefghijklmnop"',
    ],
)
def test_grammar(open_server: Open, wavering_pair: Pair, grammar: str) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    n_accepted = 0
    for prompt in prompts(4):
        answer = server.complete(prompt, 40, grammar=grammar)
        assert answer["tokens"] == plain.complete(prompt, 40, grammar=grammar)["tokens"]
        n_accepted += accepted(answer)
    assert n_accepted > 0, "nothing was accepted: the test shows nothing"


@pytest.mark.parametrize("temperature", [0, 1])
def test_json_schema(open_server: Open, wavering_pair: Pair, temperature: int) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    for seed, prompt in enumerate(prompts(4)):
        fields = {"json_schema": SCHEMA, "temperature": temperature, "seed": seed}
        answer = server.complete(prompt, 300, **fields)
        check_schema(json.loads(answer["content"]))
        assert answer["stop_type"] == "eos"
        assert drafted(answer) > 0
        if temperature == 0:
            assert answer["tokens"] == plain.complete(prompt, 300, **fields)["tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_response_format(open_server: Open, wavering_pair: Pair, stream: bool) -> None:
    server = open_server(*wavering_pair)
    wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    body = {"messages": MESSAGES, "response_format": wanted, "max_tokens": 300, "temperature": 0}
    if stream:
        chunks = server.stream("/v1/chat/completions", body)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
    else:
        text = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    check_schema(json.loads(text))
    expected = open_server(wavering_pair.target).post("/v1/chat/completions", body)
    assert text == expected["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    path = tmp_path_factory.mktemp("template") / "tools.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    return ["--jinja", "--chat-template-file", path]


@pytest.mark.parametrize("tool_choice", ["required", "auto"])
def test_tools(
    open_server: Open, wavering_pair: Pair, template: list[object], tool_choice: str
) -> None:
    plain = open_server(wavering_pair.target, None, *template)
    server = open_server(*wavering_pair, *template)
    fields = TOOLS | {"tool_choice": tool_choice}
    (choice,) = server.chat(MESSAGES, 160, **fields)["choices"]
    (expected,) = plain.chat(MESSAGES, 160, **fields)["choices"]
    for each in (choice, expected):
        for call in each["message"].get("tool_calls", ()):
            call["id"] = "random"
    assert choice == expected
    # others follow until the answer is full
    call = choice["message"]["tool_calls"][0]
    assert call["function"]["name"] == "describe"
    check_schema(json.loads(call["function"]["arguments"]))


def test_streamed_tool_call(open_server: Open, wavering_pair: Pair, template: list[object]) -> None:
    server = open_server(*wavering_pair, *template)
    body = {"messages": MESSAGES, "max_tokens": 160, "temperature": 0} | TOOLS
    arguments = ""
    for chunk in server.stream("/v1/chat/completions", body):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                if call["index"] == 0:
                    arguments += call["function"].get("arguments", "")
    check_schema(json.loads(arguments))


@pytest.mark.parametrize("trigger", ["e", "fg", "jkl", "ab"])
def test_grammar_that_starts_inside_a_block(
    open_server: Open, permutation_pair: Pair, trigger: str
) -> None:
    plain, server = open_server(permutation_pair.target), open_server(*permutation_pair)
    body = completion(
        "abc",
        60,
        grammar=f'root ::= "{trigger}" [0-9] [0-9] [a-p]+',
        grammar_lazy=True,
        grammar_triggers=[{"type": 1, "value": trigger}],
        preserved_tokens=[trigger],
    )
    answer, expected = (each.post("/completion", body) for each in (server, plain))
    assert answer["tokens"] == expected["tokens"]
    before, _, after = answer["content"].partition(trigger)
    assert before == ("defghijklmnop" + "abcdefghijklmnop").partition(trigger)[0]
    assert after[:2].isdigit()
    assert accepted(answer) > 0


@pytest.mark.parametrize("grammar", ["root ::= (", "nothing"])
def test_bad_grammar_is_refused_as_without_a_drafter(
    open_server: Open, wavering_pair: Pair, grammar: str
) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    body = completion("abc", 5, grammar=grammar)
    reply = server.ask("POST", "/completion", body)
    assert reply == plain.ask("POST", "/completion", body)
    assert reply.status == 400
    assert len(server.complete("abc", 5)["tokens"]) == 5
