"""The target spread over two ggml-rpc-servers, the drafter here or on one of them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from decoding.test_lossless import prompts
from ops.ggml import op_name
from serving import Server, running_rpc_server, running_server
from tiny import Pair

from server.answers import accepted, cycles, drafted, stats, traced
from server.options import drafting, exact
from server.rpc_tap import tapped


@contextmanager
def spread_server(pair: Pair, *drafter_options: object) -> Iterator[tuple[Server, list[str]]]:
    """A server and the addresses where its target lies; a ggml-rpc-server has one client only."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(running_rpc_server()) for _ in range(2)]
        remote = ["--rpc", ",".join(addresses), "-dev", "RPC0,RPC1", "-sm", "layer", "-ngl", 99]
        # at level 4 the log says where tensors lie
        options = [*exact(2), *drafting(pair.drafter), *remote, *drafter_options, "-lv", 4]
        yield stack.enter_context(running_server(pair.target, options)), addresses


@pytest.mark.parametrize(
    "place",
    [["-devd", "none"], ["-devd", "RPC0", "-ngld", 99], ["-devd", "RPC1", "-ngld", 99]],
    ids=["here", "on the first", "on the second"],
)
def test_target_on_two_machines(wavering_pair: Pair, place: list[object]) -> None:
    """The head, which the drafter shares, lies on the second."""
    n_accepted = n_drafted = 0
    with (
        spread_server(wavering_pair, *place) as (server, addresses),
        running_server(wavering_pair.target, exact()) as plain,
        running_server(wavering_pair.target, [*exact(2), *drafting(wavering_pair.drafter)]) as near,
    ):
        for address in addresses:
            place_of_layers = rf"{re.escape(address)}\] model buffer size"
            assert re.search(place_of_layers, server.log()), server.log()[:8000]
        for prompt in prompts(3):
            answer = traced(server, prompt, 30)
            assert answer["tokens"] == plain.complete(prompt, 30)["tokens"]
            assert cycles(answer) == cycles(traced(near, prompt, 30))
            n_accepted += accepted(answer)
            n_drafted += drafted(answer)
    assert 0 < n_accepted <= n_drafted


@pytest.mark.parametrize(
    ("place", "ops"), [("none", "fused but for topk score"), ("RPC0", "composed")]
)
def test_only_ops_of_upstream_are_sent(dense_pair: Pair, place: str, ops: str) -> None:
    """So that a ggml-rpc-server without our patches serves: there, the drafter's graph is composed.

    Its head is the target's, and so are the logits from which the candidates are taken.
    """
    with (
        running_rpc_server() as address,
        tapped(address) as tap,
        running_server(
            dense_pair.target,
            [
                *exact(),
                *drafting(dense_pair.drafter),
                *["--rpc", tap.address, "-dev", "RPC0", "-ngl", 99, "-devd", place, "-ngld", 99],
            ],
        ) as server,
    ):
        answer = traced(server, "abcabc", 20)
        assert drafted(answer) > 0
        assert stats(answer)["fused_ops"] == ops
    names = {op_name(number) for number in tap.ops}
    assert {"MUL_MAT", "ROPE", "RMS_NORM"} <= names
    assert {"ARGSORT", "TOP_K"} & names
    assert not [name for name in names if "DFLASH2" in name]
