"""Our kernel of attention on the CPU against the formula, and what it must not depend on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from . import oracle
from .ggml import F32, Graph, store

# ggml's own kernel sums values in F16 and rounds queries: two orders of magnitude beyond this
MAX_NMSE = 1e-9


@dataclass(frozen=True)
class Case:
    """q [batches, heads, rows, width], keys and values likewise, as they were before storing.

    mask: added to the scores, [batches, rows, keys] or [batches, heads, rows, keys].
    """

    q: F32
    keys: F32
    values: F32
    mask: F32 | None = None
    sinks: F32 | None = None
    softcap: float = 0.0
    kind: Type = Type.F16

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)

    def expected(self) -> NDArray[np.float64]:
        return oracle.attention(
            self.q,
            _stored(self.keys, self.kind),
            _stored(self.values, self.kind),
            self._mask_of_heads(),
            self.sinks,
            self.scale,
            self.softcap,
        )

    def _mask_of_heads(self) -> F32 | None:
        return self.mask[:, None] if self.mask is not None and self.mask.ndim == 3 else self.mask

    def run(self, *, own_kernel: bool = True, n_threads: int = 1) -> NDArray[Any]:
        """[batches, rows, heads, width]."""
        mask = self._mask_of_heads()
        with Graph() as graph:
            found = graph.run(
                graph.attention(
                    graph.tensor(self.q),
                    graph.table(self.keys, self.kind),
                    graph.table(self.values, self.kind),
                    None if mask is None else graph.table(mask, Type.F16),
                    None if self.sinks is None else graph.tensor(self.sinks),
                    self.scale,
                    self.softcap,
                    own_kernel=own_kernel,
                ),
                n_threads,
            )
        n_batches, n_heads, n_rows, _ = self.q.shape
        return found.reshape(n_batches, n_rows, n_heads, -1)


def _stored(values: F32, kind: Type) -> F32:
    return store(values.reshape(-1, values.shape[-1]), kind)[1].reshape(values.shape)


def random_case(
    n_rows: int,
    n_keys: int,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (64, 64),
    n_batches: int = 1,
    seed: int = 0,
    **options: Any,
) -> Case:
    """A causal mask over the last keys; heads: of queries and of keys; widths: of keys, values."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> F32:
        return rng.standard_normal(shape, np.float32)

    behind = np.arange(n_keys) - (n_keys - n_rows) > np.arange(n_rows)[:, None]
    mask = np.where(behind & (np.arange(n_keys) > 0), np.float32(-np.inf), np.float32(0))
    return Case(
        **{
            "q": 2 * normal(n_batches, heads[0], n_rows, widths[0]),
            "keys": normal(n_batches, heads[1], n_keys, widths[0]),
            "values": normal(n_batches, heads[1], n_keys, widths[1]),
            "mask": np.repeat(mask[None], n_batches, axis=0),
        }
        | options
    )


def assert_right(case: Case, **how: Any) -> None:
    assert oracle.nmse(case.run(**how), case.expected()) <= MAX_NMSE


@pytest.mark.parametrize("n_keys", [1, 2, 31, 32, 63, 64, 65, 200, 1000])
@pytest.mark.parametrize("n_rows", [1, 2, 4, 7, 8, 9, 17, 63, 64, 150])
def test_rows_and_keys(n_rows: int, n_keys: int) -> None:
    assert_right(random_case(n_rows, n_keys))


@pytest.mark.parametrize(
    "widths", [(16, 16), (40, 40), (80, 80), (128, 128), (192, 128), (257, 33)]
)
def test_widths(widths: tuple[int, int]) -> None:
    assert_right(random_case(5, 150, widths=widths))


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 1), (6, 6), (32, 4)])
@pytest.mark.parametrize("n_batches", [1, 3])
def test_heads_and_batches(heads: tuple[int, int], n_batches: int) -> None:
    assert_right(random_case(5, 90, heads, n_batches=n_batches), n_threads=2)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0])
def test_types_of_the_cache(kind: Type) -> None:
    assert_right(random_case(5, 150, kind=kind))


