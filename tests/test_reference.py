"""The numpy reference against outside numbers: worked examples and golden files."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from reference import Draft, Drafter, Target, greedy_walk, sampled_walk
from reference.layers import visible
from reference.selector import conv, conv_coefficients, scores


def assert_close_to_golden(actual: ArrayLike, golden: ArrayLike) -> None:
    """The golden files were computed in float32, whose rounding (6e-8) grows over 30 layers.

    The absolute part is relative to a typical element: a few channels of a residual stream are a
    thousand times larger than the others.
    """
    np.testing.assert_allclose(actual, golden, rtol=1e-5, atol=3e-5 * np.median(np.abs(golden)))


class TestConvolutionExample:
    """Four channels in two groups, two taps, three rows, and no two coefficients alike."""

    projection = (np.arange(8)[:, None] + 1) / 10 + np.arange(4)
    side, tap, channel = np.indices((2, 2, 4))
    base = (tap == 0) + 0.5 * side + 0.25 * tap + 0.01 * channel
    x = np.eye(3, 4)

    def test_coefficients(self) -> None:
        delta = conv_coefficients(self.x, self.projection, 2)
        first = [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]]
        np.testing.assert_allclose(delta, [first, np.add(first, 1), np.add(first, 2)])

    def test_input_side(self) -> None:
        delta = conv_coefficients(self.x, self.projection, 2)
        np.testing.assert_allclose(
            conv(self.x, self.base[0], delta[:, 0]),
            [[1.1, 0, 0, 0], [1.55, 2.11, 0, 0], [0, 2.56, 3.22, 0]],
        )

    def test_output_side(self) -> None:
        delta = conv_coefficients(self.x, self.projection, 2)
        y = np.arange(1.0, 13).reshape(3, 4)
        np.testing.assert_allclose(
            conv(y, self.base[1], delta[:, 1]),
            [[2, 4.02, 6.36, 8.52], [17.45, 22.98, 29.55, 35.36], [53.25, 60.86, 70.31, 78.2]],
        )


class TestSelectorExample:
    """Two slots with two candidates each, rank 2, anchor 0."""

    predecessor = np.array([(1, 0), (0, 1), (1, 1), (2, -1), (-1, 2), (0.5, 0.5)])
    successor = np.array([(0.5, 0.5), (1, -1), (0, 1), (1, 0), (-1, 1), (2, 0)])
    ids = np.array([[3, 1], [4, 2]])
    unary = np.array([[2, 1.5], [1, 1.2]])
    gate = np.array([(1, 0.5), (0.25, -1)])

    @property
    def scores(self) -> np.ndarray:
        return scores(self.ids, self.unary, 0, self.gate, self.predecessor, self.successor)

    def test_scores(self) -> None:
        np.testing.assert_allclose(
            self.scores, [[[3, 2.5]] * 2, [[1.5, 2.2], [0, 0.2]]], atol=1e-15
        )

    def test_greedy_walk(self) -> None:
        assert greedy_walk(self.ids, self.scores) == [3, 2]

    @pytest.mark.parametrize(
        ("temperature", "rows"),
        [
            (1.0, [[0.622459, 0.377541], [0.450166, 0.549834]]),
            (0.5, [[0.731059, 0.268941], [0.401312, 0.598688]]),
        ],
    )
    def test_sampled_walk(self, temperature: float, rows: list[list[float]]) -> None:
        path, q = sampled_walk(self.ids, self.scores, temperature, np.array([0.9, 0.3]))
        assert path == [1, 4]
        np.testing.assert_allclose(q, rows, atol=5e-7)


@pytest.mark.parametrize(
    ("window", "causal", "seen"),
    [
        # context 0..5, then the block 6..8; window 4
        (None, False, [{0, 1, 2, 3, 4, 5, 6, 7, 8}] * 3),
        (None, True, [set(range(7)), set(range(8)), set(range(9))]),
        (4, False, [{3, 4, 5, 6, 7, 8}, {4, 5, 6, 7, 8}, {5, 6, 7, 8}]),
        (4, True, [{3, 4, 5, 6}, {4, 5, 6, 7}, {5, 6, 7, 8}]),
    ],
)
def test_visible_keys(window: int | None, causal: bool, seen: list[set[int]]) -> None:
    mask = visible(np.arange(6, 9), np.arange(9), window, causal=causal)
    assert [set(np.flatnonzero(row).tolist()) for row in mask] == seen


@pytest.fixture(scope="session")
def demo_drafter_reference(golden: Path, demo_reference: Target) -> Drafter:
    return Drafter.from_checkpoint(golden, demo_reference.embedding, demo_reference.head)


@pytest.fixture(scope="module")
def sequence(golden: Path) -> dict[str, np.ndarray]:
    return dict(np.load(golden / "golden" / "sequence.npz"))


@pytest.fixture(scope="module")
def target_outputs(sequence: dict[str, np.ndarray], demo_reference: Target) -> list[np.ndarray]:
    return demo_reference.layer_outputs(sequence["token_ids"].tolist())


@pytest.fixture(scope="module", params=["block0", "block1", "block2"])
def block(request: pytest.FixtureRequest, golden: Path) -> dict[str, np.ndarray]:
    return dict(np.load(golden / "golden" / f"{request.param}.npz"))


@pytest.fixture(scope="module")
def draft(
    block: dict[str, np.ndarray],
    sequence: dict[str, np.ndarray],
    demo_drafter_reference: Drafter,
) -> Draft:
    features = sequence["features"][: int(block["anchor_position"])]
    return demo_drafter_reference.draft(features, int(block["block_ids"][0]))


class TestGolden:
    def test_target_features(
        self, sequence: dict[str, np.ndarray], target_outputs: list[np.ndarray]
    ) -> None:
        layers = sequence["target_layer_ids"]
        # layer by layer: their sizes differ by an order of magnitude
        for layer, expected in zip(
            layers, np.split(sequence["features"], len(layers), axis=1), strict=True
        ):
            assert_close_to_golden(target_outputs[layer], expected)

    def test_target_continues_greedily(
        self,
        sequence: dict[str, np.ndarray],
        target_outputs: list[np.ndarray],
        demo_reference: Target,
    ) -> None:
        n_prompt = int(sequence["n_prompt"])
        rows = demo_reference.logits_of(target_outputs[-1][n_prompt - 1 : -1])
        np.testing.assert_array_equal(np.argmax(rows, axis=1), sequence["token_ids"][n_prompt:])

    def test_block_input(
        self, block: dict[str, np.ndarray], demo_drafter_reference: Drafter
    ) -> None:
        mask = demo_drafter_reference.config.mask_token
        assert block["block_ids"][1:].tolist() == [mask] * 7
        np.testing.assert_array_equal(
            demo_drafter_reference.embedding[block["block_ids"]], block["block_embed"]
        )

    def test_context(
        self, sequence: dict[str, np.ndarray], golden: Path, demo_drafter_reference: Drafter
    ) -> None:
        expected = np.load(golden / "golden" / "block0.npz")["context"]
        actual = demo_drafter_reference.fuse(sequence["features"][: len(expected)])
        assert_close_to_golden(actual, expected)

    def test_layers(self, draft: Draft, block: dict[str, np.ndarray]) -> None:
        for index, residual in enumerate(draft.residuals):
            assert_close_to_golden(residual, block[f"layer{index}"])
        assert_close_to_golden(draft.hidden, block["final_hidden"])

    def test_lattice(self, draft: Draft, block: dict[str, np.ndarray]) -> None:
        np.testing.assert_array_equal(draft.ids, block["candidate_ids"])
        assert_close_to_golden(draft.unary, block["unary_logits"])
        assert_close_to_golden(draft.scores, block["scores"])

    def test_greedy_walk(self, draft: Draft, block: dict[str, np.ndarray]) -> None:
        assert draft.path == block["greedy_path"].tolist()

    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_sampled_walk(
        self, draft: Draft, block: dict[str, np.ndarray], temperature: float
    ) -> None:
        path, q = sampled_walk(draft.ids, draft.scores, temperature, block["uniforms"])
        assert path == block[f"sampled_path_t{temperature}"].tolist()
        np.testing.assert_allclose(q, block[f"q_rows_t{temperature}"], atol=3e-6)
