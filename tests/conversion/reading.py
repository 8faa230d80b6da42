"""What a written drafter holds, and what the tiny checkpoints must give."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

TINY = {
    "dflash.block_count": ("UINT32", 2),
    "dflash.context_length": ("UINT32", 4096),
    "dflash.embedding_length": ("UINT32", 288),
    "dflash.feed_forward_length": ("UINT32", 96),
    "dflash.attention.head_count": ("UINT32", 4),
    "dflash.attention.head_count_kv": ("UINT32", 2),
    "dflash.attention.key_length": ("UINT32", 32),
    "dflash.attention.value_length": ("UINT32", 32),
    "dflash.attention.layer_norm_rms_epsilon": ("FLOAT32", float(np.float32(1e-6))),
    "dflash.attention.causal": ("BOOL", False),
    "dflash.rope.freq_base": ("FLOAT32", 10000.0),
    "dflash.block_size": ("UINT32", 4),
    "dflash.target_layers": ("ARRAY INT32", [1, 3]),
    "dflash.target_block_count": ("UINT32", 4),
}
TINY_DFLASH2 = {
    "dflash.conv_kernel_size": ("UINT32", 2),
    "dflash.conv_group_size": ("UINT32", 16),
    "dflash.selector_rank": ("UINT32", 32),
    "dflash.selector_top_k": ("UINT32", 16),
}
# GGUF name of each released name; {} is the layer
NAMES = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "layers.{}.input_layernorm.weight": "blk.{}.attn_norm.weight",
    "layers.{}.self_attn.q_proj.weight": "blk.{}.attn_q.weight",
    "layers.{}.self_attn.k_proj.weight": "blk.{}.attn_k.weight",
    "layers.{}.self_attn.v_proj.weight": "blk.{}.attn_v.weight",
    "layers.{}.self_attn.o_proj.weight": "blk.{}.attn_output.weight",
    "layers.{}.self_attn.q_norm.weight": "blk.{}.attn_q_norm.weight",
    "layers.{}.self_attn.k_norm.weight": "blk.{}.attn_k_norm.weight",
    "layers.{}.post_attention_layernorm.weight": "blk.{}.ffn_norm.weight",
    "layers.{}.mlp.gate_proj.weight": "blk.{}.ffn_gate.weight",
    "layers.{}.mlp.up_proj.weight": "blk.{}.ffn_up.weight",
    "layers.{}.mlp.down_proj.weight": "blk.{}.ffn_down.weight",
    "layers.{}.attention_conv.base_kernel": "blk.{}.attn_conv_base",
    "layers.{}.attention_conv.kernel_projection.weight": "blk.{}.attn_conv_proj.weight",
    "layers.{}.mlp_conv.base_kernel": "blk.{}.ffn_conv_base",
    "layers.{}.mlp_conv.kernel_projection.weight": "blk.{}.ffn_conv_proj.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
}


def metadata(file: Path | gguf.GGUFReader, prefix: str = "") -> dict[str, tuple[str, Any]]:
    reader = gguf.GGUFReader(file) if isinstance(file, Path) else file
    return {
        field.name: (" ".join(type_.name for type_ in field.types), field.contents())
        for field in reader.fields.values()
        if field.name.startswith(prefix) and not field.name.startswith("GGUF.")
    }


def dflash_keys(file: Path | gguf.GGUFReader) -> dict[str, tuple[str, Any]]:
    return metadata(file, "dflash.")


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def gguf_name(released: str) -> str:
    layer = released.split(".")[1] if released.startswith("layers.") else ""
    return NAMES[released.replace(f"layers.{layer}.", "layers.{}.")].format(layer)
