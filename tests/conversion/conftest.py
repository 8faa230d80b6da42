"""A good checkpoint, and what a refusal must look like."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from dflash2.convert import ConversionError, convert_drafter

from . import checkpoints


class Refuse(Protocol):
    def __call__(self, source: Path, target: Path, *words: str, **options: Any) -> None: ...


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny DFlash 2 checkpoint for the tiny targets."""
    folder = tmp_path / "tiny"
    return checkpoints.write_checkpoint(folder, checkpoints.config(), checkpoints.weights())


@pytest.fixture
def refuse(tmp_path: Path) -> Iterator[Refuse]:
    """Asserts that a conversion is refused in words that include these, and leaves no file."""
    out = tmp_path / "out"
    out.mkdir()

    def refuse_(source: Path, target: Path, *words: str, **options: Any) -> None:
        with pytest.raises(ConversionError) as error:
            convert_drafter(source, target, out, **options)
        for word in words:
            assert word in str(error.value)

    yield refuse_
    assert list(out.iterdir()) == []


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """A folder to write to, in which nothing may be left."""
    folder = tmp_path / "empty"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []
