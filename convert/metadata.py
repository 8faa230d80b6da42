"""The key-value part of a drafter's GGUF file, as stock llama.cpp's converter writes it."""

import math

from gguf import GGML_QUANT_VERSION, GGUFValueType

from .config import DrafterConfig
from .gguf_values import MetadataValue
from .rope import RopeScaling
from .target import Target


def drafter_metadata(
    name: str, config: DrafterConfig, target: Target, file_type: int
) -> dict[str, MetadataValue]:
    """Builds every key of the output except ``general.architecture``, in file order."""
    return {
        "general.type": _string("model"),
        "general.name": _string(name),
        **_dflash_keys(config, target),
        "general.file_type": _u32(int(file_type)),
        "general.quantization_version": _u32(GGML_QUANT_VERSION),
        **target.tokenizer,
        "tokenizer.ggml.mask_token_id": _u32(config.mask_token_id),
    }


def _dflash_keys(config: DrafterConfig, target: Target) -> dict[str, MetadataValue]:
    keys = {
        "block_count": _u32(config.num_hidden_layers),
        "context_length": _u32(config.max_position_embeddings),
        "embedding_length": _u32(config.hidden_size),
        "feed_forward_length": _u32(config.intermediate_size),
        "attention.head_count": _u32(config.num_attention_heads),
        "attention.head_count_kv": _u32(config.num_key_value_heads),
        "attention.key_length": _u32(config.head_dim),
        "attention.value_length": _u32(config.head_dim),
        "attention.layer_norm_rms_epsilon": _f32(config.rms_norm_eps),
        "rope.freq_base": _f32(config.rope.theta),
        "block_size": _u32(config.block_size),
        # config.json counts layer outputs, GGUF the inputs of the layers after them.
        "target_layers": _array([tap + 1 for tap in config.target_layer_ids], GGUFValueType.INT32),
        # Ours: lets a loader refuse another target. Stock llama.cpp does not read it.
        "target_block_count": _u32(target.n_layers),
        **_visibility_keys(config),
        **_rope_keys(config, target),
    }
    if (extra := config.conv_selector) is not None:
        keys |= {
            "conv_kernel_size": _u32(extra.conv_kernel_size),
            "conv_group_size": _u32(extra.conv_group_size),
            "selector_rank": _u32(extra.selector_rank),
            "selector_top_k": _u32(extra.selector_top_k),
        }
    if config.hidden_act != "silu":
        keys["hidden_activation"] = _string(config.hidden_act)
    for key, value in (
        ("logit_scale", config.output_multiplier),
        ("final_logit_softcapping", config.final_logit_softcapping),
        ("embedding_scale", _embedding_scale(config, target)),
        ("attention.value_scale", config.attention_value_scale),
    ):
        if value is not None:
            keys[key] = _f32(value)
    return {f"dflash.{key}": value for key, value in keys.items()}


def _visibility_keys(config: DrafterConfig) -> dict[str, MetadataValue]:
    visibility = config.visibility
    keys = {"attention.causal": _bool(visibility.causal)}
    if visibility.sliding_causal:
        # Ours: stock llama.cpp draws one mask for all layers.
        keys["attention.sliding_window_causal"] = _bool(value=True)
    if visibility.window is not None:
        keys |= {
            "attention.sliding_window": _u32(visibility.window),
            "attention.sliding_window_pattern": _array(
                list(visibility.sliding_layers), GGUFValueType.BOOL
            ),
        }
    return keys


def _rope_keys(config: DrafterConfig, target: Target) -> dict[str, MetadataValue]:
    rope = config.rope
    keys = {}
    if rope.n_dims != config.head_dim:
        keys["rope.dimension_count"] = _u32(rope.n_dims)
    if target.uses_mrope:
        # The drafter's positions are plain: all frequencies follow the first (temporal) one.
        keys["rope.dimension_sections"] = _array([rope.n_dims // 2, 0, 0, 0], GGUFValueType.INT32)
    return keys if rope.scaling is None else keys | _scaling_keys(rope.scaling)


def _scaling_keys(scaling: RopeScaling) -> dict[str, MetadataValue]:
    keys = {"type": _string(scaling.type), "factor": _f32(scaling.factor)}
    if scaling.original_context is not None:
        keys["original_context_length"] = _u32(scaling.original_context)
    keys |= {key: _f32(value) for key, value in scaling.yarn.items()}
    return {f"rope.scaling.{key}": value for key, value in keys.items()}


def _embedding_scale(config: DrafterConfig, target: Target) -> float | None:
    if config.input_embedding_scale is not None:
        return config.input_embedding_scale
    # Gemma scales what it looks up in its embedding, a drafter of it was trained on the result,
    # and the runtime gives it the bare rows.
    return math.sqrt(target.n_embd) if target.architecture.startswith("gemma") else None


def _string(text: str) -> MetadataValue:
    return MetadataValue(text.encode(errors="replace"), GGUFValueType.STRING)


def _u32(value: int) -> MetadataValue:
    return MetadataValue(value, GGUFValueType.UINT32)


def _f32(value: float) -> MetadataValue:
    return MetadataValue(value, GGUFValueType.FLOAT32)


def _bool(value: bool) -> MetadataValue:
    return MetadataValue(value, GGUFValueType.BOOL)


def _array(items: list[int] | list[bool], item_type: GGUFValueType) -> MetadataValue:
    return MetadataValue(items, GGUFValueType.ARRAY, item_type)
