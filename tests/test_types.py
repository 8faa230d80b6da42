"""Sampling settings and statistics."""

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from dflash2 import GenerationStats, SamplingParams, _core
from dflash2.native import sampling_options
from dflash2.sampling import SCALAR_FIELDS

STATS = GenerationStats(
    prompt_tokens=30,
    cached_tokens=10,
    generated_tokens=25,
    verify_steps=10,
    draft_tokens=40,
    accepted_tokens=14,
    accepted_per_position=(8, 4, 2, 0, 0),
    depth_histogram=(1, 0, 0, 5, 0, 4),
    verify_rule="match",
    cost_model={"verify_ms": {1: 5.5, 8: 25.0}},
    fused_ops="composed",
    prompt_seconds=0.5,
    draft_seconds=0.1,
    inject_seconds=0.2,
    verify_seconds=1.5,
    sample_seconds=0.05,
    generation_seconds=2.0,
)


def test_params_are_greedy_and_native_defaults_by_default() -> None:
    params = SamplingParams()
    assert params.temperature == 0
    assert params.max_tokens == 256
    native, default = sampling_options(params), _core.SamplingOptions()
    for name in SCALAR_FIELDS:
        assert getattr(native, name) == pytest.approx(getattr(default, name)), name
    assert list(native.dry_sequence_breakers) == list(default.dry_sequence_breakers)


def test_params_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("max_tokens", [1, 2**31 - 1], [0, -1, 2**31]),
        ("temperature", [0, 0.7, 5], [-0.1, math.nan, math.inf, 1e39]),
        ("top_k", [0, 40], [-1]),
        ("top_p", [0.01, 1], [0, 1.01, -1, math.nan]),
        ("min_p", [0, 1], [-0.01, 1.01]),
        ("typical_p", [0.5, 1], [0, 1.5]),
        ("top_n_sigma", [-1, 0, 2.5], [math.inf, -math.inf, math.nan]),
        ("xtc_probability", [0, 1], [-0.1, 1.1]),
        ("xtc_threshold", [0, 1], [-0.1, 1.1]),
        ("dynatemp_range", [0, 2], [-1]),
        ("dynatemp_exponent", [0, 2], [-1]),
        ("repetition_penalty", [0.5, 2], [0, -1, math.inf]),
        ("presence_penalty", [-2, 2], [math.inf]),
        ("frequency_penalty", [-2, 2], [math.nan]),
        ("penalty_last_n", [-1, 0, 64], [-2]),
        ("dry_multiplier", [0, 0.8], [-1]),
        ("dry_base", [1, 1.75], [0.9]),
        ("dry_allowed_length", [0, 2], [-1]),
        ("dry_penalty_last_n", [-1, 0], [-2]),
        ("mirostat", [0, 1, 2], [-1, 3]),
        ("mirostat_tau", [0, 5], [-1]),
        ("mirostat_eta", [0, 0.1], [-1]),
        ("seed", [None, 0, 2**32 - 2], [-1, 2**32 - 1]),
        ("logprobs", [None, 0, 20], [-1]),
        ("stop", ["a", ["a", "b"], ()], ["", ["a", ""]]),
        ("dry_sequence_breakers", [["\n"], ()], [[""]]),
        ("stop_token_ids", [[0, 5], ()], [[-1], [2**31]]),
        ("logit_bias", [None, {1: -100, 2: -math.inf}], [{-1: 1.0}, {1: math.nan}, {1: math.inf}]),
        ("json_schema", ['{"type": "object"}', {"type": "object"}], ["{", {"a": {1, 2}}]),
    ],
)
def test_params_check_ranges(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        sampling_options(SamplingParams(**{name: value}))
    for value in bad:
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", True),
        ("max_tokens", 1.0),
        ("max_tokens", "1"),
        ("max_tokens", None),
        ("temperature", "0"),
        ("temperature", False),
        ("temperature", None),
        ("seed", 1.5),
        ("stop", 1),
        ("stop", [1]),
        ("stop_token_ids", 5),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", [True]),
        ("ignore_eos", 1),
        ("trace", None),
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {"1": 2.0}),
        ("grammar", b"root ::= [a]"),
        ("json_schema", 3),
    ],
)
def test_params_check_types(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_params_errors_say_what_was_found_and_expected() -> None:
    with pytest.raises(ValueError, match=r"^top_p must be > 0 and <= 1, got 1\.5$"):
        SamplingParams(top_p=1.5)
    with pytest.raises(ValueError, match=r"^max_tokens must be an integer >= 1 and <= 2147483647"):
        SamplingParams(max_tokens=-3)


def test_params_refuse_grammar_with_schema() -> None:
    with pytest.raises(ValueError, match="grammar and json_schema exclude each other"):
        SamplingParams(grammar='root ::= "a"', json_schema={})


def test_params_take_numpy_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(7))  # type: ignore[arg-type]
    assert (type(params.temperature), type(params.top_k)) == (float, int)
    assert (params.temperature, params.top_k) == (0.5, 7)


