"""The keys of a drafter's GGUF file as the config.json of a released checkpoint."""

import re
from pathlib import Path
from typing import TypeVar

import numpy as np
from gguf import GGUFValueType

from .checkpoint import Json
from .errors import ConversionError, mismatch
from .gguf_file import GgufFile

# In config.json, of a layer that does not slide and of one that does.
LAYER_TYPES = ("full_attention", "sliding_attention")
# GGUF key, without "dflash.", by the key in config.json.
_SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_target_layers": "target_block_count",
    "sliding_window": "attention.sliding_window",
    "input_embedding_scale": "embedding_scale",
    "attention_value_scale": "attention.value_scale",
    "hidden_act": "hidden_activation",
}
_DFLASH_SETTINGS = {
    "block_size": "block_size",
    "conv_kernel_size": "conv_kernel_size",
    "conv_group_size": "conv_group_size",
    "selector_rank": "selector_rank",
    "selector_top_k": "selector_top_k",
    "output_multiplier": "logit_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "sample_from_anchor": "sample_from_anchor",
}
_ROPE_SETTINGS = {
    "rope_theta": "freq_base",
    "rope_dim": "dimension_count",
    "rope_type": "scaling.type",
    "factor": "scaling.factor",
    "original_max_position_embeddings": "scaling.original_context_length",
    "extrapolation_factor": "scaling.yarn_ext_factor",
    "attention_factor": "scaling.yarn_attn_factor",
    "beta_fast": "scaling.yarn_beta_fast",
    "beta_slow": "scaling.yarn_beta_slow",
}
_TEXTS = ("hidden_activation", "scaling.type")
_FLAGS = ("sample_from_anchor",)
_NUMBERS = (
    *("attention.layer_norm_rms_epsilon", "attention.value_scale", "embedding_scale"),
    *("logit_scale", "final_logit_softcapping", "freq_base", "scaling.factor"),
    *("scaling.yarn_ext_factor", "scaling.yarn_attn_factor"),
    *("scaling.yarn_beta_fast", "scaling.yarn_beta_slow"),
)
# Where a message about config.json points to when the settings come from a GGUF file.
_PLACES = {
    **{config: f"dflash.{key}" for config, key in (_SETTINGS | _DFLASH_SETTINGS).items()},
    **{config: f"dflash.rope.{key}" for config, key in _ROPE_SETTINGS.items()},
    "layer_types": "dflash.attention.sliding_window_pattern",
    "is_causal": "dflash.attention.causal",
    "target_layer_ids": "dflash.target_layers (less one)",
    "mask_token_id": "tokenizer.ggml.mask_token_id",
    "vocab_size": "tokenizer.ggml.tokens",
}
_KEY_LENGTH, _VALUE_LENGTH = "dflash.attention.key_length", "dflash.attention.value_length"
# Says that positions of the target are multi-dimensional.
_OF_THE_TARGET = ("dflash.rope.dimension_sections",)

_ARCHITECTURE = "general.architecture"
_MASK = "tokenizer.ggml.mask_token_id"
TOKEN_IDS = "d2t"
_Item = TypeVar("_Item")


def in_gguf_terms(message: str, path: Path) -> str:
    """Makes a message about config.json one about the GGUF file that the settings came from."""
    place = re.compile(r"config\.json: (?:\w+\.)?(\w+)")
    message = place.sub(lambda match: _PLACES.get(match[1], match[1]), message)
    return f"{path.name}: {message.replace('config.json', 'it')}"


def released_settings(file: GgufFile) -> Json:
    """Builds the config.json that a drafter has as a released checkpoint, not checked further.

    Raises:
        ConversionError: It is no drafter, or a key has another type than llama.cpp reads, or is
            not known. The message leaves out the file's name, as those about the result do.
    """
    return _Settings(file).released()


