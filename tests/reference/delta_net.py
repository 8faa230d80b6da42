"""The gated delta net layer of Qwen3.5, token by token."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.files import Array
from reference.layers import rms_norm, silu


def delta_net_layer(
    a: Array, config: Mapping[str, Any], tensors: Mapping[str, Array], index: int
) -> Array:
    """Output of layer `index` for normalised rows a [tokens, n_embd], before the residual add."""
    eps = config["attention.layer_norm_rms_epsilon"]
    n_key, n_value = config["ssm.group_count"], config["ssm.time_step_rank"]
    dim = config["ssm.state_size"]

    def tensor(name: str) -> Array:
        return tensors[f"blk.{index}.{name}"]

    mixed = _causal_conv(a @ tensor("attn_qkv.weight").T, tensor("ssm_conv1d.weight"))
    q, k, v = np.split(silu(mixed), [n_key * dim, 2 * n_key * dim], axis=1)
    # value head h reads key head h mod n_key
    tile = (1, n_value // n_key, 1)
    q = np.tile(_unit(q.reshape(len(a), n_key, dim), eps), tile) / np.sqrt(dim)
    k = np.tile(_unit(k.reshape(len(a), n_key, dim), eps), tile)
    v = v.reshape(len(a), n_value, dim)
    softplus = np.log1p(np.exp(a @ tensor("ssm_alpha.weight").T + tensor("ssm_dt.bias")))
    decay = np.exp(softplus * tensor("ssm_a"))
    beta = 1 / (1 + np.exp(-(a @ tensor("ssm_beta.weight").T)))

    state = np.zeros((n_value, dim, dim))  # [head, value, key]
    out = np.empty_like(v)
    for row in range(len(a)):
        state *= decay[row, :, None, None]
        error = beta[row, :, None] * (v[row] - np.einsum("hvk,hk->hv", state, k[row]))
        state += error[:, :, None] * k[row][:, None, :]
        out[row] = np.einsum("hvk,hk->hv", state, q[row])

    z = (a @ tensor("attn_gate.weight").T).reshape(v.shape)
    gated = rms_norm(out, tensor("ssm_norm.weight"), eps) * silu(z)
    return gated.reshape(len(a), -1) @ tensor("ssm_out.weight").T


def _causal_conv(x: Array, kernel: Array) -> Array:
    """Depthwise over x [rows, channels]; the last of kernel [channels, taps] is the row's own."""
    taps = kernel.shape[1]
    padded = np.vstack([np.zeros((taps - 1, x.shape[1])), x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0)
    return np.einsum("nct,ct->nc", windows, kernel)


def _unit(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)
