"""Where the rows of an output tensor come from: read by range, changed on the way."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Weights(Protocol):
    """A tensor whose rows can be read in any order, by several threads."""

    @property
    def name(self) -> str:
        """Its name where it comes from, for messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, slowest dimension first."""

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads rows as float32 [n_rows, last dimension].

        Raises:
            ConversionError: They hold no weights, or the file ends early.
        """


def n_rows(shape: tuple[int, ...]) -> int:
    """Rows of a tensor: the last dimension is within a row."""
    return math.prod(shape[:-1])


def row_ranges(shape: tuple[int, ...], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Cuts a tensor into pieces.

    Args:
        shape: Of the tensor.
        max_bytes: Size of a piece as float32; a single row may be larger.

    Yields:
        First row and number of rows of each piece, in order.
    """
    step = max(1, max_bytes // (4 * shape[-1]))
    total = n_rows(shape)
    for first in range(0, total, step):
        yield first, min(step, total - first)


@dataclass(frozen=True)
class PatchedWeights:
    """Weights of which one row is another.

    Attributes:
        base: Where all other rows come from.
        row: The row replaced.
        values: What it is replaced by, float32 [last dimension].
    """

    base: Weights
    row: int
    values: NDArray[np.float32]

    @property
    def name(self) -> str:
        """The name of the base."""
        return self.base.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the base."""
        return self.base.shape

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads rows, the replaced one among them."""
        rows = self.base.read(first_row, n_rows)
        if first_row <= self.row < first_row + n_rows:
            rows[self.row - first_row] = self.values
        return rows


@dataclass(frozen=True)
class HalvedHeads:
    """Weights made for interleaved RoPE, reordered so that halves of a head form the pairs.

    Within each head the even dimensions come first, then the odd ones. Queries and keys are
    reordered alike, so their products stay what they were.

    Attributes:
        base: Weights with the dimensions of a head as rows, or as columns of a norm.
        head_dim: Dimensions of a head.
    """

    base: Weights
    head_dim: int

    @property
    def name(self) -> str:
        """The name of the base."""
        return self.base.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the base."""
        return self.base.shape

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads reordered rows."""
        order = np.concatenate([np.arange(0, self.head_dim, 2), np.arange(1, self.head_dim, 2)])
        if len(self.shape) == 1:
            return self.base.read(first_row, n_rows)[:, order]
        first_head = first_row // self.head_dim
        n_heads = -(-(first_row + n_rows) // self.head_dim) - first_head
        heads = self.base.read(first_head * self.head_dim, n_heads * self.head_dim)
        heads = heads.reshape(n_heads, self.head_dim, -1)[:, order].reshape(heads.shape)
        skipped = first_row - first_head * self.head_dim
        return heads[skipped : skipped + n_rows]


@dataclass(frozen=True)
class TokenIds:
    """A table of token ids, held in memory.

    Attributes:
        name: Its name in the checkpoint.
        ids: int64 [tokens].
    """

    name: str
    ids: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """One row of all ids."""
        return self.ids.shape

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads the ids as numbers, exact below 2**24."""
        return self.ids[None, :].astype(np.float32)[first_row : first_row + n_rows]
