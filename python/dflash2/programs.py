"""The llama.cpp programs that come with the package, as console scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dflash2.errors import Dflash2Error
from dflash2.paths import PROGRAMS


def program_path(name: str) -> Path:
    """Return the path of a packaged program.

    Raises:
        FileNotFoundError: The package was built without it.
    """
    path = PROGRAMS / (f"{name}.exe" if sys.platform == "win32" else name)
    if not path.exists():
        msg = f"{name} is missing at {path}: install the package again"
        raise FileNotFoundError(msg)
    return path


def run_program(name: str, arguments: Sequence[str]) -> NoReturn:
    """Become a packaged program: signals and exit status are its own.

    Raises:
        FileNotFoundError: The package was built without it.
        Dflash2Error: The system refuses to run it.
    """
    command = [str(program_path(name)), *arguments]
    if sys.platform == "win32":  # exec there returns to the shell at once
        sys.exit(subprocess.run(command, check=False).returncode)
    sys.stdout.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        msg = f"{command[0]} cannot be run: {error.strerror}"
        raise Dflash2Error(msg) from error


def llama_server() -> NoReturn:
    """Run the packaged llama-server."""
    _console_script("llama-server")


def llama_quantize() -> NoReturn:
    """Run the packaged llama-quantize."""
    _console_script("llama-quantize")


def rpc_server() -> NoReturn:
    """Run the packaged ggml-rpc-server."""
    _console_script("ggml-rpc-server")


def _console_script(name: str) -> NoReturn:
    try:
        run_program(name, sys.argv[1:])
    except (FileNotFoundError, Dflash2Error) as error:
        sys.exit(f"{name}: error: {error}")
