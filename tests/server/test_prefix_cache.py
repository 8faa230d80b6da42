"""Whatever the cache spares, the drafts are those of a cold run.

The target's verification hides a drafter that has lost or mixed up its keys: drafted ids do not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from dflash2 import Cycle, Dflash2Engine, SamplingParams
from serving import Server, running_server
from tiny import Pair

from server.answers import cycles, traced
from server.options import drafting, exact

Open: TypeAlias = Callable[..., Server]
Make: TypeAlias = Callable[..., Path]
Cold: TypeAlias = Callable[[Pair, list[int]], list[Cycle]]

WINDOW = 32
N_PREDICT = 30


@pytest.fixture(scope="module")
def cold() -> Cold:
    """Cycles of a server that has seen nothing else, by pair and prompt."""
    seen: dict[str, list[Cycle]] = {}

    def run(pair: Pair, prompt: list[int]) -> list[Cycle]:
        key = repr((pair, prompt))
        if key not in seen:
            with running_server(pair.target, [*exact(), *drafting(pair.drafter)]) as server:
                answer = traced(server, prompt, N_PREDICT)
            assert answer["timings"]["cache_n"] == 0
            seen[key] = cycles(answer)
            assert seen[key]
        return seen[key]

    return run


def warm(server: Server, prompt: list[int], **fields: Any) -> dict[str, Any]:
    return traced(server, prompt, N_PREDICT, cache_prompt=True, **fields)


def long_prompt(n: int, seed: int = 0) -> list[int]:
    return (prompts(seed + 1, 41)[seed] * n)[:n]


DRAFTERS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"window": WINDOW},
    "sliding and full": {"window": WINDOW, "sliding": (True, False)},
}


@pytest.fixture(params=DRAFTERS.values(), ids=DRAFTERS)
def dense(request: pytest.FixtureRequest, dense_target: Path, make_drafter: Make) -> Pair:
    return Pair(dense_target, make_drafter(**request.param))


@pytest.fixture(params=["dense full", "dense sliding", "hybrid full", "hybrid sliding"])
def any_pair(
    request: pytest.FixtureRequest, dense_target: Path, hybrid_target: Path, make_drafter: Make
) -> Pair:
    target, _, drafter = request.param.partition(" ")
    if target == "dense":
        return Pair(dense_target, make_drafter(**DRAFTERS[drafter]))
    return Pair(hybrid_target, make_drafter(mrope=True, **DRAFTERS[drafter]))


def test_cycles_are_those_of_the_engine(dense: Pair, cold: Cold) -> None:
    """Which are compared with the reference elsewhere."""
    options: dict[str, Any] = {"cache_type": "f32", "flash_attn": "off", "n_threads": 1}
    with Dflash2Engine(*dense, n_ctx=1024, device="cpu", depth=7, **options) as engine:
        for n in (5, WINDOW, 300):
            params = SamplingParams(max_tokens=N_PREDICT, trace=True)
            assert engine.generate(long_prompt(n), params).trace == cold(dense, long_prompt(n))


def test_same_prompt_again(open_server: Open, dense: Pair, cold: Cold) -> None:
    server = open_server(*dense)
    prompt = long_prompt(200)
    for _ in range(3):
        answer = warm(server, prompt)
        assert cycles(answer) == cold(dense, prompt)
    assert answer["timings"]["cache_n"] > 0


@pytest.mark.parametrize("kept", [390, 300, 100, 20, 1])
def test_rollback(open_server: Open, dense: Pair, cold: Cold, kept: int) -> None:
    """Also beyond what the ring of a sliding drafter still holds (D3)."""
    server = open_server(*dense)
    whole = long_prompt(400)
    warm(server, whole)
    prompt = whole[:kept] + prompts(2)[1]
    assert cycles(warm(server, prompt)) == cold(dense, prompt)


def test_a_full_drafter_rolls_back_for_free(
    open_server: Open, dense_target: Path, make_drafter: Make
) -> None:
    server = open_server(dense_target, make_drafter())
    plain = open_server(dense_target)
    whole = long_prompt(400)
    for kept in (300, 100, 20):
        for each in (server, plain):
            warm(each, whole)
        prompt = whole[:kept] + prompts(2)[1]
        cached = [warm(each, prompt)["timings"]["cache_n"] for each in (server, plain)]
        assert cached[0] == cached[1] >= kept


def test_conversation(open_server: Open, any_pair: Pair, cold: Cold) -> None:
    """Turns on top of turns, then the last but one edited."""
    server, plain = open_server(*any_pair), open_server(any_pair.target)
    said: list[int] = []
    history: list[list[int]] = []
    for each in (server, plain):  # nothing is left of other tests
        each.complete([0], 1)
    for turn in prompts(4):
        said = said + turn
        history.append(said)
        answer, expected = warm(server, said), warm(plain, said)
        assert cycles(answer) == cold(any_pair, said)
        assert answer["tokens"] == expected["tokens"]
        # to go on needs nothing that a window has lost
        assert answer["timings"]["cache_n"] == expected["timings"]["cache_n"]
        said = said + answer["tokens"]
    edited = history[-2][:-3] + prompts(1)[0]
    assert cycles(warm(server, edited)) == cold(any_pair, edited)


def test_conversations_that_alternate_on_one_slot(
    request: pytest.FixtureRequest, open_server: Open, dense: Pair, cold: Cold
) -> None:
    """Through the prompt cache in memory, which keeps the state of both."""
    server = open_server(*dense, "-cram", 256)
    first, second = long_prompt(150), long_prompt(170, seed=1)
    for turn in range(3):
        for conversation in (first, second):
            prompt = conversation + prompts(4)[turn + 1]
            assert cycles(warm(server, prompt)) == cold(dense, prompt)
    # but for what a window must see again
    cached = warm(server, first + prompts(4)[3])["timings"]["cache_n"]
    assert cached > 100 - 2 * WINDOW or "and full" in request.node.name


def test_conversations_on_slots_of_their_own(open_server: Open, dense: Pair, cold: Cold) -> None:
    server = open_server(*dense, n_slots=2)
    first, second = long_prompt(150), long_prompt(170, seed=1)
    for turn in range(2):
        # the second time each goes on in the other's slot
        for slot, conversation in enumerate((first, second)):
            prompt = conversation + prompts(4)[turn + 1]
            answer = warm(server, prompt, id_slot=(slot + turn) % 2)
            assert cycles(answer) == cold(dense, prompt)


def test_without_cache_nothing_is_left(open_server: Open, dense: Pair, cold: Cold) -> None:
    server = open_server(*dense)
    for prompt in (long_prompt(200), long_prompt(40), long_prompt(40, seed=1)):
        answer = traced(server, prompt, N_PREDICT)
        assert answer["timings"]["cache_n"] == 0
        assert cycles(answer) == cold(dense, prompt)


def test_prompt_evaluated_in_portions(open_server: Open, any_pair: Pair, cold: Cold) -> None:
    for n_batch in (16, 100):
        server = open_server(*any_pair, "-b", n_batch, "-ub", n_batch)
        for n in (99, 100, 101, 300):
            answer = traced(server, long_prompt(n), N_PREDICT)
            assert cycles(answer) == cold(any_pair, long_prompt(n))


def test_evaluated_ahead(open_server: Open, dense: Pair, cold: Cold) -> None:
    """A request for no token fills the cache."""
    server = open_server(*dense)
    prompt = long_prompt(120)
    server.complete(prompt, 0, cache_prompt=True)
    answer = warm(server, prompt)
    assert answer["timings"]["cache_n"] > 100
    assert cycles(answer) == cold(dense, prompt)
