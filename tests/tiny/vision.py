"""Random vision models for the random targets: what an image becomes is noise, but its own."""

from pathlib import Path

import gguf
import numpy as np

from tiny.target import N_EMBD
from tiny.writing import Array, add_value, finish, near_one, normal

_N_EMBD, _N_HEAD, _N_FF, _PATCH, _SIDE = 32, 2, 64, 4, 6  # _SIDE: patches, of the trained size


def write_vision_model(path: Path, *, mrope: bool, seed: int = 6) -> Path:
    """A `--mmproj` file of one layer.

    Args:
        mrope: Of Qwen3-VL, whose images take as many positions as they are wide, instead of Janus,
            whose images take one for each of their 36 rows.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "clip")
    metadata = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger" if mrope else "janus_pro",
        "clip.use_gelu": True,
        "clip.vision.embedding_length": _N_EMBD,
        "clip.vision.feed_forward_length": _N_FF,
        "clip.vision.block_count": 1,
        "clip.vision.projection_dim": N_EMBD,
        "clip.vision.attention.head_count": _N_HEAD,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_size": _SIDE * _PATCH,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
    }
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, tensor in _tensors(rng, mrope).items():
        writer.add_tensor(name, tensor)
    finish(writer)
    return path


def _tensors(rng: np.random.Generator, mrope: bool) -> dict[str, Array]:
    # Qwen merges four patches to one row
    n_merged = 4 * _N_EMBD if mrope else _N_EMBD
    patch = (_N_EMBD, 3, _PATCH, _PATCH)
    tensors = {
        "v.patch_embd.weight": normal(rng, *patch, std=(3 * _PATCH**2) ** -0.5),
        "v.patch_embd.bias": normal(rng, _N_EMBD),
        "v.position_embd.weight": normal(rng, _SIDE**2, _N_EMBD, std=1.0),
        "v.blk.0.attn_out.weight": normal(rng, _N_EMBD, _N_EMBD),
        "v.blk.0.attn_out.bias": normal(rng, _N_EMBD),
        "v.blk.0.ln1.weight": near_one(rng, _N_EMBD),
        "v.blk.0.ln1.bias": normal(rng, _N_EMBD),
        "v.blk.0.ln2.weight": near_one(rng, _N_EMBD),
        "v.blk.0.ln2.bias": normal(rng, _N_EMBD),
        "v.blk.0.ffn_up.weight": normal(rng, _N_FF, _N_EMBD),
        "v.blk.0.ffn_up.bias": normal(rng, _N_FF),
        "v.blk.0.ffn_down.weight": normal(rng, _N_EMBD, _N_FF),
        "v.blk.0.ffn_down.bias": normal(rng, _N_EMBD),
        "v.post_ln.weight": near_one(rng, _N_EMBD),
        "v.post_ln.bias": normal(rng, _N_EMBD),
        "mm.0.weight": normal(rng, n_merged, n_merged),
        "mm.0.bias": normal(rng, n_merged),
        f"mm.{2 if mrope else 1}.weight": normal(rng, N_EMBD, n_merged),
        f"mm.{2 if mrope else 1}.bias": normal(rng, N_EMBD),
    }
    if mrope:  # which looks at two frames
        tensors["v.patch_embd.weight.1"] = normal(rng, *patch, std=(3 * _PATCH**2) ** -0.5)
        tensors["v.blk.0.attn_qkv.weight"] = normal(rng, 3 * _N_EMBD, _N_EMBD)
        tensors["v.blk.0.attn_qkv.bias"] = normal(rng, 3 * _N_EMBD)
        return tensors
    for part in "qkv":
        tensors[f"v.blk.0.attn_{part}.weight"] = normal(rng, _N_EMBD, _N_EMBD)
        tensors[f"v.blk.0.attn_{part}.bias"] = normal(rng, _N_EMBD)
    return tensors
