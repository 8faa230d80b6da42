"""DFlash 2's own parts: the block convolution, the candidate scores and the walks over them."""

import numpy as np
from numpy.typing import NDArray

from reference.files import Array

Ids = NDArray[np.int64]


def conv_coefficients(x: Array, projection: Array, n_tap: int) -> Array:
    """The dynamic part of both convolutions of a sublayer with normalised input x.

    Returns:
        [rows, 2 sides, n_tap, groups].
    """
    return (x @ projection.T).reshape(len(x), 2, n_tap, -1)


def conv(x: Array, base: Array, delta: Array) -> Array:
    """Convolves the rows of one block.

    Args:
        x: [rows, channels]; rows before the first count as zero.
        base: [n_tap, channels].
        delta: [rows, n_tap, groups], added to `base` for every channel of a group.
    """
    channels_per_group = x.shape[1] // delta.shape[2]
    weights = base + np.repeat(delta, channels_per_group, axis=2)
    out = np.zeros_like(x)
    for tap in range(min(len(base), len(x))):
        out[tap:] += weights[tap:, tap] * x[: len(x) - tap]
    return out


def top_k(logits: Array, k: int) -> Ids:
    """Ids of the k largest logits of every row, (logit descending, id ascending)."""
    return np.argsort(-logits, axis=-1, kind="stable")[:, :k]


def output_transform(logits: Array, scale: float, softcap: float) -> Array:
    """The target's multiplier and softcap, in that order; a softcap of 0 is none."""
    logits = logits * scale
    return softcap * np.tanh(logits / softcap) if softcap else logits


def scores(
    ids: Ids, unary: Array, anchor: int, gate: Array, predecessor: Array, successor: Array
) -> Array:
    """Score of every step between the candidates of neighbouring slots.

    Args:
        ids, unary: [slots, K].
        anchor: the token before slot 0.
        gate: [slots, rank].
        predecessor, successor: [vocabulary, rank].

    Returns:
        [slots, K predecessors, K candidates]; in slot 0 every predecessor is the anchor.
    """
    before = np.vstack([np.full_like(ids[:1], anchor), ids[:-1]])
    pair = np.einsum("spr,sr,scr->spc", predecessor[before], gate, successor[ids])
    return unary[:, None, :] + pair


def greedy_walk(ids: Ids, score: Array) -> list[int]:
    """The best candidate of each slot after the one chosen before; among equals the first."""
    path, chosen = [], 0
    for slot in range(len(ids)):
        chosen = int(np.argmax(score[slot, chosen]))
        path.append(int(ids[slot, chosen]))
    return path


def sampled_walk(
    ids: Ids, score: Array, temperature: float, uniforms: Array
) -> tuple[list[int], Array]:
    """Draws a path by inverse CDF, one uniform per slot.

    Returns:
        The path, and the distribution each of its tokens was drawn from, [slots, K].
    """
    path, rows, chosen = [], [], 0
    for slot in range(len(ids)):
        weights = score[slot, chosen] / temperature
        weights = np.exp(weights - weights.max())
        q = weights / weights.sum()
        drawn = int(np.count_nonzero(uniforms[slot] >= np.cumsum(q)))
        chosen = min(drawn, int(np.flatnonzero(q)[-1]))
        path.append(int(ids[slot, chosen]))
        rows.append(q)
    return path, np.array(rows)