class _Settings:
    """The keys of a drafter's GGUF file; remembers which were read."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._read = set(_OF_THE_TARGET)
        if self._find(_ARCHITECTURE) != "dflash":
            raise self._wrong(_ARCHITECTURE, needed="dflash, a drafter")

    def released(self) -> Json:
        tensors = self._file.tensors
        is_dflash2 = "dflash.selector_top_k" in self._file.metadata
        if self._find(_VALUE_LENGTH) != self._find(_KEY_LENGTH):
            raise self._wrong(_VALUE_LENGTH, needed=f"the same as {_KEY_LENGTH}")
        config = {
            "architectures": ["DFlash2DraftModel" if is_dflash2 else "DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            **self._table("dflash", _SETTINGS),
            "vocab_size": len(self._list("tokenizer.ggml.tokens", str)),
            "attention_bias": False,
            "tie_word_embeddings": "token_embd.weight" in tensors
            and "output.weight" not in tensors,
            "rope_parameters": {
                "rope_type": "default",
                **self._table("dflash.rope", _ROPE_SETTINGS),
            },
            **self._visibility(),
            "dflash_config": {
                **self._table("dflash", _DFLASH_SETTINGS),
                "mask_token_id": self._scalar(_MASK, GGUFValueType.UINT32),
                "target_layer_ids": [
                    layer - 1 for layer in self._list("dflash.target_layers", int)
                ],
            },
        }
        if "blk.0.attn_sinks.weight" in tensors:
            config["attention_sink_bias"] = True
        if TOKEN_IDS in tensors:
            config["draft_vocab_size"] = tensors[TOKEN_IDS].shape[-1]
        self._refuse_unread()
        return config

    def _table(self, prefix: str, keys: dict[str, str]) -> Json:
        found = {name: self._scalar(f"{prefix}.{key}", _type(key)) for name, key in keys.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _scalar(self, key: str, type_: GGUFValueType) -> object:
        """Returns a value of exactly the type that llama.cpp reads; None if absent."""
        value = self._find(key)
        if value is not None and self._file.metadata[key].type is not type_:
            raise self._wrong(key, needed=f"a value of type {type_.name}")
        return value

    def _visibility(self) -> Json:
        visibility: Json = {"use_sliding_window": False}
        if self._find("dflash.attention.sliding_window") is not None:
            pattern = self._list("dflash.attention.sliding_window_pattern", bool)
            visibility = {
                "use_sliding_window": any(pattern),
                "layer_types": [LAYER_TYPES[slides] for slides in pattern],
            }
        causal = self._scalar("dflash.attention.causal", GGUFValueType.BOOL)
        flag = "dflash.attention.sliding_window_causal"
        # Without is_causal sliding layers are causal and full ones are not.
        if self._scalar(flag, GGUFValueType.BOOL) is not True:
            # llama.cpp reads a file without the key as non-causal.
            visibility["is_causal"] = causal is True
        return visibility

    def _list(self, key: str, item: type[_Item]) -> list[_Item]:
        value = self._find(key)
        if not isinstance(value, list) or any(type(each) is not item for each in value):
            raise self._wrong(key, needed=f"a list of {item.__name__}")
        return value

    def _find(self, key: str) -> object:
        self._read.add(key)
        entry = self._file.metadata.get(key)
        return None if entry is None else _plain(entry.value)

    def _wrong(self, key: str, needed: str) -> ConversionError:
        return mismatch(self._find(key), at=key, needed=needed)

    def _refuse_unread(self) -> None:
        keys = (key for key in self._file.metadata if key.startswith("dflash."))
        if unread := [key for key in keys if key not in self._read]:
            message = f"keys are not known to this converter: {', '.join(unread)}"
            raise ConversionError(message)


def _type(key: str) -> GGUFValueType:
    if key in _NUMBERS:
        return GGUFValueType.FLOAT32
    if key in _TEXTS:
        return GGUFValueType.STRING
    return GGUFValueType.BOOL if key in _FLAGS else GGUFValueType.UINT32


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    # The shortest decimal that gives the same float32 is what the checkpoint's author wrote.
    return float(str(np.float32(value))) if isinstance(value, float) else value
