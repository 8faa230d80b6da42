"""Tells the families of drafters apart, by their config.json and their tensors' names."""

from collections.abc import Iterable
from enum import Enum

from .checkpoint import Checkpoint, Json
from .errors import ConversionError, mismatch


class Layout(Enum):
    """How a checkpoint spells what a drafter is made of; the value is its name for people."""

    RELEASED = "as released"
    ASSISTANT = "Muse Glimmer assistant"
    MIMO = "MiMo"
    SPECULATORS = "speculators export"


_ASSISTANT = "MuseGlimmerAssistantModel"
# The last two are other names of DFlash 2 in SGLang.
_ARCHITECTURES = (
    *("DFlash2DraftModel", "DFlashDraftModel", _ASSISTANT),
    *("MiniMaxDFlash2DraftModel", "DFlash2BeamDraftModel"),
)
_SPECULATORS_TYPES = ("dflash", "dflash2")
_SPECULATORS_KEYS = (
    "speculators_model_type",
    "transformer_layer_config",
    "aux_hidden_state_layer_ids",
)
_MIMO_KEYS = ("attention_value_scale", "attention_sink_bias")

_OTHER_BY_ARCHITECTURE = {
    "DSpark": "DSpark",
    "Eagle": "EAGLE",
    "Domino": "Domino",
    "Laguna": "Laguna",
    "Nemotron": "Nemotron",
}
_OTHER_BY_KEY = {
    "markov_head_type": "DSpark",
    "markov_rank": "DSpark",
    "hc_mult": "DeepSeek V4 hyper-connections",
    "quantization_config": "quantized checkpoint",
    "compression_config": "quantized checkpoint",
}
_OTHER_BY_TENSOR = {
    "markov_head.": "DSpark",
    "markov_w1.": "DSpark",
    "confidence_head.": "DSpark",
    "prefix_gru.": "Domino",
    "embed_proj.": "Domino",
    "midlayer.": "EAGLE",
}


def identify_layout(checkpoint: Checkpoint) -> Layout:
    """Recognises a DFlash or DFlash 2 checkpoint.

    Raises:
        ConversionError: The checkpoint is of another family; the message names it.
    """
    config = checkpoint.config
    architectures = config.get("architectures")
    speculators_type = config.get("speculators_model_type")

    for part, family in _OTHER_BY_ARCHITECTURE.items():
        if part.lower() in str(architectures).lower():
            raise _refusal(family, f"config.json has architectures {architectures}")
    for key, family in _OTHER_BY_KEY.items():
        # An explicit "off" is how some exporters write the defaults.
        if _setting(config, key) not in (None, False):
            raise _refusal(family, f"config.json sets {key}")
    if (projector := _setting(config, "projector_type")) not in (None, "dflash", "dflash2"):
        raise _refusal(str(projector), f"config.json has projector_type {projector}")
    refuse_other_tensors(checkpoint.tensors)

    if speculators_type not in (None, *_SPECULATORS_TYPES):
        reason = f"config.json has speculators_model_type {speculators_type!r}"
        raise _refusal(str(speculators_type), reason)
    if any(config.get(key) for key in _SPECULATORS_KEYS):
        return Layout.SPECULATORS
    if not isinstance(architectures, list) or not any(
        architecture in _ARCHITECTURES for architecture in architectures
    ):
        needed = ", ".join(_ARCHITECTURES[:-1]) + f" or {_ARCHITECTURES[-1]}"
        raise mismatch(architectures, at="config.json: architectures", needed=needed)
    if _ASSISTANT in architectures:
        return Layout.ASSISTANT
    if any(_setting(config, key) not in (None, False) for key in _MIMO_KEYS):
        return Layout.MIMO
    return Layout.RELEASED


def refuse_other_tensors(names: Iterable[str]) -> None:
    """Refuses families that are known by their tensors, of checkpoints and of GGUF files alike.

    Raises:
        ConversionError: There is such a tensor; the message names it and the family.
    """
    for name in names:
        for prefix, family in _OTHER_BY_TENSOR.items():
            if name.removeprefix("model.").startswith(prefix):
                raise _refusal(family, f"there is a tensor {name}")


def _setting(config: Json, key: str) -> object:
    nested = config.get("dflash_config")
    if isinstance(nested, dict) and nested.get(key) is not None:
        return nested[key]
    return config.get(key)


def _refusal(family: str, reason: str) -> ConversionError:
    return ConversionError(
        f"drafters of this kind cannot be converted: {family} ({reason}); "
        "needed: a DFlash or DFlash 2 drafter with plain weights"
    )
