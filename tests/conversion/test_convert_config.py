"""How config.json is resolved, and which ones are refused."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
from dflash2.convert import convert_drafter

from . import checkpoints
from .checkpoints import write_checkpoint
from .conftest import Refuse
from .reading import TINY, TINY_DFLASH2, dflash_keys

SLIDING = ["sliding_attention", "sliding_attention"]
FULL = ["full_attention", "full_attention"]


@pytest.mark.parametrize(
    ("layer_types", "is_causal", "causal"),
    [
        (SLIDING, None, True),
        (SLIDING, False, False),
        (SLIDING, True, True),
        (FULL, None, False),
        (FULL, True, True),
        (None, None, False),
        (["sliding_attention", "full_attention"], False, False),
        (["sliding_attention", "full_attention"], True, True),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["is_causal", "dflash_config.causal"])
def test_causality_and_window_are_resolved(
    tmp_path: Path,
    dense_target: Path,
    layer_types: list[str] | None,
    is_causal: bool | None,
    causal: bool,
    nested: bool,
) -> None:
    settings = checkpoints.config() | {"layer_types": layer_types, "is_causal": is_causal}
    if nested:
        settings["dflash_config"]["causal"] = settings.pop("is_causal")
    if layer_types is not None and "sliding_attention" in layer_types:
        settings |= {"sliding_window": 4, "use_sliding_window": True}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    keys = dflash_keys(convert_drafter(source, dense_target, tmp_path))
    assert keys["dflash.attention.causal"] == ("BOOL", causal)
    if "sliding_window" in settings:
        pattern = [name == "sliding_attention" for name in layer_types or []]
        assert keys["dflash.attention.sliding_window"] == ("UINT32", 4)
        assert keys["dflash.attention.sliding_window_pattern"] == ("ARRAY BOOL", pattern)
    else:
        assert not [key for key in keys if "sliding" in key]


def test_transform_of_the_logits_is_written(tmp_path: Path, dense_target: Path) -> None:
    settings = checkpoints.config() | {"input_embedding_scale": 4}
    settings["dflash_config"] |= {"output_multiplier": 0.25, "final_logit_softcapping": 20.0}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    assert dflash_keys(convert_drafter(source, dense_target, tmp_path)) == {
        **TINY,
        **TINY_DFLASH2,
        "dflash.logit_scale": ("FLOAT32", 0.25),
        "dflash.final_logit_softcapping": ("FLOAT32", 20.0),
        "dflash.embedding_scale": ("FLOAT32", 4.0),
    }


@pytest.mark.parametrize(
    "leaked",
    [
        {"partial_rotary_factor": 0.25},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
        {"rope_parameters": {"rope_theta": 10000.0, "mrope_section": [4, 6, 6]}},
    ],
)
def test_rotary_settings_of_the_target_are_ignored_with_a_warning(
    tmp_path: Path, dense_target: Path, leaked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    settings = copy.deepcopy(checkpoints.config()) | leaked
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    with caplog.at_level(logging.WARNING):
        path = convert_drafter(source, dense_target, tmp_path)
    assert dflash_keys(path) == {**TINY, **TINY_DFLASH2}
    assert "is ignored" in caplog.text


def nested(**changes: Any) -> dict[str, Any]:
    return {"dflash_config": checkpoints.config()["dflash_config"] | changes}


THETA = {"rope_theta": 10000.0}
WINDOW = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}
CONFIG_REFUSALS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    # missing, of the wrong type, out of range
    ({"hidden_size": None}, ("hidden_size", "missing")),
    ({"hidden_size": "288"}, ("hidden_size", "'288'")),
    ({"num_hidden_layers": 2.0}, ("num_hidden_layers", "2.0")),
    ({"num_attention_heads": True}, ("num_attention_heads", "True")),
    ({"intermediate_size": 2**31}, ("intermediate_size", str(2**31))),
    ({"rms_norm_eps": 0}, ("rms_norm_eps", "0")),
    ({"rms_norm_eps": float("nan")}, ("rms_norm_eps", "nan")),
    ({"head_dim": 31}, ("head_dim", "31", "even")),
    ({"num_key_value_heads": 3}, ("num_key_value_heads", "3", "4")),
    ({"is_causal": "no"}, ("is_causal", "'no'")),
    ({"dflash_config": []}, ("block_size", "missing")),
    ({"dflash_config": "x"}, ("dflash_config", "'x'")),
    (nested(block_size=1), ("dflash_config.block_size", "1", "2")),
    (nested(block_size=None), ("block_size", "missing")),
    (nested(mask_token_id=320), ("dflash_config.mask_token_id", "320", "vocab_size")),
    (nested(mask_token_id=-1), ("dflash_config.mask_token_id", "-1")),
    (nested(mask_token_id=None), ("mask_token_id", "missing")),
    (nested(output_multiplier=0), ("output_multiplier", "0")),
    (nested(final_logit_softcapping=-1), ("final_logit_softcapping", "-1")),
    # taps
    (nested(target_layer_ids=[]), ("target_layer_ids", "[]")),
    (nested(target_layer_ids=None), ("target_layer_ids", "missing")),
    (nested(target_layer_ids=[0, "2"]), ("target_layer_ids[1]", "'2'")),
    (nested(target_layer_ids=[0, 3]), ("target_layer_ids", "3", "at most 2", "last")),
    (nested(target_layer_ids=[0, 4]), ("target_layer_ids", "4", "at most 2")),
    (nested(target_layer_ids=[-1, 2]), ("target_layer_ids[0]", "-1")),
    (nested(target_layer_ids=[0, 1, 2]), ("fc.weight", "[288, 576]", "[288, 864]")),
    # another target
    ({"num_target_layers": 5}, ("num_target_layers", "5", "4")),
    ({"hidden_size": 320}, ("hidden_size", "320", "288")),
    ({"vocab_size": 319}, ("vocab_size", "319", "320")),
    # RoPE
    ({"rope_parameters": None}, ("rope_theta", "missing")),
    ({"rope_parameters": {"rope_theta": 0.0}}, ("rope_parameters.rope_theta", "0.0")),
    (
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}},
        ("original_max_position_embeddings", "missing"),
    ),
    ({"rope_scaling": {"type": "linear"}}, ("rope_parameters.rope_type", "'linear'")),
    ({"rope_parameters": THETA | {"type": "linear"}}, ("factor", "missing")),
    ({"rope_parameters": THETA | {"rope_type": "dynamic"}}, ("rope_type", "'dynamic'", "'yarn'")),
    ({"rope_parameters": THETA | {"factor": 4.0}}, ("rope_parameters.factor", "4.0", "not known")),
    ({"rope_parameters": {"full_attention": {}}}, ("rope_theta", "missing")),
    (
        {"rope_parameters": {"full_attention": THETA, "sliding_attention": {"rope_theta": 1e6}}},
        ("config.json: rope_parameters", "the same RoPE"),
    ),
    ({"rope_parameters": THETA | {"rope_dim": 34}}, ("rope_parameters.rope_dim", "34", "32")),
    ({"rope_is_neox_style": "no"}, ("rope_is_neox_style", "'no'")),
    # windows and causality
    (WINDOW | {"sliding_window": 3}, ("sliding_window", "3", "block_size 4")),
    (WINDOW | {"sliding_window": None}, ("sliding_window", "missing")),
    (WINDOW | {"use_sliding_window": False}, ("use_sliding_window", "False", "layer_types")),
    ({"layer_types": ["full_attention"]}, ("layer_types", "2")),
    ({"layer_types": ["full_attention", "chunked"]}, ("layer_types", "chunked")),
    ({"layer_types": None, "use_sliding_window": True}, ("layer_types", "use_sliding_window")),
    # convolution and selector
    (nested(conv_kernel_size=None), ("lacks conv_kernel_size", "selector_rank")),
    (nested(selector_top_k=0), ("dflash_config.selector_top_k", "0")),
    (nested(selector_top_k=321), ("dflash_config.selector_top_k", "321", "320")),
    (nested(selector_top_k=17), ("dflash_config.selector_top_k", "17", "hidden_size 288")),
    ({"draft_vocab_size": 321}, ("draft_vocab_size", "321", "320")),
    ({"draft_vocab_size": 319}, ("draft_vocab_size", "319", "full vocabulary")),
    (nested(conv_group_size=10), ("dflash_config.conv_group_size", "10", "288")),
    (nested(selector_rank=16), ("predecessor_codebook", "[320, 32]", "[320, 16]")),
    (nested(conv_kernel_size=3), ("attention_conv.base_kernel", "[2, 2, 288]", "[2, 3, 288]")),
    # what the runtime does not do
    ({"attention_bias": True}, ("attention_bias", "True", "False")),
    ({"hidden_act": "gelu"}, ("hidden_act", "'gelu'", "'silu'")),
    ({"hidden_activation": "gelu_pytorch_tanh"}, ("hidden_activation", "'silu'")),
    (nested(sample_from_anchor=True), ("dflash_config.sample_from_anchor", "True")),
    (nested(new_trick=1), ("dflash_config.new_trick", "does not know")),
    ({"new_trick": 1}, ("new_trick", "does not know")),
    # other families, by name
    ({"architectures": None}, ("architectures", "missing", "DFlash2DraftModel")),
    ({"architectures": ["LlamaForCausalLM"]}, ("architectures", "LlamaForCausalLM")),
    ({"architectures": ["Qwen3DSparkModel"]}, ("DSpark", "architectures")),
    ({"architectures": ["LlamaForCausalLMEagle3"]}, ("EAGLE", "architectures")),
    ({"architectures": ["DFlashLagunaForCausalLM"]}, ("Laguna", "architectures")),
    (nested(projector_type="domino"), ("domino", "projector_type")),
    (nested(markov_head_type="vanilla"), ("DSpark", "markov_head_type")),
    ({"speculators_model_type": "eagle3"}, ("eagle3", "speculators_model_type")),
    ({"hc_mult": 4}, ("hyper-connections", "hc_mult")),
    ({"draft_ffn_type": "moe"}, ("draft_ffn_type", "'moe'", "'dense'")),
    (nested(use_swa=True), ("sliding_window", "missing", "sliding layers")),
    (nested(attention_sink_bias=True), ("missing", "attention_sink_bias")),
    ({"quantization_config": {"bits": 4}}, ("quantized", "quantization_config")),
]


@pytest.mark.parametrize(("changes", "words"), CONFIG_REFUSALS)
def test_config_is_refused(
    tmp_path: Path,
    refuse: Refuse,
    dense_target: Path,
    changes: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    settings = checkpoints.config() | changes
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    refuse(source, dense_target, *words)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000])
def test_config_that_is_no_object_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, text: str
) -> None:
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), checkpoints.weights())
    (source / "config.json").write_text(text)
    refuse(source, dense_target, "config.json")
