"""Tells drafters of other families apart, so that each is refused by its name."""

from .checkpoint import Checkpoint
from .errors import ConversionError, mismatch

_ARCHITECTURES = ("DFlash2DraftModel", "DFlashDraftModel")

_FAMILY_BY_ARCHITECTURE = {
    "DSpark": "DSpark",
    "Eagle": "EAGLE",
    "Domino": "Domino",
    "MuseGlimmerAssistant": "Muse Glimmer assistant",
}
OTHER_FAMILY_KEYS = {
    "transformer_layer_config": "speculators export",
    "aux_hidden_state_layer_ids": "speculators export",
    "markov_head_type": "DSpark",
    "attention_value_scale": "MiMo (attention value scale)",
    "attention_sink_bias": "MiMo (attention sinks)",
    "use_swa": "MiMo (use_swa)",
    "quantization_config": "quantized checkpoint",
}
_FAMILY_BY_TENSOR = {
    "markov_head.": "DSpark",
    "confidence_head.": "DSpark",
    "prefix_gru.": "Domino",
    "midlayer.": "EAGLE",
    "encoder.": "Muse Glimmer assistant",
    "d2t": "reduced vocabulary",
    "t2d": "reduced vocabulary",
    "embed_tokens.": "own embedding",
    "lm_head.": "own head",
}


def refuse_other_families(checkpoint: Checkpoint) -> None:
    """Accepts DFlash and DFlash 2 checkpoints in the layout of the releases.

    Raises:
        ConversionError: The checkpoint is of another family; the message names it.
    """
    config = checkpoint.config
    architectures = config.get("architectures")
    nested = config.get("dflash_config")
    settings = {**config, **(nested if isinstance(nested, dict) else {})}

    for part, family in _FAMILY_BY_ARCHITECTURE.items():
        if part.lower() in str(architectures).lower():
            raise _refusal(family, f"config.json has architectures {architectures}")
    for key, family in OTHER_FAMILY_KEYS.items():
        # An explicit "off" is how some exporters write the defaults.
        if settings.get(key) not in (None, False):
            raise _refusal(family, f"config.json sets {key}")
    if (checkpoint.folder / "mask_embedding.pt").exists():
        message = "MiMo (mask embedding)"
        raise _refusal(message, "there is a mask_embedding.pt")
    for name in checkpoint.tensors:
        for prefix, family in _FAMILY_BY_TENSOR.items():
            if name.removeprefix("model.").startswith(prefix):
                raise _refusal(family, f"there is a tensor {name}")
    if not isinstance(architectures, list) or not set(architectures) & set(_ARCHITECTURES):
        raise mismatch(
            architectures, at="config.json: architectures", needed=" or ".join(_ARCHITECTURES)
        )


def _refusal(family: str, reason: str) -> ConversionError:
    return ConversionError(
        f"drafters of this kind cannot be converted: {family} ({reason}); "
        f"needed: a {' or '.join(_ARCHITECTURES)} as released"
    )
