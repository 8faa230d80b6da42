"""Which rule verifies a request, and what each of them must never do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from dflash2 import Dflash2Engine, SamplingParams
from tiny import EOS, Pair
from tiny.permutation import LIVE_TOKENS

from decoding.test_lossless import prompts

Open: TypeAlias = Callable[..., Dflash2Engine]

HOT = {"temperature": 1.0}
XTC = {**HOT, "xtc_probability": 0.5, "xtc_threshold": 0.05}
GRAMMAR = {**HOT, "grammar": 'root ::= ([a-h] [a-p] "\\n"?)+'}


@pytest.mark.parametrize(
    ("verify", "sampling", "rule"),
    [
        ("match", HOT, "match"),
        ("reject", HOT, "reject"),
        ("block", HOT, "block"),
        ("block", {**HOT, "repetition_penalty": 1.2}, "block"),
        # block looks at rows that it may take back, and random numbers or a grammar cannot be
        ("block", XTC, "reject"),
        ("block", GRAMMAR, "reject"),
        ("reject", XTC, "reject"),
        # one token to choose
        ("reject", {}, "match"),
        ("block", {"repetition_penalty": 1.2}, "match"),
        # no probabilities
        ("reject", {**HOT, "mirostat": 1}, "match"),
        ("block", {**HOT, "mirostat": 2}, "match"),
    ],
)
def test_the_rule_that_ran_is_reported(
    open_engine: Open, wavering_pair: Pair, verify: str, sampling: dict[str, Any], rule: str
) -> None:
    engine = open_engine(*wavering_pair, verify=verify)
    answer = engine.generate("abc", SamplingParams(max_tokens=20, seed=1, **sampling))
    assert answer.stats.verify_rule == rule
    assert answer.stats.accepted_tokens > 0


def test_auto_is_exact(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair)
    answer = engine.generate("abc", SamplingParams(max_tokens=5, temperature=1.0))
    assert answer.stats.verify_rule in ("reject", "block")


def test_totals_name_the_rule_of_all_requests(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair, verify="reject", n_ctx=128)
    engine.reset_stats()
    assert engine.stats.verify_rule == "none"
    engine.generate("abc", SamplingParams(max_tokens=5, temperature=1.0))
    assert engine.stats.verify_rule == "reject"
    engine.generate("abc", SamplingParams(max_tokens=5))
    assert engine.stats.verify_rule == "mixed"


@pytest.mark.parametrize("verify", ["reject", "block", "match"])
def test_same_seed_same_answer(open_engine: Open, wavering_pair: Pair, verify: str) -> None:
    engine = open_engine(*wavering_pair, verify=verify)
    answers = {
        seed: [
            engine.generate("abc", SamplingParams(max_tokens=60, temperature=1.5, seed=seed))
            for _ in range(2)
        ]
        for seed in range(4)
    }
    for first, second in answers.values():
        assert first.token_ids == second.token_ids
    assert len({tuple(first.token_ids) for first, _ in answers.values()}) == len(answers)


@pytest.mark.parametrize("verify", ["reject", "block", "match"])
@pytest.mark.parametrize("max_tokens", range(1, 18))
def test_sampled_answers_have_the_length_asked_for(
    open_engine: Open, wavering_pair: Pair, verify: str, max_tokens: int
) -> None:
    engine = open_engine(*wavering_pair, verify=verify)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=1.0, seed=max_tokens, ignore_eos=True, logprobs=0
    )
    answer = engine.generate(prompts(1)[0], params)
    assert (len(answer.token_ids), answer.finish_reason) == (max_tokens, "length")
    assert answer.logprobs is not None
    assert [entry.token for entry in answer.logprobs] == answer.token_ids


@pytest.mark.parametrize("verify", ["reject", "block", "match"])
def test_a_bias_that_leaves_one_token(open_engine: Open, wavering_pair: Pair, verify: str) -> None:
    engine = open_engine(*wavering_pair, verify=verify)
    token = LIVE_TOKENS[2]
    for top_k in (0, 3):
        params = SamplingParams(
            max_tokens=12, temperature=0.7, top_k=top_k, seed=3, logit_bias={token: 1000.0}
        )
        assert engine.generate("abc", params).token_ids == [token] * 12


@pytest.mark.parametrize("verify", ["reject", "match"])
def test_a_grammar_is_kept_and_drafts_follow_it(
    open_engine: Open, permutation_pair: Pair, verify: str
) -> None:
    """The drafter's favourite is never allowed; masked, the rest of its candidates still serve."""
    engine = open_engine(*permutation_pair, verify=verify)
    params = SamplingParams(
        max_tokens=24, temperature=1.0, seed=2, ignore_eos=True, grammar='root ::= ("a" "c")+'
    )
    answer = engine.generate("b", params)
    assert answer.text == "ac" * 12
    assert answer.stats.accepted_tokens > 12


