"""`dflash2 serve`: becomes the packaged llama-server, drafting with DFlash 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from dflash2 import demo
from dflash2.cli.output import print_json
from dflash2.hub import StrPath
from dflash2.models import resolve_drafter, resolve_target
from dflash2.programs import program_path, run_program

SUMMARY = "run llama-server with the drafter"

_USAGE = f"""\
usage: dflash2 serve (-m FILE | --demo) [-md MODEL] [--json] [llama-server's arguments]

{SUMMARY.capitalize()}; all further arguments are llama-server's own.

  -m, --model FILE          GGUF file of the target
  -md, --model-draft MODEL  the drafter: a GGUF file, a checkpoint's folder, or a hub id
  --demo                    serve the demo pair
  --json                    print the command as JSON instead of running it
  -h, --help                this text; 'llama-server --help' lists the further arguments
"""
_MODEL = ("-m", "--model")
_DRAFT = ("-md", "--model-draft", "--spec-draft-model")


def run(arguments: Sequence[str]) -> int:
    """Become llama-server; returns only with `--json` or `--help`."""
    if "-h" in arguments or "--help" in arguments:
        print(_USAGE, end="")
        return 0
    server_arguments, as_json = _server_arguments(arguments)
    if not as_json:
        run_program("llama-server", server_arguments)
    print_json({"server": str(program_path("llama-server")), "arguments": server_arguments})
    return 0


def _server_arguments(arguments: Sequence[str]) -> tuple[list[str], bool]:
    model: StrPath | None = None
    draft: StrPath | None = None
    as_json = False
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _MODEL:
            model = _value(argument, remaining)
        elif argument in _DRAFT:
            draft = _value(argument, remaining)
        elif argument == "--demo":
            model = demo.target_path()
            draft = draft or demo.drafter_path()
        elif argument == "--json":
            as_json = True
        else:
            rest.append(argument)
    if model is None:
        _usage_error("no target: give -m FILE or --demo")
    target = resolve_target(model)
    named = ["-m", str(target)]
    if draft is not None:
        named += ["--draft-dflash2", str(resolve_drafter(draft, target))]
    return [*named, *rest], as_json


def _value(flag: str, remaining: Iterator[str]) -> str:
    value = next(remaining, None)
    if value is None:
        _usage_error(f"{flag} needs a value")
    return value


def _usage_error(message: str) -> NoReturn:
    print(f"{_USAGE.splitlines()[0]}\ndflash2 serve: error: {message}", file=sys.stderr)
    sys.exit(2)
