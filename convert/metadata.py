"""The key-value part of a drafter's GGUF file, as stock llama.cpp's converter writes it."""

from gguf import GGML_QUANT_VERSION, GGUFValueType

from .config import DrafterConfig
from .gguf_values import MetadataValue
from .quantize import FILE_TYPES, OutType
from .target import Target


def drafter_metadata(
    name: str, config: DrafterConfig, target: Target, outtype: OutType
) -> dict[str, MetadataValue]:
    """Builds every key of the output except ``general.architecture``, in file order."""
    return {
        "general.type": MetadataValue(b"model", GGUFValueType.STRING),
        "general.name": MetadataValue(name.encode(errors="replace"), GGUFValueType.STRING),
        **_dflash_keys(config, target),
        "general.file_type": _u32(FILE_TYPES[outtype]),
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
        "rope.freq_base": _f32(config.rope_theta),
        "block_size": _u32(config.block_size),
        # config.json counts layer outputs, GGUF the inputs of the layers after them.
        "target_layers": _array([tap + 1 for tap in config.target_layer_ids], GGUFValueType.INT32),
        # Ours: lets a loader refuse another target. Stock llama.cpp does not read it.
        "target_block_count": _u32(target.n_layers),
        "attention.causal": MetadataValue(config.causal, GGUFValueType.BOOL),
    }
    if (extra := config.conv_selector) is not None:
        keys |= {
            "conv_kernel_size": _u32(extra.conv_kernel_size),
            "conv_group_size": _u32(extra.conv_group_size),
            "selector_rank": _u32(extra.selector_rank),
            "selector_top_k": _u32(extra.selector_top_k),
        }
    if config.sliding_window is not None:
        keys |= {
            "attention.sliding_window": _u32(config.sliding_window),
            "attention.sliding_window_pattern": _array(
                list(config.sliding_layers), GGUFValueType.BOOL
            ),
        }
    if target.uses_mrope:
        # The drafter's positions are plain: all frequencies follow the first (temporal) one.
        sections = [config.head_dim // 2, 0, 0, 0]
        keys["rope.dimension_sections"] = _array(sections, GGUFValueType.INT32)
    for key, value in (
        ("logit_scale", config.output_multiplier),
        ("final_logit_softcapping", config.final_logit_softcapping),
        ("embedding_scale", config.input_embedding_scale),
    ):
        if value is not None:
            keys[key] = _f32(value)
    return {f"dflash.{key}": value for key, value in keys.items()}


def _u32(value: int) -> MetadataValue:
    return MetadataValue(value, GGUFValueType.UINT32)


def _f32(value: float) -> MetadataValue:
    return MetadataValue(value, GGUFValueType.FLOAT32)


def _array(items: list[int] | list[bool], item_type: GGUFValueType) -> MetadataValue:
    return MetadataValue(items, GGUFValueType.ARRAY, item_type)
