"""Drafters with an embedding, a head or a vocabulary of their own, and MiMo's mask embedding."""

import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import ConversionError, convert_drafter
from numpy.typing import NDArray
from tiny import MASK

from . import checkpoints
from .checkpoints import Stored, Weights, stored, write_checkpoint
from .conftest import Refuse
from .drafting import assert_same, draft, draftable, target_tensor
from .layouts import (
    float32,
    mimo_config,
    mimo_weights,
    reduced_vocabulary,
    saved_call,
    saved_tensor,
    write_good_mask_embedding,
    write_mask_embedding,
)
from .reading import tensors

IDS = np.random.default_rng(1).permutation(320)[:40].astype(np.int64)


@pytest.fixture
def weights() -> Weights:
    return draftable(checkpoints.weights(dflash2=False))


@pytest.fixture
def embedding(dense_target: Path) -> NDArray[np.float32]:
    return target_tensor(dense_target, "token_embd.weight")


@pytest.fixture
def head(dense_target: Path) -> NDArray[np.float32]:
    return target_tensor(dense_target, "output.weight")


def convert(folder: Path, target: Path, weights: Weights, **changes: Any) -> Path:
    settings = checkpoints.config(dflash2=False) | changes
    return convert_drafter(write_checkpoint(folder, settings, weights), target, folder.parent)


def test_copies_of_the_targets_change_nothing(
    tmp_path: Path,
    dense_target: Path,
    weights: Weights,
    embedding: NDArray[np.float32],
    head: NDArray[np.float32],
) -> None:
    """Also without a head of its own: llama.cpp alone would then take the embedding for it."""
    shared = draft(dense_target, convert(tmp_path / "shared", dense_target, weights))
    own = {"embed_tokens.weight": stored(embedding, "F32"), "lm_head.weight": stored(head, "F32")}
    for name, extra in {
        "both": own,
        "head": {"lm_head.weight": own["lm_head.weight"]},
        "embedding": {"embed_tokens.weight": own["embed_tokens.weight"]},
    }.items():
        path = convert(tmp_path / name, dense_target, weights | extra)
        assert_same(draft(dense_target, path), shared)


def test_tied_embedding_is_stored_once(
    tmp_path: Path, dense_target: Path, weights: Weights, embedding: NDArray[np.float32]
) -> None:
    own = {"embed_tokens.weight": stored(embedding, "F32")}
    tied = convert(tmp_path / "d", dense_target, weights | own, tie_word_embeddings=True)
    assert "token_embd.weight" in tensors(tied)
    assert "output.weight" not in tensors(tied)
    twice = own | {"lm_head.weight": own["embed_tokens.weight"]}
    both = convert(tmp_path / "twice", dense_target, weights | twice)
    assert_same(draft(dense_target, tied), draft(dense_target, both))


def test_targets_head_is_copied_as_it_is_stored(
    tmp_path: Path,
    dense_target_q8_0: Path,
    weights: Weights,
    embedding: NDArray[np.float32],
) -> None:
    own = {"embed_tokens.weight": stored(embedding, "F32")}
    written = tensors(convert(tmp_path / "d", dense_target_q8_0, weights | own))
    head = tensors(dense_target_q8_0)["output.weight"]
    assert written["output.weight"].tensor_type.name == "Q8_0"
    np.testing.assert_array_equal(written["output.weight"].data, head.data)


def test_reduced_vocabulary_drafts_the_best_of_its_tokens(
    tmp_path: Path, dense_target: Path, weights: Weights, head: NDArray[np.float32]
) -> None:
    reduced = weights | reduced_vocabulary(IDS, head)
    path = convert(tmp_path / "d", dense_target, reduced, draft_vocab_size=40)
    written = tensors(path)
    assert written["d2t"].tensor_type.name == "I64"
    assert written["d2t"].data.tolist() == IDS.tolist()
    assert written["output.weight"].shape.tolist() == [288, 40]
    # a full head on which no other token can win
    low = head.copy()
    low[np.setdiff1d(np.arange(320), IDS)] = 0
    full = weights | {"lm_head.weight": stored(low, "F32")}
    expected = draft(dense_target, convert(tmp_path / "full", dense_target, full))
    assert np.isin(expected.ids, IDS).all()
    np.testing.assert_array_equal(draft(dense_target, path).ids, expected.ids)


def table(**changes: Any) -> Weights:
    good = {"d2t": IDS - np.arange(40), "t2d": np.isin(np.arange(320), IDS)}
    dtypes = {"int64": "I64", "bool": "BOOL", "float32": "F32"}
    data = {name: np.asarray(value) for name, value in (good | changes).items()}
    return {name: Stored(dtypes[value.dtype.name], value) for name, value in data.items()}


def changed(index: int, value: int) -> NDArray[np.int64]:
    distances = IDS - np.arange(40)
    distances[index] = value
    return distances


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"t2d": table()["t2d"]}, ("tensor d2t", "missing", "40")),
        (table(d2t=np.zeros(39, np.int64)), ("shape of tensor d2t", "[39]", "[40]")),
        (table(d2t=changed(7, 320)), ("tensor d2t", "320")),
        (table(d2t=changed(0, -1)), ("tensor d2t", "-1")),
        (table(d2t=changed(1, int(IDS[0]) - 1)), ("tensor d2t", "twice")),
        (table(t2d=np.ones(320, np.bool_)), ("tensor t2d", "other tokens")),
        (table(t2d=np.ones(319, np.bool_)), ("shape of tensor t2d", "[319]", "[320]")),
        (table(d2t=np.zeros(40, np.float32)), ("d2t", "'F32'", "I64")),
    ],
)
def test_wrong_vocabulary_tables_are_refused(
    tmp_path: Path,
    refuse: Refuse,
    dense_target: Path,
    weights: Weights,
    tables: Weights,
    words: tuple[str, ...],
) -> None:
    rows = {"lm_head.weight": stored(np.ones((40, 288), np.float32))}
    settings = checkpoints.config(dflash2=False) | {"draft_vocab_size": 40}
    source = write_checkpoint(tmp_path / "d", settings, weights | rows | tables)
    refuse(source, dense_target, *words)


