"""Slots that decode together draft as each does alone, in whatever cache and micro-batch."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server
from tiny import Pair

from server.answers import cycles, traced

Open: TypeAlias = Callable[..., Server]
WINDOW = 32
N_REQUESTS = 12


def ask_together(server: Server, n_predict: int = 40) -> list[dict]:
    asked = prompts(N_REQUESTS, longest=90)
    with ThreadPoolExecutor(N_REQUESTS) as pool:
        return list(pool.map(lambda prompt: traced(server, prompt, n_predict), asked))


@pytest.mark.parametrize("unified", ["-kvu", "-no-kvu"])
@pytest.mark.parametrize("window", [None, WINDOW], ids=["full", "sliding"])
def test_windows_of_several_slots(
    open_server: Open,
    dense_target: Path,
    make_drafter: Callable[..., Path],
    window: int | None,
    unified: str,
) -> None:
    """Rejected rows of one slot push no key out of another's window (D2)."""
    pair = Pair(dense_target, make_drafter(window=window))
    alone = open_server(*pair)
    together = open_server(*pair, unified, n_slots=4)
    for prompt, answer in zip(prompts(N_REQUESTS, 90), ask_together(together), strict=True):
        expected = traced(alone, prompt, 40)
        assert answer["tokens"] == expected["tokens"]
        assert cycles(answer) == cycles(expected)


@pytest.mark.parametrize("n_ubatch", [1, 8, 16, 20])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_micro_batch_smaller_than_the_blocks_of_all_slots(
    open_server: Open, wavering_pair: Pair, n_ubatch: int, n_slots: int
) -> None:
    """Works, or is refused at start: never ends at the first draft (D10)."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, "-ub", n_ubatch, n_slots=n_slots)
    for prompt, answer in zip(prompts(N_REQUESTS, 90), ask_together(server, 30), strict=True):
        assert answer["tokens"] == plain.complete(prompt, 30)["tokens"]


def test_many_slots(open_server: Open, wavering_pair: Pair) -> None:
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=32, n_ctx=256)
    asked = prompts(32)
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda prompt: server.complete(prompt, 40), asked))
    for prompt, answer in zip(asked, answers, strict=True):
        assert answer["tokens"] == plain.complete(prompt, 40)["tokens"]
    assert len({answer["id_slot"] for answer in answers}) > 8


def test_arrivals_among_drafting_slots(open_server: Open, wavering_pair: Pair) -> None:
    """Prompts join decodes that verify blocks of other slots, and must not cut these in two."""
    plain = open_server(wavering_pair.target)
    server = open_server(*wavering_pair, n_slots=8, n_ctx=512)
    asked = prompts(24, longest=120)
    right = [plain.complete(prompt, 60)["tokens"] for prompt in asked]

    def client(number: int) -> list[int]:
        turns = random.Random(number).choices(range(len(asked)), k=25)
        return [i for i in turns if server.complete(asked[i], 60)["tokens"] != right[i]]

    with ThreadPoolExecutor(8) as pool:
        wrong = list(pool.map(client, range(8)))
    assert wrong == [[]] * 8


def test_a_drafter_context_of_its_own_size(
    open_server: Open, dense_target: Path, make_drafter: Callable[..., Path]
) -> None:
    """Past the end of a smaller drafter context there are no drafts, or right ones."""
    pair = Pair(dense_target, make_drafter())
    plain, whole = open_server(dense_target), open_server(*pair)
    server = open_server(*pair, "--dflash2-ctx", 256)
    for n_prompt in (100, 230, 300):
        prompt = (prompts(1, 41)[0] * 20)[:n_prompt]
        answer = traced(server, prompt, 60)
        assert answer["tokens"] == plain.complete(prompt, 60)["tokens"]
        if n_prompt == 100:
            assert cycles(answer) == cycles(traced(whole, prompt, 60))
