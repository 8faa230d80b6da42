"""`dflash2 doctor`."""

import json
from pathlib import Path

import pytest
from dflash2 import _core, programs

from .conftest import Run


def test_doctor_without_the_demo_target_says_how_to_get_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path))
    status, out, err = run("doctor")
    assert (status, err) == (0, "")
    assert "demo target: not fetched yet: run 'dflash2 doctor --json'" in out
    assert _core.llama_cpp_commit() in out


def test_doctor_json_survives_a_failed_fetch(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path))
    monkeypatch.setattr("dflash2.demo.importlib.util.find_spec", lambda name: None)
    _, out, _ = run("doctor", "--json")
    document = json.loads(out)
    assert document["demo"]["target"] is None
    assert "has no pip" in " ".join(document["errors"])


def test_doctor_tells_how_the_ops_run(run: Run) -> None:
    _, out, _ = run("doctor", "--json")
    assert json.loads(out)["fused_ops"]["CPU"] == "fused"


def test_doctor_fails_without_server(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path)
    status, out, _ = run("doctor")
    assert status == 1
    assert "llama-server is missing" in out
