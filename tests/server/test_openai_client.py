"""Through the `openai` package, as most programs ask."""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import openai
import pytest
from serving import Server
from tiny import Pair

from server.test_constraints import SCHEMA, TEMPLATE, TOOLS, check_schema

Open: TypeAlias = Callable[..., Server]
MESSAGES: Any = [{"role": "user", "content": "abcabc"}]


@pytest.fixture
def server(
    open_server: Open, wavering_pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    path = tmp_path_factory.getbasetemp() / "openai.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    return open_server(*wavering_pair, "--jinja", "--chat-template-file", path, n_slots=2)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as it:
        yield it


def test_chat(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=40, temperature=0
    )
    (choice,) = answer.choices
    assert choice.message.content == (server.chat(MESSAGES, 40)["choices"][0]["message"]["content"])
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 40
    # what the server adds passes through
    assert answer.model_extra is not None
    assert answer.model_extra["timings"]["dflash2"]["draft_tokens"] > 0


def test_streamed_chat(client: openai.OpenAI, server: Server) -> None:
    stream = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == server.chat(MESSAGES, 40)["choices"][0]["message"]["content"]
    assert usage is not None
    assert usage.completion_tokens == 40


def test_abandoned_stream(client: openai.OpenAI, server: Server) -> None:
    stream = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=900, stream=True
    )
    next(iter(stream))
    stream.close()
    server.wait_idle()


def test_completion(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(
        model="any", prompt="abcabc", max_tokens=30, temperature=0, stop=["kl"], logprobs=3
    )
    expected = server.complete("abcabc", 30, stop=["kl"])
    assert answer.choices[0].text == expected["content"]


def test_seed(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        return (
            client.chat.completions.create(
                model="any", messages=MESSAGES, max_tokens=40, temperature=1, seed=seed
            )
            .choices[0]
            .message.content
        )

    assert ask(1) == ask(1) != ask(2)


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=20, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 20
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 2
        # greedy: the likeliest is the token
        assert entry.logprob == entry.top_logprobs[0].logprob
    assert any(entry.logprob < 0 for entry in logprobs.content[1:])


def test_json_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_tokens=300,
        temperature=1,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": SCHEMA, "strict": True},
        },
    )
    check_schema(json.loads(answer.choices[0].message.content or ""))


def test_tool_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_tokens=160,
        temperature=0,
        tools=TOOLS["tools"],  # type: ignore[arg-type]
        tool_choice="required",
        extra_body={"logit_bias": TOOLS["logit_bias"]},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    check_schema(json.loads(calls[0].function.arguments))


def test_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="grammar"):
        client.chat.completions.create(
            model="any", messages=MESSAGES, extra_body={"grammar": "root ::= ("}
        )
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.OpenAIError, match="mmproj"):
        client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": [image]}],  # type: ignore[list-item]
        )


def test_models(client: openai.OpenAI) -> None:
    assert len(list(client.models.list())) == 1
