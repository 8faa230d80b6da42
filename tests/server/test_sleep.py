"""A server that sleeps has given its models back; what it counted, and drafts, it still does."""

import time
from collections.abc import Mapping

from serving import Server, running_server
from tiny import Pair

from server.answers import accepted, cycles, traced
from server.options import drafting, exact


def counters(server: Server) -> Mapping[str, float]:
    """Of DFlash 2, but for those of time."""
    found = {name: value for name, value in server.metrics().items() if name.startswith("dflash2_")}
    return {name: value for name, value in found.items() if "seconds" not in name}


def wait_asleep(server: Server) -> None:
    end = time.monotonic() + 30
    while not server.get("/props")["is_sleeping"]:
        assert time.monotonic() < end, "the server stays awake"
        time.sleep(0.05)


def test_sleep(wavering_pair: Pair) -> None:
    options = [*exact(), *drafting(wavering_pair.drafter), "--sleep-idle-seconds", 1]
    with running_server(wavering_pair.target, options) as server:
        answer = traced(server, "abcabc", 30)
        awake = counters(server)
        assert awake["dflash2_accepted_tokens_total"] == accepted(answer)
        wait_asleep(server)
        assert counters(server) == awake
        assert server.get("/props")["dflash2"]["max_depth"] == 7
        again = traced(server, "abcabc", 30)
        assert cycles(again) == cycles(answer)
        assert counters(server) == {name: 2 * value for name, value in awake.items()}