def test_params_bring_sequences_to_one_form() -> None:
    assert SamplingParams(stop="ab") == SamplingParams(stop=["ab"])
    assert replace(SamplingParams(stop="ab"), top_k=3).stop == ("ab",)


def test_native_options_hold_every_field() -> None:
    params = SamplingParams(
        max_tokens=3,
        temperature=0.5,
        seed=11,
        stop=["x", "yz"],
        stop_token_ids=[4, 5],
        logprobs=2,
        logit_bias={7: -1.5},
        json_schema={"type": "object"},
        ignore_eos=True,
        trace=True,
    )
    native = sampling_options(params)
    assert (native.max_tokens, native.temperature, native.seed) == (3, 0.5, 11)
    assert (list(native.stop), list(native.stop_token_ids)) == (["x", "yz"], [4, 5])
    assert native.logprobs == 2
    assert list(native.logit_bias) == [(7, -1.5)]
    assert json.loads(native.json_schema) == {"type": "object"}
    assert native.grammar == ""
    assert native.ignore_eos
    assert native.trace


def test_native_options_without_seed_differ() -> None:
    seeds = {sampling_options(SamplingParams()).seed for _ in range(8)}
    assert len(seeds) > 1


def test_stats_derive_rates() -> None:
    # by hand: 1 + 14/10, 14/40, (30 - 10)/0.5, 25/2
    assert STATS.mean_acceptance_length == pytest.approx(2.4)
    assert STATS.acceptance_rate == pytest.approx(0.35)
    assert STATS.prompt_tps == pytest.approx(40.0)
    assert STATS.generation_tps == pytest.approx(12.5)


def test_stats_count_a_position_where_it_was_verified() -> None:
    # 9 cycles verified three tokens or more, 4 of them five; one cycle had no draft
    expected = (8 / 9, 4 / 9, 2 / 9, 0.0, 0.0)
    assert STATS.acceptance_per_position == pytest.approx(expected)


def test_stats_of_nothing_are_zero() -> None:
    empty = replace(
        STATS,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        verify_steps=0,
        draft_tokens=0,
        accepted_tokens=0,
        accepted_per_position=(),
        depth_histogram=(),
        prompt_seconds=0.0,
        generation_seconds=0.0,
    )
    assert empty.mean_acceptance_length == empty.acceptance_rate == 0
    assert empty.prompt_tps == empty.generation_tps == 0
    assert empty.acceptance_per_position == ()


def test_stats_as_dict_is_json_with_derived_values() -> None:
    document = json.loads(json.dumps(STATS.as_dict()))
    assert document["accepted_per_position"] == [8, 4, 2, 0, 0]
    assert document["mean_acceptance_length"] == pytest.approx(2.4)
    assert document["acceptance_rate"] == pytest.approx(0.35)
    assert document["prompt_tps"] == pytest.approx(40.0)
    assert document["generation_tps"] == pytest.approx(12.5)
    assert document["verify_rule"] == "match"


def test_stats_print_on_one_line() -> None:
    assert str(STATS) == (
        "25 tokens at 12.5 tokens/s, prompt of 30 at 40.0 tokens/s, mean acceptance length 2.40, "
        "accepted 14 of 40 drafted (35.0%)"
    )
