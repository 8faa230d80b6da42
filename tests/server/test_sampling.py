"""Sampled answers: the rule, the seed, and every request's own chain."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest
from decoding.test_lossless import prompts
from serving import Server
from tiny import Pair
from tiny.permutation import LIVE_TOKENS, next_token
from tiny.target import N_EMBD
from tiny.vocabulary import EOS

from server.answers import accepted, drafted, stats

Open: TypeAlias = Callable[..., Server]

CHAINS: dict[str, dict[str, Any]] = {
    "the server's own": {"temperature": 0.8},
    "temperature": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "hot": {"temperature": 3.0},
    "min-p": {"temperature": 0.8, "min_p": 0.05, "repeat_penalty": 1.1},
    "typical": {"temperature": 1.0, "typical_p": 0.7},
    "top-n-sigma": {"temperature": 1.0, "top_n_sigma": 1.0},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    "dynamic temperature": {"temperature": 1.0, "dynatemp_range": 0.5},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "greedy penalties": {"temperature": 0, "repeat_penalty": 1.3, "frequency_penalty": 0.4},
    "dry": {"temperature": 1.0, "dry_multiplier": 0.8},
    "mirostat": {"temperature": 1.0, "mirostat": 1},
    "mirostat 2": {"temperature": 1.0, "mirostat": 2},
    "adaptive": {
        "temperature": 1.0,
        "adaptive_target": 0.5,
        "samplers": ["top_k", "min_p", "adaptive_p"],
    },
    "logit bias": {
        "temperature": 1.0,
        "logit_bias": [[LIVE_TOKENS[3], 2.0], [LIVE_TOKENS[4], False]],
    },
    "other order": {"temperature": 1.2, "samplers": ["temperature", "top_p", "top_k"]},
    "grammar": {"temperature": 1.0, "grammar": 'root ::= ([a-h] [a-p] "\\n"?)+'},
}


def matching(open_server: Open, pair: Pair, **options: Any) -> Server:
    return open_server(*pair, "--dflash2-verify", "match", **options)


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_match_draws_the_tokens_of_plain_decoding(
    open_server: Open, wavering_pair: Pair, chain: dict[str, Any]
) -> None:
    plain, server = open_server(wavering_pair.target), matching(open_server, wavering_pair)
    n_accepted = 0
    for seed, prompt in enumerate(prompts(5)):
        answer = server.complete(prompt, 50, seed=seed, **chain)
        assert answer["tokens"] == plain.complete(prompt, 50, seed=seed, **chain)["tokens"]
        assert stats(answer)["verify_rule"] == "match"
        n_accepted += accepted(answer)
    assert n_accepted > 0, "nothing was accepted: the test shows nothing"


def test_requests_of_one_batch_keep_their_own_chains(
    open_server: Open, wavering_pair: Pair
) -> None:
    plain = open_server(wavering_pair.target)
    server = matching(open_server, wavering_pair, n_slots=4)
    requests = [
        (prompt, {"seed": seed} | chain)
        for seed, (prompt, chain) in enumerate(
            zip(prompts(len(CHAINS)), CHAINS.values(), strict=True)
        )
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(lambda each: server.complete(each[0], 40, **each[1]), requests))
    for (prompt, fields), answer in zip(requests, answers, strict=True):
        assert answer["tokens"] == plain.complete(prompt, 40, **fields)["tokens"], fields


def test_greedy_among_sampled(open_server: Open, wavering_pair: Pair) -> None:
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=4)
    temperatures = [0, 1.0, 0, 0.7, 1.5, 0, 0, 1.0]
    with ThreadPoolExecutor(len(temperatures)) as pool:
        answers = pool.map(
            lambda prompt, temperature: server.complete(prompt, 60, temperature=temperature),
            *(prompts(len(temperatures)), temperatures),
        )
    for prompt, temperature, answer in zip(
        prompts(len(temperatures)), temperatures, answers, strict=True
    ):
        if temperature == 0:
            assert answer["tokens"] == plain.complete(prompt, 60)["tokens"]
        else:
            assert stats(answer)["verify_rule"] == "reject"


def test_seeds(open_server: Open, wavering_pair: Pair) -> None:
    server = open_server(*wavering_pair)
    fields = {"temperature": 1.0, "ignore_eos": True}
    texts = {}
    for seed in range(8):
        texts[seed] = server.complete("abcabc", 40, seed=seed, **fields)["content"]
        assert server.complete("abcabc", 40, seed=seed, **fields)["content"] == texts[seed]
    assert len(set(texts.values())) == len(texts)
    # without a seed, one of its own each time
    free = {server.complete("abcabc", 40, **fields)["content"] for _ in range(4)}
    assert len(free) == 4


@pytest.mark.parametrize(
    ("verify", "chain", "rule"),
    [
        ("auto", {"temperature": 1.0}, "reject"),
        ("auto", {"temperature": 1.0, "mirostat": 2}, "match"),
        ("reject", {"temperature": 1.0}, "reject"),
        ("block", {"temperature": 1.0}, "block"),
        ("match", {"temperature": 1.0}, "match"),
    ],
)
def test_rule_is_reported(
    open_server: Open, wavering_pair: Pair, verify: str, chain: dict[str, Any], rule: str
) -> None:
    server = open_server(*wavering_pair, "--dflash2-verify", verify)
    assert stats(server.complete("abcabc", 20, **chain))["verify_rule"] == rule


TEMPERATURE = 4.0


def law_after(token: int) -> dict[int, float]:
    """Of the next token, from what the permutation pair's weights say: see `tiny.permutation`."""
    lift = math.exp(math.sqrt(N_EMBD) / TEMPERATURE)
    n_vocab = 272
    # the end token is banned
    total = lift + n_vocab - 2
    law = dict.fromkeys(range(n_vocab), 1 / total)
    law[next_token(token)] = lift / total
    del law[EOS]
    return law