def test_p_min_ends_drafts(open_engine: Open, wavering_pair: Pair) -> None:
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    prompt = prompts(1)[0]
    by_p_min = {
        p_min: open_engine(*wavering_pair, p_min=p_min).generate(prompt, params)
        for p_min in (0.0, 0.5, 1.0)
    }
    texts = {answer.text for answer in by_p_min.values()}
    drafted = [answer.stats.draft_tokens for answer in by_p_min.values()]
    assert len(texts) == 1
    assert drafted[0] > drafted[1] > drafted[2]


def test_auto_depth_reports_what_passes_cost(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair, depth="auto")
    engine.generate("abc", SamplingParams(max_tokens=20))
    costs = engine.stats.cost_model
    assert {1, 8} <= costs["verify_ms"].keys()
    assert all(ms > 0 for curve in costs.values() for ms in curve.values())
    assert engine.generate("abc", SamplingParams(max_tokens=5)).stats.cost_model == {}


def test_the_smallest_block_with_automatic_depth(
    dense_target: Path, make_drafter: Callable[..., Path]
) -> None:
    drafter = make_drafter(block_size=2)
    with Dflash2Engine(dense_target, drafter, device="cpu", n_threads=1, n_ctx=128) as engine:
        assert engine.depth == 1
        assert engine.generate("abc", SamplingParams(max_tokens=5)).token_ids


def test_a_ban_wins_over_a_bias(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair)
    for chain in ({}, {"temperature": 1.0, "top_k": 5}, {"temperature": 1.0}):
        params = SamplingParams(
            max_tokens=20, seed=1, ignore_eos=True, logit_bias={EOS: 100.0}, **chain
        )
        assert EOS not in engine.generate("abc", params).token_ids


@pytest.mark.parametrize("verify", ["reject", "block"])
def test_a_stop_string_cuts_a_sampled_answer_where_it_stands(
    open_engine: Open, wavering_pair: Pair, verify: str
) -> None:
    """The tokens up to the stop are those of the same request without it."""
    engine = open_engine(*wavering_pair, verify=verify)
    for seed in range(4):
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=seed, ignore_eos=True)
        whole = engine.generate("abc", params).text
        for start in range(1, 12, 2):
            stop = whole[start : start + 2]
            if not stop.isascii():
                continue  # bytes that are no character
            answer = engine.generate("abc", replace(params, stop=[stop]))
            assert (answer.text, answer.finish_reason) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("verify", ["reject", "block"])
def test_an_end_token_inside_a_sampled_block(
    open_engine: Open, wavering_pair: Pair, verify: str
) -> None:
    engine = open_engine(*wavering_pair, verify=verify)
    lengths = set()
    for seed in range(60):
        params = SamplingParams(
            max_tokens=40, temperature=1.0, seed=seed, logit_bias={EOS: 4.0}, trace=True
        )
        answer = engine.generate("abc", params)
        if answer.finish_reason == "stop":
            assert answer.token_ids.index(EOS) == len(answer.token_ids) - 1
            lengths.add(len(answer.token_ids))
    assert len(lengths) > 3
