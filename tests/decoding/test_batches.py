"""Streams, batches and single calls give the same answers."""

from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

import pytest
from dflash2 import Dflash2Engine, SamplingParams
from tiny import Pair

from decoding.test_lossless import prompts

Open: TypeAlias = Callable[..., Dflash2Engine]


@pytest.mark.parametrize("n_parallel", [2, 4])
def test_batch_equals_one_by_one(open_engine: Open, wavering_pair: Pair, n_parallel: int) -> None:
    single = open_engine(*wavering_pair)
    batch = open_engine(*wavering_pair, n_parallel=n_parallel)
    assert batch.n_ctx == single.n_ctx
    # different lengths: sequences join and leave while others run
    params = SamplingParams(max_tokens=50)
    expected = [single.generate(prompt, params) for prompt in prompts(11, longest=90)]
    # and again: they come to other places, and begin beside others
    for _ in range(3):
        answers = batch.generate(prompts(11, longest=90), params)
        assert [a.token_ids for a in answers] == [e.token_ids for e in expected]
        accepted = [a.stats.accepted_tokens for a in answers]
        assert accepted == [e.stats.accepted_tokens for e in expected]


@pytest.mark.parametrize("target", ["dense_pair", "hybrid_pair"])
def test_sequences_have_as_many_rows(
    open_engine: Open, target: str, request: pytest.FixtureRequest
) -> None:
    """Else llama.cpp computes those that only some have in a pass of their own."""
    pair: Pair = request.getfixturevalue(target)
    engine = open_engine(*pair, n_parallel=3, depth=5)
    prompt = prompts(1)[0]
    # The second and third have room for fewer tokens than a cycle drafts. The third ends first:
    # those that go on are neighbours
    lengths = (90, 4, 3)
    streams = [
        engine.stream(prompt, SamplingParams(max_tokens=n, ignore_eos=True)) for n in lengths
    ]
    chunks = [[next(stream)] for stream in streams]
    chunks[1].extend(streams[1])
    chunks[2].extend(streams[2])
    streams[0].close()
    assert set(engine.stats.cost_model["verify_ms"]) <= {6, 12, 18}
    assert max(engine.stats.cost_model["verify_ms"]) > 6
    for n, of in zip(lengths[1:], chunks[1:], strict=True):
        expected = open_engine(pair.target).generate(
            prompt, SamplingParams(max_tokens=n, ignore_eos=True)
        )
        assert [t for chunk in of for t in chunk.token_ids] == expected.token_ids


def test_stream_equals_generate(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair)
    params = SamplingParams(max_tokens=50, stop="dca")
    for prompt in prompts(5):
        expected = engine.generate(prompt, params)
        chunks = list(engine.stream(prompt, params))
        assert "".join(chunk.text for chunk in chunks) == expected.text
        assert [t for chunk in chunks for t in chunk.token_ids] == expected.token_ids
        assert sum(chunk.n_accepted for chunk in chunks) == expected.stats.accepted_tokens
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == expected.finish_reason
        assert chunks[-1].stats is not None


def test_a_chunk_is_a_block(open_engine: Open, permutation_pair: Pair) -> None:
    engine = open_engine(*permutation_pair)
    chunks = list(engine.stream("abc", SamplingParams(max_tokens=17)))
    assert [chunk.text for chunk in chunks] == ["d", "efghijkl", "mnopabcd"]
    assert [chunk.n_accepted for chunk in chunks] == [0, 7, 7]


def test_streams_interleave(open_engine: Open, wavering_pair: Pair) -> None:
    single = open_engine(*wavering_pair)
    engine = open_engine(*wavering_pair, n_parallel=2)
    params = SamplingParams(max_tokens=40)
    first, second, third = prompts(3)
    streams = [engine.stream(prompt, params) for prompt in (first, second, third)]
    texts = ["", "", ""]
    while streams_left := [i for i, s in enumerate(streams) if s is not None]:
        for i in streams_left:
            chunk = next(streams[i], None)
            if chunk is None:
                streams[i] = None
            else:
                texts[i] += chunk.text
    assert texts == [single.generate(prompt, params).text for prompt in (first, second, third)]


def test_abandoned_stream_frees_its_place(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair)
    params = SamplingParams(max_tokens=400)
    prompt = prompts(1)[0]
    for _ in range(3):
        stream = engine.stream(prompt, params)
        assert len(list(islice(stream, 2))) == 2
        stream.close()
    short = SamplingParams(max_tokens=10)
    assert engine.generate(prompt, short).token_ids == (
        open_engine(wavering_pair.target).generate(prompt, short).token_ids
    )


def test_two_engines_at_once(open_engine: Open, wavering_pair: Pair, dense_pair: Pair) -> None:
    one, other = open_engine(*wavering_pair), open_engine(*dense_pair)
    params = SamplingParams(max_tokens=30)
    prompt = prompts(1)[0]
    alone = [one.generate(prompt, params).text, other.generate(prompt, params).text]
    texts = ["", ""]
    for chunks in zip(one.stream(prompt, params), other.stream(prompt, params), strict=False):
        for i, chunk in enumerate(chunks):
            texts[i] += chunk.text
    assert all(whole.startswith(part) and part for whole, part in zip(alone, texts, strict=True))


def test_totals_are_the_sum_of_requests(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair, n_parallel=3)
    engine.reset_stats()
    answers = engine.generate(prompts(7), SamplingParams(max_tokens=25))
    total = engine.stats
    for name in (
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "verify_steps",
        "draft_tokens",
        "accepted_tokens",
    ):
        assert getattr(total, name) == sum(getattr(answer.stats, name) for answer in answers), name
    assert sum(total.depth_histogram) == total.verify_steps
    assert sum(n * count for n, count in enumerate(total.depth_histogram)) == total.draft_tokens
    assert sum(total.accepted_per_position) == total.accepted_tokens
    # decoded together: shared time counts once
    assert total.verify_seconds < sum(answer.stats.verify_seconds for answer in answers)
