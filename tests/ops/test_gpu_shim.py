"""The sources of CUDA and Metal, launched and run by the shim on the CPU, against the formulas.

Every call runs twice: with guard pages behind the buffers, and in front of them with all threads
in the other order.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from shim import ROOT, SHIM, Device, Fault, build, dense, rows, table

from . import oracle
from .ggml import F32, store
from .metal import build_metal
from .test_ops_conv import GOLDEN_BASE, GOLDEN_COEFF, GOLDEN_INPUT, GOLDEN_OUTPUT
from .test_ops_conv import random_case as conv_case
from .test_ops_score import GOLDEN, GOLDEN_SCORES, Case
from .test_ops_score import random_case as score_case
from .test_ops_topk import ROWS, distinct

OPS = Path(__file__).parent
CUDA = ROOT / "ggml_ops" / "cuda"

TYPES_OF_32 = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL)
TYPES_OF_256 = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS)


def build_cuda(ggml: Path) -> Path:
    sources = [*sorted(CUDA.glob("*.cu")), OPS / "cuda_shim.cpp"]
    includes = [CUDA, ROOT / "ggml_ops", SHIM / "cuda"]
    return build(ggml.with_name("cuda.so"), sources, includes, [ggml / "include", ggml / "src"])


BUILD = {"cuda": build_cuda, "metal": build_metal}
# quantized types of the tables that a device reads
QUANTIZED = {"cuda": {*TYPES_OF_32, *TYPES_OF_256}, "metal": {Type.Q4_0, Type.Q8_0}}


@pytest.fixture(scope="module", params=BUILD)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def device(name: str, ggml_tree: Path) -> Device:
    return Device(BUILD[name](ggml_tree))


def conv(
    device: Device,
    x: F32,
    coeff: F32,
    base: F32,
    residual: F32 | None,
    side: int,
    n_block_rows: int,
    gaps: tuple[int, int, int] = (0, 0, 0),
) -> NDArray[Any]:
    """Gaps are those of x, coeff and residual."""
    addend = None if residual is None else rows(residual, gaps[2])
    sources = [rows(x, gaps[0]), rows(coeff, gaps[1]), dense(base), addend]
    return device.run("conv", sources, [side, n_block_rows], x.shape)


def assert_conv(device: Device, *arguments: Any) -> None:
    found = conv(device, *arguments)
    assert oracle.nmse(found, oracle.conv(*arguments)) <= oracle.MAX_NMSE


@pytest.mark.parametrize("side", [0, 1])
def test_conv_golden_vector(device: Device, side: int) -> None:
    found = conv(device, GOLDEN_INPUT[side], GOLDEN_COEFF, GOLDEN_BASE, None, side, 3)
    np.testing.assert_allclose(found, GOLDEN_OUTPUT[side], rtol=1e-6)


@pytest.mark.parametrize("n_taps", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("group", "n_channels"),
    # whole vectors and single channels, less than a block of threads and more
    [(1, 5), (1, 300), (8, 24), (8, 1096), (16, 48), (16, 1040), (7, 7), (300, 300), (514, 1028)],
)
def test_conv_every_block_length(device: Device, n_taps: int, group: int, n_channels: int) -> None:
    rng = np.random.default_rng(n_taps + n_channels)
    for n_block_rows in range(1, 18):
        n_seqs = 1 + n_block_rows % 5
        case = conv_case(n_taps, group, n_channels, n_block_rows * n_seqs, rng)
        assert_conv(device, *case, n_block_rows % 2, n_block_rows)
        assert_conv(device, *case[:3], None, n_block_rows % 2, n_block_rows)


@pytest.mark.parametrize("n_channels", [2560, 5120])
def test_conv_released_shapes(device: Device, n_channels: int) -> None:
    case = conv_case(2, 16, n_channels, 8, np.random.default_rng(n_channels))
    assert_conv(device, *case, 1, 8)


# rows that whole vectors can be read of, and rows that they cannot: of one source, and of all
@pytest.mark.parametrize("gaps", [(4, 4, 8), (1, 0, 0), (0, 1, 0), (0, 0, 2), (3, 1, 2)])
def test_conv_rows_of_views(device: Device, gaps: tuple[int, int, int]) -> None:
    case = conv_case(2, 16, 272, 12, np.random.default_rng(0))
    found = conv(device, *case, 0, 4, gaps=gaps)
    np.testing.assert_array_equal(found, conv(device, *case, 0, 4))


def test_conv_untrained_kernel_changes_nothing(device: Device) -> None:
    x, coeff, base, residual = conv_case(2, 16, 48, 8, np.random.default_rng(0))
    coeff[:] = 0
    base[:] = np.array([1, 0])[None, :, None]
    np.testing.assert_array_equal(conv(device, x, coeff, base, residual, 0, 8), residual + x)


def test_conv_rounds_every_operation(device: Device) -> None:
    """As the composed graph does, whose results the next product may round to fewer bits."""
    x, coeff, base, residual = conv_case(2, 16, 48, 8, np.random.default_rng(0))
    weights = base[0] + np.repeat(coeff.reshape(8, 2, 2, 3)[:, 0], 16, axis=-1)
    terms = weights[:, 0] * x
    terms[1:] += weights[1:, 1] * x[:-1]
    found = conv(device, x, coeff, base, residual, 0, 8)
    np.testing.assert_array_equal(found, terms + residual)


def test_conv_nothing_leaks_out_of_a_block(device: Device) -> None:
    x, coeff, base, residual = conv_case(3, 16, 48, 12, np.random.default_rng(0))
    clean = conv(device, x, coeff, base, residual, 0, 4)
    x[4:8] = coeff[4:8] = residual[4:8] = np.nan
    found = conv(device, x, coeff, base, residual, 0, 4)
    assert not np.isfinite(found[4:8]).any()
    others = [0, 1, 2, 3, 8, 9, 10, 11]
    np.testing.assert_array_equal(found[others], clean[others])


def topk(device: Device, logits: F32, k: int, n_vocab: int, gap: int = 0) -> NDArray[Any]:
    return device.run("topk", [rows(logits, gap)], [k, n_vocab], (len(logits), k), np.int32)


def assert_topk(device: Device, logits: F32, k: int, n_vocab: int = 0, gap: int = 0) -> None:
    n_vocab = n_vocab or logits.shape[1]
    found = topk(device, logits, k, n_vocab, gap)
    np.testing.assert_array_equal(found, oracle.topk(logits, k, n_vocab))


# one chunk, and two of which the second has less than k
@pytest.mark.parametrize("n_vocab", [1, 16, 63, 255, 256, 257, 4095, 4096, 4097, 5000])
@pytest.mark.parametrize("k", [1, 2, 4, 16, 33, 64])
def test_topk_distinct_logits(device: Device, k: int, n_vocab: int) -> None:
    assert_topk(device, distinct(3, n_vocab, k + n_vocab), min(k, n_vocab))


# a pass over the keys of one, and of two: 64 chunks at 64 keys fill one more
@pytest.mark.parametrize(
    ("k", "n_vocab"), [(16, 151936), (16, 248320), (1, 262144), (64, 262144), (64, 262145)]
)
def test_topk_large_vocabularies(device: Device, k: int, n_vocab: int) -> None:
    logits = np.random.default_rng(k).standard_normal((2, n_vocab), np.float32)
    assert_topk(device, logits, k)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("k", [1, 16, 64])
def test_topk_rows_of_every_kind(device: Device, k: int, kind: str) -> None:
    for n_vocab in (64, 67, 9000):
        assert_topk(device, ROWS[kind](np.random.default_rng(n_vocab), (2, n_vocab)), k)


@pytest.mark.parametrize("padding", [np.inf, np.nan, 1e30])
@pytest.mark.parametrize("n_vocab", [16, 100, 4100])
def test_topk_padding_is_never_taken(device: Device, n_vocab: int, padding: float) -> None:
    logits = distinct(3, 4352, n_vocab)
    logits[:, n_vocab:] = padding
    assert_topk(device, logits, 16, n_vocab)


@pytest.mark.parametrize("gap", [1, 64])
def test_topk_rows_of_views(device: Device, gap: int) -> None:
    assert_topk(device, distinct(5, 777, gap), 16, 700, gap)


def score(device: Device, case: Case, gap: int = 0) -> NDArray[Any]:
    k = case.ids.shape[1]
    anchors = rows(case.anchors[:, None], gap)
    sources = [
        rows(case.logits, gap),
        dense(case.ids),
        rows(case.gate, gap),
        *(
            table(store(values, case.kind)[0], case.kind)
            for values in (case.predecessor, case.successor)
        ),
        # in a row of their own, or each in one, as they lie among the tokens of their blocks
        replace(anchors, ne=anchors.ne[1:], nb=anchors.nb[1:]) if gap == 0 else anchors,
    ]
    shape = (len(case.anchors), case.n_slots, k, k)
    return device.run("score", sources, [case.n_slots, case.multiplier, case.softcap], shape)


def assert_score(device: Device, case: Case, gap: int = 0) -> None:
    assert oracle.nmse(score(device, case, gap), case.expected()) <= oracle.MAX_NMSE


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_score_golden_vector(device: Device, kind: Type) -> None:
    found = score(device, replace(GOLDEN, kind=kind))
    np.testing.assert_allclose(found, GOLDEN_SCORES, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
# 300: more than shared memory holds at once from 16 candidates on
@pytest.mark.parametrize("rank", [1, 7, 64, 256, 300, 900])
@pytest.mark.parametrize("k", [1, 2, 4, 16, 33, 64])
def test_score_every_size(device: Device, k: int, rank: int, kind: Type) -> None:
    assert_score(device, score_case(k, rank, 3, 2, kind=kind))


@pytest.mark.parametrize("kind", TYPES_OF_32 + TYPES_OF_256, ids=lambda kind: kind.name)
def test_score_quantized_tables(device: Device, name: str, kind: Type) -> None:
    rank = 96 if kind in TYPES_OF_32 else 512
    for k in (1, 16, 33):
        case = score_case(k, rank, 2, 2, kind=kind)
        if kind in QUANTIZED[name]:
            assert_score(device, case)
        else:
            with pytest.raises(Fault, match="not supported"):
                score(device, case)


def test_score_table_that_cannot_be_read(device: Device) -> None:
    with pytest.raises(Fault, match="not supported"):
        score(device, score_case(4, 256, 2, 1, kind=Type.TQ1_0))


@pytest.mark.parametrize("n_seqs", [1, 2, 3, 4, 5])
def test_score_every_block_length(device: Device, n_seqs: int) -> None:
    for n_slots in range(1, 17):
        assert_score(device, score_case(4, 64, n_slots, n_seqs, kind=Type.F16))


@pytest.mark.parametrize("multiplier", [0.0, 0.19611613513818404])
@pytest.mark.parametrize("softcap", [0.0, 20.0, 0.5])
def test_score_transform_of_the_logits(device: Device, multiplier: float, softcap: float) -> None:
    case = score_case(16, 7, 7, 1, multiplier=multiplier, softcap=softcap)
    # without the term of the tables, which would hide it
    assert_score(device, replace(case, gate=np.zeros_like(case.gate)))
    assert_score(device, case)


@pytest.mark.parametrize("softcap", [0.0, 20.0])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_score_logits_that_are_not_finite(device: Device, value: float, softcap: float) -> None:
    case = score_case(4, 8, 3, 1, softcap=softcap)
    case.logits[1, case.ids[1, 2]] = value
    assert_score(device, case)


@pytest.mark.parametrize("gap", [1, 7])
def test_score_rows_of_views(device: Device, gap: int) -> None:
    assert_score(device, score_case(16, 64, 7, 3, kind=Type.F16), gap)
