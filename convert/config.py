"""A drafter's config.json as a checked dataclass."""

import logging
from dataclasses import dataclass

from .checkpoint import Json
from .errors import ConversionError, mismatch
from .families import OTHER_FAMILY_KEYS
from .fields import ConfigFields, check_positive

logger = logging.getLogger(__name__)

# Settings of training, of other libraries, or of the tokenizer, which the target supplies.
_IRRELEVANT = {
    *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "auto_map"),
    *("_name_or_path", "initializer_range", "attention_dropout", "use_cache", "max_window_layers"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "pretraining_tp"),
    *("output_attentions", "output_hidden_states", "return_dict"),
}
# What the runtime does; a drafter that says otherwise would draft wrongly without a word.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_is_neox_style": True,
    "use_gemma_norm": False,
    "sample_from_anchor": False,
}
_CONV_AND_SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


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
        target_layer_ids: Taps as 0-based target layers whose output is read.
        num_target_layers: Layers of the target it was trained for; None if the config is silent.
        sliding_window: Keys a query of a sliding layer sees, its own included; None without any.
        sliding_layers: Per layer, whether it is a sliding one.
        causal: Whether block rows see only rows up to their own; the same in every layer.
        conv_selector: None for DFlash 1.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]
    causal: bool
    conv_selector: ConvSelector | None
    output_multiplier: float | None
    final_logit_softcapping: float | None
    input_embedding_scale: float | None


def parse_config(config: Json) -> DrafterConfig:
    """Checks a drafter's config.json and resolves what it leaves open.

    Raises:
        ConversionError: A key is missing, wrong, contradicts another, or is not known.
    """
    fields = ConfigFields(config)
    for key, needed in _FIXED.items():
        where, value = fields.find(key)
        if value not in (None, needed):
            raise mismatch(
                value, at=where, needed=f"{needed!r}, the only value the runtime drafts with"
            )
    block_size = fields.integer("block_size", minimum=2)
    sliding_layers = _sliding_layers(fields)
    softcap_where, softcap = fields.find("final_logit_softcapping")
    parsed = DrafterConfig(
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=len(sliding_layers),
        num_attention_heads=fields.integer("num_attention_heads"),
        num_key_value_heads=fields.integer("num_key_value_heads"),
        head_dim=_head_dim(fields),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        vocab_size=fields.integer("vocab_size"),
        block_size=block_size,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        target_layer_ids=fields.integers("target_layer_ids"),
        num_target_layers=fields.optional_integer("num_target_layers"),
        sliding_window=_sliding_window(fields, sliding_layers, block_size),
        sliding_layers=sliding_layers,
        causal=_causal(fields, sliding_layers),
        conv_selector=_conv_selector(fields),
        output_multiplier=fields.optional_positive("output_multiplier"),
        # Some exporters write 0 for "no softcap".
        final_logit_softcapping=(
            None if softcap in (None, 0) else check_positive(softcap_where, softcap)
        ),
        input_embedding_scale=fields.optional_positive("input_embedding_scale"),
    )
    if unread := fields.unread(_IRRELEVANT.union(OTHER_FAMILY_KEYS)):
        message = (
            f"config.json has keys this converter does not know: {', '.join(unread)}; "
            "remove those that do not change how the drafter computes"
        )
        raise ConversionError(message)
    _check_shape(fields, parsed)
    return parsed


def _head_dim(fields: ConfigFields) -> int:
    head_dim = fields.optional_integer("head_dim", minimum=2)
    if head_dim is None:
        head_dim = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    if head_dim % 2:
        raise mismatch(
            head_dim, at="config.json: head_dim", needed="an even number, RoPE turns pairs"
        )
    return head_dim


def _rope_theta(fields: ConfigFields) -> float:
    theta_where, theta = fields.find("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        for name, value in fields.table(key).items():
            where = f"config.json: {key}.{name}"
            if name == "rope_theta":
                theta_where, theta = where, value
            elif name in ("rope_type", "type"):
                if value not in (None, "default"):
                    raise mismatch(
                        value, at=where, needed="'default': scaled RoPE is not supported"
                    )
            elif name in ("partial_rotary_factor", "mrope_section", "mrope_interleaved"):
                _ignore_target_setting(where)
            elif value is not None:
                raise mismatch(
                    value, at=where, needed="absent: it is not known for the default RoPE"
                )
    if fields.find("partial_rotary_factor")[1] is not None:
        _ignore_target_setting("config.json: partial_rotary_factor")
    return check_positive(theta_where, theta)


def _ignore_target_setting(where: str) -> None:
    # The reference rotates whole heads at plain positions whatever these say; honouring one that
    # was copied from the target's config would ruin every draft.
    logger.warning(
        "%s is ignored: it is a setting of the target, drafters rotate whole heads", where
    )


def _sliding_layers(fields: ConfigFields) -> tuple[bool, ...]:
    n_layers = fields.integer("num_hidden_layers")
    use_window = fields.optional_bool("use_sliding_window")
    layer_types = fields.strings("layer_types")
    where = "config.json: layer_types"
    if not layer_types:
        # Engines disagree on which layers slide then, so a guess would be wrong in one of them.
        if use_window:
            raise mismatch(None, at=where, needed="a type per layer, as use_sliding_window is true")
        return (False,) * n_layers
    if len(layer_types) != n_layers:
        raise mismatch(list(layer_types), at=where, needed=f"{n_layers} entries, one per layer")
    if unknown := set(layer_types) - {"sliding_attention", "full_attention"}:
        raise mismatch(sorted(unknown), at=where, needed="sliding_attention or full_attention")
    sliding = tuple(name == "sliding_attention" for name in layer_types)
    if any(sliding) and use_window is False:
        needed = "true, as layer_types has sliding_attention"
        raise mismatch(use_window, at="config.json: use_sliding_window", needed=needed)
    return sliding


def _sliding_window(
    fields: ConfigFields, sliding_layers: tuple[bool, ...], block_size: int
) -> int | None:
    where, _ = fields.find("sliding_window")
    window = fields.optional_integer("sliding_window")
    if not any(sliding_layers):
        return None
    if window is None:
        raise mismatch(None, at=where, needed="a window, as layer_types has sliding_attention")
    if window < block_size:
        # The window's forward side may never bind: stock llama.cpp does not draw it.
        raise mismatch(window, at=where, needed=f"at least block_size {block_size}")
    return window


def _causal(fields: ConfigFields, sliding_layers: tuple[bool, ...]) -> bool:
    explicit = fields.optional_bool("is_causal")
    nested = fields.optional_bool("causal")
    if explicit is None:
        explicit = nested
    if explicit is not None:
        return explicit
    if len(set(sliding_layers)) > 1:
        needed = (
            "true or false: without it sliding layers are causal and full layers are not, "
            "and layer_types has both, which the runtime's one mask cannot draw"
        )
        raise mismatch(None, at="config.json: is_causal", needed=needed)
    return sliding_layers[0]


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
    if config.conv_selector is None:
        return
    if config.hidden_size % config.conv_selector.conv_group_size:
        where, group = fields.find("conv_group_size")
        raise mismatch(group, at=where, needed=f"a divisor of hidden_size {config.hidden_size}")
    if config.conv_selector.selector_top_k > config.vocab_size:
        where, top_k = fields.find("selector_top_k")
        raise mismatch(top_k, at=where, needed=f"at most vocab_size {config.vocab_size}")