def test_without_a_mask_and_with_a_cap_and_sinks() -> None:
    assert_right(random_case(3, 70, mask=None))
    assert_right(random_case(3, 70, softcap=5.0))
    for sink in (-30.0, 0.5, 30.0):
        assert_right(random_case(3, 70, sinks=np.full(4, sink, np.float32)))


def test_masks_of_blocks_and_of_whole_rows() -> None:
    rng = np.random.default_rng(3)
    mask = np.where(rng.random((2, 6, 300)) < 0.7, -np.inf, rng.standard_normal((2, 6, 300)))
    mask = mask.astype(np.float16).astype(np.float32)
    mask[0, :, 64:192] = -np.inf
    mask[1, 3:, :128] = -np.inf
    assert_right(random_case(6, 300, n_batches=2, mask=mask))
    mask[1, 2] = -np.inf
    case = random_case(6, 300, n_batches=2, mask=mask)
    assert not case.run()[1, 2].any()


def test_what_is_masked_is_not_looked_at() -> None:
    """It may hold anything: in a block that is not seen, and between keys that are."""
    case = random_case(4, 130)
    assert case.mask is not None
    hidden = [20, 21, 40, *range(70, 130)]
    case.mask[:, :, hidden] = -np.inf
    expected = case.run()
    case.keys[:, :, hidden], case.values[:, :, hidden] = np.nan, np.inf
    np.testing.assert_array_equal(case.run(), expected)


def test_what_one_row_sees_does_not_reach_another() -> None:
    """Neighbours in a block, of whom one sees a key and a value that are no numbers."""
    case = random_case(3, 70)
    assert case.mask is not None
    case.mask[:, [0, 2], 40] = -np.inf
    expected = case.run()
    case.keys[:, :, 40], case.values[:, :, 40] = np.nan, np.nan
    found = case.run()
    np.testing.assert_array_equal(found[:, [0, 2]], expected[:, [0, 2]])
    assert np.isnan(found[:, 1]).all()


def test_heads_with_masks_of_their_own() -> None:
    """As of an indexer that chooses keys for each head."""
    rng = np.random.default_rng(8)
    mask = np.where(rng.random((1, 4, 3, 90)) < 0.5, np.float32(-np.inf), np.float32(0))
    case = random_case(3, 90, (4, 2), mask=mask)
    found, expected = case.run(), case.expected()
    for head in range(4):
        assert oracle.nmse(found[:, :, head], expected[:, :, head]) <= MAX_NMSE


def test_few_of_many_keys_are_seen() -> None:
    """As an indexer leaves them, other ones for each row."""
    mask = np.full((1, 5, 700), -np.inf, np.float32)
    rng = np.random.default_rng(9)
    for row in range(5):
        mask[0, row, rng.choice(700, 12, replace=False)] = 0
    assert_right(random_case(5, 700, mask=mask))


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("widths", [(64, 64), (40, 40), (100, 100), (257, 33)])
def test_a_row_is_the_same_alone_and_among_others(n_threads: int, widths: tuple[int, int]) -> None:
    """To the bit: verification must see what plain decoding sees."""
    n_rows = 40
    case = random_case(n_rows, 333, (9, 3), widths)
    assert case.mask is not None
    # some see the same of a block and some do not
    case.mask[:, 3::5, 64:96:3] = -np.inf
    together = case.run(n_threads=n_threads)
    for row in range(n_rows):
        q, mask = case.q[:, :, row : row + 1], case.mask[:, row : row + 1]
        alone = Case(np.ascontiguousarray(q), case.keys, case.values, mask).run()
        np.testing.assert_array_equal(together[:, row], alone[:, 0])


def test_others_keep_the_kernel_of_ggml() -> None:
    """Who has not asked, and who has fewer rows and heads than threads."""
    case = random_case(4, 200)
    assert oracle.nmse(case.run(own_kernel=False), case.expected()) > MAX_NMSE
    one = random_case(1, 200, (2, 1))
    np.testing.assert_array_equal(one.run(n_threads=3), one.run(own_kernel=False, n_threads=3))
