"""A drafter on the device: fused as composed, and near to what the CPU drafts.

For pytest by this file's name; the device is the one that DFLASH2_DEVICE names.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dflash2 import Dflash2Engine, SamplingParams, _core, demo
from numpy.typing import NDArray
from reference import Target
from tiny import Pair

DEVICE = os.environ.get("DFLASH2_DEVICE", "CUDA0").lower()
N_CONTEXT, ANCHOR = 40, 65
# Sums of some hundred float32 in another order, some of whose results are rounded to F16 for the
# next product. Wants NVIDIA_TF32_OVERRIDE=0: cuBLAS rounds to TF32 what composed scores multiply.
TOLERANCE = 1e-3


def open_engine(target: Path, drafter: Path, device: str, fused_ops: str) -> _core.Engine:
    options = _core.EngineOptions()
    options.model, options.draft, options.device = str(target), str(drafter), device
    options.fused_ops, options.n_ctx, options.n_threads = fused_ops, 640, 2
    options.cache_type, options.flash_attn = "f32", "off"
    engine = _core.Engine(options)
    assert engine.stats().fused_ops == fused_ops
    return engine


def assert_drafts(
    target: Path,
    drafter: Path,
    contexts: list[tuple[NDArray[np.float32], int]],
    report: Callable[[str], None],
) -> None:
    lattices = [
        [open_engine(target, drafter, device, form).draft_lattice(*of) for of in contexts]
        for device, form in ((DEVICE, "fused"), (DEVICE, "composed"), ("cpu", "fused"))
    ]
    fused, composed, cpu = lattices
    for (ids, scores), (their_ids, their_scores) in zip(fused, composed, strict=True):
        np.testing.assert_array_equal(ids, their_ids)
        np.testing.assert_allclose(scores, their_scores, rtol=0, atol=TOLERANCE)
    error = max(
        float(np.abs(ours[1] - theirs[1]).max())
        for ours, theirs in zip(fused, composed, strict=True)
    )
    slots = [
        (set(ours.tolist()), set(theirs.tolist()))
        for (ids, _), (their_ids, _) in zip(fused, cpu, strict=True)
        for ours, theirs in zip(ids, their_ids, strict=True)
    ]
    shared = float(np.mean([len(ours & theirs) / len(ours) for ours, theirs in slots]))
    report(f"{drafter.name}: fused and composed within {error:.1e}, {shared:.1%} of the CPU's ids")
    # logits of other kernels, so ids at the end of a slot's candidates may be others
    assert shared >= 0.9


def test_random_drafter(
    dense_target: Path, make_drafter: Callable[..., Path], report: Callable[[str], None]
) -> None:
    drafter = make_drafter()
    tokens = np.random.default_rng(6).integers(0, 256, N_CONTEXT).tolist()
    outputs = Target(dense_target).layer_outputs(tokens)
    taps = open_engine(dense_target, drafter, "cpu", "fused").tap_layers
    features = np.concatenate([outputs[layer] for layer in taps], axis=1).astype(np.float32)
    assert_drafts(dense_target, drafter, [(features, ANCHOR)], report)


@pytest.mark.skipif(
    demo.cached_target() is None, reason="the demo target is not here: dflash2 generate --demo"
)
def test_demo_pair(golden: Path, demo_drafter: Path, report: Callable[[str], None]) -> None:
    rows = np.load(golden / "golden" / "sequence.npz")["features"]
    blocks = [np.load(golden / "golden" / f"block{i}.npz") for i in range(3)]
    contexts = [(rows[: block["anchor_position"]], int(block["block_ids"][0])) for block in blocks]
    assert_drafts(demo.target_path(), demo_drafter, contexts, report)


def test_batches_of_sequences(wavering_pair: Pair) -> None:
    """Blocks of several sequences in one decode, whose drafts the target accepts in part."""
    prompts = [[3, 5], [7], [2, 9, 4], [11, 6], [8]]
    params = SamplingParams(max_tokens=24, trace=True)
    traces = {}
    for fused_ops in ("fused", "composed"):
        with Dflash2Engine(
            wavering_pair.target,
            wavering_pair.drafter,
            device=DEVICE,
            depth=7,
            n_parallel=3,
            n_ctx=128,
            fused_ops=fused_ops,
        ) as engine:
            traces[fused_ops] = [result.trace for result in engine.generate(prompts, params)]
    assert traces["fused"] == traces["composed"]
