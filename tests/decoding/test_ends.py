"""Where an answer ends, and that the place in the block does not matter."""

import math
from collections.abc import Callable
from typing import TypeAlias

import pytest
from dflash2 import Dflash2Engine, SamplingParams
from tiny import Pair
from tiny.permutation import LIVE_TOKENS
from tiny.vocabulary import EOS

Open: TypeAlias = Callable[..., Dflash2Engine]

LETTERS = "abcdefghijklmnop"


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_max_tokens_anywhere_in_a_block(
    open_engine: Open, permutation_pair: Pair, max_tokens: int
) -> None:
    engine = open_engine(*permutation_pair)
    answer = engine.generate("abc", SamplingParams(max_tokens=max_tokens))
    assert answer.text == ("defghijklmnop" + LETTERS)[:max_tokens]
    assert answer.finish_reason == "length"
    assert answer.stats.generated_tokens == max_tokens
    # the first token comes from the prompt; no row is verified whose token could not be kept
    assert answer.stats.draft_tokens + answer.stats.verify_steps == max_tokens - 1


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("start", range(13))
def test_stop_string_anywhere_in_a_block(
    open_engine: Open, permutation_pair: Pair, start: int, length: int
) -> None:
    engine = open_engine(*permutation_pair)
    text = "defghijklmnop" + LETTERS
    stop = text[start : start + length]
    answer = engine.generate("abc", SamplingParams(max_tokens=40, stop=["zz", stop]))
    assert answer.text == text[:start]
    assert answer.finish_reason == "stop"
    assert answer.token_ids == list(text[: start + length].encode())


@pytest.mark.parametrize("position", range(12))
def test_stop_token_anywhere_in_a_block(
    open_engine: Open, permutation_pair: Pair, position: int
) -> None:
    engine = open_engine(*permutation_pair)
    text = "defghijklmnop"
    params = SamplingParams(max_tokens=40, stop_token_ids=[ord(text[position])])
    answer = engine.generate("abc", params)
    assert answer.text == text[:position]
    assert answer.token_ids == list(text[: position + 1].encode())
    assert answer.finish_reason == "stop"


def test_end_token_ends_and_can_be_ignored(open_engine: Open, permutation_pair: Pair) -> None:
    for pair in (permutation_pair, (permutation_pair.target, None)):
        engine = open_engine(*pair)
        # the end token beats the letters whenever it is allowed
        bias = {EOS: 1e4}
        answer = engine.generate("abc", SamplingParams(max_tokens=9, logit_bias=bias))
        assert (answer.token_ids, answer.text) == ([EOS], "")
        assert answer.finish_reason == "stop"
        ignored = SamplingParams(max_tokens=9, ignore_eos=True)
        assert engine.generate("abc", ignored).text == "defghijkl"


@pytest.mark.parametrize("speculative", [False, True])
def test_grammar_that_allows_nothing_more_ends_the_answer(
    open_engine: Open, permutation_pair: Pair, speculative: bool
) -> None:
    engine = open_engine(
        permutation_pair.target, permutation_pair.drafter if speculative else None, n_parallel=2
    )
    other = engine.stream("abc", SamplingParams(max_tokens=30))
    next(other)
    # after the last letter only the end token is allowed, and that is banned
    params = SamplingParams(grammar='root ::= "defghij"', ignore_eos=True)
    answer = engine.generate("abc", params)
    assert (answer.text, answer.finish_reason) == ("defghij", "stop")
    banned = SamplingParams(grammar='root ::= "d"', logit_bias={ord("d"): -math.inf})
    answer = engine.generate("abc", banned)
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", [], "stop")
    rest = "".join(chunk.text for chunk in other)
    assert ("d" + rest)[:30] == ("defghijklmnop" + LETTERS * 2)[:30]


def test_answers_end_with_the_context(open_engine: Open, permutation_pair: Pair) -> None:
    engine = open_engine(*permutation_pair, n_ctx=300)
    prompt = [LIVE_TOKENS[i % 16] for i in range(270)]
    answer = engine.generate(prompt, SamplingParams(max_tokens=1000))
    # the last token needs no place in the cache
    assert len(prompt) + len(answer.token_ids) == 301
    assert answer.finish_reason == "length"
    assert answer.token_ids == [LIVE_TOKENS[i % 16] for i in range(270, 301)]


def test_an_answer_that_ended_in_a_block_leaves_no_trace(
    open_engine: Open, wavering_pair: Pair
) -> None:
    engine = open_engine(*wavering_pair)
    fresh = open_engine(wavering_pair.target)
    text = fresh.generate("abcabc", SamplingParams(max_tokens=60)).text
    for end in range(2, 20, 3):
        stopped = engine.generate("abcabc", SamplingParams(max_tokens=60, stop=text[end : end + 3]))
        assert len(stopped.text) <= end
        follow_up = "abcabc" + stopped.text + "ha"
        params = SamplingParams(max_tokens=30)
        assert engine.generate(follow_up, params).text == fresh.generate(follow_up, params).text
