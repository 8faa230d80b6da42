"""Two forms of the same ops that take turns, so that a slow moment hits both."""

import statistics
import time
from collections.abc import Callable, Mapping

from cells import Cell, Setting
from ops.ggml import Graph, Plan, Tensor, compute

_REPEATS = 200
_WARM_UPS = 5


def speedup(
    setting: Setting,
    row: str,
    name: str,
    forms: Mapping[str, Plan],
    *,
    n_ops: int,
    at_least: float,
) -> Cell:
    """How many times faster the first of two plans of `n_ops` ops is."""
    assert setting.n_threads is not None
    repeats = 5 if setting.quick else _REPEATS
    microseconds: dict[str, list[float]] = {form: [] for form in forms}
    for turn in range(_WARM_UPS + repeats):
        for form, plan in forms.items():
            start = time.perf_counter()
            compute(plan, setting.n_threads)
            if turn >= _WARM_UPS:
                microseconds[form].append(1e6 * (time.perf_counter() - start) / n_ops)
    ours, other = microseconds.values()
    # a repeat lasts microseconds, so single ratios say nothing: those of tenths of the repeats
    size = max(1, repeats // 10)
    tenths = [slice(start, start + size) for start in range(0, repeats, size)]
    median = statistics.median
    ratios = [median(other[tenth]) / median(ours[tenth]) for tenth in tenths]
    first, second = forms
    return Cell(
        row,
        f"{name}: {first} {median(ours):.1f}, {second} {median(other):.1f} us",
        median(other) / median(ours),
        "x",
        (min(ratios), max(ratios)),
        at_least=at_least,
        details={"microseconds": microseconds},
    )


def own_kernel_speedup(
    setting: Setting, row: str, name: str, graph: Graph, node: Callable[..., Tensor]
) -> Cell:
    """One op on our kernel against ggml's; node: makes it, given `own_kernel`."""
    forms = {
        form: graph.plan(node(own_kernel=own_kernel))
        for form, own_kernel in (("ours", True), ("ggml", False))
    }
    return speedup(setting, row, name, forms, n_ops=1, at_least=0.97)
