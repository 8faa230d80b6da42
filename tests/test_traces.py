"""What the engine drafts while it generates, against the numpy reference at the same positions.

The reference follows the tokens the engine gave, but computes target features and drafts by itself
and from nothing: a wrong key, position or row in any of the engine's caches shows.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2 import Cycle, Dflash2Engine, SamplingParams
from reference import Draft, Drafter, Target
from tiny import Pair

WINDOW = 32
# Of a score or logit in float32, times four; choices by less may fall either way
TOLERANCE = 5e-4


def open_engine(pair: Pair, **options: Any) -> Dflash2Engine:
    # flash attention on a CPU rounds even an F32 cache
    options = {"cache_type": "f32", "flash_attn": "off", "depth": 7} | options
    return Dflash2Engine(*pair, n_ctx=640, n_threads=1, device="cpu", **options)


def prompt_of(n_tokens: int) -> list[int]:
    return np.random.default_rng(n_tokens).integers(0, 256, n_tokens).tolist()


@dataclass
class Choices:
    """How many choices of an engine were compared with the reference's, and how many were not.

    Left out are those that the reference makes by less than the tolerance.
    """

    n_compared: int = 0
    n_close: int = 0

    def compare(self, actual: int, expected: int, margin: float) -> None:
        if margin > TOLERANCE:
            assert actual == expected
            self.n_compared += 1
        else:
            self.n_close += 1

    def compare_walk(self, draft: Draft, path: tuple[int, ...]) -> None:
        """Follows the engine's path through the reference's lattice."""
        k = draft.ids.shape[1]
        chosen = 0
        for slot, token in enumerate(path):
            row = draft.scores[slot, chosen]
            # the choice may hang on the order of scores, or on who is a candidate
            margin = min(lead(draft.logits[slot], k), lead(row, 1) if k > 1 else np.inf)
            self.compare(token, int(draft.ids[slot, np.argmax(row)]), margin)
            if token not in draft.ids[slot]:
                return
            chosen = draft.ids[slot].tolist().index(token)

    def assert_enough(self) -> None:
        assert self.n_compared >= 0.95 * (self.n_compared + self.n_close)


def lead(values: np.ndarray, k: int) -> float:
    """By how much the k largest values exceed the others."""
    ranked = -np.sort(-values)
    return float(ranked[k - 1] - ranked[k])


def compare_answer(
    engine: Dflash2Engine, pair: Pair, prompt: list[int], n_tokens: int, choices: Choices
) -> list[Cycle]:
    """Generates greedily and compares every token, draft and cycle with the reference."""
    params = SamplingParams(max_tokens=n_tokens, ignore_eos=True, trace=True)
    result = engine.generate(prompt, params)
    assert result.trace is not None
    assert len(result.token_ids) == n_tokens
    tokens = [*prompt, *result.token_ids]

    target = Target(pair.target)
    outputs = target.layer_outputs(tokens)
    for token, logits in zip(
        result.token_ids, target.logits_of(outputs[-1][len(prompt) - 1 : -1]), strict=True
    ):
        choices.compare(token, int(np.argmax(logits)), lead(logits, 1))

    drafter = Drafter.from_gguf(pair.drafter, target.embedding, target.head)
    features = np.concatenate([outputs[layer] for layer in drafter.config.tap_layers], axis=1)
    position = len(prompt)
    for cycle in result.trace:
        assert cycle.position == position
        assert cycle.depth == len(cycle.draft)
        draft = drafter.draft(features[:position], tokens[position], engine.depth + 1)
        choices.compare_walk(draft, cycle.draft)
        follow = tokens[position + 1 : position + 2 + cycle.n_accepted]
        assert follow == [*cycle.draft[: cycle.n_accepted], cycle.token][: len(follow)]
        position += cycle.n_accepted + 1
    assert position >= len(tokens) - 1
    return result.trace


@pytest.fixture(scope="module")
def dense(dense_target: Path, make_drafter: Callable[..., Path]) -> Callable[..., Pair]:
    return lambda **options: Pair(dense_target, make_drafter(**options))


@pytest.mark.parametrize(
    ("n_batch", "prompt_lengths"),
    [
        (1, (1, WINDOW + 1)),
        (7, (6, 7, 8, WINDOW - 1, WINDOW, WINDOW + 1)),
        # around the drafter's micro-batch and the target's
        (2048, (WINDOW + 1, 127, 128, 129, 511, 512, 513)),
    ],
    ids=["token-by-token", "chunked", "whole"],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": WINDOW},
        {"window": WINDOW, "causal": True},
        {"window": WINDOW, "sliding": (True, False)},
        {"dflash2": False},
    ],
    ids=["full", "sliding", "sliding-causal", "sliding-and-full", "dflash1"],
)
def test_drafts_after_prompts_of_any_length(
    dense: Callable[..., Pair],
    options: dict[str, Any],
    n_batch: int,
    prompt_lengths: tuple[int, ...],
) -> None:
    pair, choices = dense(**options), Choices()
    with open_engine(pair, n_batch=n_batch) as engine:
        for n_tokens in prompt_lengths:
            compare_answer(engine, pair, prompt_of(n_tokens), 5, choices)
    choices.assert_enough()


@pytest.mark.parametrize("n_batch", [1, 7, 2048])
def test_drafts_for_a_hybrid_target(hybrid_pair: Pair, n_batch: int) -> None:
    choices = Choices()
    with open_engine(hybrid_pair, n_batch=n_batch) as engine:
        for n_tokens in (1, 6, 7, 8, 129):
            compare_answer(engine, hybrid_pair, prompt_of(n_tokens), 5, choices)
    choices.assert_enough()


def test_drafts_of_an_answer_longer_than_the_window(dense: Callable[..., Pair]) -> None:
    pair, choices = dense(window=WINDOW), Choices()
    with open_engine(pair) as engine:
        compare_answer(engine, pair, prompt_of(20), 2 * WINDOW, choices)
    choices.assert_enough()


@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_of_shorter_blocks(dense: Callable[..., Pair], depth: int) -> None:
    pair, choices = dense(), Choices()
    with open_engine(pair, depth=depth) as engine:
        assert engine.depth == depth
        compare_answer(engine, pair, prompt_of(20), 20, choices)
    choices.assert_enough()


def test_drafts_after_every_accepted_length(wavering_pair: Pair) -> None:
    accepted, choices = set(), Choices()
    with open_engine(wavering_pair) as engine:
        for prompt in (b"a", b"hello", b"p" * 40, b"What is next?"):
            trace = compare_answer(engine, wavering_pair, list(prompt), 100, choices)
            accepted |= {cycle.n_accepted for cycle in trace}
    choices.assert_enough()
    assert accepted == set(range(8))


def test_permutation_pair_accepts_every_draft(permutation_pair: Pair) -> None:
    with open_engine(permutation_pair) as engine:
        trace = compare_answer(engine, permutation_pair, list(b"hello"), 1 + 8 * 8, Choices())
    assert [(cycle.depth, cycle.n_accepted) for cycle in trace] == [(7, 7)] * 8


def test_scrambled_pair_accepts_no_draft(scrambled_pair: Pair) -> None:
    with open_engine(scrambled_pair) as engine:
        trace = compare_answer(engine, scrambled_pair, list(b"hello"), 20, Choices())
    assert [cycle.n_accepted for cycle in trace] == [0] * 19


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "sliding"])
def test_drafts_after_a_time_without(dense: Callable[..., Pair], window: int | None) -> None:
    """A drafter that is no good is asked again now and then, and must know what it missed."""
    pair = dense(window=window)
    target = Target(pair.target)
    drafter = Drafter.from_gguf(pair.drafter, target.embedding, target.head)
    params = SamplingParams(max_tokens=500, ignore_eos=True, trace=True)
    n_resumed = 0
    with open_engine(pair, depth="auto") as engine:
        for n_tokens in range(20, 44):
            result = engine.generate(prompt_of(n_tokens), params)
            assert result.trace is not None
            resumed = [
                cycle
                for before, cycle in itertools.pairwise(result.trace)
                if before.depth == 0 and cycle.depth > 0
            ]
            if not resumed:
                continue
            n_resumed += len(resumed)
            tokens = [*prompt_of(n_tokens), *result.token_ids]
            outputs = target.layer_outputs(tokens)
            taps = drafter.config.tap_layers
            features = np.concatenate([outputs[layer] for layer in taps], axis=1)
            for cycle in resumed:
                # how wide the block was cannot be seen, only how much of it was proposed
                assert list(cycle.draft) in [
                    drafter.draft(
                        features[: cycle.position], tokens[cycle.position], width + 1
                    ).path[: cycle.depth]
                    for width in range(cycle.depth, engine.block_size)
                ]
    assert n_resumed > 0
