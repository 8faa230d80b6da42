"""CMake's configure step: what a user can get wrong ends in one sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pin import Pin

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


def configure(build: Path, *options: str, **env: str) -> str:
    """Output of a configure step that must fail, on one line."""
    if shutil.which("ninja"):
        options = ("-GNinja", *options)
    command = ["cmake", "-S", PROJECT, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
    result = subprocess.run(
        [*command, *options], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_no_compiler(tmp_path: Path) -> None:
    error = configure(tmp_path, CC="/no/compiler", CXX="/no/compiler")
    assert (
        "No working C compiler was found: install one (Debian and Ubuntu: apt install g++, macOS: "
        "xcode-select --install, Windows: the Visual Studio Build Tools) and run this again."
    ) in error


def test_source_that_is_no_checkout(tmp_path: Path) -> None:
    error = configure(tmp_path / "build", f"-DDFLASH2_LLAMA_CPP_SOURCE={tmp_path}")
    assert (
        f"DFLASH2_LLAMA_CPP_SOURCE={tmp_path} is no llama.cpp checkout (it has no "
        "include/llama.h): name the top folder of one, or leave the variable out to build the "
        "pinned one."
    ) in error


def test_failure_of_the_fetch_step_is_shown(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    error = configure(tmp_path / "build", DFLASH2_CACHE=str(cache))
    assert f"cannot keep {Pin.load()} in {cache} (Not a directory): free some space" in error
