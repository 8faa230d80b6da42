"""An engine on a native one made of Python."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from dflash2 import Dflash2Engine
from fake_engine import FakeEngine, install

Open: TypeAlias = Callable[..., tuple[Dflash2Engine, FakeEngine]]


@pytest.fixture
def open_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens an engine with the given options, and gives it with its fake."""
    opened: list[Dflash2Engine] = []
    fakes = install(monkeypatch)
    (tmp_path / "target.gguf").touch()
    (tmp_path / "draft.gguf").touch()

    def open_(**options: Any) -> tuple[Dflash2Engine, FakeEngine]:
        engine = Dflash2Engine(tmp_path / "target.gguf", tmp_path / "draft.gguf", **options)
        opened.append(engine)
        return engine, fakes[-1]

    yield open_
    for engine in opened:
        engine.close()
