"""Engines on the tiny pairs, opened once per test module."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dflash2 import Dflash2Engine


@pytest.fixture(scope="module")
def open_engine() -> Iterator[Callable[..., Dflash2Engine]]:
    """Opens engines that compute in F32 on one thread; the same options give the same engine."""
    opened: dict[str, Dflash2Engine] = {}

    def open_(target: Path, drafter: Path | None = None, **options: Any) -> Dflash2Engine:
        options = {
            "device": "cpu",
            "n_threads": 1,
            "n_ctx": 512,
            "cache_type": "f32",
            "flash_attn": "off",
            # what a test counts must not hang on how fast the machine is
            **({} if drafter is None else {"depth": 7}),
            **options,
        }
        key = repr((target, drafter, sorted(options.items())))
        if key not in opened:
            opened[key] = Dflash2Engine(target, drafter, **options)
        return opened[key]

    yield open_
    for engine in opened.values():
        engine.close()
