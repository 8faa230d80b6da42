"""Log-probabilities beside a drafter are filled in, and are those of the target."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion
from tiny import Pair

from server.answers import accepted

Open: TypeAlias = Callable[..., Server]
Entries: TypeAlias = list[dict[str, Any]]
# of a log-probability computed in a pass of one row and in one of eight
TOLERANCE = 1e-4


def assert_same(ours: Entries, theirs: Entries, key: str = "logprob") -> None:
    assert [entry["id"] for entry in ours] == [entry["id"] for entry in theirs]
    top = "top_logprobs" if key == "logprob" else "top_probs"
    for our, their in zip(ours, theirs, strict=True):
        assert our[key] == pytest.approx(their[key], abs=TOLERANCE)
        assert our["bytes"] == their["bytes"]
        values, expected = ([entry[key] for entry in each[top]] for each in (our, their))
        assert values == pytest.approx(expected, abs=TOLERANCE)
        # those that are no ties; tokens with equal values may stand in any order
        named = {entry["id"]: entry[key] for entry in their[top]}
        for entry in our[top]:
            if entry["id"] in named:
                assert entry[key] == pytest.approx(named[entry["id"]], abs=TOLERANCE)
    assert any(entry[key] not in (0.0, 1.0) for entry in ours), "nothing was filled in"


@pytest.mark.parametrize("n_probs", [1, 5, 272])
def test_n_probs(open_server: Open, wavering_pair: Pair, n_probs: int) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    n_accepted = 0
    for prompt in prompts(3):
        answer = server.complete(prompt, 40, n_probs=n_probs)
        expected = plain.complete(prompt, 40, n_probs=n_probs)
        assert answer["tokens"] == expected["tokens"]
        assert len(answer["completion_probabilities"]) == 40
        assert_same(answer["completion_probabilities"], expected["completion_probabilities"])
        n_accepted += accepted(answer)
    assert n_accepted > 0


def test_probabilities_after_sampling(open_server: Open, wavering_pair: Pair) -> None:
    """Those of the whole chain, which a drafter may have to stay out of."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, "--dflash2-verify", "match")
    for seed, prompt in enumerate(prompts(4)):
        fields = {"n_probs": 4, "post_sampling_probs": True, "temperature": 1.2, "seed": seed}
        answer = server.complete(prompt, 40, **fields)
        expected = plain.complete(prompt, 40, **fields)
        assert_same(
            answer["completion_probabilities"], expected["completion_probabilities"], "prob"
        )


def test_chat_logprobs(open_server: Open, wavering_pair: Pair) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    messages = [{"role": "user", "content": "abcabc"}]
    choices = [
        each.chat(messages, 40, logprobs=True, top_logprobs=3)["choices"][0]
        for each in (server, plain)
    ]
    assert choices[0]["message"] == choices[1]["message"]
    assert_same(*(choice["logprobs"]["content"] for choice in choices))


def test_streamed(open_server: Open, wavering_pair: Pair) -> None:
    server = open_server(*wavering_pair)
    body = completion("abcabc", 40, n_probs=3)
    whole = server.post("/completion", body)["completion_probabilities"]
    chunks = server.stream("/completion", body)
    streamed = [entry for chunk in chunks for entry in chunk.get("completion_probabilities", ())]
    assert_same(streamed, whole)


def test_stop_word_takes_its_entries_along(open_server: Open, wavering_pair: Pair) -> None:
    plain, server = open_server(wavering_pair.target), open_server(*wavering_pair)
    text = plain.complete("abcabc", 40)["content"]
    for end in (3, 8, 17):
        fields = {"n_probs": 2, "stop": [text[end : end + 3]]}
        answer, expected = (each.complete("abcabc", 40, **fields) for each in (server, plain))
        assert answer["stop_type"] == "word"
        assert_same(answer["completion_probabilities"], expected["completion_probabilities"])


@pytest.mark.parametrize("verify", ["reject", "block"])
def test_sampled_tokens(open_server: Open, wavering_pair: Pair, verify: str) -> None:
    """Other draws than without a drafter: each is compared with the target after the same text."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, "--dflash2-verify", verify)
    prompt = prompts(2)[1]
    answer = server.complete(prompt, 30, n_probs=3, temperature=1.0, seed=3)
    assert accepted(answer) > 0
    for i, entry in enumerate(answer["completion_probabilities"]):
        tokens = prompt + answer["tokens"][:i]
        (expected,) = plain.complete(tokens, 1, n_probs=272)["completion_probabilities"]
        everything = {top["id"]: top["logprob"] for top in expected["top_logprobs"]}
        assert entry["logprob"] == pytest.approx(everything[entry["id"]], abs=TOLERANCE)
        for top in entry["top_logprobs"]:
            assert top["logprob"] == pytest.approx(everything[top["id"]], abs=TOLERANCE)
