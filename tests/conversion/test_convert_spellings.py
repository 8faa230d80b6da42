"""Checkpoints that say the same in other words give the same file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import convert_drafter

from . import checkpoints
from .checkpoints import Stored, Weights, write_checkpoint
from .reading import dflash_keys, metadata


def prefixed(weights: Weights) -> Weights:
    return {f"model.{name}": tensor for name, tensor in weights.items()}


def with_weight_suffix(weights: Weights) -> Weights:
    return {
        f"{name}.weight" if name.endswith("_codebook") else name: tensor
        for name, tensor in weights.items()
    }


def with_rotary_cache(weights: Weights) -> Weights:
    cache = Stored("F32", np.ones(16, np.float32))
    return {**weights, "layers.0.self_attn.rotary_emb.inv_freq": cache}


def in_other_order(weights: Weights) -> Weights:
    return dict(reversed(weights.items()))


@pytest.mark.parametrize(
    "rewrite", [prefixed, with_weight_suffix, with_rotary_cache, in_other_order]
)
def test_other_spellings_of_a_checkpoint_give_the_same_file(
    tmp_path: Path, dense_target: Path, source: Path, rewrite: Any
) -> None:
    plain = convert_drafter(source, dense_target, tmp_path / "plain.gguf")
    other = write_checkpoint(
        tmp_path / "other" / "tiny", checkpoints.config(), rewrite(checkpoints.weights())
    )
    assert convert_drafter(other, dense_target, tmp_path).read_bytes() == plain.read_bytes()


def test_shards_give_the_same_file_as_one_file(
    tmp_path: Path, dense_target: Path, source: Path
) -> None:
    plain = convert_drafter(source, dense_target, tmp_path / "plain.gguf")
    sharded = checkpoints.write_sharded(
        tmp_path / "other" / "tiny", checkpoints.config(), checkpoints.weights()
    )
    assert convert_drafter(sharded, dense_target, tmp_path).read_bytes() == plain.read_bytes()


def test_flat_config_and_old_rope_key_give_the_same_file(
    tmp_path: Path, dense_target: Path, source: Path
) -> None:
    plain = convert_drafter(source, dense_target, tmp_path / "plain.gguf")
    flat = checkpoints.config()
    flat |= flat.pop("dflash_config")
    del flat["rope_parameters"]
    flat |= {"rope_theta": 10000, "rope_scaling": None, "sliding_window": None}
    source = write_checkpoint(tmp_path / "other" / "tiny", flat, checkpoints.weights())
    assert convert_drafter(source, dense_target, tmp_path).read_bytes() == plain.read_bytes()


def test_nested_key_wins_over_the_top_level(tmp_path: Path, dense_target: Path) -> None:
    settings = checkpoints.config() | {"block_size": 16, "mask_token_id": 1}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    path = convert_drafter(source, dense_target, tmp_path)
    assert dflash_keys(path)["dflash.block_size"][1] == 4
    assert metadata(path)["tokenizer.ggml.mask_token_id"][1] == checkpoints.MASK
