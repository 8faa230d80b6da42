"""Drafter checkpoints in the layout of the releases, written at test time for the tiny targets."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tiny import MASK


class Stored(NamedTuple):
    """A tensor as a safetensors file holds it."""

    dtype: str
    data: NDArray[Any]


Weights = dict[str, Stored]

_CONV_SELECTOR = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 32,
    "selector_top_k": 16,
}


def config(*, dflash2: bool = True) -> dict[str, Any]:
    """config.json of a drafter of two layers, as the released ones are written."""
    return {
        "architectures": ["DFlash2DraftModel" if dflash2 else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": 288,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": 320,
        "num_target_layers": 4,
        "layer_types": ["full_attention", "full_attention"],
        "is_causal": False,
        "dflash_config": {
            "block_size": 4,
            "mask_token_id": MASK,
            "target_layer_ids": [0, 2],
            **(_CONV_SELECTOR if dflash2 else {}),
        },
    }


def weights(*, dflash2: bool = True, dtype: str = "BF16") -> Weights:
    """The tensors that belong to `config`, with seeded values."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (288, 576),
        "hidden_norm.weight": (288,),
        "norm.weight": (288,),
    }
    for layer in ("layers.0", "layers.1"):
        shapes |= {
            f"{layer}.input_layernorm.weight": (288,),
            f"{layer}.post_attention_layernorm.weight": (288,),
            f"{layer}.self_attn.q_proj.weight": (128, 288),
            f"{layer}.self_attn.k_proj.weight": (64, 288),
            f"{layer}.self_attn.v_proj.weight": (64, 288),
            f"{layer}.self_attn.o_proj.weight": (288, 128),
            f"{layer}.self_attn.q_norm.weight": (32,),
            f"{layer}.self_attn.k_norm.weight": (32,),
            f"{layer}.mlp.gate_proj.weight": (96, 288),
            f"{layer}.mlp.up_proj.weight": (96, 288),
            f"{layer}.mlp.down_proj.weight": (288, 96),
        }
        if dflash2:
            shapes |= {
                f"{layer}.attention_conv.base_kernel": (2, 2, 288),
                f"{layer}.attention_conv.kernel_projection.weight": (72, 288),
                f"{layer}.mlp_conv.base_kernel": (2, 2, 288),
                f"{layer}.mlp_conv.kernel_projection.weight": (72, 288),
            }
    if dflash2:
        shapes |= {
            "candidate_selector.predecessor_codebook": (320, 32),
            "candidate_selector.successor_codebook": (320, 32),
            "candidate_selector.hidden_projection.weight": (32, 288),
        }
    rng = np.random.default_rng(7)
    return {
        name: stored(rng.standard_normal(shape).astype(np.float32), dtype)
        for name, shape in shapes.items()
    }


def stored(values: NDArray[np.float32], dtype: str = "BF16") -> Stored:
    if dtype == "BF16":  # cut, not rounded: any bf16 will do
        return Stored(dtype, (values.view(np.uint32) >> 16).astype(np.uint16))
    return Stored(dtype, values.astype({"F16": np.float16, "F32": np.float32}[dtype]))


def values(tensor: Stored) -> NDArray[np.float32]:
    if tensor.dtype == "BF16":
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)
    return tensor.data.astype(np.float32)


def spoiled(tensors: Weights, name: str, value: float) -> Weights:
    """Replaces the last weight of a tensor."""
    changed = values(tensors[name])
    changed.flat[-1] = value
    return tensors | {name: stored(changed)}


def safetensors_header(tensors: Weights) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.data.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.data.shape),
            "data_offsets": [begin, end],
        }
    return header


def write_safetensors(path: Path, tensors: Weights, header: Any = None) -> Path:
    """Writes a file; another `header` than the true one may be given, as text or as an object."""
    if header is None:
        header = safetensors_header(tensors)
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    data = b"".join(tensor.data.tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_checkpoint(folder: Path, settings: dict[str, Any], tensors: Weights) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_sharded(folder: Path, settings: dict[str, Any], tensors: Weights) -> Path:
    """Writes two shards under names that only the index knows."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    names = list(tensors)
    shards = {
        "drafter-00001-of-00002.safetensors": names[1::2],
        "drafter-00002-of-00002.safetensors": names[0::2],
    }
    for shard, held in shards.items():
        write_safetensors(folder / shard, {name: tensors[name] for name in held})
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "drafter.safetensors.index.json").write_text(index)
    return folder
