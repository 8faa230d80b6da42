"""The candidates of a block's slots against stock's top-k, which leaves them in no order."""

from collections.abc import Iterator

import numpy as np
from cells import Cell, Setting
from op_turns import speedup
from ops.ggml import Graph

VOCABULARIES = (151936, 248320)
N_CANDIDATES = 16
N_SLOTS = 7


def cells(setting: Setting) -> Iterator[Cell]:
    for n_vocab in VOCABULARIES:
        with Graph() as graph:
            rng = np.random.default_rng(0)
            logits = graph.tensor(rng.standard_normal((N_SLOTS, n_vocab), np.float32))
            forms = {
                "fused": graph.plan(graph.topk(logits, N_CANDIDATES, n_vocab)),
                "stock": graph.plan(graph.top_k(logits, N_CANDIDATES)),
            }
            yield speedup(
                setting,
                "topk",
                f"V {n_vocab}, K {N_CANDIDATES}, {N_SLOTS} rows",
                forms,
                n_ops=1,
                at_least=10,
            )
