"""Rounding of the weights, and which tensors are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dflash2.convert import convert_drafter

from . import checkpoints
from .checkpoints import Stored, Weights, spoiled, stored, write_checkpoint
from .conftest import Refuse
from .reading import gguf_name, tensors

CODEBOOK = "candidate_selector.predecessor_codebook"
GATE = "layers.1.mlp.gate_proj.weight"
KERNEL = "layers.0.attention_conv.base_kernel"


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_unquantized_output_keeps_every_bit(tmp_path: Path, dense_target: Path, dtype: str) -> None:
    weights = checkpoints.weights(dtype=dtype)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    written = tensors(convert_drafter(source, dense_target, tmp_path, outtype="f32"))
    for name, tensor in weights.items():
        np.testing.assert_array_equal(written[gguf_name(name)].data, checkpoints.values(tensor))


def test_q8_0_of_vanishing_weights_is_zero(tmp_path: Path, dense_target: Path) -> None:
    weights = checkpoints.weights()
    weights["fc.weight"] = checkpoints.stored(np.full((288, 576), 1e-39, np.float32))
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    written = tensors(convert_drafter(source, dense_target, tmp_path, outtype="q8_0"))
    assert not written["fc.weight"].data.any()


def test_weights_above_f16_fit_bf16(tmp_path: Path, dense_target: Path) -> None:
    weights = spoiled(checkpoints.weights(), GATE, -65536.0)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    assert convert_drafter(source, dense_target, tmp_path, outtype="bf16").exists()


def without(weights: Weights, name: str) -> Weights:
    return {other: tensor for other, tensor in weights.items() if other != name}


def retyped(weights: Weights, name: str, dtype: str) -> Weights:
    size = {"F8_E4M3": np.uint8, "I16": np.int16, "F64": np.float64}[dtype]
    return weights | {name: Stored(dtype, weights[name].data.astype(size))}


def extra(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {name: stored(np.ones((2, 2), np.float32))}


WEIGHT_REFUSALS: list[tuple[Callable[[Weights], Weights], tuple[str, ...]]] = [
    (lambda w: without(w, "fc.weight"), ("missing", "fc.weight")),
    (lambda w: without(w, KERNEL), ("missing", KERNEL)),
    (lambda w: without(w, CODEBOOK), ("missing", CODEBOOK)),
    (lambda w: {}, ("missing", "fc.weight", CODEBOOK)),
    (lambda w: w | {GATE: stored(np.ones((95, 288), np.float32))}, (GATE, "[95, 288]", "[96")),
    (lambda w: w | {GATE: stored(np.ones(96 * 288, np.float32))}, (GATE, "[27648]")),
    (lambda w: w | {f"model.{GATE}": w[GATE]}, ("twice", GATE)),
    (extra("layers.2.mlp.gate_proj.weight"), ("not known", "layers.2.mlp.gate_proj.weight")),
    (extra("layers.0.self_attn.q_proj.bias"), ("not known", "q_proj.bias")),
    (extra("layers.0.self_attn.sinks"), ("self_attn.sinks", "[2, 2]", "[4]")),
    (extra("layers.0.self_attn.g_proj.weight"), ("not known", "g_proj.weight")),
    (extra("markov_head.markov_w1.weight"), ("DSpark", "markov_w1")),
    (extra("prefix_gru.weight_ih_l0"), ("Domino", "prefix_gru")),
    (extra("model.embed_tokens.weight"), ("embed_tokens", "[2, 2]", "[320, 288]")),
    (extra("lm_head.weight"), ("lm_head", "[2, 2]", "[320, 288]")),
    (extra("d2t"), ("lm_head.weight", "missing", "d2t")),
    (lambda w: spoiled(w, GATE, np.nan), (GATE, "NaN")),
    (lambda w: spoiled(w, CODEBOOK, np.inf), (CODEBOOK, "infinite")),
    (lambda w: spoiled(w, "norm.weight", -np.inf), ("norm.weight", "infinite")),
    (lambda w: spoiled(w, GATE, -70000.0), (GATE, "65504", "bf16")),
    (lambda w: retyped(w, GATE, "F8_E4M3"), (GATE, "'F8_E4M3'", "BF16")),
    (lambda w: retyped(w, GATE, "I16"), (GATE, "'I16'", "BF16")),
    (lambda w: retyped(w, "norm.weight", "F64"), ("norm.weight", "'F64'", "F32")),
]


@pytest.mark.parametrize(("change", "words"), WEIGHT_REFUSALS)
def test_weights_are_refused(
    tmp_path: Path,
    refuse: Refuse,
    dense_target: Path,
    change: Callable[[Weights], Weights],
    words: tuple[str, ...],
) -> None:
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), change(checkpoints.weights()))
    refuse(source, dense_target, *words)


@pytest.mark.parametrize("name", [KERNEL, CODEBOOK])
def test_dflash2_tensors_without_their_keys_are_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, name: str
) -> None:
    weights = checkpoints.weights(dflash2=False) | {name: checkpoints.weights()[name]}
    source = write_checkpoint(tmp_path / "d", checkpoints.config(dflash2=False), weights)
    refuse(source, dense_target, name, "lacks", "selector_top_k")
