"""A drafter's config.json as a checked dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass

from .attention import Visibility, parse_visibility
from .checkpoint import Json
from .errors import ConversionError, mismatch
from .families import Layout
from .fields import ConfigFields, check_positive
from .rope import Rope, parse_rope

# Settings of training, of other libraries, or of the tokenizer, which the target supplies.
_IRRELEVANT = {
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "auto_map"),
    *("_name_or_path", "initializer_range", "attention_dropout", "use_cache", "max_window_layers"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp"),
    *("output_attentions", "output_hidden_states", "return_dict", "chunk_size_feed_forward"),
    *("quantization_config", "compression_config", "projector_type", "markov_rank", "hc_mult"),
    *("speculators_model_type", "speculators_config", "speculators_version", "max_anchors"),
    *("moe_intermediate_size", "num_experts", "num_experts_per_tok", "moe_experts_implementation"),
    "shared_expert_intermediate_size",
}
# What the runtime does; a drafter that says otherwise would draft wrongly without a word.
_FIXED = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_gemma_norm": False,
    "sample_from_anchor": False,
    "draft_ffn_type": "dense",
}
_HIDDEN_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_CONV_AND_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")

# Speculators write only what differs from the decoder's defaults, which are those of Qwen3.
_SPECULATORS_DEFAULTS: Mapping[str, object] = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 151936,
}
_SPECULATORS_DFLASH2_DEFAULTS: Mapping[str, object] = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
    "sliding_window_non_causal": True,
}


@dataclass(frozen=True)
class ConvSelector:
    """What DFlash 2 adds to DFlash: the block convolution and the candidate selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """The settings a drafter is drafted with, under their names in config.json where it has one.

    Attributes:
        layout: How its checkpoint spells them.
        target_layer_ids: Taps as 0-based target layers whose output is read, whatever the layout.
        num_target_layers: Layers of the target it was trained for; None if the config is silent.
        vocab_size: Tokens of the target.
        draft_vocab_size: Tokens it can draft; fewer than ``vocab_size`` with a reduced vocabulary.
        tie_word_embeddings: Whether an own embedding is its head too.
        conv_selector: None for DFlash 1.
        attention_value_scale: Factor of the attention's output (MiMo).
        attention_sinks: Whether every layer must have attention sinks (MiMo).
    """

    layout: Layout
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    rope: Rope
    vocab_size: int
    draft_vocab_size: int
    tie_word_embeddings: bool
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    visibility: Visibility
    conv_selector: ConvSelector | None
    output_multiplier: float | None
    final_logit_softcapping: float | None
    input_embedding_scale: float | None
    attention_value_scale: float | None
    attention_sinks: bool

    @property
    def family(self) -> str:
        """``DFlash 2`` or ``DFlash``, and the layout where it is not that of the releases."""
        name = "DFlash" if self.conv_selector is None else "DFlash 2"
        return name if self.layout is Layout.RELEASED else f"{name} ({self.layout.value})"


def parse_config(
    config: Json, layout: Layout = Layout.RELEASED, target_vocab_size: int | None = None
) -> DrafterConfig:
    """Checks a drafter's config.json and resolves what it leaves open.

    Args:
        config: The object in config.json.
        layout: From `identify_layout`.
        target_vocab_size: For an assistant, whose config.json says nothing about its vocabulary.

    Raises:
        ConversionError: A key is missing, wrong, contradicts another, or is not known.
    """
    fields = ConfigFields(config, _defaults(config, layout, target_vocab_size))
    for key, needed in _FIXED.items():
        where, value = fields.find(key)
        if value not in (None, needed):
            raise mismatch(
                value, at=where, needed=f"{needed!r}, the only value the runtime drafts with"
            )
    block_size = fields.integer("block_size", minimum=2)
    visibility = parse_visibility(fields, layout, block_size)
    head_dim = _head_dim(fields)
    softcap_where, softcap = fields.find("final_logit_softcapping")
    parsed = DrafterConfig(
        layout=layout,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=len(visibility.sliding_layers),
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        hidden_act=_hidden_act(fields),
        rope=parse_rope(fields, layout, head_dim),
        vocab_size=fields.integer("vocab_size"),
        draft_vocab_size=fields.optional_integer("draft_vocab_size")
        or fields.integer("vocab_size"),
        tie_word_embeddings=fields.optional_bool("tie_word_embeddings") is True,
        block_size=block_size,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        target_layer_ids=_target_layer_ids(fields, layout),
        num_target_layers=fields.optional_integer("num_target_layers"),
        visibility=visibility,
        conv_selector=_conv_selector(fields),
        output_multiplier=fields.optional_positive("output_multiplier"),
        # Some exporters write 0 for "no softcap".
        final_logit_softcapping=(
            None if softcap in (None, 0) else check_positive(softcap_where, softcap)
        ),
        input_embedding_scale=fields.optional_positive("input_embedding_scale"),
        attention_value_scale=fields.optional_positive("attention_value_scale"),
        attention_sinks=fields.optional_bool("attention_sink_bias") is True,
    )
    _check_target_hidden_size(fields, parsed.hidden_size)
    if unread := fields.unread(_IRRELEVANT):
        message = (
            f"config.json has keys this converter does not know: {', '.join(unread)}; "
            "remove those that do not change how the drafter computes"
        )
        raise ConversionError(message)
    _check_shape(fields, parsed)
    return parsed


