"""Targets given as a checkpoint folder, with the vocabulary of a GGUF file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import convert_drafter
from tiny import mutate_gguf

from . import checkpoints
from .checkpoints import Weights, stored, write_checkpoint, write_sharded
from .conftest import Refuse
from .drafting import target_tensor
from .layouts import gemma_config, mimo_config, mimo_weights, write_good_mask_embedding
from .reading import dflash_keys, tensors

TEXT: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 288,
    "num_hidden_layers": 4,
    "vocab_size": 320,
    "rope_parameters": {"rope_theta": 10000.0},
}


def write_target(folder: Path, settings: dict[str, Any], weights: Weights | None = None) -> Path:
    some = {"model.norm.weight": stored(np.ones(288, np.float32))}
    return write_checkpoint(folder, settings, some if weights is None else weights)


@pytest.fixture
def vocab(tmp_path: Path, dense_target: Path) -> Path:
    """A GGUF of the same tokenizer that is another model."""
    changes = {"set_kv": {"qwen3.embedding_length": 64, "qwen3.block_count": 2}}
    return mutate_gguf(dense_target, tmp_path / "vocab.gguf", **changes)


@pytest.mark.parametrize("settings", [TEXT, {"model_type": "qwen3_vl", "text_config": TEXT}])
def test_folder_says_the_same_as_the_gguf(
    tmp_path: Path, dense_target: Path, source: Path, vocab: Path, settings: dict[str, Any]
) -> None:
    folder = write_target(tmp_path / "target", settings)
    found = convert_drafter(source, folder, tmp_path / "0.gguf", vocab=vocab)
    expected = convert_drafter(source, dense_target, tmp_path / "1.gguf")
    assert found.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [11, 11, 10]}},
        {"rope_parameters": None, "rope_scaling": {"mrope_section": [11, 11, 10]}},
        {"model_type": "qwen3_5_text"},
    ],
)
def test_mrope_of_the_folder_gives_plain_sections(
    tmp_path: Path, source: Path, vocab: Path, changes: dict[str, Any]
) -> None:
    folder = write_target(tmp_path / "target", TEXT | changes)
    keys = dflash_keys(convert_drafter(source, folder, tmp_path, vocab=vocab))
    assert keys["dflash.rope.dimension_sections"] == ("ARRAY INT32", [16, 0, 0, 0])


def test_gemma_folder_scales_the_embedding(tmp_path: Path, vocab: Path) -> None:
    source = write_checkpoint(tmp_path / "d", gemma_config(), checkpoints.weights(dflash2=False))
    folder = write_target(tmp_path / "target", TEXT | {"model_type": "gemma4_text"})
    keys = dflash_keys(convert_drafter(source, folder, tmp_path, vocab=vocab))
    assert keys["dflash.embedding_scale"] == ("FLOAT32", float(np.sqrt(np.float32(288))))


@pytest.mark.parametrize("write", [write_checkpoint, write_sharded])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_come_from_the_folder(
    tmp_path: Path, dense_target: Path, vocab: Path, write: Any, tied: bool
) -> None:
    embedding = target_tensor(dense_target, "token_embd.weight")
    weights = {"model.language_model.embed_tokens.weight": stored(embedding, "F32")}
    weights["lm_head.weight"] = stored(-embedding, "F32")
    folder = write(tmp_path / "target", TEXT | {"tie_word_embeddings": tied}, weights)
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    write_good_mask_embedding(source, np.ones(288, np.float32))
    written = tensors(convert_drafter(source, folder, tmp_path, outtype="f32", vocab=vocab))
    expected = embedding.copy()
    expected[checkpoints.MASK] = 1
    np.testing.assert_array_equal(written["token_embd.weight"].data, expected)
    head = embedding if tied else -embedding
    np.testing.assert_array_equal(written["output.weight"].data, head)


def test_embedding_that_the_folder_lacks_is_refused(
    tmp_path: Path, refuse: Refuse, vocab: Path
) -> None:
    folder = write_target(tmp_path / "target", TEXT)
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    write_good_mask_embedding(source, np.ones(288, np.float32))
    refuse(source, folder, "target", "embed_tokens.weight", "missing", vocab=vocab)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 321}, ("vocab.gguf", "320", "321")),
        ({"hidden_size": None}, ("target/config.json", "hidden_size", "missing")),
        ({"hidden_size": 320}, ("hidden_size", "288", "320")),
        ({"num_hidden_layers": 3}, ("num_target_layers", "4", "3")),
        ({"vocab_size": "320"}, ("vocab_size", "'320'", "an integer")),
    ],
)
def test_wrong_folder_is_refused(
    tmp_path: Path,
    refuse: Refuse,
    source: Path,
    vocab: Path,
    changes: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    folder = write_target(tmp_path / "target", TEXT | changes)
    refuse(source, folder, *words, vocab=vocab)


def test_folder_needs_a_vocabulary(tmp_path: Path, refuse: Refuse, source: Path) -> None:
    folder = write_target(tmp_path / "target", TEXT)
    refuse(source, folder, "target", "folder", "vocab")
    (folder / "config.json").write_text(json.dumps([]))
    refuse(source, folder, "config.json", "JSON object")
