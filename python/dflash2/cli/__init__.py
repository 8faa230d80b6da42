"""The `dflash2` command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from dflash2 import __version__
from dflash2.cli import chat, convert, doctor, generate, inspect, serve
from dflash2.cli.output import print_error
from dflash2.errors import Dflash2Error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after the program's name; None takes those of the process.

    Returns:
        The exit status: 0, 1 for an error, 130 for Ctrl-C, 141 for a closed pipe. Wrong usage exits
        with 2.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        status = _command(arguments)()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the interpreter would flush into the closed pipe once more and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (Dflash2Error, MemoryError, OSError, ValueError) as error:
        print_error(error)
        return 1
    return status


def _command(arguments: list[str]) -> Callable[[], int]:
    parser = argparse.ArgumentParser(
        prog="dflash2",
        description="Speculative decoding with DFlash 2 drafters.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dflash2 {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    generate.add_parser(commands)
    chat.add_parser(commands)
    commands.add_parser("serve", help=serve.SUMMARY)
    convert.add_parser(commands)
    inspect.add_parser(commands)
    doctor.add_parser(commands)
    if arguments[:1] == ["serve"]:
        # its arguments are llama-server's, whose single-dash names argparse would take apart
        return lambda: serve.run(arguments[1:])
    args = parser.parse_args(arguments)
    return lambda: int(args.run(args))
