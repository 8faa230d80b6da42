"""What is written for each family, and that the engine loads it and drafts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import convert_drafter
from tiny import mutate_gguf

from . import checkpoints
from .checkpoints import Weights, stored, values, write_checkpoint
from .drafting import assert_same, draft, draftable
from .layouts import (
    MIXED,
    SLIDING,
    assistant_config,
    assistant_weights,
    gemma_config,
    mimo_config,
    mimo_weights,
    speculators_config,
)
from .reading import TINY, TINY_DFLASH2, dflash_keys, tensors


def window(pattern: list[bool]) -> dict[str, tuple[str, Any]]:
    return {
        "dflash.attention.sliding_window": ("UINT32", 64),
        "dflash.attention.sliding_window_pattern": ("ARRAY BOOL", pattern),
    }


def scale(value: float) -> tuple[str, float]:
    return "FLOAT32", float(np.float32(value))


@pytest.fixture(scope="session")
def gemma_target(tiny_folder: Path, dense_target: Path) -> Path:
    """Describes a gemma of the tiny sizes; only the converter can read it."""
    sizes = {"gemma4.embedding_length": 288, "gemma4.block_count": 4}
    changes = {"set_kv": {"general.architecture": "gemma4", **sizes}}
    return mutate_gguf(dense_target, tiny_folder / "gemma.gguf", **changes)


def test_gemma_has_a_mask_for_each_kind_of_layer(tmp_path: Path, gemma_target: Path) -> None:
    source = write_checkpoint(tmp_path / "d", gemma_config(), checkpoints.weights(dflash2=False))
    assert dflash_keys(convert_drafter(source, gemma_target, tmp_path)) == {
        **TINY,
        **window([True, False]),
        "dflash.attention.sliding_window_causal": ("BOOL", True),
        "dflash.final_logit_softcapping": ("FLOAT32", 30.0),
        "dflash.embedding_scale": scale(math.sqrt(288)),
        "dflash.hidden_activation": ("STRING", "gelu_pytorch_tanh"),
    }


def test_own_embedding_scale_wins_over_gemmas(tmp_path: Path, gemma_target: Path) -> None:
    settings = gemma_config() | {"input_embedding_scale": 1.5}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights(dflash2=False))
    keys = dflash_keys(convert_drafter(source, gemma_target, tmp_path))
    assert keys["dflash.embedding_scale"] == ("FLOAT32", 1.5)


def test_mimo_keeps_what_only_it_has(tmp_path: Path, dense_target: Path) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    path = convert_drafter(source, dense_target, tmp_path)
    assert dflash_keys(path) == {
        **TINY,
        **window([True, True]),
        "dflash.rope.dimension_count": ("UINT32", 16),
        "dflash.attention.value_scale": scale(0.612),
    }
    sinks = [tensors(path)[f"blk.{layer}.attn_sinks.weight"] for layer in range(2)]
    assert [(sink.tensor_type.name, sink.data.tolist()) for sink in sinks] == [
        ("F32", [1.0] * 4)
    ] * 2


def test_mrope_sections_cover_what_is_rotated(tmp_path: Path, hybrid_target: Path) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    keys = dflash_keys(convert_drafter(source, hybrid_target, tmp_path))
    assert keys["dflash.rope.dimension_sections"] == ("ARRAY INT32", [8, 0, 0, 0])


def test_sinks_are_named_in_two_ways(tmp_path: Path, dense_target: Path) -> None:
    named = mimo_weights()
    renamed = {name.replace("attention_sink_bias", "sinks"): named[name] for name in named}
    written = [
        convert_drafter(
            write_checkpoint(tmp_path / str(number) / "d", mimo_config(), weights),
            dense_target,
            tmp_path / f"{number}.gguf",
        ).read_bytes()
        for number, weights in enumerate((named, renamed))
    ]
    assert written[0] == written[1]


def test_yarn_is_written_as_stock_writes_it(tmp_path: Path, dense_target: Path) -> None:
    settings = checkpoints.config() | {"original_max_position_embeddings": 1024}
    settings["rope_parameters"] |= {"rope_type": "yarn", "factor": 4, "beta_fast": 16.0}
    settings["rope_parameters"] |= {"attention_factor": 1.25, "beta_slow": None}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    path = convert_drafter(source, dense_target, tmp_path)
    assert dflash_keys(path) == {
        **TINY,
        **TINY_DFLASH2,
        "dflash.rope.scaling.type": ("STRING", "yarn"),
        "dflash.rope.scaling.factor": ("FLOAT32", 4.0),
        "dflash.rope.scaling.original_context_length": ("UINT32", 1024),
        "dflash.rope.scaling.yarn_attn_factor": ("FLOAT32", 1.25),
        "dflash.rope.scaling.yarn_beta_fast": ("FLOAT32", 16.0),
    }
    draft(dense_target, path)


def test_linear_rope_scaling_is_written(tmp_path: Path, dense_target: Path) -> None:
    settings = checkpoints.config()
    del settings["rope_parameters"]
    settings |= {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    assert dflash_keys(convert_drafter(source, dense_target, tmp_path)) == {
        **TINY,
        **TINY_DFLASH2,
        "dflash.rope.scaling.type": ("STRING", "linear"),
        "dflash.rope.scaling.factor": ("FLOAT32", 2.0),
    }


@pytest.mark.parametrize(
    ("settings", "causal", "sliding_causal"),
    [
        (speculators_config(layer_types=SLIDING, sliding_window=64), False, False),
        (
            speculators_config(
                layer_types=SLIDING, sliding_window=64, sliding_window_non_causal=False
            ),
            True,
            False,
        ),
        (
            speculators_config(
                layer_types=MIXED, sliding_window=64, sliding_window_non_causal=False
            ),
            False,
            True,
        ),
        (speculators_config(sliding_window_non_causal=False), False, False),
    ],
    ids=["dflash2-default", "causal", "mixed", "full"],
)
def test_speculators_window_may_look_both_ways(
    tmp_path: Path,
    dense_target: Path,
    settings: dict[str, Any],
    causal: bool,
    sliding_causal: bool,
) -> None:
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights())
    keys = dflash_keys(convert_drafter(source, dense_target, tmp_path))
    assert keys["dflash.attention.causal"] == ("BOOL", causal)
    assert ("dflash.attention.sliding_window_causal" in keys) is sliding_causal


def test_speculators_dflash1_window_is_causal_by_default(
    tmp_path: Path, dense_target: Path
) -> None:
    settings = speculators_config(dflash2=False, layer_types=SLIDING, sliding_window=64)
    source = write_checkpoint(tmp_path / "d", settings, checkpoints.weights(dflash2=False))
    keys = dflash_keys(convert_drafter(source, dense_target, tmp_path))
    assert keys["dflash.attention.causal"] == ("BOOL", True)


LOADED: dict[str, tuple[dict[str, Any], Weights]] = {
    "DFlash 2": (checkpoints.config(), checkpoints.weights()),
    "DFlash 2, speculators": (speculators_config(), checkpoints.weights()),
    "DFlash": (checkpoints.config(dflash2=False), checkpoints.weights(dflash2=False)),
    "DFlash, gemma": (gemma_config(), checkpoints.weights(dflash2=False)),
    "DFlash, MiMo": (mimo_config(), mimo_weights()),
    "DFlash, assistant": (assistant_config(), assistant_weights()),
    "DFlash, speculators": (
        speculators_config(dflash2=False),
        checkpoints.weights(dflash2=False),
    ),
}


@pytest.mark.parametrize("family", LOADED)
@pytest.mark.parametrize("outtype", ["bf16", "q5_1"])
def test_engine_drafts_with_every_family(
    tmp_path: Path, dense_target: Path, family: str, outtype: Any
) -> None:
    settings, weights = LOADED[family]
    source = write_checkpoint(tmp_path / "d", settings, draftable(weights))
    lattice = draft(dense_target, convert_drafter(source, dense_target, tmp_path, outtype=outtype))
    n_candidates = 16 if family.startswith("DFlash 2") else 1
    assert lattice.ids.shape == (3, n_candidates)
    assert np.isfinite(lattice.scores).all()
    assert ((lattice.ids >= 0) & (lattice.ids < 320)).all()


def test_value_scale_acts_as_a_scale_of_the_attentions_output(
    tmp_path: Path, dense_target: Path
) -> None:
    settings = checkpoints.config()
    weights = draftable(checkpoints.weights(), "F32")
    settings["dflash_config"]["attention_value_scale"] = 0.5
    scaled = write_checkpoint(tmp_path / "scaled", settings, weights)
    for name in weights:
        if name.endswith("o_proj.weight"):
            weights[name] = stored(0.5 * values(weights[name]), "F32")
    plain = write_checkpoint(tmp_path / "plain", checkpoints.config(), weights)
    found, expected = (
        draft(dense_target, convert_drafter(source, dense_target, tmp_path, outtype="f32"))
        for source in (scaled, plain)
    )
    assert_same(found, expected)


def test_sinks_take_their_share_of_the_attention(tmp_path: Path, dense_target: Path) -> None:
    def drafted(name: str, sinks: Weights) -> Any:
        weights = draftable(checkpoints.weights() | sinks)
        source = write_checkpoint(tmp_path / name, checkpoints.config(), weights)
        return draft(dense_target, convert_drafter(source, dense_target, tmp_path))

    def sinks(value: float) -> Weights:
        return {name: mimo_weights(value)[name] for name in mimo_weights() if "sink" in name}

    without = drafted("without", {})
    assert_same(drafted("dry", sinks(-1e4)), without)
    full = drafted("full", sinks(1e4))
    assert not np.array_equal(full.ids, without.ids)
