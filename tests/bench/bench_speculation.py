"""The numbers that speculative decoding is held to, each next to its bound.

    python tests/bench/bench_speculation.py [--json] [--only ROW ...] [--quick] [--cache FOLDER]

`acceptance`: mean acceptance length at temperature 1, rule by rule. `auto`: the automatic depth
against every fixed one. `cycle`: what a cycle costs outside the target's pass, against stock.
`stock`: tokens per second against stock llama-server at its best depth. `host`: what a cycle costs
outside ggml. Whatever is compared is open at once and takes turns prompt by prompt; a figure is the
median of the repeats, and the spread is the smallest and largest of them. `--cache` keeps the model
files that the benchmark makes: 1.8 GB.
"""

import logging
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import row_acceptance
import row_auto
import row_cycle
import row_host
import row_stock
from cells import Setting
from printing import argument_parser, run_rows

ROWS = {
    "acceptance": row_acceptance.cells,
    "auto": row_auto.cells,
    "cycle": row_cycle.cells,
    "stock": row_stock.cells,
    "host": row_host.cells,
}


def main() -> None:
    parser = argument_parser(__doc__, ROWS)
    parser.add_argument("--cache", type=Path, help="folder for models; else a temporary one")
    parser.add_argument("--threads", type=int, help="of engines and servers")
    parser.add_argument("--seeds", type=int, default=1, help="of the acceptance row")
    args = parser.parse_args()
    # the pairs without acceptance are meant, and need no warning
    logging.getLogger("dflash2").setLevel(logging.ERROR)
    with nullcontext(args.cache) if args.cache else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        setting = Setting(Path(folder), args.threads, args.quick, args.seeds)
        run_rows(ROWS, setting, args)


if __name__ == "__main__":
    main()
