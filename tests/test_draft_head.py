"""A copy of the target's head that drafts are made with."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from dflash2 import Dflash2Engine, ModelLoadError, SamplingParams, _core
from dflash2.options import DraftHead
from tiny import Pair, mutate_gguf

N_CONTEXT, ANCHOR = 40, 65
Q4_0 = gguf.GGMLQuantizationType.Q4_0


def lattice(target: Path, drafter: Path, draft_head: DraftHead) -> tuple[np.ndarray, np.ndarray]:
    options = _core.EngineOptions()
    options.model, options.draft, options.draft_head = str(target), str(drafter), draft_head
    options.device, options.n_threads, options.n_ctx = "cpu", 2, 128
    engine = _core.Engine(options)
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((N_CONTEXT, len(engine.tap_layers) * 288)).astype(np.float32)
    ids, scores = engine.draft_lattice(rows, ANCHOR)
    return ids, scores


@pytest.mark.parametrize("block_size", [2, 3, 8])
def test_drafts_are_those_of_a_target_with_such_a_head(
    block_size: int, dense_target: Path, make_drafter: Callable[..., Path], tmp_path: Path
) -> None:
    """Also of a head in F16, whose copy is made of rounded numbers."""
    drafter = make_drafter(block_size=block_size)
    for kind in (None, gguf.GGMLQuantizationType.F16):
        target = dense_target
        if kind is not None:
            target = mutate_gguf(target, tmp_path / "f16.gguf", set_type={"output.weight": kind})
        head = next(t for t in gguf.GGUFReader(target).tensors if t.name == "output.weight")
        quantized = tmp_path / "q4_0.gguf"
        mutate_gguf(dense_target, quantized, set_type={"output.weight": Q4_0})
        if kind is not None:
            # F16 first, as the copy was
            rounded = gguf.quants.dequantize(np.array(head.data), head.tensor_type)
            assert (gguf.quants.quantize(rounded, Q4_0) != 0).any()
        copied, expected = lattice(target, drafter, "q4_0"), lattice(quantized, drafter, "target")
        np.testing.assert_array_equal(copied[0], expected[0])
        np.testing.assert_allclose(copied[1], expected[1], rtol=0, atol=2e-2 if kind else 0)


def test_other_drafts_the_same_answers(wavering_pair: Pair) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    answers = {}
    for draft_head in ("target", "q4_0"):
        with Dflash2Engine(*wavering_pair, depth=7, draft_head=draft_head, device="cpu") as engine:  # type: ignore[arg-type]
            result = engine.generate([5, 9, 70], params)
        answers[draft_head] = result.token_ids
        assert result.stats.draft_tokens > 0
    assert answers["q4_0"] == answers["target"]


def test_small_heads_are_not_copied(
    dense_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """They are computed in no time, and their drafts are the target's to the bit."""
    automatic = lattice(*dense_pair, "auto")
    np.testing.assert_array_equal(automatic[0], lattice(*dense_pair, "target")[0])
    with caplog.at_level(logging.INFO, "dflash2"), Dflash2Engine(*dense_pair, device="cpu"):
        assert not any("copy of the target's head" in line for line in caplog.messages)


def test_a_large_head_is_copied_and_freed(caplog: pytest.LogCaptureFixture) -> None:
    """The demo pair's: 49152 rows of 576 numbers, 16 MB in Q4_0."""
    with caplog.at_level(logging.INFO, "dflash2"):
        Dflash2Engine.demo(device="cpu", n_ctx=256).close()
    gc.collect()
    (line,) = (text for text in caplog.messages if "copy of the target's head" in text)
    assert "q4_0" in line
    assert "15 MiB" in line


def test_refusals(dense_pair: Pair, make_drafter: Callable[..., Path], tmp_path: Path) -> None:
    own = mutate_gguf(
        make_drafter(), tmp_path / "own.gguf", set_kv={}, rename={"fc.weight": "fc.weight"}
    )
    with pytest.raises(ValueError, match="draft_head"):
        Dflash2Engine(*dense_pair, draft_head="q8_0")  # type: ignore[arg-type]
    quantized = mutate_gguf(
        dense_pair.target, tmp_path / "q4_0.gguf", set_type={"output.weight": Q4_0}
    )
    with pytest.raises(ModelLoadError, match="copy of the target's head in q4_0: it"):
        Dflash2Engine(quantized, own, draft_head="q4_0", device="cpu")
