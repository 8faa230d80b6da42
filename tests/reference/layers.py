"""The building blocks of a transformer layer, one function per formula. Rows are tokens."""

import numpy as np
from numpy.typing import NDArray

from reference.files import Array


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rope(x: Array, positions: Array, base: float, n_rot: int, *, interleaved: bool) -> Array:
    """Rotates the first n_rot dimensions of every head of x [rows, heads, head_dim].

    Pair j is (2j, 2j + 1) when interleaved, else (j, j + n_rot / 2).
    """
    angles = positions[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    half = n_rot // 2
    first = slice(0, n_rot, 2) if interleaved else slice(0, half)
    second = slice(1, n_rot, 2) if interleaved else slice(half, n_rot)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def visible(queries: Array, keys: Array, window: int | None, *, causal: bool) -> NDArray[np.bool_]:
    """Which key positions each query position sees. A window counts the query's own position."""
    distance = queries[:, None] - keys[None, :]
    mask = np.ones(distance.shape, bool)
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= np.abs(distance) < window
    return mask


def attention(q: Array, k: Array, v: Array, mask: NDArray[np.bool_]) -> Array:
    """Softmax attention of q [rows, heads, d] over k, v [keys, kv_heads, d] -> [rows, heads, d]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    # heads first: matmul is many times faster than einsum on long contexts
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2)


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T
