"""A llama-server under continuous load: as many requests at once as there are clients."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dflash2 import demo
from serving import Server, running_server
from stock import Conversation, stock_drafting
from turns import PLAIN_SAMPLING, Batch, Contender, Turn, thread_options

OURS, PLAIN = "ours", "no drafter"
N_CTX = 1024  # of a slot


@dataclass(frozen=True)
class ServerSetting:
    """What every row is measured with.

    Attributes:
        n_threads: None is what the server chooses.
        quick: Shrinks prompts, tokens and repeats until the figures mean nothing.
        stock: The llama-server that stock drafting and decoding without a drafter are measured
            with; None is the packaged one.
        clients: Numbers of them at which throughput is measured; None is all.
    """

    n_threads: int | None
    quick: bool
    stock: Path | None
    clients: Sequence[int] | None


def contestant(
    setting: ServerSetting, name: str, n_slots: int, n_ctx: int = N_CTX
) -> tuple[list[object], Path | None]:
    """Options and program of the server `ours`, `no drafter`, or `n_max N`."""
    options: list[object] = ["-np", n_slots, "-c", n_slots * n_ctx]
    options += thread_options(setting.n_threads)
    if name == OURS:
        return [*options, "--draft-dflash2", demo.drafter_path()], None
    if name != PLAIN:
        options += stock_drafting(demo.drafter_path(), int(name.rpartition(" ")[2]))
    return options, setting.stock


def open_servers(
    stack: ExitStack, setting: ServerSetting, names: Sequence[str], n_slots: int, n_ctx: int = N_CTX
) -> dict[str, Server]:
    """Servers on the demo pair, all of them running."""
    servers = {}
    for name in names:
        options, program = contestant(setting, name, n_slots, n_ctx)
        running = running_server(demo.target_path(), options, program=program)
        servers[name] = stack.enter_context(running)
    return servers


def load_contender(server: Server, n_clients: int, temperature: float) -> Contender:
    """One who answers all prompts of a batch, `n_clients` at a time, each with n tokens."""

    def run(batch: Batch, n_tokens: int) -> Turn:
        bodies = [
            request(cast("Conversation", conversation), n_tokens, temperature, seed)
            for seed, conversation in enumerate(batch)
        ]
        return Load(server, bodies, n_clients).run()

    return run


def request(
    conversation: Conversation, n_tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    """For an answer that is never shorter: else the slots that are left at the end decide."""
    body = {"messages": conversation, "max_tokens": n_tokens, "ignore_eos": True, "seed": seed}
    return body | PLAIN_SAMPLING | {"temperature": temperature, "cache_prompt": False}


class Load:
    """Clients who take requests from one queue until it is empty.

    What is measured ends there, while all slots are still busy.
    """

    def __init__(self, server: Server, bodies: Sequence[dict[str, Any]], n_clients: int) -> None:
        self._server = server
        self._bodies: Iterator[dict[str, Any]] = iter(bodies)
        self._n_clients = n_clients
        self._lock = threading.Lock()
        # when, and the server's timings
        self._finished: list[tuple[float, dict[str, Any]]] = []
        self._end = 0.0
        self._failure: BaseException | None = None

    def run(self) -> Turn:
        threads = [threading.Thread(target=self._client) for _ in range(self._n_clients)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        timings = [each for _, each in self._finished]
        accepted = sum(each.get("draft_n_accepted", 0) for each in timings)
        # the first token of each comes from the prompt
        steps = sum(each["predicted_n"] - 1 for each in timings) - accepted
        tokens = sum(each["predicted_n"] * self._share(at, each) for at, each in self._finished)
        return Turn(round(tokens), self._end - start, accepted, steps)

    def _share(self, at: float, timings: dict[str, Any]) -> float:
        """Of an answer's tokens, those that came before the end."""
        seconds = 1e-3 * timings["predicted_ms"]
        if seconds <= 0:
            return float(at <= self._end)
        return min(1.0, max(0.0, (self._end - at + seconds) / seconds))

    def _client(self) -> None:
        try:
            while (body := self._next()) is not None:
                timings = self._server.post("/v1/chat/completions", body, seconds=600)["timings"]
                self._finished.append((time.perf_counter(), timings))
        except BaseException as error:
            self._failure = error

    def _next(self) -> dict[str, Any] | None:
        with self._lock:
            body = next(self._bodies, None)
            if body is None and not self._end:
                self._end = time.perf_counter()
            return body
