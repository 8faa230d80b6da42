"""GGUF files turned back into checkpoints, and from there into GGUF again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from dflash2.convert import ConversionError, convert_drafter, convert_to_safetensors
from numpy.typing import NDArray

from . import checkpoints
from .checkpoints import Stored, Weights, values, write_checkpoint
from .layouts import (
    MIXED,
    assistant_config,
    assistant_weights,
    gemma_config,
    interleaved,
    mimo_config,
    mimo_weights,
    reduced_vocabulary,
    speculators_config,
    write_good_mask_embedding,
)
from .reading import gguf_name, tensors

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


class Family(NamedTuple):
    settings: dict[str, Any]
    weights: Weights


def read_safetensors(path: Path) -> Weights:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    data = raw[8 + length :]
    return {
        name: Stored(
            entry["dtype"],
            np.frombuffer(data[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]]).reshape(
                entry["shape"]
            ),
        )
        for name, entry in header.items()
    }


def bf16_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest bf16, halves to even."""
    bits = rows.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (rounded.astype(np.uint32) << 16).view(np.float32)


def yarn_config() -> dict[str, Any]:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    return checkpoints.config() | {"rope_parameters": {"rope_theta": 10000.0, **yarn}}


def windowed_config() -> dict[str, Any]:
    sliding = {"layer_types": MIXED, "sliding_window": 8, "use_sliding_window": True}
    settings = checkpoints.config() | sliding | {"input_embedding_scale": 4.0}
    settings["dflash_config"] |= {"output_multiplier": 0.196, "final_logit_softcapping": 20.0}
    return settings


HEAD = np.random.default_rng(2).standard_normal((320, 288)).astype(np.float32)
FAMILIES = {
    "DFlash 2": Family(checkpoints.config(), checkpoints.weights()),
    "DFlash": Family(checkpoints.config(dflash2=False), checkpoints.weights(dflash2=False)),
    "windows": Family(windowed_config(), checkpoints.weights()),
    "yarn": Family(yarn_config(), checkpoints.weights()),
    "interleaved": Family(
        checkpoints.config() | {"rope_is_neox_style": False}, interleaved(checkpoints.weights())
    ),
    "gemma": Family(gemma_config(), checkpoints.weights(dflash2=False)),
    "assistant": Family(assistant_config(), assistant_weights()),
    "mimo": Family(mimo_config(), mimo_weights()),
    "speculators": Family(speculators_config(), checkpoints.weights()),
    "reduced vocabulary": Family(
        checkpoints.config(dflash2=False) | {"draft_vocab_size": 40},
        checkpoints.weights(dflash2=False) | reduced_vocabulary(np.arange(0, 320, 8), HEAD),
    ),
    "own embedding": Family(
        checkpoints.config() | {"tie_word_embeddings": True},
        checkpoints.weights() | {"embed_tokens.weight": checkpoints.stored(HEAD)},
    ),
}


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16"])
def test_unquantized_drafter_comes_back_as_it_was(
    tmp_path: Path, dense_target: Path, source: Path, outtype: Any
) -> None:
    path = convert_drafter(source, dense_target, tmp_path, outtype=outtype)
    folder = convert_to_safetensors(path, tmp_path / "back")
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    back = read_safetensors(folder / "model.safetensors")
    original = checkpoints.weights()
    assert back.keys() == original.keys()
    for name, tensor in original.items():
        assert back[name].dtype == "BF16"
        expected = values(tensor)
        if outtype == "f16" and tensor.data.ndim == 2:  # loses bits of weights below 2**-14
            expected = expected.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(values(back[name]), expected)
    settings = json.loads((folder / "config.json").read_text())
    special = {"use_sliding_window": False, "bos_token_id": 256, "eos_token_id": 257}
    assert settings == checkpoints.config() | special


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip_gives_the_same_file(
    tmp_path: Path, dense_target: Path, family: str, outtype: Any
) -> None:
    settings, weights = FAMILIES[family]
    source = write_checkpoint(tmp_path / "d", settings, weights)
    first = convert_drafter(source, dense_target, tmp_path / "1.gguf", outtype=outtype)
    (tmp_path / "back").mkdir()
    folder = convert_to_safetensors(first, tmp_path / "back" / "d")
    second = convert_drafter(folder, dense_target, tmp_path / "2.gguf", outtype=outtype)
    assert second.read_bytes() == first.read_bytes()


