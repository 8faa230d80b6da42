"""The packaged llama-server, drafting as stock llama.cpp does: the peer of tests and benchmarks."""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving import running_server

Conversation = list[dict[str, str]]


@contextmanager
def stock_server(
    target: Path, drafter: Path | None, n_max: int = 7, options: Sequence[str] = ()
) -> Iterator[str]:
    """Runs the server and gives its address; `drafter` None: plain decoding."""
    arguments = ["-c", 2048, "--parallel", 1, *options]
    if drafter is not None:
        arguments += stock_drafting(drafter, n_max)
    with running_server(target, arguments) as server:
        yield server.address


def stock_drafting(drafter: Path, n_max: int) -> list[object]:
    """Options that make llama-server draft as it does without this project."""
    return ["--spec-type", "draft-dflash", "-md", drafter, "--spec-draft-n-max", n_max]


def ask(
    address: str, conversation: Conversation, max_tokens: int, **sampling: float
) -> dict[str, Any]:
    """One answer with the server's timings; greedy without `sampling`, fields of the request."""
    body = {"messages": conversation, "temperature": 0, "max_tokens": max_tokens}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body | {"cache_prompt": False} | sampling).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