@pytest.mark.parametrize("verify", ["reject", "block", "match"])
def test_sampled_tokens_have_the_law_of_the_target(
    open_server: Open, permutation_pair: Pair, report: Callable[[str], None], verify: str
) -> None:
    """Chi-square over what follows what: the successor, its successor, other letters, the rest.

    And neighbouring draws are independent: a stream of random numbers used twice would tie what one
    token is to what the next one is. Each fails for one in 100 000 right programs or less often;
    the seeds are fixed, so it does or does not.
    """
    server = open_server(*permutation_pair, "--dflash2-verify", verify)
    counts: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    n_accepted = n_drafted = 0
    for seed in range(4):
        answer = server.complete(
            "abc",
            900,
            seed=seed,
            temperature=TEMPERATURE,
            ignore_eos=True,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
        )
        n_accepted += accepted(answer)
        n_drafted += drafted(answer)
        kinds = []
        for previous, token in itertools.pairwise([ord("c"), *answer["tokens"]]):
            kinds.append(kind(previous, token))
            for each, probability in law_after(previous).items():
                expected[kind(previous, each)] += probability
        counts.update(kinds)
        hits = np.array([each == "successor" for each in kinds])
        correlation = np.corrcoef(hits[:-1], hits[1:])[0, 1]
        # five standard errors
        assert abs(correlation) < 5 / math.sqrt(len(hits))
    statistic = sum((counts[name] - expected[name]) ** 2 / expected[name] for name in expected)
    report(f"law of sampled tokens, {verify}: chi-square {statistic:.1f} of 3 degrees of freedom")
    assert sum(counts.values()) == 4 * 900
    assert 0 < n_accepted < n_drafted
    # the 1 - 1e-5 quantile of chi-square with three degrees of freedom
    assert statistic < 25.9


def kind(previous: int, token: int) -> str:
    successor = next_token(previous)
    if token == successor:
        return "successor"
    if token == next_token(successor):
        return "after the successor"
    return "letter" if token in LIVE_TOKENS else "other"
