"""The scores of the candidates on the CPU, one node or composed, against the formula."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from reference import read_safetensors

from . import oracle
from .broken import message_of
from .ggml import F32, I32, Graph, store

FORMS = pytest.mark.parametrize("composed", [False, True], ids=["fused", "composed"])


@dataclass(frozen=True)
class Case:
    """Tables are as they were before they are stored."""

    logits: F32
    ids: I32
    gate: F32
    predecessor: F32
    successor: F32
    anchors: I32
    n_slots: int
    kind: Type = Type.F32
    multiplier: float = 0.0
    softcap: float = 0.0

    def expected(self) -> NDArray[np.float64]:
        tables = (store(table, self.kind)[1] for table in (self.predecessor, self.successor))
        return oracle.score(
            self.logits,
            self.ids,
            self.gate,
            *tables,
            self.anchors,
            self.n_slots,
            self.multiplier,
            self.softcap,
        )

    def run(self, *, composed: bool = False, n_threads: int = 1, gap: int = 0) -> NDArray[Any]:
        with Graph() as graph:
            rows = (lambda array: graph.rows(array, gap)) if gap else graph.tensor
            anchors = rows(self.anchors[:, None]) if gap else graph.tensor(self.anchors)
            result = graph.score(
                rows(self.logits),
                graph.tensor(self.ids),
                rows(self.gate),
                graph.table(self.predecessor, self.kind),
                graph.table(self.successor, self.kind),
                anchors,
                self.n_slots,
                self.multiplier,
                self.softcap,
                composed=composed,
            )
            found = graph.run(result, n_threads)
        return found.reshape(len(self.anchors), self.n_slots, *found.shape[-2:])


def random_case(
    k: int, rank: int, n_slots: int, n_seqs: int, n_vocab: int = 99, seed: int = 0, **options: Any
) -> Case:
    rng = np.random.default_rng([k, rank, n_slots, n_seqs, n_vocab, seed])
    n_rows = n_slots * n_seqs
    logits = rng.standard_normal((n_rows, n_vocab), np.float32)
    gate = rng.standard_normal((n_rows, rank), np.float32)
    predecessor, successor = rng.standard_normal((2, n_vocab, rank), np.float32)
    ids = rng.permuted(np.tile(np.arange(n_vocab, dtype=np.int32), (n_rows, 1)), axis=1)[:, :k]
    anchors = rng.integers(n_vocab, size=n_seqs).astype(np.int32)
    return Case(logits, ids, gate, predecessor, successor, anchors, n_slots, **options)


def assert_scores(case: Case, **options: Any) -> None:
    expected = case.expected()
    for n_threads in (1, 4):
        found = case.run(n_threads=n_threads, **options)
        assert oracle.nmse(found, expected) <= oracle.MAX_NMSE


# SPEC, golden vector 4a
GOLDEN = Case(
    logits=np.array([[0, 1.5, 0, 2, 0, 0], [0, 0, 1.2, 0, 1, 0]], np.float32),
    ids=np.array([[3, 1], [4, 2]], np.int32),
    gate=np.array([[1, 0.5], [0.25, -1]], np.float32),
    predecessor=np.array([[1, 0], [0, 1], [1, 1], [2, -1], [-1, 2], [0.5, 0.5]], np.float32),
    successor=np.array([[0.5, 0.5], [1, -1], [0, 1], [1, 0], [-1, 1], [2, 0]], np.float32),
    anchors=np.array([0], np.int32),
    n_slots=2,
)
GOLDEN_SCORES = [[[[3, 2.5], [3, 2.5]], [[1.5, 2.2], [0, 0.2]]]]


def test_oracle_gives_the_golden_vector() -> None:
    np.testing.assert_allclose(GOLDEN.expected(), GOLDEN_SCORES, rtol=1e-6, atol=1e-7)


@FORMS
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_golden_vector(kind: Type, composed: bool) -> None:
    found = replace(GOLDEN, kind=kind).run(composed=composed)
    np.testing.assert_allclose(found, GOLDEN_SCORES, rtol=1e-6, atol=1e-6)


@FORMS
@pytest.mark.parametrize(("n_slots", "n_seqs"), [(1, 1), (7, 1), (3, 2)])
def test_every_number_of_threads(n_slots: int, n_seqs: int, composed: bool) -> None:
    # with fewer slots than threads these share the predecessors of one
    case = random_case(5, 64, n_slots, n_seqs, kind=Type.F16)
    one = case.run(composed=composed)
    for n_threads in (2, 3, 4, 9):
        np.testing.assert_array_equal(case.run(composed=composed, n_threads=n_threads), one)


@FORMS
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("rank", [1, 7, 64, 256, 300])
@pytest.mark.parametrize("k", [1, 2, 4, 16, 33, 64])
def test_every_size(k: int, rank: int, kind: Type, composed: bool) -> None:
    assert_scores(random_case(k, rank, 7, 2, kind=kind), composed=composed)


@FORMS
@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        (Type.Q8_0, 64),
        (Type.Q8_0, 256),
        (Type.Q4_0, 64),
        (Type.Q4_0, 256),
        (Type.Q5_1, 32),
        (Type.Q4_K, 256),
        (Type.Q6_K, 512),
        (Type.IQ4_NL, 96),
    ],
    ids=lambda value: value.name if isinstance(value, Type) else str(value),
)
def test_quantized_tables(kind: Type, rank: int, composed: bool) -> None:
    for k in (1, 16, 33):
        assert_scores(random_case(k, rank, 3, 2, kind=kind), composed=composed)


@FORMS
@pytest.mark.parametrize("n_seqs", [1, 2, 3, 4, 5])
def test_every_block_length(n_seqs: int, composed: bool) -> None:
    for n_slots in range(1, 17):
        assert_scores(random_case(4, 64, n_slots, n_seqs, kind=Type.F16), composed=composed)


@FORMS
@pytest.mark.parametrize("multiplier", [0.0, 0.19611613513818404])
@pytest.mark.parametrize("softcap", [0.0, 20.0, 0.5])
def test_transform_of_the_logits(multiplier: float, softcap: float, composed: bool) -> None:
    case = random_case(16, 7, 7, 1, multiplier=multiplier, softcap=softcap)
    # without the term of the tables, which would hide it
    assert_scores(replace(case, gate=np.zeros_like(case.gate)), composed=composed)
    assert_scores(case, composed=composed)


@FORMS
@pytest.mark.parametrize("softcap", [0.0, 20.0])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_logits_that_are_not_finite(value: float, softcap: float, composed: bool) -> None:
    case = random_case(4, 8, 3, 1, softcap=softcap)
    case.logits[1, case.ids[1, 2]] = value
    assert_scores(case, composed=composed)


@FORMS
@pytest.mark.parametrize("gap", [1, 7])
def test_rows_of_views(gap: int, composed: bool) -> None:
    assert_scores(random_case(16, 64, 7, 3, kind=Type.F16), gap=gap, composed=composed)


@FORMS
def test_a_candidate_of_several_slots(composed: bool) -> None:
    case = random_case(4, 16, 7, 2)
    case.ids[:] = [5, 98, 0, 7]
    case.anchors[:] = 98
    assert_scores(case, composed=composed)


@pytest.mark.parametrize("block", [0, 1, 2])
def test_demo_drafter(golden: Path, block: int) -> None:
    """What the authors' code computed, from the hidden rows that it computed."""
    stored = np.load(golden / "golden" / f"block{block}.npz")
    weights = read_safetensors(golden / "model.safetensors")
    predecessor, successor, projection = (
        weights[f"candidate_selector.{name}"]
        for name in (
            "predecessor_codebook",
            "successor_codebook",
            "hidden_projection.weight",
        )
    )
    ids = stored["candidate_ids"]
    logits = np.zeros((7, len(predecessor)), np.float32)
    np.put_along_axis(logits, ids, stored["unary_logits"], axis=1)
    case = Case(
        logits,
        ids,
        (stored["final_hidden"][1:] @ projection.T).astype(np.float32),
        predecessor.astype(np.float32),
        successor.astype(np.float32),
        stored["block_ids"][:1],
        7,
        Type.BF16,
    )
    found = case.run(n_threads=2)[0]
    np.testing.assert_allclose(found, stored["scores"], rtol=0, atol=1e-4)


