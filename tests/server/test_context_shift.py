"""Positions that move: a context that is shifted, chunks of a prompt that are reused (D5)."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server
from tiny import Pair

from server.answers import accepted, drafted

Open: TypeAlias = Callable[..., Server]


@pytest.fixture(params=["full", "sliding", "sliding and full"])
def dense(
    request: pytest.FixtureRequest, dense_target: Path, make_drafter: Callable[..., Path]
) -> Pair:
    window = None if request.param == "full" else 32
    sliding = (True, False) if "and" in request.param else None
    return Pair(dense_target, make_drafter(window=window, sliding=sliding))


def test_context_shift(open_server: Open, dense: Pair) -> None:
    plain = open_server(dense.target, None, "--context-shift", n_ctx=256)
    server = open_server(*dense, "--context-shift", n_ctx=256)
    for n_keep in (0, 20):
        prompt = (prompts(1, 41)[0] * 10)[:200]
        fields = {"ignore_eos": True, "n_keep": n_keep}
        answer = server.complete(prompt, 400, **fields)
        assert answer["tokens_predicted"] == 400
        assert answer["truncated"]
        # up to the first shift: then a pass of eight rows reaches the end before one of one row
        n_same = 256 - 200 - 8
        expected = plain.complete(prompt, 400, **fields)
        assert answer["tokens"][:n_same] == expected["tokens"][:n_same]
        # and the slot is no worse for it
        assert server.complete("abc", 20)["tokens"] == plain.complete("abc", 20)["tokens"]


def test_accepted_drafts_after_a_shift(open_server: Open, permutation_pair: Pair) -> None:
    """Where the last token alone decides, a shift changes nothing: all is accepted."""
    server = open_server(*permutation_pair, "--context-shift", n_ctx=256)
    answer = server.complete("abc", 1 + 8 * 100, ignore_eos=True)
    letters = "abcdefghijklmnop" * 60
    assert answer["content"] == letters[3 : 3 + 801]
    # a cycle at the end of the context may be cut
    assert accepted(answer) == drafted(answer)
    assert accepted(answer) >= 690


def test_chunks_of_a_prompt_are_reused(open_server: Open, dense: Pair) -> None:
    plain = open_server(dense.target, None, "--cache-reuse", 16)
    server = open_server(*dense, "--cache-reuse", 16)
    head, gap, tail = prompts(1, 41)[0][:30], list(b"abcdefgh" * 4), prompts(4, 41)[3] * 5
    for each in (server, plain):
        each.complete(head + gap + tail, 5, cache_prompt=True)
    fields = {"cache_prompt": True, "n_cache_reuse": 16}
    answer, expected = (each.complete(head + tail, 40, **fields) for each in (server, plain))
    cached = [each["timings"]["cache_n"] for each in (answer, expected)]
    assert cached[1] > len(head) + 16, "nothing was reused"
    if cached[0] != cached[1]:
        # where the drafter cannot follow, no chunk is reused, and the answer is the better one
        assert cached[0] <= len(head)
        expected = plain.complete(head + tail, 40)
    assert answer["tokens"] == expected["tokens"]
    assert drafted(answer) > 0
