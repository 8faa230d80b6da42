"""What the drafter costs before the first token."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

from cells import Cell
from dflash2 import demo
from server_load import OURS, PLAIN, ServerSetting, open_servers, request
from serving import Server, completion
from stock import Conversation
from turns import mixed_prompts

N_CTX = 2048


def cells(setting: ServerSetting) -> Iterator[Cell]:
    repeats, n_long = (1, 200) if setting.quick else (9, 1500)
    with ExitStack() as stack:
        servers = open_servers(stack, setting, [OURS, PLAIN], n_slots=1, n_ctx=N_CTX)
        prompts = mixed_prompts(3 if setting.quick else 9)
        long_prompts = {name: _long_prompt(server, n_long) for name, server in servers.items()}
        for name, server in servers.items():  # first decodes allocate
            _first_token(server, prompts[0])
            _prompt_seconds(server, long_prompts[name])
        waits: dict[str, list[float]] = {name: [] for name in servers}
        speeds: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(repeats):
            for prompt in prompts:
                for name, server in servers.items():
                    waits[name].append(_first_token(server, prompt))
            for name, server in servers.items():
                speeds[name].append(n_long / _prompt_seconds(server, long_prompts[name]))
    # the same prompts in turn: pairs
    ratios = [a / b for a, b in zip(waits[OURS], waits[PLAIN], strict=True)]
    yield Cell(
        "prompt",
        f"seconds to the first token, ours / {PLAIN}",
        statistics.median(ratios),
        "x",
        (min(ratios), max(ratios)),
        at_most=1.1,
        details={name: {"seconds": values} for name, values in waits.items()},
    )
    ratios = [a / b for a, b in zip(speeds[OURS], speeds[PLAIN], strict=True)]
    yield Cell(
        "prompt",
        f"tokens/s of {n_long}, ours / {PLAIN}",
        statistics.median(speeds[OURS]) / statistics.median(speeds[PLAIN]),
        "x",
        (min(ratios), max(ratios)),
        at_least=0.95,
        details={name: {"tokens_per_second": values} for name, values in speeds.items()},
    )


def _long_prompt(server: Server, n_tokens: int) -> list[int]:
    """The questions one after the other."""
    text = "\n".join(prompt[0]["content"] for prompt in mixed_prompts(60))
    tokens: list[int] = server.post("/tokenize", {"content": text})["tokens"]
    if len(tokens) < n_tokens:
        message = f"{demo.target_path().name}: the prompts give {len(tokens)} tokens"
        raise ValueError(message)
    return tokens[:n_tokens]


def _first_token(server: Server, conversation: Conversation) -> float:
    """Seconds from the request to its first text."""
    body = request(conversation, 4, temperature=0, seed=0)
    start = time.perf_counter()
    seconds = None
    for chunk in server.stream("/v1/chat/completions", body):
        # what is sent before has the role only
        if seconds is None and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            seconds = time.perf_counter() - start
    if seconds is None:
        message = "an answer without text"
        raise ValueError(message)
    return seconds


def _prompt_seconds(server: Server, prompt: list[int]) -> float:
    start = time.perf_counter()
    server.post("/completion", completion(prompt, 1))
    return time.perf_counter() - start
