"""`dflash2 serve` and the packaged programs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from dflash2 import programs

from .conftest import Run


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / ("llama-server.exe" if sys.platform == "win32" else "llama-server")
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path)
    return path


def test_serve_gives_the_drafter_to_the_server(
    run: Run, server: Path, permutation_pair: Any
) -> None:
    target, drafter = map(str, permutation_pair)
    arguments = ["-m", target, "--port", "8081", "-md", drafter, "-mg", "0", "--json", "-np", "4"]
    status, out, _ = run("serve", *arguments)
    assert status == 0
    document = json.loads(out)
    assert document["server"] == str(server)
    passed = document["arguments"]
    assert passed[:4] == ["-m", target, "--draft-dflash2", drafter]
    assert passed[4:] == ["--port", "8081", "-mg", "0", "-np", "4"]


def test_serve_without_drafter(run: Run, server: Path, permutation_pair: Any) -> None:
    assert server.exists()
    target = str(permutation_pair.target)
    _, out, _ = run("serve", "--json", "-m", target, "-c", "512")
    assert json.loads(out)["arguments"] == ["-m", target, "-c", "512"]


def test_serve_becomes_the_server(
    run: Run, server: Path, permutation_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[list[str]] = []

    def execute(path: str, command: list[str]) -> None:
        executed.append([path, *command])
        raise SystemExit(5)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("dflash2.programs.os.execv", execute)
    target = str(permutation_pair.target)
    status, _, _ = run("serve", "-m", target)
    assert status == 5
    assert executed == [[str(server), str(server), "-m", target]]


def test_program_that_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permutation_pair: Any
) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "nowhere")
    status, _, err = run("serve", "-m", str(permutation_pair.target))
    assert status == 1
    assert "llama-server is missing" in err
    with pytest.raises(SystemExit, match="llama-quantize: error: llama-quantize is missing"):
        programs.llama_quantize()
