"""Random targets. Their text is noise, but every layer, position and token matters to it."""

from pathlib import Path

import numpy as np

from tiny.sizes import Sizes
from tiny.vocabulary import BOS
from tiny.writing import Array, near_one, normal, write_model

N_EMBD = 288  # llama.cpp's loader wants K * (K + 1) = 272 or more for K = 16
N_VOCAB = 320
_N_LAYER = 4
_N_HEAD, _N_HEAD_KV, _HEAD_DIM = 4, 2, 32
_N_FF = 96

SIZES = Sizes(N_EMBD, _N_FF, _N_HEAD, _N_HEAD_KV, _HEAD_DIM)
# of the gated delta net: size of a head's state, heads, taps of the short convolution
_STATE, _N_KEY, _N_VALUE, _N_CONV = 32, 2, 4, 4
_HYBRID_METADATA = {
    ".rope.dimension_count": _HEAD_DIM // 2,
    ".rope.dimension_sections": [3, 3, 2, 0],
    ".full_attention_interval": _N_LAYER,
    ".ssm.conv_kernel": _N_CONV,
    ".ssm.state_size": _STATE,
    ".ssm.group_count": _N_KEY,
    ".ssm.time_step_rank": _N_VALUE,
    ".ssm.inner_size": _N_VALUE * _STATE,
}


def write_dense_target(path: Path, *, seed: int = 1, dtype: str = "f32") -> Path:
    """A Qwen3 target whose heads are narrower together than n_embd."""
    rng = np.random.default_rng(seed)
    return _write(path, "qwen3", _embedding_and_head(rng) | dense_layers(rng), N_VOCAB, dtype)


def write_hybrid_target(path: Path, *, seed: int = 2, dtype: str = "f32") -> Path:
    """A Qwen3.5 target: three gated delta net layers, one of attention; partial M-RoPE."""
    rng = np.random.default_rng(seed)
    return _write(path, "qwen35", _embedding_and_head(rng) | hybrid_layers(rng), N_VOCAB, dtype)


def write_last_token_target(
    path: Path,
    embedding_and_head: dict[str, Array],
    *,
    hybrid: bool,
    context_weight: float,
    seed: int,
) -> Path:
    """A target of given embedding and head; `context_weight` scales what its random layers add."""
    rng = np.random.default_rng(seed)
    arch, layers = ("qwen35", hybrid_layers) if hybrid else ("qwen3", dense_layers)
    n_vocab = len(embedding_and_head["token_embd.weight"])
    return _write(path, arch, embedding_and_head | layers(rng, context_weight), n_vocab, "f32")


def dense_layers(rng: np.random.Generator, output_scale: float = 1.0) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for index in range(_N_LAYER):
        blk = f"blk.{index}"
        tensors |= _attention(rng, blk, _N_HEAD * _HEAD_DIM, output_scale)
        tensors |= _ffn(rng, blk, "ffn_norm", output_scale)
    return tensors


def hybrid_layers(rng: np.random.Generator, output_scale: float = 1.0) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for index in range(_N_LAYER):
        blk = f"blk.{index}"
        if index == _N_LAYER - 1:
            # twice the heads' width: each query is followed by the gate of its head
            tensors |= _attention(rng, blk, 2 * _N_HEAD * _HEAD_DIM, output_scale)
        else:
            tensors |= _delta_net(rng, blk, output_scale)
        tensors |= _ffn(rng, blk, "post_attention_norm", output_scale)
    return tensors


def _write(path: Path, arch: str, tensors: dict[str, Array], n_vocab: int, dtype: str) -> Path:
    metadata = SIZES.metadata(_N_LAYER) | (_HYBRID_METADATA if arch == "qwen35" else {})
    return write_model(path, arch, metadata, tensors, n_vocab, dtype)


def _embedding_and_head(rng: np.random.Generator) -> dict[str, Array]:
    """Logits spread by 3, but 0 for special tokens: greedy text never holds one."""
    head = normal(rng, N_VOCAB, N_EMBD, std=3 * N_EMBD**-0.5)
    head[BOS:] = 0
    return {
        "token_embd.weight": normal(rng, N_VOCAB, N_EMBD, std=1.0),
        "output_norm.weight": near_one(rng, N_EMBD),
        "output.weight": head,
    }


def _attention(
    rng: np.random.Generator, blk: str, n_query: int, output_scale: float
) -> dict[str, Array]:
    n_kv = _N_HEAD_KV * _HEAD_DIM
    return {
        f"{blk}.attn_norm.weight": near_one(rng, N_EMBD),
        f"{blk}.attn_q.weight": normal(rng, n_query, N_EMBD),
        f"{blk}.attn_k.weight": normal(rng, n_kv, N_EMBD),
        f"{blk}.attn_v.weight": normal(rng, n_kv, N_EMBD),
        # 2: attention scores with a standard deviation of 4, so that a few keys decide
        f"{blk}.attn_q_norm.weight": near_one(rng, _HEAD_DIM, mean=2.0),
        f"{blk}.attn_k_norm.weight": near_one(rng, _HEAD_DIM, mean=2.0),
        f"{blk}.attn_output.weight": output_scale * normal(rng, N_EMBD, _N_HEAD * _HEAD_DIM),
    }


def _delta_net(rng: np.random.Generator, blk: str, output_scale: float) -> dict[str, Array]:
    mixed = (2 * _N_KEY + _N_VALUE) * _STATE
    return {
        f"{blk}.attn_norm.weight": near_one(rng, N_EMBD),
        f"{blk}.attn_qkv.weight": normal(rng, mixed, N_EMBD),
        f"{blk}.attn_gate.weight": normal(rng, _N_VALUE * _STATE, N_EMBD),
        f"{blk}.ssm_conv1d.weight": normal(rng, mixed, _N_CONV),
        f"{blk}.ssm_alpha.weight": normal(rng, _N_VALUE, N_EMBD),
        f"{blk}.ssm_beta.weight": normal(rng, _N_VALUE, N_EMBD),
        f"{blk}.ssm_dt.bias": normal(rng, _N_VALUE, std=0.5),
        # with the softplus near 0.7: half-lives from 2 to 50 tokens
        f"{blk}.ssm_a": -np.geomspace(0.02, 0.5, _N_VALUE).astype(np.float32),
        f"{blk}.ssm_norm.weight": near_one(rng, _STATE),
        f"{blk}.ssm_out.weight": output_scale * normal(rng, N_EMBD, _N_VALUE * _STATE),
    }


def _ffn(rng: np.random.Generator, blk: str, norm: str, output_scale: float) -> dict[str, Array]:
    return {
        f"{blk}.{norm}.weight": near_one(rng, N_EMBD),
        f"{blk}.ffn_gate.weight": normal(rng, _N_FF, N_EMBD),
        f"{blk}.ffn_up.weight": normal(rng, _N_FF, N_EMBD),
        f"{blk}.ffn_down.weight": output_scale * normal(rng, N_EMBD, _N_FF),
    }
