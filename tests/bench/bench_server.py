"""llama-server with --draft-dflash2 on the demo pair: what it is held to, number by number.

    python tests/bench/bench_server.py [--json] [--stock PATH] [--quick] [--only ROW ...]
                                       [--clients N ...]

`throughput`: tokens per second at 1 to 32 clients, at temperature 0 and 1, against no drafter and
against stock drafting at its best n_max. `prompt`: what the drafter costs before the first token.
`memory`: what it is said to take, against what the process grows by. Whatever is compared runs at
once and takes turns; a figure is the median of the repeats, and the spread is the smallest and
largest of them. `--stock` is the llama-server that ours is compared with, else the packaged one
without our options.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import row_server_memory
import row_server_prompt
import row_server_throughput
from printing import argument_parser, run_rows
from server_load import ServerSetting

ROWS = {
    "throughput": row_server_throughput.cells,
    "prompt": row_server_prompt.cells,
    "memory": row_server_memory.cells,
}


def main() -> None:
    parser = argument_parser(__doc__, ROWS)
    parser.add_argument("--stock", type=Path, metavar="PATH", help="llama-server to compare with")
    parser.add_argument("--threads", type=int, help="of the servers")
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help="of the throughput row")
    args = parser.parse_args()
    clients = args.clients or ((1, 4) if args.quick else None)
    run_rows(ROWS, ServerSetting(args.threads, args.quick, args.stock, clients), args)


if __name__ == "__main__":
    main()
