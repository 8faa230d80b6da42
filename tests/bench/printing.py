"""How the benchmarks run their rows and print what they measured."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cells import HEADER, Cell
from dflash2 import __version__, _core


def argument_parser(description: str, rows: Mapping[str, Any]) -> argparse.ArgumentParser:
    """The arguments that every benchmark has."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=rows, default=list(rows), metavar="ROW")
    parser.add_argument("--quick", action="store_true", help="tries the benchmark out")
    return parser


def run_rows(
    rows: Mapping[str, Callable[[Any], Iterator[Cell]]],
    setting: Any,
    args: argparse.Namespace,
    remark: str = "",
) -> None:
    """Prints each cell as it comes, or all of them as JSON at the end.

    Args:
        remark: Stands behind the description of the machine.
    """
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {'/'.join(_core.cpu_features())}"
    machine += remark
    llama_cpp = _core.llama_cpp_commit()
    if not args.json:
        print(f"dflash2 {__version__}, llama.cpp {llama_cpp[:8]}, {machine}\n{HEADER}", flush=True)
    cells: list[Cell] = []
    for row in args.only:
        for cell in rows[row](setting):
            cells.append(cell)
            if not args.json:
                print(cell.line(), flush=True)
    if args.json:
        result = {"version": __version__, "llama_cpp": llama_cpp, "machine": machine}
        print(json.dumps(result | {"cells": [cell.as_dict() for cell in cells]}, indent=2))