def test_round_trip_of_an_own_mask_embedding(tmp_path: Path, dense_target: Path) -> None:
    source = write_checkpoint(tmp_path / "d", mimo_config(), mimo_weights())
    write_good_mask_embedding(source, np.linspace(-1, 1, 288, dtype=np.float32))
    first = convert_drafter(source, dense_target, tmp_path / "1.gguf", outtype="f32")
    (tmp_path / "back").mkdir()
    folder = convert_to_safetensors(first, tmp_path / "back" / "d")
    second = convert_drafter(folder, dense_target, tmp_path / "2.gguf", outtype="f32")
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(("dtype", "outtype"), [("F32", "f32"), ("F16", "f16")])
def test_weights_that_bf16_cannot_hold_keep_their_type(
    tmp_path: Path, dense_target: Path, dtype: str, outtype: Any
) -> None:
    weights = checkpoints.weights(dtype=dtype)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    first = convert_drafter(source, dense_target, tmp_path / "1.gguf", outtype=outtype)
    (tmp_path / "back").mkdir()
    folder = convert_to_safetensors(first, tmp_path / "back" / "d")
    back = read_safetensors(folder / "model.safetensors")
    for name, tensor in weights.items():
        np.testing.assert_array_equal(values(back[name]), values(tensor))
    assert back["fc.weight"].dtype == dtype
    second = convert_drafter(folder, dense_target, tmp_path / "2.gguf", outtype=outtype)
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("outtype", ["q8_0", "q5_1", "q4_0"])
def test_quantized_weights_become_the_nearest_bf16(
    tmp_path: Path, dense_target: Path, source: Path, outtype: Any
) -> None:
    path = convert_drafter(source, dense_target, tmp_path, outtype=outtype)
    folder = convert_to_safetensors(path, tmp_path / "back")
    back = read_safetensors(folder / "model.safetensors")
    written = tensors(path)
    for name, tensor in back.items():
        stored = written[gguf_name(name)]
        rows = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert tensor.dtype == "BF16"
        np.testing.assert_array_equal(values(tensor), bf16_of(rows).reshape(tensor.data.shape))


def test_default_folder_has_the_drafters_name(
    tmp_path: Path, dense_target: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = convert_drafter(source, dense_target, tmp_path / "other.gguf")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert convert_to_safetensors(path) == tmp_path / "work" / "tiny"


@pytest.fixture
def drafter(tmp_path: Path, dense_target: Path, source: Path) -> Path:
    return convert_drafter(source, dense_target, tmp_path)


def test_existing_checkpoint_is_replaced_only_by_force(tmp_path: Path, drafter: Path) -> None:
    folder = tmp_path / "back"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text("precious")
    with pytest.raises(FileExistsError, match=r"config\.json exists"):
        convert_to_safetensors(drafter, folder)
    assert (folder / "config.json").read_text() == "precious"
    convert_to_safetensors(drafter, folder, force=True)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 288
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["config.json", "model.safetensors", "notes.txt"]


@pytest.mark.parametrize("other", ["model-00001-of-00002.safetensors", "model.index.json"])
def test_other_weights_in_the_folder_are_refused(tmp_path: Path, drafter: Path, other: str) -> None:
    folder = tmp_path / "back"
    folder.mkdir()
    (folder / other).touch()
    with pytest.raises(ConversionError, match=other):
        convert_to_safetensors(drafter, folder, force=True)
    assert [file.name for file in folder.iterdir()] == [other]


def test_wrong_places_are_refused(tmp_path: Path, drafter: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-folder"):
        convert_to_safetensors(drafter, tmp_path / "no-folder" / "back")
    with pytest.raises(FileExistsError, match="is a file"):
        convert_to_safetensors(drafter, drafter)
    with pytest.raises(FileNotFoundError, match=r"nothere\.gguf"):
        convert_to_safetensors(tmp_path / "nothere.gguf", tmp_path / "back")


@pytest.mark.parametrize("there", [True, False], ids=["into a folder", "into a new folder"])
def test_failure_leaves_nothing(tmp_path: Path, drafter: Path, there: bool) -> None:
    folder = tmp_path / "back"
    if there:
        folder.mkdir()

    def stop(n_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_to_safetensors(drafter, folder, progress=stop)
    assert folder.exists() == there
    assert not list(folder.glob("*"))


def test_progress_counts_every_byte(tmp_path: Path, drafter: Path) -> None:
    pieces: list[int] = []
    add: Callable[[int], None] = pieces.append
    folder = convert_to_safetensors(drafter, tmp_path / "back", progress=add)
    stored = read_safetensors(folder / "model.safetensors")
    assert sum(pieces) == sum(tensor.data.nbytes for tensor in stored.values())