def _defaults(config: Json, layout: Layout, target_vocab_size: int | None) -> Mapping[str, object]:
    if layout is Layout.ASSISTANT:
        return {"vocab_size": target_vocab_size}
    if layout is not Layout.SPECULATORS:
        return {}
    kind = config.get("speculators_model_type") or str(config.get("architectures"))
    if "dflash2" in str(kind).lower():
        return {**_SPECULATORS_DEFAULTS, **_SPECULATORS_DFLASH2_DEFAULTS}
    return _SPECULATORS_DEFAULTS


def _head_dim(fields: ConfigFields) -> int:
    head_dim = fields.optional_integer("head_dim", minimum=2)
    if head_dim is None:
        head_dim = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    if head_dim % 2:
        raise mismatch(
            head_dim, at="config.json: head_dim", needed="an even number, RoPE turns pairs"
        )
    return head_dim


def _hidden_act(fields: ConfigFields) -> str:
    where, name = fields.find("hidden_act")
    other_where, other = fields.find("hidden_activation")
    if name is None:
        where, name = other_where, other
    if name is None:
        return "silu"
    if name not in _HIDDEN_ACTIVATIONS:
        raise mismatch(name, at=where, needed=" or ".join(map(repr, _HIDDEN_ACTIVATIONS)))
    if other not in (None, name):
        raise mismatch(other, at=other_where, needed=f"{name!r} as hidden_act")
    return str(name)


def _target_layer_ids(fields: ConfigFields, layout: Layout) -> tuple[int, ...]:
    if layout is not Layout.SPECULATORS:
        return fields.integers("target_layer_ids")
    # Speculators count the layer whose input is read.
    ids = fields.integers("aux_hidden_state_layer_ids", minimum=1)
    return tuple(layer - 1 for layer in ids)


def _conv_selector(fields: ConfigFields) -> ConvSelector | None:
    given = {key: fields.optional_integer(key) for key in _CONV_AND_SELECTOR}
    missing = [key for key, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        message = (
            f"config.json lacks {', '.join(missing)}; needed: all of "
            f"{', '.join(_CONV_AND_SELECTOR)} (DFlash 2) or none (DFlash 1)"
        )
        raise ConversionError(message)
    return ConvSelector(**{key: fields.integer(key) for key in given})


def _check_target_hidden_size(fields: ConfigFields, hidden_size: int) -> None:
    where, target_hidden_size = fields.find("target_hidden_size")
    if target_hidden_size not in (None, hidden_size):
        raise mismatch(target_hidden_size, at=where, needed=f"{hidden_size} as hidden_size")


def _check_shape(fields: ConfigFields, config: DrafterConfig) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        needed = f"a divisor of num_attention_heads {config.num_attention_heads}"
        raise mismatch(
            config.num_key_value_heads, at="config.json: num_key_value_heads", needed=needed
        )
    if config.mask_token_id >= config.vocab_size:
        where, _ = fields.find("mask_token_id")
        raise mismatch(
            config.mask_token_id, at=where, needed=f"below vocab_size {config.vocab_size}"
        )
    if config.draft_vocab_size > config.vocab_size:
        where, size = fields.find("draft_vocab_size")
        raise mismatch(size, at=where, needed=f"at most vocab_size {config.vocab_size}")
    if config.conv_selector is not None:
        _check_conv_selector(fields, config, config.conv_selector)


def _check_conv_selector(fields: ConfigFields, config: DrafterConfig, extra: ConvSelector) -> None:
    if config.hidden_size % extra.conv_group_size:
        where, group = fields.find("conv_group_size")
        raise mismatch(group, at=where, needed=f"a divisor of hidden_size {config.hidden_size}")
    where, top_k = fields.find("selector_top_k")
    if extra.selector_top_k > config.vocab_size:
        raise mismatch(top_k, at=where, needed=f"at most vocab_size {config.vocab_size}")
    if config.hidden_size < extra.selector_top_k * (extra.selector_top_k + 1):
        # The runtime packs a slot's ids and scores into one row of hidden_size numbers.
        needed = f"k with k * (k + 1) <= hidden_size {config.hidden_size}"
        raise mismatch(top_k, at=where, needed=needed)
    if config.draft_vocab_size != config.vocab_size:
        where, size = fields.find("draft_vocab_size")
        needed = f"vocab_size {config.vocab_size}, DFlash 2 drafts from the full vocabulary"
        raise mismatch(size, at=where, needed=needed)
