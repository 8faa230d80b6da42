"""The two released drafters in their true shapes: what would be written, without any weight."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from dflash2.convert.drafter import Plan, plan_drafter

from .checkpoints import write_safetensors


class Release(NamedTuple):
    """What differs between the two releases.

    Attributes:
        config: Keys of config.json.
        dflash_config: Keys of its dflash_config.
        target: Architecture and keys of the target.
        keys: Keys of the output.
        n_parameters, n_bytes: Weights of the checkpoint, and their size in it.
    """

    config: dict[str, Any]
    dflash_config: dict[str, Any]
    target: tuple[str, dict[str, Any]]
    keys: dict[str, Any]
    n_parameters: int
    n_bytes: int


def f32(value: float) -> float:
    return float(np.float32(value))


RELEASES = {
    "Qwen3.8-27B-DFlash2": Release(
        config={
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_target_layers": 64,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
            "max_position_embeddings": 262144,
            "vocab_size": 248320,
            "use_sliding_window": True,
            "max_window_layers": 5,
            "eos_token_id": 248044,
        },
        dflash_config={
            "block_size": 8,
            "mask_token_id": 248070,
            "target_layer_ids": [5, 19, 33, 47, 61],
        },
        target=("qwen35", {"block_count": 64, "rope.dimension_sections": [11, 11, 10, 0]}),
        keys={
            "context_length": 262144,
            "feed_forward_length": 17408,
            "attention.layer_norm_rms_epsilon": f32(1e-6),
            "rope.freq_base": 1e7,
            "rope.dimension_sections": [64, 0, 0, 0],
            "block_size": 8,
            "target_layers": [6, 20, 34, 48, 62],
            "target_block_count": 64,
        },
        n_parameters=1_924_404_480,
        n_bytes=3_848_808_960,
    ),
    "Muse-Glimmer-30B-DFlash2": Release(
        config={
            "hidden_size": 6656,
            "intermediate_size": 19968,
            "num_target_layers": 52,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 500000, "rope_type": "default"},
            "max_position_embeddings": 131072,
            "vocab_size": 202048,
            "bos_token_id": 200000,
        },
        dflash_config={
            "block_size": 16,
            "mask_token_id": 201818,
            "target_layer_ids": [1, 13, 25, 37, 49],
            "output_multiplier": 0.19611613513818404,
            "final_logit_softcapping": 20.0,
        },
        target=("muse_glimmer", {"block_count": 52}),
        keys={
            "context_length": 131072,
            "feed_forward_length": 19968,
            "attention.layer_norm_rms_epsilon": f32(1e-5),
            "rope.freq_base": 5e5,
            "block_size": 16,
            "target_layers": [2, 14, 26, 38, 50],
            "target_block_count": 52,
            "logit_scale": f32(0.19611613513818404),
            "final_logit_softcapping": 20.0,
        },
        n_parameters=2_772_159_744,
        n_bytes=5_544_319_488,
    ),
}
COMMON_CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "is_causal": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
COMMON_DFLASH_CONFIG = {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 256,
    "selector_top_k": 16,
}
COMMON_KEYS = {
    "block_count": 5,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.causal": False,
    "attention.sliding_window": 2048,
    "attention.sliding_window_pattern": [True] * 5,
    **COMMON_DFLASH_CONFIG,
}


def checkpoint_shapes(hidden: int, inner: int, vocabulary: int) -> dict[str, list[int]]:
    """Names and shapes of the released files, slowest dimension first."""
    shapes = {
        "fc.weight": [hidden, 5 * hidden],
        "hidden_norm.weight": [hidden],
        "norm.weight": [hidden],
        "candidate_selector.predecessor_codebook": [vocabulary, 256],
        "candidate_selector.successor_codebook": [vocabulary, 256],
        "candidate_selector.hidden_projection.weight": [256, hidden],
    }
    for layer in range(5):
        shapes |= {
            f"layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm.weight": [hidden],
                "post_attention_layernorm.weight": [hidden],
                "self_attn.q_proj.weight": [4096, hidden],
                "self_attn.k_proj.weight": [1024, hidden],
                "self_attn.v_proj.weight": [1024, hidden],
                "self_attn.o_proj.weight": [hidden, 4096],
                "self_attn.q_norm.weight": [128],
                "self_attn.k_norm.weight": [128],
                "mlp.gate_proj.weight": [inner, hidden],
                "mlp.up_proj.weight": [inner, hidden],
                "mlp.down_proj.weight": [hidden, inner],
                "attention_conv.base_kernel": [2, 2, hidden],
                "attention_conv.kernel_projection.weight": [hidden // 4, hidden],
                "mlp_conv.base_kernel": [2, 2, hidden],
                "mlp_conv.kernel_projection.weight": [hidden // 4, hidden],
            }.items()
        }
    return shapes


def gguf_table(hidden: int, inner: int, vocabulary: int) -> dict[str, tuple[list[int], str]]:
    """Names, shapes in ggml's order, and types of the F16 output."""
    table = {
        "fc.weight": ([5 * hidden, hidden], "F16"),
        "enc.output_norm.weight": ([hidden], "F32"),
        "output_norm.weight": ([hidden], "F32"),
        "selector_predecessor.weight": ([256, vocabulary], "F16"),
        "selector_successor.weight": ([256, vocabulary], "F16"),
        "selector_hidden.weight": ([hidden, 256], "F16"),
    }
    for layer in range(5):
        table |= {
            f"blk.{layer}.{name}": entry
            for name, entry in {
                "attn_norm.weight": ([hidden], "F32"),
                "attn_q.weight": ([hidden, 4096], "F16"),
                "attn_k.weight": ([hidden, 1024], "F16"),
                "attn_v.weight": ([hidden, 1024], "F16"),
                "attn_output.weight": ([4096, hidden], "F16"),
                "attn_q_norm.weight": ([128], "F32"),
                "attn_k_norm.weight": ([128], "F32"),
                "attn_conv_base": ([hidden, 2, 2], "F32"),
                "attn_conv_proj.weight": ([hidden, hidden // 4], "F16"),
                "ffn_norm.weight": ([hidden], "F32"),
                "ffn_gate.weight": ([hidden, inner], "F16"),
                "ffn_up.weight": ([hidden, inner], "F16"),
                "ffn_down.weight": ([inner, hidden], "F16"),
                "ffn_conv_base": ([hidden, 2, 2], "F32"),
                "ffn_conv_proj.weight": ([hidden, hidden // 4], "F16"),
            }.items()
        }
    return table


def write_sparse_checkpoint(folder: Path, release: Release) -> Path:
    """Header and size of the released file; its weights are holes, which take no place on disk."""
    folder.mkdir()
    settings = COMMON_CONFIG | release.config
    settings["dflash_config"] = COMMON_DFLASH_CONFIG | release.dflash_config
    (folder / "config.json").write_text(json.dumps(settings))
    sizes = [settings[key] for key in ("hidden_size", "intermediate_size", "vocab_size")]
    header, end = {}, 0
    for name, shape in checkpoint_shapes(*sizes).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    assert (len(header), end) == (81, release.n_bytes)
    file = write_safetensors(folder / "model.safetensors", {}, header)
    with file.open("r+b") as weights:
        weights.truncate(file.stat().st_size + end)
    return folder


def write_target(path: Path, release: Release) -> Path:
    architecture, keys = release.target
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (keys | {"embedding_length": release.config["hidden_size"]}).items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_token_list([str(token) for token in range(release.config["vocab_size"])])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=RELEASES)
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, Plan]:
    release = RELEASES[request.param]
    folder = tmp_path_factory.mktemp("released")
    source = write_sparse_checkpoint(folder / request.param, release)
    plan = plan_drafter(source, write_target(folder / "target.gguf", release), folder)
    assert plan.path == folder / f"{request.param}-F16.gguf"
    return release, plan


def test_metadata_of_the_releases(planned: tuple[Release, Plan]) -> None:
    release, plan = planned
    found = {
        key.removeprefix("dflash."): f32(value) if isinstance(value, float) else value
        for key, (value, *_) in plan.metadata.items()
        if key.startswith("dflash.")
    }
    hidden_size = {"embedding_length": release.config["hidden_size"]}
    assert found == COMMON_KEYS | hidden_size | release.keys
    mask = release.dflash_config["mask_token_id"]
    assert plan.metadata["tokenizer.ggml.mask_token_id"].value == mask


def test_tensors_of_the_releases(planned: tuple[Release, Plan]) -> None:
    release, plan = planned
    sizes = [release.config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")]
    found = {tensor.name: (list(tensor.shape[::-1]), tensor.type.name) for tensor in plan.tensors}
    assert found == gguf_table(*sizes)
    assert len(plan.tensors) == 81
    assert sum(math.prod(tensor.shape) for tensor in plan.tensors) == release.n_parameters
