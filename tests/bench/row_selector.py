"""From logits to scored candidates: two nodes against the same composed of stock ops."""

from collections.abc import Iterator

import numpy as np
from cells import Cell, Setting
from gguf import GGMLQuantizationType as Type
from op_turns import speedup
from ops.ggml import Graph, Plan, Tensor
from row_topk import N_CANDIDATES, N_SLOTS, VOCABULARIES

RANK = 256
KIND = Type.F16


def cells(setting: Setting) -> Iterator[Cell]:
    for n_vocab in VOCABULARIES:
        # two tables of 16-bit values, and four times the logits for what the composed form needs
        with Graph(memory=2 * 2 * n_vocab * RANK + 4 * 4 * n_vocab * N_SLOTS + 2**24) as graph:
            rng = np.random.default_rng(0)
            table = rng.standard_normal((n_vocab, RANK), np.float32)
            inputs = {
                "logits": graph.tensor(rng.standard_normal((N_SLOTS, n_vocab), np.float32)),
                "gate": graph.tensor(rng.standard_normal((N_SLOTS, RANK), np.float32)),
                "predecessor": graph.table(table, KIND),
                "successor": graph.table(table, KIND),
                "anchors": graph.tensor(np.zeros(1, np.int32)),
            }
            forms = {
                "fused": selector(graph, inputs, n_vocab, composed=False),
                "composed": selector(graph, inputs, n_vocab, composed=True),
            }
            yield speedup(
                setting,
                "selector",
                f"V {n_vocab}, K {N_CANDIDATES}, r {RANK}, {KIND.name} tables, {N_SLOTS} slots",
                forms,
                n_ops=1,
                at_least=8,
            )


def selector(graph: Graph, inputs: dict[str, Tensor], n_vocab: int, *, composed: bool) -> Plan:
    ids = graph.topk(inputs["logits"], N_CANDIDATES, n_vocab, composed=composed)
    return graph.plan(graph.score(**inputs, ids=ids, n_slots=N_SLOTS, composed=composed))
