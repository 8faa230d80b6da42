"""Random drafters for the random targets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiny.sizes import Sizes
from tiny.target import N_EMBD, N_VOCAB, SIZES
from tiny.vocabulary import MASK
from tiny.writing import Array, near_one, normal, write_model


def write_drafter(
    path: Path,
    *,
    seed: int = 3,
    n_layer: int = 2,
    block_size: int = 8,
    tap_layers: Sequence[int] = (0, 1, 2),
    dflash2: bool = True,
    n_tap: int = 2,
    group: int = 16,
    rank: int = 8,
    top_k: int = 16,
    window: int | None = None,
    sliding: Sequence[bool] | None = None,
    causal: bool | None = None,
    sliding_causal: bool = False,
    mrope: bool = False,
    dtype: str = "f32",
) -> Path:
    """A DFlash 2 drafter, or with `dflash2=False` one without convolutions and selector.

    Args:
        tap_layers: 0-based target layers.
        n_tap, group: of the convolutions.
        window: of the layers that `sliding` marks; of all of them without `sliding`.
        causal: absent from the file when None.
        sliding_causal: the sliding layers are causal, the others not.
        mrope: mark the drafter as one for a target with multi-section RoPE.
    """
    rng = np.random.default_rng(seed)
    tensors = {
        "fc.weight": normal(rng, N_EMBD, len(tap_layers) * N_EMBD),
        "enc.output_norm.weight": near_one(rng, N_EMBD),
        "output_norm.weight": near_one(rng, N_EMBD),
    }
    metadata = drafter_metadata(n_layer, block_size, tap_layers)
    for index in range(n_layer):
        tensors |= drafter_layer(rng, f"blk.{index}")
        if dflash2:
            tensors |= convolutions(rng, f"blk.{index}", n_tap, group)
    if dflash2:
        # pair scores spread by 2, as much as the unary logits of the candidates
        tensors |= {
            "selector_predecessor.weight": normal(rng, N_VOCAB, rank, std=1.0),
            "selector_successor.weight": normal(rng, N_VOCAB, rank, std=2 * rank**-0.5),
            "selector_hidden.weight": normal(rng, rank, N_EMBD),
        }
        metadata |= dflash2_metadata(n_tap, group, rank, top_k)
    if window is not None:
        metadata |= {
            ".attention.sliding_window": window,
            ".attention.sliding_window_pattern": list(sliding or [True] * n_layer),
        }
    if causal is not None:
        metadata[".attention.causal"] = causal
    if sliding_causal:
        metadata[".attention.sliding_window_causal"] = True
    if mrope:
        metadata[".rope.dimension_sections"] = [SIZES.head_dim // 2, 0, 0, 0]
    return write_model(path, "dflash", metadata, tensors, N_VOCAB, dtype)


def drafter_metadata(n_layer: int, block_size: int, tap_layers: Sequence[int]) -> dict[str, Any]:
    return {
        **SIZES.metadata(n_layer),
        # a GGUF names the layer whose input is read
        ".target_layers": [layer + 1 for layer in tap_layers],
        ".block_size": block_size,
        "tokenizer.ggml.mask_token_id": MASK,
    }


def dflash2_metadata(n_tap: int, group: int, rank: int, top_k: int) -> dict[str, Any]:
    return {
        ".conv_kernel_size": n_tap,
        ".conv_group_size": group,
        ".selector_rank": rank,
        ".selector_top_k": top_k,
    }


def drafter_layer(
    rng: np.random.Generator, blk: str, output_scale: float = 1.0, sizes: Sizes = SIZES
) -> dict[str, Array]:
    """Attention and feed-forward network of one layer, as Qwen3 targets have them too."""
    n_q, n_kv = sizes.n_head * sizes.head_dim, sizes.n_head_kv * sizes.head_dim
    return {
        f"{blk}.attn_norm.weight": near_one(rng, sizes.n_embd),
        f"{blk}.attn_q.weight": normal(rng, n_q, sizes.n_embd),
        f"{blk}.attn_k.weight": normal(rng, n_kv, sizes.n_embd),
        f"{blk}.attn_v.weight": normal(rng, n_kv, sizes.n_embd),
        f"{blk}.attn_output.weight": output_scale * normal(rng, sizes.n_embd, n_q),
        # 2: attention scores with a standard deviation of 4, so that a few keys decide
        f"{blk}.attn_q_norm.weight": near_one(rng, sizes.head_dim, mean=2.0),
        f"{blk}.attn_k_norm.weight": near_one(rng, sizes.head_dim, mean=2.0),
        f"{blk}.ffn_norm.weight": near_one(rng, sizes.n_embd),
        f"{blk}.ffn_gate.weight": normal(rng, sizes.n_ff, sizes.n_embd),
        f"{blk}.ffn_up.weight": normal(rng, sizes.n_ff, sizes.n_embd),
        f"{blk}.ffn_down.weight": output_scale * normal(rng, sizes.n_embd, sizes.n_ff),
    }


def convolutions(rng: np.random.Generator, blk: str, n_tap: int, group: int) -> dict[str, Array]:
    """Near the identity; base and dynamic part each large enough to change the candidates."""
    tensors = {}
    for name in (f"{blk}.attn_conv", f"{blk}.ffn_conv"):
        base = normal(rng, 2, n_tap, N_EMBD, std=0.3)
        base[:, 0] += 1
        projected = 2 * n_tap * N_EMBD // group
        tensors[f"{name}_base"] = base
        tensors[f"{name}_proj.weight"] = normal(rng, projected, N_EMBD, std=0.3 * N_EMBD**-0.5)
    return tensors
