"""A copy of the target's head that drafts are made with."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from dflash2 import Dflash2Engine, SamplingParams, _core
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


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("block_size", [2, 3, 8])
def test_drafts_are_those_of_a_target_with_such_a_head(
    kind: str,
    block_size: int,
    dense_target: Path,
    make_drafter: Callable[..., Path],
    tmp_path: Path,
) -> None:
    target, quantized = tmp_path / "target.gguf", tmp_path / "q4_0.gguf"
    head_type = {"output.weight": gguf.GGMLQuantizationType[kind]}
    mutate_gguf(dense_target, target, set_type=head_type)
    mutate_gguf(target, quantized, set_type={"output.weight": Q4_0})
    drafter = make_drafter(block_size=block_size)
    ids, scores = lattice(target, drafter, "q4_0")
    expected_ids, expected = lattice(quantized, drafter, "target")
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(scores, expected)


def test_other_drafts_the_same_answers(wavering_pair: Pair) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    answers = {}
    for draft_head in ("target", "q4_0"):
        with Dflash2Engine(*wavering_pair, depth=7, draft_head=draft_head, device="cpu") as engine:  # type: ignore[arg-type]
            result = engine.generate([5, 9, 70], params)
        answers[draft_head] = result.token_ids
        assert result.stats.draft_tokens > 0
    assert answers["q4_0"] == answers["target"]


def test_small_heads_are_not_copied(dense_pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
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
    copies = [text for text in caplog.messages if "copy of the target's head" in text]
    # for AMX it is packed anew, and cannot be read back
    assert len(copies) == ("AMX_INT8" not in _core.cpu_features())
    assert all("q4_0" in line and "15 MiB" in line for line in copies)


def test_refusals(dense_pair: Pair, dense_target: Path, tmp_path: Path) -> None:
    for options in ({"draft_head": "q8_0"}, {"draft_head": "q4_0", "fused_ops": "upstream"}):
        with pytest.raises(ValueError, match="draft_head"):
            Dflash2Engine(*dense_pair, **options)  # type: ignore[arg-type]
    (head,) = (t for t in gguf.GGUFReader(dense_target).tensors if t.name == "output.weight")
    own = mutate_gguf(dense_pair.drafter, tmp_path / "own.gguf", add=[head])
    with pytest.raises(ValueError, match="no copy of the target's head in q4_0: the drafter has"):
        Dflash2Engine(dense_target, own, draft_head="q4_0", device="cpu")
