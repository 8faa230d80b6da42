"""Servers on the tiny pairs, started once per test module."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from serving import Server, running_server

from server.options import drafting, exact


@pytest.fixture(scope="module")
def open_server() -> Iterator[Callable[..., Server]]:
    """Runs servers of `exact` options; the same arguments give the same server, used or not."""
    opened: dict[str, Server] = {}
    with ExitStack() as stack:

        def open_(
            target: Path,
            drafter: Path | None = None,
            *options: object,
            depth: int | str = 7,
            n_slots: int = 1,
            n_ctx: int = 1024,
        ) -> Server:
            arguments = [*exact(n_slots, n_ctx), *drafting(drafter, depth), *options]
            key = repr((target, arguments))
            if key not in opened:
                opened[key] = stack.enter_context(running_server(target, arguments))
            return opened[key]

        yield open_
