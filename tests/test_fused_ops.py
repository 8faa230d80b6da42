"""The drafter's graph: fused, composed and llama.cpp's own draft the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from dflash2 import Dflash2Engine, ModelLoadError, SamplingParams, _core
from dflash2.options import FusedOps
from reference import Target
from serving import running_rpc_server
from tiny import Pair, mutate_gguf, write_dense_target

N_CONTEXT, ANCHOR = 40, 65
FUSED_AND_COMPOSED: tuple[FusedOps, ...] = ("fused", "composed")
# Sums of some hundred float32 in another order
TOLERANCE = 1e-4

DRAFTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "four-layers": {"n_layer": 4},
    "sliding-causal": {"window": 32, "causal": True},
    "three-taps": {"n_tap": 3},
    "many-layers-and-taps": {"n_layer": 5, "n_tap": 8},
    "rank-one": {"rank": 1},
    "more-taps-than-rows": {"n_tap": 4, "block_size": 3},
    "one-slot": {"block_size": 2},
    "groups-of-one": {"group": 1},
    "one-group": {"group": 288},
    "one-candidate": {"top_k": 1},
    "four-candidates": {"top_k": 4},
    "block-of-sixteen": {"block_size": 16},
    "half-precision": {"dtype": "f16"},
    "dflash1": {"dflash2": False},
}
# a hidden row of 288 numbers does not hold ids and scores of so many, which llama.cpp's graph needs
MANY_CANDIDATES: dict[str, dict[str, Any]] = {
    "seventeen-candidates": {"top_k": 17},
    "sixty-four-candidates": {"top_k": 64},
}


def open_engine(
    target: Path, drafter: Path, fused_ops: FusedOps, n_threads: int = 1, device: str = "cpu"
) -> _core.Engine:
    options = _core.EngineOptions()
    options.model, options.draft, options.fused_ops = str(target), str(drafter), fused_ops
    options.device, options.n_threads, options.n_ctx = device, n_threads, 640
    options.cache_type, options.flash_attn = "f32", "off"
    engine = _core.Engine(options)
    assert engine.stats().fused_ops == fused_ops
    return engine


def draft(engine: _core.Engine, features: np.ndarray, anchor: int) -> tuple[Any, Any]:
    ids, scores = engine.draft_lattice(features, anchor)
    return ids.astype(np.int64), scores


@pytest.fixture(scope="module")
def outputs(dense_target: Path) -> list[np.ndarray]:
    """Outputs of the target's layers."""
    tokens = np.random.default_rng(6).integers(0, 256, N_CONTEXT).tolist()
    return [rows.astype(np.float32) for rows in Target(dense_target).layer_outputs(tokens)]


def features(outputs: list[np.ndarray], engine: _core.Engine) -> np.ndarray:
    return np.concatenate([outputs[layer] for layer in engine.tap_layers], axis=1)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    (DRAFTERS | MANY_CANDIDATES).values(),
    ids=(DRAFTERS | MANY_CANDIDATES).keys(),
)
def test_fused_as_composed(
    options: dict[str, Any],
    n_threads: int,
    dense_target: Path,
    make_drafter: Callable[..., Path],
    outputs: list[np.ndarray],
) -> None:
    path = make_drafter(**options)
    fused = open_engine(dense_target, path, "fused", n_threads)
    composed = open_engine(dense_target, path, "composed")
    rows = features(outputs, fused)
    ids, scores = draft(fused, rows, ANCHOR)
    expected_ids, expected = draft(composed, rows, ANCHOR)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_fused_as_upstream(
    options: dict[str, Any],
    dense_target: Path,
    make_drafter: Callable[..., Path],
    outputs: list[np.ndarray],
) -> None:
    path = make_drafter(**options)
    fused = open_engine(dense_target, path, "fused")
    upstream = open_engine(dense_target, path, "upstream")
    rows = features(outputs, fused)
    ids, scores = draft(fused, rows, ANCHOR)
    their_ids, their_scores = draft(upstream, rows, ANCHOR)
    # in no order there: place[slot, c] of theirs is candidate c of ours
    place = np.array(
        [
            [list(theirs).index(id) for id in ours]
            for ours, theirs in zip(ids, their_ids, strict=True)
        ]
    )
    # F16 weights have their activations rounded to F16, and a sum in the order of another kernel,
    # ours or ggml's, falls to the other side of a rounding. ggml's for AMX do not round at all
    rounded = options.get("dtype") == "f16"
    roundings = 2 if "AMX_INT8" in _core.cpu_features() else 1
    tolerance = roundings * 2**-11 * np.abs(scores).max() if rounded else TOLERANCE
    for slot in range(len(ids)):
        before = place[slot - 1] if slot > 0 else np.arange(ids.shape[1])
        theirs = their_scores[slot][np.ix_(before, place[slot])]
        np.testing.assert_allclose(scores[slot], theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", MANY_CANDIDATES.values(), ids=MANY_CANDIDATES.keys())
def test_upstream_refuses_many_candidates(
    options: dict[str, Any], dense_target: Path, make_drafter: Callable[..., Path]
) -> None:
    with pytest.raises(ModelLoadError, match="hidden size is too small for the selector"):
        open_engine(dense_target, make_drafter(**options), "upstream")


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_demo_pair(golden: Path, demo_target: Path, demo_drafter: Path, n_threads: int) -> None:
    rows = np.load(golden / "golden" / "sequence.npz")["features"]
    fused = open_engine(demo_target, demo_drafter, "fused", n_threads)
    # Q8_0 rounds the hidden rows for the head, so a last bit more or less may move them by a step:
    # the same threads give the same bits
    composed = open_engine(demo_target, demo_drafter, "composed", n_threads)
    for name in ("block0", "block1", "block2"):
        block = np.load(golden / "golden" / f"{name}.npz")
        context, anchor = rows[: block["anchor_position"]], int(block["block_ids"][0])
        ids, scores = draft(fused, context, anchor)
        expected_ids, expected = draft(composed, context, anchor)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("block_size", range(2, 10))
@pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
def test_rows_that_fill_a_tile(
    dtype: str, block_size: int, tiny_folder: Path, make_drafter: Callable[..., Path]
) -> None:
    """Products with such a head are fastest for some numbers of rows, and rows are added for it."""
    target = tiny_folder / f"head-{dtype}.gguf"
    if not target.exists():
        write_dense_target(target, dtype=dtype)
    path = make_drafter(block_size=block_size)
    fused, upstream = (open_engine(target, path, graph) for graph in ("fused", "upstream"))
    rng = np.random.default_rng(block_size)
    rows = rng.standard_normal((8, len(fused.tap_layers) * 288)).astype(np.float32)
    ids, scores = draft(fused, rows, ANCHOR)
    their_ids, their_scores = draft(upstream, rows, ANCHOR)
    np.testing.assert_array_equal(np.sort(ids), np.sort(their_ids))
    np.testing.assert_allclose(
        np.sort(scores[0, 0]), np.sort(their_scores[0, 0]), rtol=0, atol=TOLERANCE
    )


def test_automatic(dense_pair: Pair) -> None:
    """Whatever the CPU is, it has the ops."""
    with Dflash2Engine(*dense_pair, device="cpu", n_ctx=64) as engine:
        assert engine.stats.fused_ops == "fused"


def test_tables_of_two_types(tmp_path: Path, dense_pair: Pair, outputs: list[np.ndarray]) -> None:
    """As llama-quantize makes them where it is told types tensor by tensor."""
    mixed = tmp_path / "mixed.gguf"
    half = {"selector_successor.weight": gguf.GGMLQuantizationType.F16}
    mutate_gguf(dense_pair.drafter, mixed, set_type=half)
    fused, composed = (
        open_engine(dense_pair.target, mixed, fused_ops) for fused_ops in FUSED_AND_COMPOSED
    )
    rows = features(outputs, fused)
    ids, scores = draft(fused, rows, ANCHOR)
    expected_ids, expected = draft(composed, rows, ANCHOR)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=TOLERANCE)


