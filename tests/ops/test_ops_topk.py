"""The candidates on the CPU, one node or composed, against a full sort."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import oracle
from .broken import message_of
from .ggml import F32, Graph

K = (1, 2, 4, 16, 33, 64)
N_ROWS = 7


def run(
    logits: F32,
    k: int,
    n_vocab: int | None = None,
    *,
    composed: bool = False,
    n_threads: int = 1,
    gap: int = 0,
) -> NDArray[Any]:
    with Graph() as graph:
        tensor = graph.rows(logits, gap) if gap else graph.tensor(logits)
        result = graph.topk(tensor, k, n_vocab or logits.shape[1], composed=composed)
        return graph.run(result, n_threads)


def assert_best(logits: F32, k: int, n_vocab: int | None = None, **options: Any) -> None:
    expected = oracle.topk(logits, k, n_vocab or logits.shape[1])
    for n_threads in (1, 4):
        found = run(logits, k, n_vocab, n_threads=n_threads, **options)
        np.testing.assert_array_equal(found, expected)


def distinct(n_rows: int, n_vocab: int, seed: int) -> F32:
    """Logits that are never equal within a row, about normal."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.standard_normal(n_vocab)).astype(np.float32)
    values += np.arange(n_vocab, dtype=np.float32) * np.float32(1e-5)
    assert len(set(values.tolist())) == n_vocab
    return rng.permuted(np.tile(values, (n_rows, 1)), axis=1)


def test_oracle() -> None:
    logits = np.array([[1, 3, np.nan, 3, np.inf, -np.inf, 9]], np.float32)
    assert oracle.topk(logits, 6, 6).tolist() == [[4, 1, 3, 0, 2, 5]]


@pytest.mark.parametrize("composed", [False, True], ids=["fused", "composed"])
# around the logits that are compared at once, the keys that are collected, and the released sizes
@pytest.mark.parametrize("n_vocab", [16, 17, 63, 64, 65, 127, 255, 256, 257, 1000, 4099])
@pytest.mark.parametrize("k", K)
def test_distinct_logits(k: int, n_vocab: int, composed: bool) -> None:
    assert_best(distinct(N_ROWS, n_vocab, k + n_vocab), min(k, n_vocab), composed=composed)


@pytest.mark.parametrize("n_vocab", [49152, 151936, 248320, 262144])
@pytest.mark.parametrize("k", [1, 16, 64])
def test_large_vocabularies(k: int, n_vocab: int) -> None:
    logits = np.random.default_rng(k).standard_normal((2, n_vocab), np.float32)
    assert_best(logits, k)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 5, 15, 80])
def test_every_number_of_rows_and_threads(n_rows: int, n_threads: int) -> None:
    # with nine threads a part of a row is shorter than what is looked for
    logits = distinct(n_rows, 515, n_rows)
    found = run(logits, 64, n_threads=n_threads)
    np.testing.assert_array_equal(found, oracle.topk(logits, 64, 515))


def _few_values(n_values: int) -> Callable[[np.random.Generator, tuple[int, int]], F32]:
    return lambda rng, shape: rng.integers(n_values, size=shape).astype(np.float32)


def _mixed(*values: float) -> Callable[[np.random.Generator, tuple[int, int]], F32]:
    """Normal values, a third of which are some of those given."""

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> F32:
        special = rng.choice(np.array(values, np.float32), shape)
        return np.where(rng.random(shape) < 1 / 3, special, rng.standard_normal(shape, np.float32))

    return make


