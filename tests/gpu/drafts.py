"""A drafter on the device: fused as composed, and near to what the CPU drafts.

For pytest by this file's name; the device is the one that DFLASH2_DEVICE names.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dflash2 import demo
from dflash2.options import FusedOps
from numpy.typing import NDArray
from reference import Target
from test_fused_ops import ANCHOR, FUSED_AND_COMPOSED, N_CONTEXT, batch_traces, open_engine
from tiny import Pair

DEVICE = os.environ.get("DFLASH2_DEVICE", "CUDA0").lower()
# Sums of some hundred float32 in another order, some of whose results are rounded to F16 for the
# next product. Wants NVIDIA_TF32_OVERRIDE=0: cuBLAS rounds to TF32 what composed scores multiply.
TOLERANCE = 1e-3


def assert_drafts(
    target: Path,
    drafter: Path,
    contexts: list[tuple[NDArray[np.float32], int]],
    report: Callable[[str], None],
) -> None:
    forms: list[tuple[str, FusedOps]] = [
        (DEVICE, "fused"),
        (DEVICE, "composed"),
        ("cpu", "fused"),
    ]
    lattices = [
        [
            open_engine(target, drafter, form, n_threads=2, device=device).draft_lattice(*of)
            for of in contexts
        ]
        for device, form in forms
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
    taps = open_engine(dense_target, drafter, "fused").tap_layers
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
    fused, composed = (
        batch_traces(wavering_pair, fused_ops, device=DEVICE) for fused_ops in FUSED_AND_COMPOSED
    )
    assert fused == composed
