"""What the ops cost on a device, fused and composed, and the bandwidth that the fused ones reach.

    DFLASH2_DEVICE=CUDA0 PYTHONPATH=tests:tests/gpu python -m bench_device

A graph holds an op many times, each time on other tensors, together more than the device's caches
hold; a figure is the median time of the graph through the number of ops in it. The shapes are
those of a released drafter: H 5120, groups of 16, two taps, V 248320, K 16, r 256, 7 slots.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as Type
from on_device import DeviceGraph
from ops.ggml import Plan, Tensor, compute

H, GROUPS, TAPS, N_SLOTS = 5120, 320, 2, 7
V, K, RANK = 248320, 16, 256
N_OPS = {"conv": 256, "topk": 24, "score": 256}
BYTES = {
    "conv": 4 * (N_SLOTS + 1) * (3 * H + TAPS * GROUPS) + 4 * TAPS * H,
    "topk": 4 * N_SLOTS * (V + K),
    "score": N_SLOTS * (2 * K * RANK * 2 + 4 * (RANK + K * K + 2 * K)),
}
WARM_UPS, REPEATS = 5, 21

rng = np.random.default_rng(0)


def normal(graph: DeviceGraph, *shape: int) -> Tensor:
    return graph.tensor(rng.standard_normal(shape, np.float32))


def conv(graph: DeviceGraph, _i: int, *, composed: bool) -> Tensor:
    rows = N_SLOTS + 1
    x, coeff = normal(graph, rows, H), normal(graph, rows, 2 * TAPS * GROUPS)
    base, residual = normal(graph, 2, TAPS, H), normal(graph, rows, H)
    return graph.conv(x, coeff, base, residual, 1, rows, composed=composed)


def topk(graph: DeviceGraph, _i: int, *, composed: bool) -> Tensor:
    return graph.topk(normal(graph, N_SLOTS, V), K, V, composed=composed)


class Score:
    """Ops on one pair of tables, each on rows of its own."""

    def __init__(self) -> None:
        self.tables: list[Tensor] = []

    def __call__(self, graph: DeviceGraph, i: int, *, composed: bool) -> Tensor:
        if i == 0:
            values = rng.standard_normal((V, RANK), np.float32)
            self.tables = [graph.table(values, Type.F16), graph.table(values, Type.F16)]
            self.logits = normal(graph, N_SLOTS, V)
        ids = graph.tensor(rng.integers(V, size=(N_SLOTS, K)).astype(np.int32))
        anchor = graph.tensor(rng.integers(V, size=1).astype(np.int32))
        gate = normal(graph, N_SLOTS, RANK)
        return graph.score(self.logits, ids, gate, *self.tables, anchor, N_SLOTS, composed=composed)


def microseconds(op: str, build: Callable[..., Tensor], *, composed: bool) -> float:
    n_ops = N_OPS[op] // (8 if composed and op != "topk" else 1)  # nodes that a graph may have
    with DeviceGraph() as graph:
        plan: Plan = graph.plan(*[build(graph, i, composed=composed) for i in range(n_ops)])
        times = []
        for _ in range(WARM_UPS + REPEATS):
            start = time.perf_counter()
            compute(plan, 1)
            times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[WARM_UPS:]) / n_ops


def main() -> None:
    print(f"{'op':6} {'fused us':>9} {'composed us':>12} {'ratio':>6} {'bytes':>9} {'GB/s':>7}")
    for op, build in {"conv": conv, "topk": topk, "score": Score()}.items():
        fused = microseconds(op, build, composed=False)
        composed = microseconds(op, build, composed=True)
        speed = BYTES[op] / fused / 1e3
        ratio = composed / fused
        print(f"{op:6} {fused:9.2f} {composed:12.2f} {ratio:6.2f} {BYTES[op]:9} {speed:7.1f}")


if __name__ == "__main__":
    main()
