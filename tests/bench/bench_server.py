"""llama-server with --draft-dflash2 on the demo pair: what it is held to, number by number.

    python tests/bench/bench_server.py [--json] [--stock PATH] [--quick] [--only ROW ...]

`throughput`: tokens per second at 1 to 32 clients, at temperature 0 and 1, against no drafter and
against stock drafting at its best n_max. `prompt`: what the drafter costs before the first token.
`memory`: what it is said to take, against what the process grows by. Whatever is compared runs at
once and takes turns; a figure is the median of the repeats, and the spread is the smallest and
largest of them. `--stock` is the llama-server that ours is compared with, else the packaged one
without our options.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import row_server_memory
import row_server_prompt
import row_server_throughput
from cells import HEADER, Cell
from dflash2 import __version__, _core
from server_load import ServerSetting

ROWS = {
    "throughput": row_server_throughput.cells,
    "prompt": row_server_prompt.cells,
    "memory": row_server_memory.cells,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stock", type=Path, metavar="PATH", help="llama-server to compare with")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--quick", action="store_true", help="tries the benchmark out")
    parser.add_argument("--threads", type=int, help="of the servers")
    args = parser.parse_args()

    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {'/'.join(_core.cpu_features())}"
    llama_cpp = _core.llama_cpp_commit()
    if not args.json:
        print(f"dflash2 {__version__}, llama.cpp {llama_cpp[:8]}, {machine}\n{HEADER}", flush=True)
    cells: list[Cell] = []
    setting = ServerSetting(args.threads, args.quick, args.stock)
    for row in args.only:
        for cell in ROWS[row](setting):
            cells.append(cell)
            if not args.json:
                print(cell.line(), flush=True)
    if args.json:
        result = {"version": __version__, "llama_cpp": llama_cpp, "machine": machine}
        print(json.dumps(result | {"cells": [cell.as_dict() for cell in cells]}, indent=2))


if __name__ == "__main__":
    main()
