"""The answer with a drafter is the answer without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from dflash2 import Dflash2Engine, SamplingParams
from tiny import Pair
from tiny.permutation import LIVE_TOKENS

Open: TypeAlias = Callable[..., Dflash2Engine]


def prompts(n: int, longest: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.choice(LIVE_TOKENS, rng.integers(1, longest)).tolist() for _ in range(n)]


@pytest.mark.parametrize("depth", ["auto", 1, 4])
def test_greedy(open_engine: Open, wavering_pair: Pair, depth: Any) -> None:
    plain = open_engine(wavering_pair.target)
    speculative = open_engine(*wavering_pair, depth=depth)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    lengths = set()
    for prompt in prompts(12):
        expected = plain.generate(prompt, params)
        answer = speculative.generate(prompt, SamplingParams(**vars(params) | {"trace": True}))
        assert answer.token_ids == expected.token_ids
        lengths |= {cycle.n_accepted for cycle in answer.trace or ()}
    assert depth == "auto" or lengths == set(range(speculative.depth + 1)), (
        "some accepted length was never tried"
    )


@pytest.mark.parametrize(
    ("target", "pair"),
    [
        ("dense_target", "dense_pair"),
        ("dense_target_q8_0", "dense_pair"),
        ("hybrid_target", "hybrid_pair"),
    ],
)
def test_greedy_with_a_random_drafter(
    open_engine: Open, request: pytest.FixtureRequest, target: str, pair: str
) -> None:
    plain = open_engine(request.getfixturevalue(target))
    speculative = open_engine(
        request.getfixturevalue(target), request.getfixturevalue(pair).drafter
    )
    for prompt in prompts(6):
        expected = plain.generate(prompt, SamplingParams(max_tokens=64))
        answer = speculative.generate(prompt, SamplingParams(max_tokens=64))
        assert (answer.token_ids, answer.finish_reason) == (
            expected.token_ids,
            expected.finish_reason,
        )


CHAINS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "hot": {"temperature": 3.0},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 0.8, "min_p": 0.05, "repetition_penalty": 1.1},
    "typical": {"temperature": 1.0, "typical_p": 0.7},
    "top-n-sigma": {"temperature": 1.0, "top_n_sigma": 1.0},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dynamic temperature": {"temperature": 1.0, "dynatemp_range": 0.5},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "greedy penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "dry": {"temperature": 1.0, "dry_multiplier": 0.8},
    "mirostat": {"temperature": 1.0, "mirostat": 1},
    "mirostat 2": {"temperature": 1.0, "mirostat": 2},
    "logit bias": {"temperature": 1.0, "logit_bias": {LIVE_TOKENS[3]: 2.0, LIVE_TOKENS[4]: -50.0}},
    "grammar": {"temperature": 1.0, "grammar": 'root ::= ([a-h] [a-p] "\\n"?)+'},
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_rule_match_draws_the_same_tokens(
    open_engine: Open, wavering_pair: Pair, chain: dict[str, Any]
) -> None:
    plain = open_engine(wavering_pair.target)
    speculative = open_engine(*wavering_pair, verify="match")
    accepted = 0
    for seed, prompt in enumerate(prompts(6)):
        params = SamplingParams(max_tokens=60, seed=seed, **chain)
        answer = speculative.generate(prompt, params)
        assert answer.token_ids == plain.generate(prompt, params).token_ids
        assert answer.stats.verify_rule == "match"
        accepted += answer.stats.accepted_tokens
    assert accepted > 0, "nothing was accepted: the test shows nothing"


def test_temperature_0_is_greedy_whatever_else_is_set(
    open_engine: Open, wavering_pair: Pair
) -> None:
    engine = open_engine(*wavering_pair)
    for prompt in prompts(3):
        penalised = SamplingParams(max_tokens=40, repetition_penalty=1.1)
        expected = engine.generate(prompt, penalised).token_ids
        for seed in (1, 2):
            more = SamplingParams(
                max_tokens=40,
                repetition_penalty=1.1,
                dynatemp_range=2.0,
                typical_p=0.1,
                xtc_probability=1.0,
                top_k=7,
                seed=seed,
            )
            assert engine.generate(prompt, more).token_ids == expected


def test_tiny_temperature_is_greedy(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair)
    for prompt in prompts(3):
        expected = engine.generate(prompt, SamplingParams(max_tokens=20)).token_ids
        tiny = SamplingParams(max_tokens=20, temperature=1e-40)
        assert engine.generate(prompt, tiny).token_ids == expected


def test_permutation_accepts_whole_blocks(open_engine: Open, permutation_pair: Pair) -> None:
    engine = open_engine(*permutation_pair)
    answer = engine.generate(LIVE_TOKENS[:3], SamplingParams(max_tokens=1 + 5 * 8))
    # the letters in their order, again and again
    expected = (LIVE_TOKENS[3:] + LIVE_TOKENS * 3)[:41]
    assert answer.token_ids == expected
    assert answer.stats.verify_steps == 5
    assert answer.stats.accepted_per_position == (5,) * 7
    assert answer.stats.depth_histogram == (0,) * 7 + (5,)
    assert answer.stats.mean_acceptance_length == 8
    assert answer.stats.acceptance_rate == 1


def test_scrambled_permutation_accepts_nothing(open_engine: Open, scrambled_pair: Pair) -> None:
    engine = open_engine(*scrambled_pair)
    answer = engine.generate(LIVE_TOKENS[:3], SamplingParams(max_tokens=20))
    assert answer.token_ids == (LIVE_TOKENS[3:] + LIVE_TOKENS)[:20]
    assert answer.stats.accepted_tokens == 0
    assert answer.stats.verify_steps == 19
    assert answer.stats.mean_acceptance_length == 1


def test_logprobs(open_engine: Open, wavering_pair: Pair) -> None:
    params = SamplingParams(max_tokens=50, logprobs=3)
    for prompt in prompts(3):
        expected = open_engine(wavering_pair.target).generate(prompt, params)
        answer = open_engine(*wavering_pair).generate(prompt, params)
        assert answer.logprobs is not None
        assert expected.logprobs is not None
        assert [entry.token for entry in answer.logprobs] == answer.token_ids
        for ours, theirs in zip(answer.logprobs, expected.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert ours.top[0] == (ours.token, ours.logprob)
            assert [p for _, p in ours.top] == pytest.approx([p for _, p in theirs.top], abs=1e-4)


def test_a_useless_drafter_is_reported_once(
    scrambled_pair: Pair, permutation_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_tokens=100)
    for pair, n_warnings in ((scrambled_pair, 1), (permutation_pair, 0)):
        caplog.clear()
        with Dflash2Engine(*pair, device="cpu", n_threads=1, n_ctx=256, depth=7) as engine:
            for _ in range(2):
                engine.generate("abc", params)
        warnings = [r for r in caplog.records if "does not fit this target" in r.message]
        assert len(warnings) == n_warnings


def test_drafter_of_an_mrope_target_without_sections(
    hybrid_target: Path, make_drafter: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    traces = []
    for mrope in (True, False):
        caplog.clear()
        with Dflash2Engine(
            *(hybrid_target, make_drafter(mrope=mrope)),
            device="cpu",
            n_threads=1,
            n_ctx=256,
            depth=7,
        ) as engine:
            answer = engine.generate("abcabc", SamplingParams(max_tokens=30, trace=True))
        traces.append(answer.trace)
        missing = "the drafter has no dflash.rope.dimension_sections"
        warned = any(missing in record.message for record in caplog.records)
        assert warned is not mrope
    assert traces[0] == traces[1]


def test_a_good_start_logs_nothing_alarming(
    wavering_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with Dflash2Engine(*wavering_pair, device="cpu", n_threads=1) as engine:
        engine.generate("abc", SamplingParams(max_tokens=10))
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
