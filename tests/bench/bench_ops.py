"""What the three ops of a drafter gain, each number next to its bound.

    python tests/bench/bench_ops.py [--json] [--only ROW ...] [--quick] [--threads N]
                                    [--cache FOLDER]

`conv`: the convolution against the same composed of stock ops. `topk`: the candidates against
stock's top-k. `selector`: candidates and their scores against the same composed of stock ops. Both
forms run alternately in one process; a figure is the ratio of the medians, and the spread is the
smallest and largest ratio over tenths of the repeats. `draft`: a whole draft pass against one of
DFlash 1 and against llama.cpp's own graph; `--cache` keeps the model files that it makes.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import row_conv
import row_draft
import row_selector
import row_topk
from cells import HEADER, Cell, Setting
from dflash2 import __version__, _core

ROWS = {
    "conv": row_conv.cells,
    "topk": row_topk.cells,
    "selector": row_selector.cells,
    "draft": row_draft.cells,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--quick", action="store_true", help="tries the benchmark out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="folder for models; else a temporary one")
    args = parser.parse_args()

    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {'/'.join(_core.cpu_features())}"
    machine += f", {args.threads} threads"
    llama_cpp = _core.llama_cpp_commit()
    if not args.json:
        print(f"dflash2 {__version__}, llama.cpp {llama_cpp[:8]}, {machine}\n{HEADER}", flush=True)
    cells: list[Cell] = []
    with nullcontext(args.cache) if args.cache else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        setting = Setting(Path(folder), args.threads, args.quick, n_seeds=1)
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
