"""The same drafter in another exporter's layout gives the same file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import convert_drafter

from . import checkpoints
from .checkpoints import Stored, Weights, stored, write_checkpoint, write_sharded
from .layouts import (
    SLIDING,
    assistant_config,
    assistant_weights,
    interleaved,
    speculators_config,
)
from .reading import dflash_keys

ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


@pytest.fixture
def plain(tmp_path: Path, dense_target: Path, source: Path) -> bytes:
    return convert_drafter(source, dense_target, tmp_path / "plain.gguf").read_bytes()


def prefixed(weights: Weights) -> Weights:
    return {f"model.{name}": tensor for name, tensor in weights.items()}


@pytest.mark.parametrize("write", [write_checkpoint, write_sharded])
@pytest.mark.parametrize("rename", [dict, prefixed])
def test_speculators_export_is_the_released_drafter(
    tmp_path: Path,
    dense_target: Path,
    plain: bytes,
    write: Callable[..., Path],
    rename: Callable[[Weights], Weights],
) -> None:
    verifier = {"verifier_norm.weight": stored(np.ones(288, np.float32))}
    weights = rename(checkpoints.weights() | verifier)
    source = write(tmp_path / "other" / "tiny", speculators_config(), weights)
    assert convert_drafter(source, dense_target, tmp_path).read_bytes() == plain


def test_keys_beside_the_decoder_of_a_speculators_export_win(
    tmp_path: Path, dense_target: Path
) -> None:
    settings = speculators_config(layer_types=SLIDING, sliding_window=64)
    source = write_checkpoint(tmp_path / "tiny", settings, checkpoints.weights())
    keys = dflash_keys(convert_drafter(source, dense_target, tmp_path))
    assert keys["dflash.attention.sliding_window"] == ("UINT32", 64)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["MiniMaxDFlash2DraftModel"]},
        {"architectures": ["DFlash2BeamDraftModel", "X"]},
        {"rope_parameters": {"full_attention": ROPE}},
        {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
        {"rope_scaling": {"type": "default"}},
        {"rope_parameters": ROPE | {"rope_dim": 32}},
        {"hidden_act": None},
        {"hidden_activation": "silu"},
        {"draft_vocab_size": 320},
        {"transformer_layer_config": {}},
        {"draft_ffn_type": "dense", "num_experts": 256},
    ],
)
def test_other_words_for_the_same_settings(
    tmp_path: Path, dense_target: Path, plain: bytes, change: dict[str, Any]
) -> None:
    settings = checkpoints.config() | change
    source = write_checkpoint(tmp_path / "other" / "tiny", settings, checkpoints.weights())
    assert convert_drafter(source, dense_target, tmp_path).read_bytes() == plain


def test_interleaved_rope_is_reordered(tmp_path: Path, dense_target: Path, plain: bytes) -> None:
    settings = checkpoints.config() | {"rope_is_neox_style": False}
    weights = interleaved(checkpoints.weights())
    source = write_checkpoint(tmp_path / "other" / "tiny", settings, weights)
    assert convert_drafter(source, dense_target, tmp_path).read_bytes() == plain


def test_full_vocabulary_tables_are_left_out(
    tmp_path: Path, dense_target: Path, source: Path
) -> None:
    head = {"lm_head.weight": stored(np.ones((320, 288), np.float32))}
    tables = {
        "d2t": Stored("I64", np.zeros(320, np.int64)),
        "t2d": Stored("BOOL", np.ones(320, np.bool_)),
    }
    files = []
    for extra in (head, head | tables):
        settings, weights = checkpoints.config(), checkpoints.weights() | extra
        folder = write_checkpoint(tmp_path / str(len(files)) / "tiny", settings, weights)
        files.append(convert_drafter(folder, dense_target, tmp_path / f"{len(files)}.gguf"))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_assistant_is_a_released_drafter_that_looks_both_ways(
    tmp_path: Path, dense_target: Path
) -> None:
    settings = checkpoints.config(dflash2=False)
    settings |= {"layer_types": SLIDING, "sliding_window": 64, "is_causal": False}
    released = write_checkpoint(tmp_path / "tiny", settings, checkpoints.weights(dflash2=False))
    assistant = write_checkpoint(
        tmp_path / "other" / "tiny", assistant_config(), assistant_weights()
    )
    written = [
        convert_drafter(folder, dense_target, tmp_path / f"{number}.gguf").read_bytes()
        for number, folder in enumerate((released, assistant))
    ]
    assert written[0] == written[1]


def test_one_file_of_a_folder_is_enough(
    tmp_path: Path, dense_target: Path, source: Path, plain: bytes
) -> None:
    file = (source / "model.safetensors").rename(source / "tiny.safetensors")
    (source / "another.safetensors").write_bytes(b"")
    assert convert_drafter(file, dense_target, tmp_path).read_bytes() == plain
