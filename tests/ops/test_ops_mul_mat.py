"""Products of a few rows on the CPU against the formula, and what they must not depend on."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from dflash2 import _core
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from . import oracle
from .ggml import F32, Graph, store

pytestmark = pytest.mark.skipif(
    "AVX2" not in _core.cpu_features(), reason="our kernel wants AVX2: ggml would meet itself"
)

# Which of the two forms the kernel has
WIDE = "AVX512_VNNI" in _core.cpu_features()
# Rows from which on the kernel leaves a type to ggml, less one
MAX_ROWS = {
    Type.F16: 512 if WIDE else 16,
    Type.BF16: 8,
    Type.Q8_0: 512,
    Type.Q4_0: 512,
    Type.Q4_1: 512,
    Type.Q4_K: 9 if WIDE else 512,
    Type.Q5_K: 9 if WIDE else 512,
    Type.Q6_K: 16 if WIDE else 512,
}
# Of a sum, relative to the sum of the magnitudes of its terms: the roundings of F32. One of a
# thousand activations that is rounded to the next integer is ten times beyond
MAX_ERROR = 1e-6

EVERY_KIND = pytest.mark.parametrize("kind", MAX_ROWS, ids=lambda kind: kind.name)
THREADS = pytest.mark.parametrize("n_threads", [1, 2, 3])


@dataclass(frozen=True)
class Case:
    """x [rows, n], weights [rows of weights, n] as they were before storing; or with batches."""

    x: F32
    weights: F32
    kind: Type

    def run(self, *, own_kernel: bool = True, n_threads: int = 1) -> NDArray[Any]:
        """[rows, rows of weights]."""
        with Graph() as graph:
            weights, x = graph.table(self.weights, self.kind), graph.tensor(self.x)
            return graph.run(graph.mul_mat(weights, x, own_kernel=own_kernel), n_threads)

    def error(self, found: NDArray[Any]) -> float:
        """The greatest of those that MAX_ERROR bounds."""
        n = self.weights.shape[-1]
        weights = store(self.weights.reshape(-1, n), self.kind)[1].reshape(self.weights.shape)
        error = np.abs(found - oracle.mul_mat(weights, self.x))
        magnitude = oracle.mul_mat(np.abs(weights), np.abs(self.x))
        return float((error / np.maximum(magnitude, np.finfo(np.float32).tiny)).max())


def block_of(kind: Type) -> int:
    """Values that share a scale when they are rounded to multiply them with weights of a type."""
    block: int = GGML_QUANT_SIZES[kind][0]
    return max(32, block)


def exact_rows(
    n_rows: int, n_blocks: int, block: int, rng: np.random.Generator, least: int = -127
) -> F32:
    """Rows that stay as they are in every type: integers, for each block times a power of two.

    One of each block is 127 or -127, so that the power of two is what the block has for its scale.
    """
    shape = (n_rows, n_blocks, block)
    integers = rng.integers(least, 128, shape)
    greatest = rng.integers(block, size=(n_rows, n_blocks, 1)) == np.arange(block)
    sign = np.where(integers < 0, -1, 1)
    scale = np.exp2(rng.integers(-5, 2, (n_rows, n_blocks, 1)))
    return (np.where(greatest, 127 * sign, integers) * scale).reshape(n_rows, -1).astype(np.float32)


def exact_case(kind: Type, n_rows: int, n_blocks: int = 9, n_weights: int = 37) -> Case:
    rng = np.random.default_rng(0)
    x = exact_rows(n_rows, n_blocks, block_of(kind), rng)
    return Case(x, rng.standard_normal((n_weights, x.shape[1]), np.float32), kind)


def random_case(kind: Type, n_rows: int, n: int = 1024, n_weights: int = 100) -> Case:
    """Activations that are rounded."""
    rng = np.random.default_rng(1)
    x, weights = (rng.standard_normal((rows, n), np.float32) for rows in (n_rows, n_weights))
    return Case(x, weights, kind)


def assert_right(case: Case, **how: Any) -> None:
    assert case.error(case.run(**how)) <= MAX_ERROR


@EVERY_KIND
@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33])
def test_rows(kind: Type, n_rows: int) -> None:
    assert_right(exact_case(kind, n_rows), n_threads=2)


@EVERY_KIND
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 8, 9, 18, 32])
def test_lengths_of_a_row(kind: Type, n_blocks: int) -> None:
    for n_rows in (1, 5, 11):
        assert_right(exact_case(kind, n_rows, n_blocks))


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("n", [1, 5, 33, 100, 300])
def test_lengths_of_a_row_without_blocks(kind: Type, n: int) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((37, n), np.float32)
    for n_rows in (1, 5, 11):
        assert_right(Case(exact_rows(n_rows, 1, n, rng), weights, kind), n_threads=2)


@EVERY_KIND
@THREADS
@pytest.mark.parametrize("n_weights", [1, 2, 3, 5, 16, 33, 100])
def test_rows_of_weights(kind: Type, n_threads: int, n_weights: int) -> None:
    for n_rows in (1, 9):
        assert_right(exact_case(kind, n_rows, n_weights=n_weights), n_threads=n_threads)


@EVERY_KIND
def test_rows_and_blocks_of_zeros(kind: Type) -> None:
    case = exact_case(kind, 6)
    case.x[1] = 0
    case.x[3:, : 2 * block_of(kind)] = 0
    assert_right(case)


@EVERY_KIND
@pytest.mark.parametrize("n_rows", [1, 2, 8, 32])
def test_activations_are_rounded_as_by_ggml(kind: Type, n_rows: int) -> None:
    case = random_case(kind, n_rows)
    # whose sums of a block of activations are F16 there
    limit = 1e-6 if kind == Type.Q4_1 else 1e-11
    assert oracle.nmse(case.run(), case.run(own_kernel=False).astype(np.float64)) <= limit


def test_sums_of_a_block_are_exact() -> None:
    """Those from 2048 on, half of which F16 has not."""
    case = exact_case(Type.Q4_1, 5)
    x = exact_rows(5, 9, 32, np.random.default_rng(2), least=64)
    case = replace(case, x=x)
    assert_right(case)
    assert case.error(case.run(own_kernel=False)) > 10 * MAX_ERROR


@EVERY_KIND
def test_our_kernel_runs(kind: Type) -> None:
    """Sums in an order of its own: else this file compares ggml with itself."""
    cases = [random_case(kind, n_rows) for n_rows in (1, 5)]
    assert any((case.run() != case.run(own_kernel=False)).any() for case in cases)


@EVERY_KIND
@THREADS
def test_a_row_is_the_same_alone_and_among_others(kind: Type, n_threads: int) -> None:
    """To the bit: verification must see what plain decoding sees."""
    limit = MAX_ROWS[kind]
    # longer than what is summed at once, which with more rows is shorter
    case = random_case(kind, limit, 2816 if block_of(kind) == 256 else 1600, 13)
    alone = np.vstack([replace(case, x=case.x[row : row + 1]).run() for row in range(limit)])
    for n_rows in (*range(1, min(limit, 34)), limit):
        together = replace(case, x=case.x[:n_rows]).run(n_threads=n_threads)
        np.testing.assert_array_equal(together, alone[:n_rows])


@EVERY_KIND
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
def test_rows_of_no_numbers_leave_others_alone(kind: Type, number: float) -> None:
    n_rows = min(11, MAX_ROWS[kind])
    case = random_case(kind, n_rows, 1024 + block_of(kind), 37)
    x = case.x.copy()
    x[1] = x[-2, 40] = number
    others = [row for row in range(n_rows) if row not in (1, n_rows - 2)]
    found = replace(case, x=x).run(n_threads=2)
    np.testing.assert_array_equal(found[others], case.run()[others])


@EVERY_KIND
@pytest.mark.parametrize("n_rows", [1, 3, 9])
def test_rows_that_lie_apart(kind: Type, n_rows: int) -> None:
    case = exact_case(kind, n_rows)
    with Graph() as graph:
        weights = graph.table(case.weights, kind)
        found = graph.run(graph.mul_mat(weights, graph.rows(case.x), own_kernel=True))
    np.testing.assert_array_equal(found, case.run())


@EVERY_KIND
def test_weights_that_are_a_view(kind: Type) -> None:
    """Every second row of a table."""
    case = exact_case(kind, 4)
    n_weights, n = case.weights.shape
    table = np.stack([np.full_like(case.weights, 1e3), case.weights], axis=1)
    block, size = GGML_QUANT_SIZES[kind]
    row = n // block * size
    with Graph() as graph:
        parent = graph.table(table.reshape(-1, n), kind)
        view = graph.call("ggml_view_2d", parent, n, n_weights, 2 * row, row)
        found = graph.run(graph.mul_mat(view, graph.tensor(case.x), own_kernel=True), 2)
    assert case.error(found) <= MAX_ERROR


@EVERY_KIND
def test_batches(kind: Type) -> None:
    """Of activations on the same weights, and of both."""
    rng = np.random.default_rng(4)
    block = block_of(kind)
    x = exact_rows(6, 3, block, rng).reshape(2, 3, -1)
    weights = rng.standard_normal((2, 5, 3 * block), np.float32)
    assert_right(Case(x, weights[0], kind))
    both = Case(x, weights, kind)
    np.testing.assert_array_equal(both.run(), both.run(own_kernel=False))


@EVERY_KIND
def test_many_rows_keep_the_kernel_of_ggml(kind: Type) -> None:
    case = random_case(kind, MAX_ROWS[kind] + 1)
    np.testing.assert_array_equal(case.run(), case.run(own_kernel=False))


@pytest.mark.parametrize("kind", [Type.F32, Type.Q5_0, Type.Q3_K], ids=lambda kind: kind.name)
def test_other_types_keep_the_kernel_of_ggml(kind: Type) -> None:
    case = random_case(kind, 5)
    np.testing.assert_array_equal(case.run(), case.run(own_kernel=False))
