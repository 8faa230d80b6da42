"""What must hold for any drafter, checked on random ones where no outside numbers exist."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import Drafter, Target, greedy_walk, sampled_walk
from reference.layers import rms_norm, rope
from reference.selector import conv, conv_coefficients, output_transform, top_k

ANCHOR = 65
Load = Callable[..., Drafter]


@pytest.fixture(scope="session")
def target(dense_target: Path) -> Target:
    return Target(dense_target)


@pytest.fixture
def load(target: Target, make_drafter: Callable[..., Path]) -> Load:
    """A random drafter with the options of `tiny.write_drafter`."""

    def load(**options: Any) -> Drafter:
        return Drafter.from_gguf(make_drafter(**options), target.embedding, target.head)

    return load


@pytest.fixture(scope="session")
def features(target: Target) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(0, 256, 12).tolist()
    return target.features(tokens, (0, 1, 2))


def test_rope_turns_pairs() -> None:
    x = np.arange(1.0, 9).reshape(1, 1, 8)
    half_turn = np.array([np.pi])
    # frequencies 1 and 0.01 for four of eight dimensions
    cos, sin = np.cos(0.01 * np.pi), np.sin(0.01 * np.pi)
    neox = rope(x, half_turn, 10000.0, 4, interleaved=False)[0, 0]
    np.testing.assert_allclose(neox, [-1, 2 * cos - 4 * sin, -3, 2 * sin + 4 * cos, 5, 6, 7, 8])
    interleaved = rope(x, half_turn, 10000.0, 4, interleaved=True)[0, 0]
    np.testing.assert_allclose(
        interleaved, [-1, -2, 3 * cos - 4 * sin, 3 * sin + 4 * cos, 5, 6, 7, 8]
    )


def test_fusion_follows_the_order_of_taps(load: Load, features: np.ndarray) -> None:
    drafter = load()
    n_embd = drafter.embedding.shape[1]
    swapped = np.concatenate([features[:, n_embd:], features[:, :n_embd]], axis=1)
    expected = drafter.fuse(features)
    assert not np.allclose(drafter.fuse(swapped), expected)
    fc = drafter.model["fc"]
    drafter.model["fc"] = np.concatenate([fc[:, n_embd:], fc[:, :n_embd]], axis=1)
    np.testing.assert_allclose(drafter.fuse(swapped), expected)


@pytest.mark.parametrize("window", [None, 4])
def test_only_relative_positions_matter(
    load: Load, features: np.ndarray, window: int | None
) -> None:
    drafter = load(window=window)
    near = drafter.draft(features, ANCHOR)
    far = drafter.draft(features, ANCHOR, first_position=5000)
    np.testing.assert_allclose(far.hidden, near.hidden, atol=1e-9)
    # not because positions are ignored: the same context in another order is another draft
    assert not np.allclose(drafter.draft(features[::-1], ANCHOR).hidden, near.hidden, atol=1e-2)


@pytest.mark.parametrize(
    ("window", "causal", "expected"),
    [
        # context 0..11, block 12..14
        (None, False, [set(range(12))] * 3),
        (4, False, [{9, 10, 11}, {10, 11}, {11}]),
        (4, True, [{9, 10, 11}, {10, 11}, {11}]),
    ],
)
def test_rows_read_the_context_in_their_window(
    load: Load, features: np.ndarray, window: int | None, causal: bool, expected: list[set[int]]
) -> None:
    # one layer without convolution: a row cannot hear of a key through another row
    drafter = load(n_layer=1, dflash2=False, window=window, causal=causal)
    before = drafter.draft(features, ANCHOR, block_size=3).hidden
    seen: list[set[int]] = [set(), set(), set()]
    for position in range(len(features)):
        changed = features.copy()
        changed[position] *= -1
        after = drafter.draft(changed, ANCHOR, block_size=3).hidden
        for row in np.flatnonzero(np.any(after != before, axis=1)):
            seen[row].add(position)
    assert seen == expected


@pytest.mark.parametrize("causal", [False, True])
def test_later_rows_count_unless_causal(load: Load, features: np.ndarray, causal: bool) -> None:
    drafter = load(window=64, causal=causal)
    whole = drafter.draft(features, ANCHOR).hidden
    short = drafter.draft(features, ANCHOR, block_size=4).hidden
    assert np.allclose(short, whole[:4], atol=1e-12) == causal


def test_window_longer_than_everything_is_full_attention(load: Load, features: np.ndarray) -> None:
    full, sliding = load(), load(window=64)
    np.testing.assert_array_equal(
        sliding.draft(features, ANCHOR).hidden, full.draft(features, ANCHOR).hidden
    )


def test_window_of_one_layer_leaves_the_other_full(load: Load, features: np.ndarray) -> None:
    drafter = load(window=4, sliding=(True, False))
    assert drafter.config.windows == (4, None)
    near, far = features.copy(), features.copy()
    near[-1] *= -1
    far[0] *= -1
    first, second = drafter.draft(features, ANCHOR).residuals
    assert not np.array_equal(drafter.draft(near, ANCHOR).residuals[0], first)
    np.testing.assert_array_equal(drafter.draft(far, ANCHOR).residuals[0], first)
    assert not np.array_equal(drafter.draft(far, ANCHOR).residuals[1], second)


@pytest.mark.parametrize("n_tap", [1, 2, 3])
def test_identity_convolutions_give_dflash1(load: Load, features: np.ndarray, n_tap: int) -> None:
    drafter = load(n_tap=n_tap)
    plain = load(dflash2=False)
    for layer, plain_layer in zip(drafter.layers, plain.layers, strict=True):
        layer |= plain_layer
        for name in ("attn", "ffn"):
            layer[f"{name}_conv_proj"] = np.zeros_like(layer[f"{name}_conv_proj"])
            layer[f"{name}_conv_base"] = np.zeros_like(layer[f"{name}_conv_base"])
            layer[f"{name}_conv_base"][:, 0] = 1
    drafter.model |= plain.model
    np.testing.assert_array_equal(
        drafter.draft(features, ANCHOR).hidden, plain.draft(features, ANCHOR).hidden
    )


def test_convolution_with_more_taps_than_rows() -> None:
    rng = np.random.default_rng(0)
    x, projection = rng.standard_normal((2, 8)), rng.standard_normal((2 * 4 * 2, 8))
    base = rng.standard_normal((4, 8))
    delta = conv_coefficients(x, projection, 4)[:, 0]
    np.testing.assert_array_equal(conv(x, base, delta), conv(x, base[:2], delta[:, :2]))


def test_convolution_reads_no_row_before_the_block() -> None:
    rng = np.random.default_rng(0)
    x, base, delta = (rng.standard_normal(shape) for shape in ((3, 8), (2, 8), (3, 2, 2)))
    np.testing.assert_allclose(
        conv(x, base, delta)[0], (base[0] + np.repeat(delta[0, 0], 4)) * x[0]
    )


def test_candidates_are_ordered_by_logit_then_id() -> None:
    logits = np.array([[1.0, 3.0, 2.0, 3.0, 1.0, 1.0]])
    assert top_k(logits, 4).tolist() == [[1, 3, 2, 0]]


def test_output_transform_multiplies_before_it_caps() -> None:
    # Muse: 1 / sqrt(26) and 20
    scale = 26**-0.5
    np.testing.assert_allclose(
        output_transform(np.array([0.0, 100.0]), scale, 20.0), [0, 20 * np.tanh(5 * scale)]
    )
    np.testing.assert_array_equal(output_transform(np.array([7.0]), 1.0, 0.0), [7])


def test_capped_logits_keep_their_candidates(load: Load, features: np.ndarray) -> None:
    drafter = load()
    plain = drafter.draft(features, ANCHOR)
    drafter.config = replace(drafter.config, softcap=1e-3)
    capped = drafter.draft(features, ANCHOR)
    np.testing.assert_array_equal(capped.ids, plain.ids)
    np.testing.assert_allclose(capped.unary, 1e-3)


def test_first_slot_follows_the_anchor(load: Load, features: np.ndarray) -> None:
    drafter = load(rank=32)
    draft = drafter.draft(features, ANCHOR)
    table, gate = drafter.model["selector_predecessor"], drafter.model["selector_hidden"]
    row = (table[ANCHOR] * (gate @ draft.hidden[1])) @ drafter.model["selector_successor"].T
    np.testing.assert_allclose(
        draft.scores[0], np.tile(draft.unary[0] + row[draft.ids[0]], (16, 1)), atol=1e-12
    )


def test_hidden_rows_are_normalised_for_head_and_gate(load: Load, features: np.ndarray) -> None:
    drafter = load()
    draft = drafter.draft(features, ANCHOR)
    expected = rms_norm(draft.residuals[-1], drafter.model["output_norm"], drafter.config.eps)
    np.testing.assert_array_equal(draft.hidden, expected)
    np.testing.assert_array_equal(draft.logits, expected[1:] @ drafter.head.T)


@pytest.mark.parametrize("table", ["selector_predecessor", "selector_successor"])
def test_empty_selector_gives_the_best_candidate(
    load: Load, features: np.ndarray, table: str
) -> None:
    drafter = load()
    drafter.model[table] = np.zeros_like(drafter.model[table])
    draft = drafter.draft(features, ANCHOR)
    assert draft.path == np.argmax(draft.logits, axis=1).tolist()


def test_dflash1_lattice_has_one_candidate(load: Load, features: np.ndarray) -> None:
    draft = load(dflash2=False).draft(features, ANCHOR)
    assert draft.ids.shape == (7, 1)
    assert not draft.scores.any()
    assert draft.path == np.argmax(draft.logits, axis=1).tolist()


def test_greedy_walk_is_not_the_best_path() -> None:
    ids = np.array([[1, 2], [3, 4]])
    score = np.array([[[2.0, 1.0]] * 2, [[0.0, 0.0], [0.0, 9.0]]])
    assert greedy_walk(ids, score) == [1, 3]


def test_tiny_temperature_samples_the_greedy_path(load: Load, features: np.ndarray) -> None:
    draft = load().draft(features, ANCHOR)
    # 1 - 2^-53: the clamp must not choose a candidate without probability
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        path, q = sampled_walk(draft.ids, draft.scores, 1e-5, np.full(7, uniform))
        assert path == draft.path
        np.testing.assert_allclose(q.sum(axis=1), 1)


def test_huge_temperature_samples_evenly(load: Load, features: np.ndarray) -> None:
    draft = load().draft(features, ANCHOR)
    _, q = sampled_walk(draft.ids, draft.scores, 1e9, np.zeros(7))
    np.testing.assert_allclose(q, 1 / 16, rtol=1e-6)
