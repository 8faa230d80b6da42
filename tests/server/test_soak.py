"""Many clients at once, for a while: nothing fails, nothing grows, every greedy answer is right.

    pytest tests/server/test_soak.py --soak 120

runs each case for 120 seconds, instead of the five of a usual run.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pytest
from decoding.test_lossless import prompts
from serving import Server, completion, running_server
from tiny import Pair

from server.answers import accepted, drafted
from server.options import drafting, exact

N_PROMPTS = 24
N_GREEDY_TOKENS = 60
# of the prompts kept in memory: the second half of a run must find it full
CACHE_MIB = 8
# a leaked cache of one slot, or a hundredth of what a request takes each time
GROWTH_BYTES = 8_000_000
GROWTH_BYTES_PER_REQUEST = 1_000

Prompt = list[int]


@dataclass
class Tally:
    """What the clients saw.

    Attributes:
        counts: Answers by kind of request.
        failures: Exceptions, wrong answers included.
        resident: (requests done, bytes) over the run.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    resident: list[tuple[int, int]] = field(default_factory=list)


@pytest.mark.parametrize("n_clients", [8, 32])
def test_soak(
    n_clients: int,
    wavering_pair: Pair,
    pytestconfig: pytest.Config,
    report: Callable[[str], None],
) -> None:
    seconds = pytestconfig.getoption("--soak")
    asked = prompts(N_PROMPTS, longest=120)
    with running_server(wavering_pair.target, exact()) as plain:
        right = [plain.complete(prompt, N_GREEDY_TOKENS)["tokens"] for prompt in asked]
    # fewer slots than clients, so that some wait
    n_slots = n_clients // 2
    options = [*exact(n_slots, 512), *drafting(wavering_pair.drafter), "-cram", CACHE_MIB]
    with running_server(wavering_pair.target, options) as server:
        tally = soak(server, asked, right, n_clients, seconds)
        server.wait_idle()
        # and it still answers as at first
        last = [server.complete(prompt, N_GREEDY_TOKENS)["tokens"] for prompt in asked[:4]]
        server.wait_idle()
        metrics = server.metrics()
    assert not tally.failures, tally.failures[:5]
    assert last == right[:4]
    assert (metrics["requests_processing"], metrics["requests_deferred"]) == (0, 0)
    assert metrics["dflash2_accepted_tokens_total"] > 0
    assert set(tally.counts) == {kind.__name__ for kind in KINDS}, "a kind was never asked for"
    report(
        f"soak, {n_clients} clients, {seconds:.0f} s: {tally.counts.total()} requests, "
        f"{tally.counts['greedy']} greedy ones right"
    )
    check_growth(tally.resident, report)


def check_growth(resident: list[tuple[int, int]], report: Callable[[str], None]) -> None:
    """Of the second half: then every slot has been full once."""
    requests, sizes = np.array(resident[len(resident) // 2 :], np.float64).T
    slope = np.polyfit(requests, sizes, 1)[0]
    growth = slope * np.ptp(requests)
    report(f"  resident memory: {slope:+.0f} bytes a request, {growth / 1e6:+.1f} MB in all")
    assert growth < GROWTH_BYTES or slope < GROWTH_BYTES_PER_REQUEST


def soak(
    server: Server, asked: list[Prompt], right: list[Prompt], n_clients: int, seconds: float
) -> Tally:
    tally = Tally()
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        rng = random.Random(number)
        # each begins with another kind
        turn = number
        while time.monotonic() < end or turn < number + len(KINDS):
            kind = KINDS[turn % len(KINDS)]
            i = rng.randrange(len(asked))
            try:
                tokens = kind(server, asked[i], rng)
            except Exception as error:
                tally.failures.append(f"{kind.__name__}: {error!r}"[:2000])
                return
            if tokens is not None and tokens != right[i]:
                tally.failures.append(f"{kind.__name__}, prompt {i}: {tokens} for {right[i]}")
            tally.counts[kind.__name__] += 1
            turn += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tally.resident.append((tally.counts.total(), server.resident_bytes()))
        time.sleep(0.1)
    return tally


# each gives the tokens of an answer that has only one right text


def greedy(server: Server, prompt: Prompt, rng: random.Random) -> Prompt:
    cache = rng.random() < 0.5
    tokens: Prompt = server.complete(prompt, N_GREEDY_TOKENS, cache_prompt=cache)["tokens"]
    return tokens


def streamed(server: Server, prompt: Prompt, rng: random.Random) -> Prompt:
    body = completion(prompt, N_GREEDY_TOKENS)
    return [token for chunk in server.stream("/completion", body) for token in chunk["tokens"]]


def sampled(server: Server, prompt: Prompt, rng: random.Random) -> None:
    fields = {"temperature": rng.choice([0.5, 1.0, 1.5]), "repeat_penalty": 1.1, "n_probs": 2}
    answer = server.complete(prompt, 40, seed=rng.randrange(1 << 30), **fields)
    assert len(answer["completion_probabilities"]) == answer["tokens_predicted"]


def constrained(server: Server, prompt: Prompt, rng: random.Random) -> None:
    schema = {"enum": ["yes", "no", {"perhaps": True}]}
    fields = {"json_schema": schema, "temperature": rng.choice([0, 1.0])}
    answer = server.complete(prompt, 60, **fields)
    assert json.loads(answer["content"]) in schema["enum"]


def cancelled(server: Server, prompt: Prompt, rng: random.Random) -> None:
    fields = {"temperature": rng.choice([0, 1.0]), "ignore_eos": True, "cache_prompt": True}
    stream = server.stream("/completion", completion(prompt, 300, **fields))
    list(islice(stream, rng.randrange(1, 12)))
    stream.close()


def conversation(server: Server, prompt: Prompt, rng: random.Random) -> None:
    """A second turn on what the first one left, in whatever slot the server chooses."""
    first = server.complete(prompt, 15, cache_prompt=True)["tokens"]
    second = server.complete([*prompt, *first, *prompt[:7]], 15, cache_prompt=True)
    assert second["tokens_evaluated"] == len(prompt) + len(first) + len(prompt[:7])


def several(server: Server, prompt: Prompt, rng: random.Random) -> None:
    answers = server.post("/completion", completion(prompt, 12, n_cmpl=2, temperature=1.0))
    assert len(answers) == 2
    assert all(accepted(answer) <= drafted(answer) for answer in answers)


KINDS: list[Callable[[Server, Prompt, random.Random], Prompt | None]] = [
    greedy,
    sampled,
    streamed,
    constrained,
    cancelled,
    conversation,
    several,
]
