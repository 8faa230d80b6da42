"""Products of few rows with weights on our kernel against ggml's, in shapes of two targets."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from cells import Cell, Setting
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from op_turns import own_kernel_speedup
from ops.ggml import Graph

# a row of weights, rows of them: the feed-forward layers of SmolLM2-135M, Qwen3-4B
SHAPES = ((576, 1536), (2560, 9728))
KINDS = (Type.Q8_0, Type.Q4_1, Type.F16, Type.Q4_K, Type.Q5_K, Type.Q6_K)
N_ROWS = (1, 2, 4, 8)


def cells(setting: Setting) -> Iterator[Cell]:
    for n, n_weights in SHAPES:
        for kind in KINDS:
            if n % GGML_QUANT_SIZES[kind][0] != 0:
                continue
            with Graph() as graph:
                rng = np.random.default_rng(0)
                weights = graph.table(rng.standard_normal((n_weights, n), np.float32), kind)
                for n_rows in N_ROWS:
                    x = graph.tensor(rng.standard_normal((n_rows, n), np.float32))
                    yield own_kernel_speedup(
                        setting,
                        "products",
                        f"{kind.name}, {n} x {n_weights}, rows: {n_rows}",
                        graph,
                        partial(graph.mul_mat, weights, x),
                    )