def test_remote_device(wavering_pair: Pair) -> None:
    """A device without the ops runs the composed graph, and drafts what the CPU drafts."""
    with running_rpc_server() as address:
        options = ["-m", wavering_pair.target, "-md", wavering_pair.drafter, "--depth", 7]
        options += ["-p", "abc", "-n", 24, "--temp", 0, "--raw", "--trace", "--json", "-c", 128]
        here, there = (
            run_program([sys.executable, "-m", "dflash2", "generate", *options, *device])
            for device in (["--device", "cpu"], ["--rpc", address, "--device", "RPC0"])
        )
    assert here["stats"]["fused_ops"] == "fused"
    assert there["stats"]["fused_ops"] == "composed"
    assert here["token_ids"] == there["token_ids"]
    assert here["trace"] == there["trace"]
    assert here["stats"]["accepted_tokens"] > 0


def run_program(command: list[object]) -> Any:
    child = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    assert child.returncode == 0, child.stderr.decode()
    return json.loads(child.stdout)


def test_batches_of_sequences(wavering_pair: Pair) -> None:
    traces = [
        batch_traces(wavering_pair, fused_ops, n_threads=1)
        for fused_ops in (*FUSED_AND_COMPOSED, "upstream")
    ]
    assert traces[0] == traces[1] == traces[2]


def batch_traces(pair: Pair, fused_ops: FusedOps, **options: Any) -> list[Any]:
    """Sequences that join and leave a batch, whose blocks are decoded together."""
    prompts = [[3, 5], [7], [2, 9, 4], [11, 6], [8]]
    params = SamplingParams(max_tokens=24, trace=True)
    with Dflash2Engine(
        *pair, depth=7, n_parallel=3, n_ctx=128, fused_ops=fused_ops, **options
    ) as engine:
        traces = [result.trace for result in engine.generate(prompts, params)]
        assert engine.stats.fused_ops == fused_ops
    return traces


def test_padding_is_never_drafted(
    tmp_path: Path, dense_pair: Pair, outputs: list[np.ndarray]
) -> None:
    """Ids at the end of the vocabulary that the tokenizer never makes."""
    n_real = 200
    types = [int(gguf.TokenType.NORMAL)] * n_real
    n_vocab = Target(dense_pair.target).head.shape[0]
    types += [int(gguf.TokenType.UNUSED)] * (n_vocab - n_real)
    settings = {"tokenizer.ggml.token_type": types}
    target = mutate_gguf(dense_pair.target, tmp_path / "padded.gguf", set_kv=settings)
    for fused_ops in FUSED_AND_COMPOSED:
        whole = open_engine(dense_pair.target, dense_pair.drafter, fused_ops)
        padded = open_engine(target, dense_pair.drafter, fused_ops)
        rows = features(outputs, whole)
        ids, _ = draft(whole, rows, ANCHOR)
        real_ids, _ = draft(padded, rows, ANCHOR)
        assert ids.max() >= n_real
        assert real_ids.max() < n_real
        for slot, real in zip(ids, real_ids, strict=True):
            kept = [id for id in slot if id < n_real]
            assert list(real[: len(kept)]) == kept
