"""The convolution on the CPU, one node or composed, against the formula."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import oracle
from .broken import message_of
from .ggml import F32, Graph

FORMS = pytest.mark.parametrize("composed", [False, True], ids=["fused", "composed"])
SIDES = pytest.mark.parametrize("side", [0, 1])


def random_case(
    n_taps: int, group: int, n_channels: int, n_rows: int, rng: np.random.Generator
) -> tuple[F32, F32, F32, F32]:
    """x, coeff, base, residual."""
    n_coeff = 2 * n_taps * (n_channels // group)
    shapes = [(n_rows, n_channels), (n_rows, n_coeff), (2, n_taps, n_channels)]
    x, coeff, base, residual = (
        rng.standard_normal(shape, np.float32) for shape in [*shapes, shapes[0]]
    )
    return x, coeff, base, residual


def run(
    x: F32,
    coeff: F32,
    base: F32,
    residual: F32 | None,
    side: int,
    n_block_rows: int,
    *,
    composed: bool = False,
    n_threads: int = 1,
    gap: int = 0,
) -> NDArray[Any]:
    with Graph() as graph:
        rows = (lambda array: graph.rows(array, gap)) if gap else graph.tensor
        result = graph.conv(
            rows(x),
            rows(coeff),
            graph.tensor(base),
            None if residual is None else rows(residual),
            side,
            n_block_rows,
            composed=composed,
        )
        return graph.run(result, n_threads)


# SPEC, golden vector 3a
GOLDEN_BASE = np.array(
    [
        [[(t == 0) + 0.5 * side + 0.25 * t + 0.01 * c for c in range(4)] for t in range(2)]
        for side in range(2)
    ],
    np.float32,
)
GOLDEN_COEFF = np.array([[(o + 1) / 10 + i for o in range(8)] for i in range(3)], np.float32)
GOLDEN_INPUT = (np.eye(3, 4, dtype=np.float32), np.arange(1, 13, dtype=np.float32).reshape(3, 4))
GOLDEN_OUTPUT = (
    [[1.1, 0, 0, 0], [1.55, 2.11, 0, 0], [0, 2.56, 3.22, 0]],
    [[2, 4.02, 6.36, 8.52], [17.45, 22.98, 29.55, 35.36], [53.25, 60.86, 70.31, 78.2]],
)


@SIDES
def test_oracle_gives_the_golden_vector(side: int) -> None:
    found = oracle.conv(GOLDEN_INPUT[side], GOLDEN_COEFF, GOLDEN_BASE, None, side, 3)
    np.testing.assert_allclose(found, GOLDEN_OUTPUT[side], rtol=1e-6)


@FORMS
@SIDES
def test_golden_vector(side: int, composed: bool) -> None:
    found = run(GOLDEN_INPUT[side], GOLDEN_COEFF, GOLDEN_BASE, None, side, 3, composed=composed)
    np.testing.assert_allclose(found, GOLDEN_OUTPUT[side], rtol=1e-6)


@pytest.mark.parametrize("n_taps", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("group", "n_channels"),
    # more than one piece of work, and ends inside a vector, a group and a piece
    [(1, 5), (1, 300), (8, 24), (8, 264), (16, 48), (16, 592), (7, 7), (300, 300), (514, 1028)],
)
def test_every_block_length(n_taps: int, group: int, n_channels: int) -> None:
    rng = np.random.default_rng(n_taps + n_channels)
    for n_block_rows in range(1, 18):
        n_rows = n_block_rows * (1 + n_block_rows % 5)
        x, coeff, base, residual = random_case(n_taps, group, n_channels, n_rows, rng)
        for side, addend, n_threads in ((0, None, 1), (1, residual, 4)):
            case = (x, coeff, base, addend, side, n_block_rows)
            found = run(*case, n_threads=n_threads)
            assert oracle.nmse(found, oracle.conv(*case)) <= oracle.MAX_NMSE
            # the same bits: the products that follow round to few bits, where the last one decides
            np.testing.assert_array_equal(run(*case, composed=True, n_threads=n_threads), found)


@FORMS
@pytest.mark.parametrize(("n_channels", "n_seqs"), [(2560, 1), (5120, 3)])
def test_every_number_of_threads(n_channels: int, n_seqs: int, composed: bool) -> None:
    case = random_case(2, 16, n_channels, 8 * n_seqs, np.random.default_rng(n_channels))
    one = run(*case, 1, 8, composed=composed)
    assert oracle.nmse(one, oracle.conv(*case, 1, 8)) <= oracle.MAX_NMSE
    for n_threads in (2, 3, 4, 7):
        found = run(*case, 1, 8, composed=composed, n_threads=n_threads)
        np.testing.assert_array_equal(found, one)


@FORMS
@pytest.mark.parametrize("gap", [1, 16])
def test_rows_of_views(gap: int, composed: bool) -> None:
    case = random_case(2, 16, 272, 12, np.random.default_rng(gap))
    found = run(*case, 0, 4, composed=composed, n_threads=4, gap=gap)
    np.testing.assert_array_equal(found, run(*case, 0, 4, composed=composed))


@SIDES
def test_untrained_kernel_changes_nothing(side: int) -> None:
    """Bit for bit the residual stream of a drafter without convolutions."""
    x, coeff, base, residual = random_case(2, 16, 48, 8, np.random.default_rng(side))
    coeff[:] = 0
    base[:] = np.array([1, 0])[None, :, None]
    np.testing.assert_array_equal(run(x, coeff, base, None, side, 8), x)
    np.testing.assert_array_equal(run(x, coeff, base, residual, side, 8), residual + x)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_leaks_out_of_a_block(value: float) -> None:
    x, coeff, base, residual = random_case(3, 16, 48, 12, np.random.default_rng(0))
    clean = run(x, coeff, base, residual, 0, 4)
    x[4:8] = coeff[4:8] = residual[4:8] = value
    found = run(x, coeff, base, residual, 0, 4)
    assert not np.isfinite(found[4:8]).any()
    np.testing.assert_array_equal(
        found[[0, 1, 2, 3, 8, 9, 10, 11]], clean[[0, 1, 2, 3, 8, 9, 10, 11]]
    )


def test_a_row_that_is_not_finite_reaches_as_many_rows_as_there_are_taps() -> None:
    x, coeff, base, residual = random_case(3, 8, 40, 7, np.random.default_rng(1))
    x[2, 5] = np.nan
    found = run(x, coeff, base, residual, 1, 7)
    expected = np.zeros_like(x, bool)
    expected[2:5, 5] = True
    np.testing.assert_array_equal(np.isnan(found), expected)


# x, coeff, base, residual, side, rows per block: 6 rows of 8 channels, 2 taps, groups of 4
BROKEN = {
    "f32(6, 8), f32(6, 8), f32(2, 2, 8), None, 2, 3": "side is 2",
    "f32(6, 8), f32(6, 8), f32(2, 2, 8), None, 0, 4": "x ne[1] % n_block_rows is 2",
    "f32(6, 8), f32(6, 8), f32(2, 2, 8), None, 0, 0": "n_block_rows is 0",
    "f32(6, 8), f32(6, 8), f32(2, 2, 9), None, 0, 3": "base ne[0] is 9",
    "f32(6, 8), f32(6, 8), f32(3, 2, 8), None, 0, 3": "base ne[2] is 3",
    "f32(6, 8), f32(6, 6), f32(2, 2, 8), None, 0, 3": "coeff ne[0]",
    "f32(6, 8), f32(6, 12), f32(2, 2, 8), None, 0, 3": "groups of coeff",
    "f32(6, 8), f32(5, 8), f32(2, 2, 8), None, 0, 3": "coeff ne[1] is 5",
    "f32(6, 8), f32(6, 8), f32(2, 2, 8), f32(6, 7), 0, 3": "residual ne[0] is 7",
    "f32(6, 8), f32(6, 8), f32(2, 2, 8), f32(3, 8), 0, 3": "residual ne[1] is 3",
    "i32(6, 8), f32(6, 8), f32(2, 2, 8), None, 0, 3": "x type",
}


@pytest.mark.parametrize("arguments", BROKEN)
def test_broken_contract(arguments: str) -> None:
    message = message_of(f"graph.conv({arguments})")
    assert message.startswith("dflash2_conv: ")
    assert BROKEN[arguments] in message
