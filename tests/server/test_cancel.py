"""Clients that hang up free their slot, and leave a state that drafts like a new one."""

import itertools
import threading
from collections.abc import Callable
from typing import TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion
from tiny import Pair

from server.answers import cycles, traced

Open: TypeAlias = Callable[..., Server]


def start_and_hang_up(server: Server, prompt: list[int], n_chunks: int, **fields: object) -> None:
    stream = server.stream("/completion", completion(prompt, 100_000, ignore_eos=True, **fields))
    assert len(list(itertools.islice(stream, n_chunks))) == n_chunks
    stream.close()


@pytest.mark.parametrize("pair", ["dense_pair", "hybrid_pair"])
@pytest.mark.parametrize("cache", [False, True], ids=["cold", "cached"])
def test_cancel_in_mid_stream(
    open_server: Open, request: pytest.FixtureRequest, pair: str, cache: bool
) -> None:
    models = request.getfixturevalue(pair)
    server = open_server(*models, "--context-shift" if pair == "dense_pair" else "-cb")
    fresh = open_server(*models)
    prompt = prompts(1)[0]
    expected = cycles(traced(fresh, prompt, 30))
    for n_chunks in (1, 2, 5, 12):
        start_and_hang_up(server, prompt, n_chunks, cache_prompt=cache)
        server.wait_idle()
        assert cycles(traced(server, prompt, 30, cache_prompt=cache)) == expected


def test_cancel_while_the_prompt_is_evaluated(open_server: Open, dense_pair: Pair) -> None:
    server = open_server(*dense_pair, "-b", 8, "-ub", 8, n_ctx=4096)
    prompt = (prompts(1, 41)[0] * 200)[:4000]
    body = completion(prompt, 10, return_progress=True)
    stream = server.stream("/completion", body)
    next(stream)
    stream.close()
    server.wait_idle()
    short = prompts(2)[1]
    assert cycles(traced(server, short, 30)) == cycles(traced(open_server(*dense_pair), short, 30))


def test_one_of_several(open_server: Open, wavering_pair: Pair) -> None:
    """The others go on, as if nothing had been."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=3)
    asked = prompts(3)
    answers: dict[int, list[int]] = {}

    def ask(i: int) -> None:
        answers[i] = server.complete(asked[i], 300, ignore_eos=True)["tokens"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        start_and_hang_up(server, asked[2], 3)
    for thread in threads:
        thread.join()
    for i, tokens in answers.items():
        assert tokens == plain.complete(asked[i], 300, ignore_eos=True)["tokens"]
    assert len(answers) == 2
    server.wait_idle()


def test_cancel_of_what_waits(open_server: Open, wavering_pair: Pair) -> None:
    """More requests than slots, all given up."""
    server = open_server(*wavering_pair, "--context-shift")
    body = completion(prompts(1)[0], 100_000, ignore_eos=True)
    streams = [server.stream("/completion", body) for _ in range(4)]
    threads = [threading.Thread(target=next, args=(stream, None)) for stream in streams]
    first, *waiting = threads
    first.start()
    first.join()
    del waiting
    for stream in streams:
        stream.close()
    server.wait_idle()
    assert server.metrics()["requests_deferred"] == 0
    assert server.complete("abc", 5)["tokens_predicted"] == 5
