"""The convolutions of a draft pass, each one node, against the same composed of stock ops."""

from collections.abc import Iterator

import numpy as np
from cells import Cell, Setting
from op_turns import speedup
from ops.ggml import Graph, Plan

N_LAYERS = 5
N_BLOCK_ROWS = 8
N_TAPS, GROUP = 2, 16


def cells(setting: Setting) -> Iterator[Cell]:
    for n_channels in (2560, 5120):
        with Graph() as graph:
            forms = {
                "fused": convolutions(graph, n_channels, composed=False),
                "composed": convolutions(graph, n_channels, composed=True),
            }
            yield speedup(
                setting,
                "conv",
                f"H {n_channels}, g {GROUP}, T {N_TAPS}, {N_BLOCK_ROWS} rows",
                forms,
                n_ops=4 * N_LAYERS,
                at_least=4,
            )


def convolutions(graph: Graph, n_channels: int, *, composed: bool) -> Plan:
    """Four a layer: one at the input and one at the output of each sublayer."""
    rng = np.random.default_rng(0)
    n_coeff = 2 * N_TAPS * n_channels // GROUP
    x = stream = graph.tensor(rng.standard_normal((N_BLOCK_ROWS, n_channels), np.float32))
    coeff = 0.1 * rng.standard_normal((N_BLOCK_ROWS, n_coeff), np.float32)
    base = np.tile(np.array([1, 0], np.float32)[None, :, None], (2, 1, n_channels))
    for _ in range(2 * N_LAYERS):
        weights = graph.tensor(coeff), graph.tensor(base)
        x = graph.conv(x, *weights, None, 0, N_BLOCK_ROWS, composed=composed)
        x = stream = graph.conv(x, *weights, stream, 1, N_BLOCK_ROWS, composed=composed)
    return graph.plan(x)