def test_reduced_vocabulary_without_its_head_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, weights: Weights
) -> None:
    settings = checkpoints.config(dflash2=False) | {"draft_vocab_size": 40}
    source = write_checkpoint(tmp_path / "d", settings, weights | table())
    refuse(source, dense_target, "missing", "lm_head.weight")


@pytest.mark.parametrize("own", [False, True], ids=["targets-embedding", "own-embedding"])
def test_mask_embedding_replaces_one_row(
    tmp_path: Path, dense_target: Path, embedding: NDArray[np.float32], own: bool
) -> None:
    row = np.linspace(-1, 1, 288, dtype=np.float32)
    extra = {"embed_tokens.weight": stored(embedding[::-1].copy(), "F32")} if own else {}
    source = write_checkpoint(tmp_path / "d", mimo_config(), draftable(mimo_weights() | extra))
    write_good_mask_embedding(source, row)
    path = convert_drafter(source, dense_target, tmp_path, outtype="f32")
    expected = (embedding[::-1] if own else embedding).copy()
    expected[MASK] = float32(stored(row))
    np.testing.assert_array_equal(tensors(path)["token_embd.weight"].data, expected)
    head = target_tensor(dense_target, "output.weight")
    np.testing.assert_array_equal(tensors(path)["output.weight"].data, head)


def test_mask_embedding_equal_to_the_targets_changes_nothing(
    tmp_path: Path, dense_target: Path, embedding: NDArray[np.float32]
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), draftable(mimo_weights()))
    without = draft(dense_target, convert_drafter(source, dense_target, tmp_path / "0.gguf"))
    write_good_mask_embedding(source, np.zeros(288, np.float32))
    zero = draft(dense_target, convert_drafter(source, dense_target, tmp_path / "1.gguf"))
    assert not np.array_equal(zero.ids, without.ids)
    write_good_mask_embedding(source, embedding[MASK])
    same = draft(dense_target, convert_drafter(source, dense_target, tmp_path / "2.gguf"))
    assert_same(same, without)


ROW = np.ones(288, np.float32)
BAD_SAVED: list[tuple[Any, tuple[str, ...]]] = [
    (saved_call("os", "system", "exit 1"), ("os.system",)),
    (saved_call("builtins", "eval", "1 / 0"), ("builtins.eval",)),
    (saved_call("collections", "Counter", [1]), ("collections.Counter",)),
    ({"embedding": saved_tensor(ROW), "mask_token_id": 3}, ("mask_token_id", "3", str(MASK))),
    ({"embedding": saved_tensor(ROW), "mask_token_id": "3"}, ("mask_token_id", "'3'", "integer")),
    ({"embedding": saved_tensor(ROW)}, ("embedding", "mask_token_id")),
    ({"embedding": [1.0], "mask_token_id": MASK}, ("embedding", "'list'", "tensor")),
    ([1], ("'list'", "dict")),
]
BAD_TENSORS = [
    {"shape": (287,)},
    {"shape": (2, 144), "stride": (144, 1)},
    {"shape": (289,)},
    {"shape": (-1,)},
    {"offset": 1},
    {"offset": -1},
    {"stride": (2,)},
    {"kind": "QInt8Storage"},
]


@pytest.mark.parametrize(("saved", "words"), BAD_SAVED)
def test_other_pickles_are_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, saved: Any, words: tuple[str, ...]
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    write_mask_embedding(source / "mask_embedding.pt", saved, ROW)
    refuse(source, dense_target, "mask_embedding.pt", *words)


@pytest.mark.parametrize("changes", BAD_TENSORS)
def test_other_tensors_are_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, changes: dict[str, Any]
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    saved = {"embedding": saved_tensor(ROW, **changes), "mask_token_id": MASK}
    write_mask_embedding(source / "mask_embedding.pt", saved, ROW)
    refuse(source, dense_target, "mask_embedding.pt")


def test_mask_embedding_with_nan_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    write_good_mask_embedding(source, np.full(288, np.nan, np.float32))
    refuse(source, dense_target, "mask_embedding.pt", "NaN")


def test_pickle_that_wants_memory_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    with zipfile.ZipFile(source / "mask_embedding.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.NONE + pickle.LONG_BINPUT + b"\xff\xff\xff\x7f.")
    refuse(source, dense_target, "mask_embedding.pt", str(2**31 - 1))


def test_damaged_mask_embedding_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path
) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    file = write_good_mask_embedding(source, ROW)
    raw = file.read_bytes()
    for length in range(0, len(raw), 61):
        file.write_bytes(raw[:length])
        refuse(source, dense_target, "mask_embedding.pt")
    for index in range(0, len(raw), 7):
        file.write_bytes(raw[:index] + bytes([raw[index] ^ 0xFF]) + raw[index + 1 :])
        with suppress(ConversionError):  # some bytes do not matter
            convert_drafter(source, dense_target, tmp_path / "any.gguf", force=True)
