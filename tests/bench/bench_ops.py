"""What the ops of a drafter and the kernels for CPUs gain, each number next to its bound.

    python tests/bench/bench_ops.py [--json] [--only ROW ...] [--quick] [--threads N]
                                    [--cache FOLDER]

`conv`: the convolution against the same composed of stock ops. `attention`: one row and those of a
block against ggml's own kernel. `products`: those of one row to eight with weights, likewise.
`topk`: the candidates against stock's top-k. `selector`: candidates and their scores against the
same composed of stock ops. Both forms run alternately in one process; a figure is the ratio of the
medians, and the spread is the smallest and largest ratio over tenths of the repeats. `draft`: a
whole draft pass against one of DFlash 1 and against llama.cpp's own graph; `--cache` keeps the
model files that it makes.
"""

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import row_attention
import row_conv
import row_draft
import row_mul_mat
import row_selector
import row_topk
from cells import Setting
from printing import argument_parser, run_rows

ROWS = {
    "conv": row_conv.cells,
    "attention": row_attention.cells,
    "products": row_mul_mat.cells,
    "topk": row_topk.cells,
    "selector": row_selector.cells,
    "draft": row_draft.cells,
}


def main() -> None:
    parser = argument_parser(__doc__, ROWS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="folder for models; else a temporary one")
    args = parser.parse_args()
    with nullcontext(args.cache) if args.cache else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        setting = Setting(Path(folder), args.threads, args.quick, n_seeds=1)
        run_rows(ROWS, setting, args, f", {args.threads} threads")


if __name__ == "__main__":
    main()
