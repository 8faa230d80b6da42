"""What the engine drafts after given target features, against the numpy reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from dflash2 import _core
from reference import Drafter, Target

ANCHOR = 65
WINDOW = 32

# The largest difference of a score or logit in these tests, times four
F32_TOLERANCE = 5e-4  # sums in float32
F16_TOLERANCE = 0.15  # keys, values and attention weights of 11 bits
Q8_0_TOLERANCE = 0.5  # the demo target's head, for which llama.cpp also rounds hidden rows to Q8_0

DRAFTERS: dict[str, dict[str, Any]] = {
    "full": {},
    "full-causal": {"causal": True},
    "sliding": {"window": WINDOW},
    "sliding-causal": {"window": WINDOW, "causal": True},
    "sliding-and-full": {"window": WINDOW, "sliding": (True, False)},
    "sliding-causal-and-full": {
        "window": WINDOW,
        "sliding": (True, False),
        "sliding_causal": True,
    },
    "window-of-a-block": {"window": 8},
    "window-never-reached": {"window": 600},
    "four-layers": {"n_layer": 4},
    "one-tap": {"n_tap": 1},
    "three-taps": {"n_tap": 3},
    "groups-of-one": {"group": 1},
    "four-candidates": {"top_k": 4},
    "block-of-sixteen": {"block_size": 16},
    "target-layers-out-of-order": {"tap_layers": (2, 0)},
    "dflash1": {"dflash2": False},
    "dflash1-sliding-causal": {"dflash2": False, "window": WINDOW, "causal": True},
}
# one token; around the window; around the drafter's micro-batch and llama.cpp's usual one
CONTEXTS = [1, WINDOW - 1, WINDOW, WINDOW + 1, 127, 128, 129, 511, 512, 513]


class Both(NamedTuple):
    engine: _core.Engine
    reference: Drafter


def open_engine(target: Path, drafter: Path, depth: int = -1, *, f32: bool = True) -> _core.Engine:
    options = _core.EngineOptions()
    options.model, options.draft = str(target), str(drafter)
    options.device, options.n_threads = "cpu", 1
    options.n_ctx, options.depth = 640, depth
    options.draft_head = "target"
    if f32:
        # flash attention on a CPU rounds even an F32 cache
        options.cache_type, options.flash_attn = "f32", "off"
    return _core.Engine(options)


def assert_same_lattice(
    both: Both, features: np.ndarray, tolerance: float, anchor: int = ANCHOR
) -> None:
    """The engine's candidates are the likeliest, in whatever order, and their scores are right."""
    rows = both.engine.depth + 1
    expected = both.reference.draft(features, anchor, rows)
    ids, scores = both.engine.draft_lattice(features, anchor)
    ids = ids.astype(np.int64)
    n_slot, n_candidate = expected.ids.shape
    assert ids.shape == (n_slot, n_candidate)
    assert scores.shape == (n_slot, n_candidate, n_candidate)
    assert [len(set(row)) for row in ids.tolist()] == [n_candidate] * n_slot
    # a token next to the last place may take it
    last = np.take_along_axis(expected.logits, expected.ids[:, -1:], axis=1)
    assert np.min(np.take_along_axis(expected.logits, ids, axis=1) - last) > -tolerance
    _, exact = both.reference.score(expected.hidden[1:], expected.logits, ids, anchor)
    np.testing.assert_allclose(scores, exact, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def target(dense_target: Path) -> Target:
    return Target(dense_target)


@pytest.fixture(scope="module")
def outputs(target: Target) -> list[np.ndarray]:
    """Outputs of the target's layers for the longest context."""
    tokens = np.random.default_rng(6).integers(0, 256, max(CONTEXTS)).tolist()
    return [rows.astype(np.float32) for rows in target.layer_outputs(tokens)]


def features(outputs: list[np.ndarray], both: Both, n_tokens: int) -> np.ndarray:
    taps = [outputs[layer][:n_tokens] for layer in both.reference.config.tap_layers]
    return np.concatenate(taps, axis=1)


@pytest.fixture(scope="module", params=DRAFTERS.values(), ids=DRAFTERS)
def both(
    request: pytest.FixtureRequest,
    dense_target: Path,
    target: Target,
    make_drafter: Callable[..., Path],
) -> Both:
    path = make_drafter(**request.param)
    return Both(
        open_engine(dense_target, path),
        Drafter.from_gguf(path, target.embedding, target.head),
    )


@pytest.mark.parametrize("n_tokens", CONTEXTS)
def test_lattice(both: Both, outputs: list[np.ndarray], n_tokens: int) -> None:
    assert both.engine.tap_layers == list(both.reference.config.tap_layers)
    assert_same_lattice(both, features(outputs, both, n_tokens), F32_TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"window": WINDOW}, {"dtype": "f16"}], ids=str)
def test_lattice_in_half_precision(
    dense_target: Path,
    target: Target,
    make_drafter: Callable[..., Path],
    outputs: list[np.ndarray],
    options: dict[str, Any],
) -> None:
    path = make_drafter(**options)
    both = Both(
        open_engine(dense_target, path, f32=False),
        Drafter.from_gguf(path, target.embedding, target.head),
    )
    for n_tokens in CONTEXTS:
        assert_same_lattice(both, features(outputs, both, n_tokens), F16_TOLERANCE)


@pytest.mark.parametrize("depth", [1, 4])
def test_shorter_block_than_trained(
    dense_target: Path,
    target: Target,
    make_drafter: Callable[..., Path],
    outputs: list[np.ndarray],
    depth: int,
) -> None:
    # three taps: more than a block of two has rows
    path = make_drafter(n_tap=3)
    both = Both(
        open_engine(dense_target, path, depth),
        Drafter.from_gguf(path, target.embedding, target.head),
    )
    assert_same_lattice(both, features(outputs, both, 40), F32_TOLERANCE)


def test_mrope_drafter_is_the_same_for_text(
    hybrid_target: Path, make_drafter: Callable[..., Path], outputs: list[np.ndarray]
) -> None:
    target = Target(hybrid_target)
    path = make_drafter(mrope=True)
    both = Both(
        open_engine(hybrid_target, path),
        Drafter.from_gguf(path, target.embedding, target.head),
    )
    for n_tokens in (1, 129):
        assert_same_lattice(both, features(outputs, both, n_tokens), F32_TOLERANCE)


def test_demo_drafter(
    golden: Path, demo_target: Path, demo_drafter: Path, demo_reference: Target
) -> None:
    both = Both(
        open_engine(demo_target, demo_drafter),
        Drafter.from_checkpoint(golden, demo_reference.embedding, demo_reference.head),
    )
    rows = np.load(golden / "golden" / "sequence.npz")["features"]
    for name in ("block0", "block1", "block2"):
        block = np.load(golden / "golden" / f"{name}.npz")
        context = rows[: block["anchor_position"]]
        assert_same_lattice(both, context, Q8_0_TOLERANCE, int(block["block_ids"][0]))
