"""SIGTERM and SIGINT end the server cleanly, busy or not."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion, running_server
from tiny import Pair

from server.options import drafting, exact

N_SLOTS = 4
# of clients: how long the next chunk, or the answer of one that does not stream, may take
PATIENCE_SECONDS = {True: 2, False: 8}


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("n_clients", [0, 1, 8])
def test_clients_that_hang_up(wavering_pair: Pair, n_clients: int, sign: signal.Signals) -> None:
    """When nothing more comes."""
    with busy_server(wavering_pair, n_clients, patient=False) as server:
        server.process.send_signal(sign)
        check_end(server)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_clients_that_wait(wavering_pair: Pair, sign: signal.Signals) -> None:
    with busy_server(wavering_pair, 8, patient=True) as server:
        server.process.send_signal(sign)
        check_end(server)


def check_end(server: Server) -> None:
    try:
        status = server.process.wait(20)
    finally:
        if server.process.poll() is None:
            server.process.kill()
    log = server.log()
    assert status == 0, log[-2000:]
    for bad in ("GGML_ASSERT", "terminate called", "Segmentation", "double free", "corrupted"):
        assert bad not in log


@contextlib.contextmanager
def busy_server(pair: Pair, n_clients: int, *, patient: bool) -> Iterator[Server]:
    """A server with requests that go on until it does not."""
    # one thread for each client, and for what is asked here
    options = ["--context-shift", "--threads-http", n_clients + 2]
    with running_server(
        pair.target, [*exact(N_SLOTS), *drafting(pair.drafter), *options]
    ) as server:
        threads = [
            threading.Thread(target=endless(server, prompt, stream=i % 2 == 0, patient=patient))
            for i, prompt in enumerate(prompts(n_clients) if n_clients else [])
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 30
        while server.busy_slots() < min(n_clients, N_SLOTS):
            assert time.monotonic() < end, "the slots did not fill"
            time.sleep(0.01)
        # into the middle of the cycles
        time.sleep(0.1)
        yield server
        for thread in threads:
            thread.join(30)


def endless(
    server: Server, prompt: list[int], *, stream: bool, patient: bool
) -> Callable[[], None]:
    def ask() -> None:
        body = completion(prompt, -1, ignore_eos=True)
        seconds = 60 if patient else PATIENCE_SECONDS[stream]
        # cut off by one side or the other: no connection, an error, or an answer without content
        with contextlib.suppress(OSError, RuntimeError, json.JSONDecodeError):
            if stream:
                list(server.stream("/completion", body, seconds))
            else:
                server.ask("POST", "/completion", body, seconds)

    return ask
