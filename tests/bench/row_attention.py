"""Attention on our kernel against ggml's, with the heads of two targets."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
from cells import Cell, Setting
from gguf import GGMLQuantizationType as Type
from op_turns import own_kernel_speedup
from ops.ggml import Graph

# heads of queries, of keys, their width: SmolLM2-135M, Qwen3-4B
HEADS = ((9, 3, 64), (32, 8, 128))
N_ROWS = (1, 8, 512)
N_KEYS = 2048


def cells(setting: Setting) -> Iterator[Cell]:
    for (n_heads, n_shared, width), n_rows in product(HEADS, N_ROWS):
        with Graph() as graph:
            rng = np.random.default_rng(0)
            q = graph.tensor(rng.standard_normal((1, n_heads, n_rows, width), np.float32))
            keys, values = (
                graph.table(rng.standard_normal((1, n_shared, N_KEYS, width), np.float32), Type.F16)
                for _ in range(2)
            )
            mask = graph.table(np.zeros((1, 1, n_rows, N_KEYS), np.float32), Type.F16)
            yield own_kernel_speedup(
                setting,
                "attention",
                f"{n_heads} heads of {width} on {n_shared}, {N_KEYS} keys, rows: {n_rows}",
                graph,
                partial(graph.attention, q, keys, values, mask, None, width**-0.5),
            )
