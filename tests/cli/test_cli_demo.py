"""The `dflash2` command as users run it, on the demo pair."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dflash2", *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=300,
        **options,
    )


def test_demo_doctor_json(demo_target: Path, demo_drafter: Path) -> None:
    result = command("doctor", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert {"version", "llama_cpp", "backends", "cpu_features", "fused_ops", "server", "demo"} <= (
        set(document)
    )
    assert document["demo"] == {"target": str(demo_target), "draft": str(demo_drafter)}
    assert set(document["llama_cpp"]) == {"version", "commit"}
    assert "CPU" in {device["backend"] for device in document["backends"]}
    assert set(document["fused_ops"]) == {device["name"] for device in document["backends"]}
    assert document["errors"] == []
    assert os.access(document["server"], os.X_OK)


def test_demo_drafter_is_what_the_command_makes(
    tmp_path: Path, golden: Path, demo_target: Path, demo_drafter: Path
) -> None:
    shipped = hashlib.sha256(demo_drafter.read_bytes()).hexdigest()
    arguments = ["convert", str(golden), "--target", str(demo_target), "--outtype", "f16"]
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        result = command(*arguments, cwd=folder)
        assert (result.returncode, result.stderr) == (0, "")
        (made,) = folder.iterdir()
        assert made.name == demo_drafter.name
        assert hashlib.sha256(made.read_bytes()).hexdigest() == shipped


@pytest.mark.usefixtures("demo_target")
def test_demo_generate(tmp_path: Path) -> None:
    arguments = ["generate", "--demo", "-c", "512", "-n", "40", "-p", "The capital of France is"]
    arguments += ["--depth", "3"]
    plain = command(*arguments, cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (0, "")
    document = json.loads(command(*arguments, "--json").stdout)
    assert plain.stdout.startswith(document["text"] + "\n")
    for line in (
        "tokens/s",
        "drafted tokens per target pass: ",
        "mean acceptance length: ",
        "acceptance per position: ",
    ):
        assert line in plain.stdout
    assert len(document["token_ids"]) == document["stats"]["generated_tokens"] == 40
    assert document["stats"]["accepted_tokens"] > 0


@pytest.mark.usefixtures("demo_target")
def test_demo_chat() -> None:
    result = command("chat", "--demo", "-c", "512", "-n", "16", input="What is 2 + 2?\n/exit\n")
    assert (result.returncode, result.stderr) == (0, "")
    assert "drafted tokens per target pass: " in result.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGPIPE")
@pytest.mark.usefixtures("demo_target")
def test_demo_closed_pipe_is_silent() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dflash2", "generate", "--demo", "-c", "512", "-p", "Once"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, b"")
