"""Completions and chats are those without a drafter, streamed or not, wherever they end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion
from tiny import Pair
from tiny.vocabulary import EOS

from server.answers import accepted, drafted

Open: TypeAlias = Callable[..., Server]

LETTERS = "abcdefghijklmnop"
# of a completion: what must not hang on a drafter
OUTCOME = (
    "content",
    "tokens",
    "tokens_predicted",
    "tokens_evaluated",
    "stop_type",
    "stopping_word",
    "truncated",
)


def outcome(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in OUTCOME}


@pytest.mark.parametrize("depth", ["auto", 1, 7])
def test_greedy(open_server: Open, wavering_pair: Pair, depth: Any) -> None:
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, depth=depth)
    n_drafted = n_accepted = 0
    for prompt in prompts(8):
        answer = server.complete(prompt, 80, ignore_eos=True)
        assert outcome(answer) == outcome(plain.complete(prompt, 80, ignore_eos=True))
        n_drafted += drafted(answer)
        n_accepted += accepted(answer)
    assert depth == "auto" or 0 < n_accepted < n_drafted, "a way through a cycle was never tried"


@pytest.mark.parametrize("pair", ["dense_pair", "hybrid_pair"])
def test_greedy_with_a_random_drafter(
    open_server: Open, request: pytest.FixtureRequest, pair: str
) -> None:
    target, drafter = request.getfixturevalue(pair)
    plain, server = open_server(target), open_server(target, drafter)
    for prompt in prompts(5):
        answer = server.complete(prompt, 48)
        assert outcome(answer) == outcome(plain.complete(prompt, 48))
        assert drafted(answer) > 0


@pytest.mark.parametrize("n_predict", range(1, 18))
def test_length_anywhere_in_a_block(
    open_server: Open, permutation_pair: Pair, n_predict: int
) -> None:
    answer = open_server(*permutation_pair).complete("abc", n_predict)
    assert answer["content"] == ("defghijklmnop" + LETTERS)[:n_predict]
    assert answer["tokens_predicted"] == n_predict
    assert answer["stop_type"] == "limit"
    # the first token comes from the prompt; none is drafted that could not be said (D9)
    assert accepted(answer) <= drafted(answer) <= max(0, n_predict - 2)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("start", [0, 1, 4, 7, 8, 9, 12])
def test_stop_word_anywhere_in_a_block(
    open_server: Open, permutation_pair: Pair, start: int, length: int
) -> None:
    text = "defghijklmnop" + LETTERS
    word = text[start : start + length]
    plain, server = open_server(permutation_pair.target), open_server(*permutation_pair)
    fields: dict[str, Any] = {"stop": ["zz", word]}
    answer = server.complete("abc", 40, **fields)
    assert (answer["content"], answer["stop_type"]) == (text[:start], "word")
    assert outcome(answer) == outcome(plain.complete("abc", 40, **fields))
    chunks = list(server.stream("/completion", completion("abc", 40, **fields)))
    assert "".join(chunk["content"] for chunk in chunks) == text[:start]
    assert chunks[-1]["stopping_word"] == word


def test_end_token(open_server: Open, permutation_pair: Pair) -> None:
    plain, server = open_server(permutation_pair.target), open_server(*permutation_pair)
    # the end token beats all but the letter whose turn it is; after five letters that one, too
    for fields in (
        {"logit_bias": [[EOS, 100.0]]},
        {"logit_bias": [[EOS, 100.0]], "ignore_eos": True},
        {"grammar": 'root ::= "defgh"'},
    ):
        expected = plain.complete("abc", 20, **fields)
        assert outcome(server.complete("abc", 20, **fields)) == outcome(expected)
    assert expected["content"] == "defgh"
    assert expected["stop_type"] == "eos"


def test_end_of_the_context(open_server: Open, wavering_pair: Pair) -> None:
    plain = open_server(wavering_pair.target, n_ctx=256)
    server = open_server(*wavering_pair, n_ctx=256)
    for n_prompt in (200, 247, 248, 249, 255):
        prompt = (prompts(1, 41)[0] * 100)[:n_prompt]
        answer = server.complete(prompt, 1000, ignore_eos=True)
        assert outcome(answer) == outcome(plain.complete(prompt, 1000, ignore_eos=True))
        assert answer["truncated"]


def test_prompt_too_long(open_server: Open, permutation_pair: Pair) -> None:
    plain = open_server(permutation_pair.target, n_ctx=256)
    server = open_server(*permutation_pair, n_ctx=256)
    body = completion([97] * 300, 5)
    assert server.ask("POST", "/completion", body) == plain.ask("POST", "/completion", body)
    assert server.complete("abc", 5)["content"] == "defgh"


def test_one_token_and_empty_prompts(open_server: Open, wavering_pair: Pair) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    assert outcome(server.complete([97], 30)) == outcome(plain.complete([97], 30))
    assert server.complete("", 5)["content"] == plain.complete("", 5)["content"]
    assert server.complete("abc", 0)["tokens"] == plain.complete("abc", 0)["tokens"]


@pytest.mark.parametrize("n_batch", [8, 64])
def test_prompts_in_portions(open_server: Open, wavering_pair: Pair, n_batch: int) -> None:
    portions = ["-b", n_batch, "-ub", n_batch]
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, *portions)
    for prompt in prompts(3):
        prompt = prompt * 8
        assert outcome(server.complete(prompt, 30)) == outcome(plain.complete(prompt, 30))


@pytest.mark.parametrize("pair", ["permutation_pair", "dense_pair", "hybrid_pair"])
def test_stream_equals_answer(open_server: Open, request: pytest.FixtureRequest, pair: str) -> None:
    """Random text is not UTF-8: characters are cut and held back."""
    target, drafter = request.getfixturevalue(pair)
    plain, server = open_server(target), open_server(target, drafter)
    for prompt in prompts(4):
        body = completion(prompt, 50, stop=["dca"])
        expected = plain.post("/completion", body)
        chunks = list(server.stream("/completion", body))
        streamed = list(plain.stream("/completion", body))
        assert "".join(chunk["content"] for chunk in chunks) == (
            "".join(chunk["content"] for chunk in streamed)
        )
        assert [token for chunk in chunks for token in chunk["tokens"]] == (
            [token for chunk in streamed for token in chunk["tokens"]]
        )
        assert server.post("/completion", body)["content"] == expected["content"]
        last = chunks[-1]
        assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert (last["stop_type"], last["tokens_predicted"]) == (
            expected["stop_type"],
            expected["tokens_predicted"],
        )
        assert drafted(last) > 0


MESSAGES = [
    {"role": "system", "content": "letters"},
    {"role": "user", "content": "abcabc"},
]


def test_chat(open_server: Open, wavering_pair: Pair) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    answer, expected = server.chat(MESSAGES, 40), plain.chat(MESSAGES, 40)
    assert answer["choices"] == expected["choices"]
    assert answer["usage"] == expected["usage"]
    assert answer["timings"]["draft_n"] > 0
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    deltas = [
        chunk["choices"][0]
        for chunk in server.stream("/v1/chat/completions", body)
        if chunk["choices"]
    ]
    text = "".join(delta["delta"].get("content") or "" for delta in deltas)
    assert text == expected["choices"][0]["message"]["content"]
    assert deltas[-1]["finish_reason"] == expected["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/completions", {"prompt": "abcabc", "max_tokens": 30}, "choices"),
        ("/v1/messages", {"messages": MESSAGES[1:], "max_tokens": 30}, "content"),
        ("/v1/responses", {"input": "abcabc", "max_output_tokens": 30}, "output"),
    ],
)
def test_other_protocols(
    open_server: Open, wavering_pair: Pair, path: str, body: dict[str, Any], key: str
) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    body = body | {"temperature": 0}
    before = server.metrics()["spec_decode_num_draft_tokens_total"]
    answer, expected = server.post(path, body)[key], plain.post(path, body)[key]
    if path == "/v1/responses":  # whose items have random ids
        answer, expected = answer[0]["content"], expected[0]["content"]
    assert answer == expected
    assert server.metrics()["spec_decode_num_draft_tokens_total"] > before


def test_several_prompts_in_one_request(open_server: Open, wavering_pair: Pair) -> None:
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=2)
    together = server.post("/completion", completion(prompts(5), 30))
    for prompt, answer in zip(prompts(5), together, strict=True):
        assert outcome(answer) == outcome(plain.complete(prompt, 30))


def test_several_answers_to_one_prompt(open_server: Open, wavering_pair: Pair) -> None:
    """The prompt is evaluated once and its state copied, the drafter's with it."""
    server = open_server(*wavering_pair, n_slots=3)
    expected = open_server(wavering_pair.target).complete("abcabc", 40)
    alone = server.complete("abcabc", 40)
    answers = server.post("/completion", completion("abcabc", 40, n_cmpl=3))
    assert len(answers) == 3
    for answer in answers:
        assert outcome(answer) == outcome(expected)
        check_accepted_together(wavering_pair, answer, alone)


def test_requests_that_come_together(open_server: Open, wavering_pair: Pair) -> None:
    """Sequences of all lengths join and leave: more requests than slots."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=3)
    requests = [(prompt, 10 + 5 * i) for i, prompt in enumerate(prompts(12, longest=90))]
    alone = [server.complete(prompt, n) for prompt, n in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda request: server.complete(*request), requests))
    for (prompt, n_predict), answer, single in zip(requests, answers, alone, strict=True):
        assert outcome(answer) == outcome(plain.complete(prompt, n_predict))
        check_accepted_together(wavering_pair, answer, single)


def check_accepted_together(pair: Pair, together: Any, alone: Any) -> None:
    """A target with a recurrent state drafts only while one slot is at work."""
    if "hybrid" in pair.target.parent.name:
        assert accepted(together) <= accepted(alone)
    else:
        assert accepted(together) == accepted(alone)
