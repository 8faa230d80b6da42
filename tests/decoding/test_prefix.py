"""A prompt that continues what a sequence holds is not evaluated again, and drafts are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from dflash2 import Cycle, Dflash2Engine, SamplingParams
from tiny import Pair

from decoding.test_lossless import prompts

Open: TypeAlias = Callable[..., Dflash2Engine]
PARAMS = SamplingParams(max_tokens=30, trace=True)
WINDOW = 32


def exact_engine(target: Path, drafter: Path, n_ctx: int) -> Dflash2Engine:
    """One whose drafts do not hang on how the rows of a prompt were batched."""
    return Dflash2Engine(
        *(target, drafter),
        n_ctx=n_ctx,
        device="cpu",
        n_threads=1,
        depth=7,
        cache_type="f32",
        flash_attn="off",
    )


def cold_trace(open_: Callable[[], Dflash2Engine], prompt: list[int]) -> list[Cycle]:
    with open_() as engine:
        answer = engine.generate(prompt, PARAMS)
    assert answer.stats.cached_tokens == 0
    assert answer.trace
    return answer.trace


@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "sliding"])
@pytest.mark.parametrize("kept", [300, 100, 20, 1])
def test_drafts_after_a_rollback_are_those_of_a_cold_run(
    dense_target: Path,
    make_drafter: Callable[..., Path],
    kept: int,
    window: int | None,
) -> None:
    def open_() -> Dflash2Engine:
        return exact_engine(dense_target, make_drafter(window=window), n_ctx=1024)

    long_prompt = (prompts(1, 41)[0] * 100)[:600]
    prompt = long_prompt[:kept] + prompts(2)[1]
    with open_() as engine:
        engine.generate(long_prompt, PARAMS)
        answer = engine.generate(prompt, PARAMS)
    if window is None:
        assert answer.stats.cached_tokens >= kept
    assert answer.trace == cold_trace(open_, prompt)


@pytest.mark.parametrize("mrope", [False, True], ids=["rope", "mrope"])
def test_long_addition_leaves_no_hole_in_a_window(
    request: pytest.FixtureRequest, make_drafter: Callable[..., Path], mrope: bool
) -> None:
    target = request.getfixturevalue("hybrid_target" if mrope else "dense_target")

    def open_() -> Dflash2Engine:
        return exact_engine(target, make_drafter(window=WINDOW, mrope=mrope), n_ctx=512)

    tokens = (prompts(1, 41)[0] * 20)[:200]
    with open_() as engine:
        for prompt in (tokens[:20], tokens[:120], tokens[:60] + tokens[150:], tokens[:25]):
            answer = engine.generate(prompt, PARAMS)
            assert answer.trace == cold_trace(open_, prompt)


def test_a_conversation_evaluates_only_what_is_new(open_engine: Open, wavering_pair: Pair) -> None:
    engine = Dflash2Engine(*wavering_pair, device="cpu", n_threads=1, n_ctx=512, depth=7)
    plain = open_engine(wavering_pair.target)
    conversation = prompts(1)[0]
    with engine:
        for turn, addition in enumerate(prompts(5)):
            conversation = conversation + addition
            answer = engine.generate(conversation, SamplingParams(max_tokens=20))
            assert answer.token_ids == (
                plain.generate(conversation, SamplingParams(max_tokens=20)).token_ids
            )
            if turn > 0:
                # all of the turn before but its last token, which the target has not seen
                assert answer.stats.cached_tokens == len(conversation) - len(addition) - 1
                assert answer.stats.prompt_tokens == len(conversation)
            conversation = conversation + answer.token_ids


def test_the_slot_with_the_longest_prefix_is_taken(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair, n_parallel=3, n_batch=64)
    first, second, third = (prompt * 4 for prompt in prompts(3))
    engine.generate([first, second, third], SamplingParams(max_tokens=5))
    for prompt in (second, third, first):
        answer = engine.generate(prompt, SamplingParams(max_tokens=5))
        # the last token of the prompt is evaluated again for its logits; a recurrent state cannot
        # go back that far
        if "dense" in str(wavering_pair.target):
            assert answer.stats.cached_tokens == len(prompt) - 1


@pytest.mark.parametrize("n_batch", [1, 7, 100])
def test_chunked_prompts_draft_the_same(
    open_engine: Open, wavering_pair: Pair, n_batch: int
) -> None:
    whole = open_engine(*wavering_pair)
    prompt = prompts(3)[2] * 9
    expected = whole.generate(prompt, PARAMS)
    chunked = open_engine(*wavering_pair, n_batch=n_batch)
    answer = chunked.generate(prompt, PARAMS)
    assert answer.token_ids == expected.token_ids
    assert answer.trace == expected.trace