# logits, ids, gate, predecessor, successor, anchors, slots:
# 6 slots of 2 sequences, 4 candidates of 20, rank 8
BROKEN = {
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 4": "ne[1] % n_slots is 2",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 0": "n_slots is 0",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(3), 3": "anchors",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), f32(2), 3": "anchors type",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(21, 8), f32(20, 8), i32(2), 3": "predecessor ne[1]",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(21, 8), i32(2), 3": "successor",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 9), f32(20, 8), i32(2), 3": "predecessor ne[0]",
    "f32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 7), i32(2), 3": "successor",
    "f32(6, 20), i32(6, 4), f32(5, 8), f32(20, 8), f32(20, 8), i32(2), 3": "gate ne[1] is 5",
    "f32(6, 20), i32(5, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 3": "ids ne[1] is 5",
    "f32(6, 20), f32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 3": "ids type",
    "f32(6, 20), i32(6, 65), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 3": "ids ne[0] is 65",
    "i32(6, 20), i32(6, 4), f32(6, 8), f32(20, 8), f32(20, 8), i32(2), 3": "logits type",
    "f32(6, 20), i32(6, 4), f32(6, 8), i32(20, 8), i32(20, 8), i32(2), 3": "predecessor type",
}


@pytest.mark.parametrize("arguments", BROKEN)
def test_broken_contract(arguments: str) -> None:
    message = message_of(f"graph.score({arguments})")
    assert message.startswith("dflash2_score: ")
    assert BROKEN[arguments] in message
