"""What the ops compute, in float64, and how far a result may be from it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

MAX_NMSE = 1e-7


def conv(
    x: NDArray[Any],
    coeff: NDArray[Any],
    base: NDArray[Any],
    residual: NDArray[Any] | None,
    side: int,
    n_block_rows: int,
) -> Array:
    """The convolution of each block of `n_block_rows` rows, added to the residual.

    Args:
        x, residual: [rows, channels].
        coeff: [rows, 2 sides * taps * groups], groups fastest.
        base: [2 sides, taps, channels].
    """
    n_taps, n_channels = base.shape[1:]
    blocks = x.astype(np.float64).reshape(-1, n_block_rows, n_channels)
    delta = coeff.astype(np.float64).reshape(len(blocks), n_block_rows, 2, n_taps, -1)[:, :, side]
    weights = base[side] + np.repeat(delta, n_channels // delta.shape[-1], axis=-1)
    out = np.zeros_like(blocks) if residual is None else residual.reshape(blocks.shape) + 0.0
    out = out.astype(np.float64)
    for tap in range(min(n_taps, n_block_rows)):
        out[:, tap:] += weights[:, tap:, tap] * blocks[:, : n_block_rows - tap]
    return out.reshape(x.shape)


def topk(logits: NDArray[Any], k: int, n_vocab: int) -> Ids:
    """Ids of the k best of the first n_vocab of each row: (logit descending, id ascending)."""
    real = np.where(np.isnan(logits), -np.inf, logits)[:, :n_vocab]
    return np.argsort(-real, axis=1, kind="stable")[:, :k]


def score(
    logits: NDArray[Any],
    ids: NDArray[Any],
    gate: NDArray[Any],
    predecessor: NDArray[Any],
    successor: NDArray[Any],
    anchors: NDArray[Any],
    n_slots: int,
    multiplier: float = 0.0,
    softcap: float = 0.0,
) -> Array:
    """Scores of the candidates of each slot after those of the slot before, or the anchor.

    Args:
        logits: [rows, vocabulary]; rows are the slots of one sequence after another's.
        ids: [rows, K].
        gate: [rows, rank].
        predecessor, successor: [vocabulary, rank].
        anchors: [sequences].

    Returns:
        [sequences, slots, K predecessors, K candidates].
    """
    k = ids.shape[1]
    unary = np.take_along_axis(logits, ids, axis=1).astype(np.float64)
    unary *= multiplier or 1.0
    if softcap:
        unary = softcap * np.tanh(unary / softcap)
    out = np.empty((len(anchors), n_slots, k, k))
    for row, (candidates, z) in enumerate(zip(ids, gate.astype(np.float64), strict=True)):
        sequence, slot = divmod(row, n_slots)
        before = ids[row - 1] if slot else np.full(k, anchors[sequence])
        pair = (predecessor[before] * z) @ successor[candidates].T.astype(np.float64)
        out[sequence, slot] = unary[row] + pair
    return out


def attention(
    q: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    mask: NDArray[Any] | None,
    sinks: NDArray[Any] | None,
    scale: float,
    softcap: float = 0.0,
) -> Array:
    """Softmax attention; neighbouring heads share keys and values.

    Args:
        q: [batches, heads, rows, width].
        keys, values: [batches, heads of keys, keys, width].
        mask: Added to the scores, broadcast to [batches, heads, rows, keys].
        sinks: [heads], the score of one more key without a value.

    Returns:
        [batches, rows, heads, width of the values].
    """
    n_shared = q.shape[1] // keys.shape[1]
    keys, values = (np.repeat(part.astype(np.float64), n_shared, axis=1) for part in (keys, values))
    scores = scale * (q.astype(np.float64) @ keys.swapaxes(2, 3))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        sink = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sink], axis=3)
    greatest = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(greatest), greatest, 0))
    total = weights.sum(axis=3, keepdims=True)
    weights /= np.where(total > 0, total, 1)
    return (weights[..., : keys.shape[2]] @ values).swapaxes(1, 2)


def mul_mat(weights: NDArray[Any], x: NDArray[Any]) -> Array:
    """Products of rows with rows.

    Args:
        weights: [batches, rows of weights, n], or without batches.
        x: [batches, rows, n], likewise.

    Returns:
        [batches, rows, rows of weights], with batches where one of them has some.
    """
    return x.astype(np.float64) @ weights.astype(np.float64).swapaxes(-1, -2)


def nmse(found: NDArray[Any], expected: Array) -> float:
    """Mean square of the error over that of what was expected, over the finite values.

    Values that are not finite must be the same in both.
    """
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    error = found[finite].astype(np.float64) - expected[finite]
    return float(np.mean(error**2) / max(np.mean(expected[finite] ** 2), np.finfo(np.float32).tiny))
