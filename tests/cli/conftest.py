"""The `dflash2` command, run in this process on a native engine made of Python."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from dflash2.cli import main
from fake_engine import FakeEngine, install
from gguf import GGUFWriter

Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The native engines opened so far."""
    return install(monkeypatch)


def write_target(path: Path, chat_template: str | None = None) -> Path:
    """Writes a GGUF of metadata alone, which is all that the command reads itself."""
    writer = GGUFWriter(path, "llama")
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    write_target(tmp_path / "target.gguf")
    (tmp_path / "draft.gguf").touch()
    return ["-m", str(tmp_path / "target.gguf"), "-md", str(tmp_path / "draft.gguf")]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and gives status, stdout and stderr."""

    def run_(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_
