"""What the server says of how an answer came about, in the engine's terms."""

from collections.abc import Mapping
from typing import Any

from dflash2 import Cycle
from serving import Prompt, Server


def stats(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Of one request; the names are those of `dflash2.GenerationStats`."""
    return dict(answer["timings"]["dflash2"])


def accepted(answer: Mapping[str, Any]) -> int:
    return int(stats(answer)["accepted_tokens"])


def drafted(answer: Mapping[str, Any]) -> int:
    return int(stats(answer)["draft_tokens"])


def cycles(answer: Mapping[str, Any]) -> list[Cycle]:
    """The trace of a request that asked for it."""
    return [Cycle(**cycle | {"draft": tuple(cycle["draft"])}) for cycle in stats(answer)["trace"]]


def traced(server: Server, prompt: Prompt, n_predict: int, **fields: Any) -> dict[str, Any]:
    """An answer whose `cycles` can be asked for."""
    return server.complete(prompt, n_predict, dflash2_trace=True, **fields)