# the orders in which much of a row beats what came before, and rows in which values are equal
ROWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], F32]] = {
    "ascending": lambda _, shape: np.tile(np.arange(shape[1], dtype=np.float32), (shape[0], 1)),
    "descending": lambda _, shape: -np.tile(np.arange(shape[1], dtype=np.float32), (shape[0], 1)),
    "rising-and-falling": lambda _, shape: np.tile(
        -abs(np.arange(shape[1], dtype=np.float32) - shape[1] // 2), (shape[0], 1)
    ),
    "all-equal": lambda _, shape: np.full(shape, 2.5, np.float32),
    "two-values": _few_values(2),
    "nine-values": _few_values(9),
    "zeros-of-both-signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0).astype(
        np.float32
    ),
    "denormal": lambda rng, shape: (rng.integers(-9, 9, shape) * 1e-45).astype(np.float32),
    "greatest-finite": _mixed(np.finfo(np.float32).max, np.finfo(np.float32).min),
    "plus-infinity": _mixed(np.inf),
    "minus-infinity": _mixed(-np.inf),
    "nan": _mixed(np.nan, -np.nan),
    "anything": _mixed(np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0),
    "all-minus-infinity": lambda _, shape: np.full(shape, -np.inf, np.float32),
    "all-plus-infinity": lambda _, shape: np.full(shape, np.inf, np.float32),
    "all-nan": lambda _, shape: np.full(shape, np.nan, np.float32),
    "one-above-minus-infinity": lambda _, shape: np.where(
        np.arange(shape[1]) == shape[1] - 1, 0, np.full(shape, -np.inf)
    ).astype(np.float32),
    "no-number-but-one": lambda _, shape: np.where(
        np.arange(shape[1]) == shape[1] // 2, -np.inf, np.full(shape, np.nan)
    ).astype(np.float32),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("k", K)
def test_rows_of_every_kind(k: int, kind: str) -> None:
    for n_vocab in (64, 67, 3000):
        logits = ROWS[kind](np.random.default_rng(n_vocab), (3, n_vocab))
        assert_best(logits, k)


@pytest.mark.parametrize("kind", ["ascending", "anything"])
def test_long_rows_of_every_kind(kind: str) -> None:
    assert_best(ROWS[kind](np.random.default_rng(0), (2, 151936)), 64)


@pytest.mark.parametrize("composed", [False, True], ids=["fused", "composed"])
@pytest.mark.parametrize("padding", [np.inf, np.nan, 1e30])
@pytest.mark.parametrize("n_vocab", [16, 100, 128, 193, 255])
def test_padding_is_never_taken(n_vocab: int, padding: float, composed: bool) -> None:
    logits = distinct(3, 256, n_vocab)
    logits[:, n_vocab:] = padding
    for k in (1, 16):
        assert_best(logits, k, n_vocab, composed=composed)


@pytest.mark.parametrize("composed", [False, True], ids=["fused", "composed"])
@pytest.mark.parametrize("gap", [1, 64])
def test_rows_of_views(gap: int, composed: bool) -> None:
    assert_best(distinct(5, 777, gap), 16, gap=gap, composed=composed)
    assert_best(distinct(5, 777, gap), 16, 700, gap=gap, composed=composed)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_demo_drafter(golden: Path, block: int) -> None:
    stored = np.load(golden / "golden" / f"block{block}.npz")
    logits = np.full((7, 49152), stored["unary_logits"].min() - 1, np.float32)
    np.put_along_axis(logits, stored["candidate_ids"], stored["unary_logits"], axis=1)
    np.testing.assert_array_equal(run(logits, 16, n_threads=2), stored["candidate_ids"])


# logits, k, size of the vocabulary
BROKEN = {
    "f32(2, 20), 0, 20": "k is 0",
    "f32(2, 20), 21, 20": "k is 21",
    "f32(2, 200), 65, 200": "k is 65",
    "f32(2, 20), 5, 4": "k is 5",
    "f32(2, 20), 4, 21": "n_vocab is 21",
    "f32(2, 20), 4, 0": "n_vocab is 0",
    "i32(2, 20), 4, 20": "logits type",
    "f32(2, 2, 20), 4, 20": "logits ne[2]",
}


@pytest.mark.parametrize("arguments", BROKEN)
def test_broken_contract(arguments: str) -> None:
    message = message_of(f"graph.topk({arguments})")
    assert message.startswith("dflash2_topk: ")
    assert BROKEN[arguments] in message
