"""Hundreds of damaged checkpoints: each is refused by the part's name."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from dflash2.convert import (
    ConversionError,
    convert_drafter,
)

from . import checkpoints
from .checkpoints import Stored

WEIGHTS = checkpoints.weights()
CONFIG = checkpoints.config()
MODEL = "model.safetensors"
# keys of the tiny config.json that say nothing about how it drafts, and those that may be left out
IRRELEVANT = {"model_type", "dtype"}
OPTIONAL = {
    *IRRELEVANT,
    *("hidden_act", "attention_bias", "tie_word_embeddings", "num_target_layers"),
    *("layer_types", "is_causal"),
}


Convert: TypeAlias = Callable[[Path], str]


@pytest.fixture
def convert(empty: Path, dense_target: Path) -> Convert:
    """The error of converting this checkpoint."""

    def run(source: Path) -> str:
        with pytest.raises(ConversionError) as error:
            convert_drafter(source, dense_target, empty)
        return str(error.value)

    return run


# checkpoints: tensors


def dropped(name: str) -> checkpoints.Weights:
    return {other: tensor for other, tensor in WEIGHTS.items() if other != name}


def longer(name: str) -> checkpoints.Weights:
    data = WEIGHTS[name].data
    return WEIGHTS | {name: Stored("BF16", np.concatenate([data, data[:1]]))}


def flattened(name: str) -> checkpoints.Weights:
    return WEIGHTS | {name: Stored("BF16", WEIGHTS[name].data.reshape(-1, 1))}


def renamed(name: str) -> checkpoints.Weights:
    return {f"x{other}" if other == name else other: each for other, each in WEIGHTS.items()}


def retyped(name: str) -> checkpoints.Weights:
    return WEIGHTS | {name: Stored("I16", WEIGHTS[name].data.astype(np.int16))}


def spoiled(name: str) -> checkpoints.Weights:
    return checkpoints.spoiled(WEIGHTS, name, np.nan)


@pytest.mark.parametrize("change", [dropped, longer, flattened, renamed, retyped, spoiled])
@pytest.mark.parametrize("name", WEIGHTS)
def test_tensor_of_a_checkpoint(
    tmp_path: Path,
    convert: Convert,
    change: Callable[[str], checkpoints.Weights],
    name: str,
) -> None:
    source = checkpoints.write_checkpoint(tmp_path / "d", CONFIG, change(name))
    assert name in convert(source)


# checkpoints: config.json


def config_paths() -> list[tuple[str, ...]]:
    nested = [("dflash_config", key) for key in CONFIG["dflash_config"]]
    rope = [("rope_parameters", key) for key in CONFIG["rope_parameters"]]
    return [*((key,) for key in CONFIG), *nested, *rope]


def changed_config(path: tuple[str, ...], change: Callable[[dict[str, Any], str], None]) -> Any:
    settings = copy.deepcopy(CONFIG)
    table = settings
    for key in path[:-1]:
        table = table[key]
    change(table, path[-1])
    return settings


@pytest.mark.parametrize("path", config_paths(), ids=".".join)
def test_key_left_out_of_config_json(
    tmp_path: Path, convert: Convert, dense_target: Path, path: tuple[str, ...]
) -> None:
    settings = changed_config(path, lambda table, key: table.pop(key))
    source = checkpoints.write_checkpoint(tmp_path / "d", settings, WEIGHTS)
    if path[-1] in {*OPTIONAL, "rope_type"}:
        convert_drafter(source, dense_target, tmp_path)
        return
    # a table is missed by the first key that is looked for in it; a head size has a default
    word = {
        "dflash_config": "block_size",
        "rope_parameters": "rope_theta",
        "head_dim": "self_attn.q_proj",
    }
    assert word.get(path[-1], path[-1]) in convert(source)


@pytest.mark.parametrize("value", ["nonsense", {"a": [1]}, [[]], 1e300, -(2**40)], ids=str)
@pytest.mark.parametrize("path", config_paths(), ids=".".join)
def test_nonsense_in_config_json(
    tmp_path: Path,
    convert: Convert,
    dense_target: Path,
    path: tuple[str, ...],
    value: Any,
) -> None:
    settings = changed_config(path, lambda table, key: table.update({key: value}))
    source = checkpoints.write_checkpoint(tmp_path / "d", settings, WEIGHTS)
    if path[-1] in IRRELEVANT:
        convert_drafter(source, dense_target, tmp_path)
        return
    word = {"dflash_config": "", "rope_parameters": ""}
    assert word.get(path[-1], path[-1]) in convert(source)


def test_more_layers_than_memory_could_list(tmp_path: Path, convert: Convert) -> None:
    settings = CONFIG | {"layer_types": None, "num_hidden_layers": 2**31 - 1}
    source = checkpoints.write_checkpoint(tmp_path / "d", settings, WEIGHTS)
    assert "num_hidden_layers" in convert(source)


# checkpoints: bytes of safetensors


def safetensors_boundaries() -> list[int]:
    text = json.dumps(checkpoints.safetensors_header(WEIGHTS)).encode()
    ends = np.cumsum([tensor.data.nbytes for tensor in WEIGHTS.values()])
    starts = [0, 1, 7, 8, 9, 8 + len(text) // 2, 8 + len(text)]
    return [*starts, *(8 + len(text) + int(end) for end in ends)][:-1]


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("boundary", safetensors_boundaries())
def test_safetensors_cut_at_a_boundary(
    tmp_path: Path, convert: Convert, boundary: int, off: int
) -> None:
    source = checkpoints.write_checkpoint(tmp_path / "d", CONFIG, WEIGHTS)
    file = source / MODEL
    file.write_bytes(file.read_bytes()[: max(0, boundary + off)])
    assert MODEL in convert(source)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 10**5, 10**8, 2**31, 2**32, 2**63, 2**64 - 1])
def test_safetensors_with_an_absurd_header_length(
    tmp_path: Path, convert: Convert, length: int
) -> None:
    source = checkpoints.write_checkpoint(tmp_path / "d", CONFIG, WEIGHTS)
    file = source / MODEL
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert MODEL in convert(source)


# checkpoints: shards and JSON


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return checkpoints.write_sharded(tmp_path / "d", CONFIG, WEIGHTS)


FIRST, SECOND = "drafter-00001-of-00002.safetensors", "drafter-00002-of-00002.safetensors"
INDEX = "drafter.safetensors.index.json"


def loop_of_shards(folder: Path) -> None:
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):
        (folder / name).unlink()
        (folder / name).symlink_to(folder / other)


def index_in_place_of_a_shard(folder: Path) -> None:
    (folder / FIRST).write_bytes((folder / INDEX).read_bytes())


def same_shard_twice(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / FIRST).read_bytes())


def shards_swapped(folder: Path) -> None:
    (folder / FIRST).rename(folder / "third")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "third").rename(folder / SECOND)


def folder_in_place_of_a_shard(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / FIRST).mkdir()


def empty_shard(folder: Path) -> None:
    (folder / FIRST).write_bytes(b"")


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def two_indexes(folder: Path) -> None:
    (folder / "other.safetensors.index.json").write_bytes((folder / INDEX).read_bytes())


def missing_shard(folder: Path) -> None:
    (folder / FIRST).unlink()


@pytest.mark.parametrize(
    "damage",
    [
        loop_of_shards,
        index_in_place_of_a_shard,
        same_shard_twice,
        shards_swapped,
        folder_in_place_of_a_shard,
        empty_shard,
        no_index,
        two_indexes,
        missing_shard,
    ],
    ids=lambda damage: damage.__name__,
)
def test_shards(sharded: Path, convert: Convert, damage: Callable[[Path], None]) -> None:
    damage(sharded)
    assert "drafter" in convert(sharded)


@pytest.mark.parametrize("name", ["config.json", MODEL])
def test_link_or_folder_in_place_of_a_file(tmp_path: Path, convert: Convert, name: str) -> None:
    source = checkpoints.write_checkpoint(tmp_path / "d", CONFIG, WEIGHTS)
    file = source / name
    for make in (lambda: file.symlink_to(file), lambda: file.symlink_to("nowhere"), file.mkdir):
        file.unlink()
        make()
        assert name in convert(source)


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(
    "text", ["", "{", "nul", "[]", '"x"', "1", "\x00\xff", "[" * 10**5, '{"a": 1', "{'a': 1}"]
)
def test_wrong_json(sharded: Path, convert: Convert, name: str, text: str) -> None:
    (sharded / name).write_bytes(text.encode("latin-1"))
    assert name in convert(sharded)


# GGUF files
