"""Damaged and incomplete safetensors files are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import checkpoints
from .checkpoints import write_checkpoint, write_safetensors
from .conftest import Refuse


def cut_at(length: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:length]


def header_length(value: int) -> Callable[[bytes], bytes]:
    return lambda raw: value.to_bytes(8, "little") + raw[8:]


BYTE_REFUSALS: list[Callable[[bytes], bytes]] = [
    *(cut_at(length) for length in (0, 1, 7, 8, 9, 100, -100_000, -2, -1)),
    *(header_length(value) for value in (0, 1, 2, 100, 10**6, 10**8, 2**62, 2**64 - 1)),
    lambda raw: raw + b"\0",
    lambda raw: raw[:8] + b"[" + raw[9:],
    lambda raw: raw[:8] + b"\xff" + raw[9:],
    lambda raw: raw.replace(b'"BF16"', b'"QF16"', 1),
    lambda raw: raw.replace(b'"shape"', b'"shapo"', 1),
    lambda raw: raw.replace(b'"norm.weight"', b'"Norm.weight"', 1),
    lambda raw: b"GGUF" + raw[4:],
]


@pytest.mark.parametrize("change", BYTE_REFUSALS)
def test_damaged_safetensors_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, change: Callable[[bytes], bytes]
) -> None:
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), checkpoints.weights())
    file = source / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    refuse(
        source,
        dense_target,
    )


def entry(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Changes the header entry of the second tensor."""
    return lambda header: header | {"hidden_norm.weight": header["hidden_norm.weight"] | changes}


def doubled(header: dict[str, Any]) -> str:
    text = json.dumps(header["norm.weight"])
    return json.dumps(header)[:-1] + f', "norm.weight": {text}}}'


HEADER_REFUSALS: list[tuple[Callable[[dict[str, Any]], Any], tuple[str, ...]]] = [
    (lambda header: [header], ("header", "'list'")),
    (lambda header: "[" * 100_000, ("header", "JSON")),
    (lambda header: '{"a": ' + "9" * 5000 + "}", ("header", "JSON")),
    (doubled, ("norm.weight", "twice")),
    (lambda header: header | {"norm.weight": 3}, ("norm.weight", "3")),
    (entry(shape=[289]), ("hidden_norm.weight", "578 bytes", "[289]")),
    (entry(shape=[-288]), ("hidden_norm.weight", "[-288]")),
    (entry(shape=[288.0]), ("hidden_norm.weight", "[288.0]")),
    (entry(shape=[2**62, 2**62]), ("hidden_norm.weight", "data_offsets", str(2**125))),
    (entry(dtype="F4"), ("hidden_norm.weight", "'F4'")),
    (entry(dtype=["BF16"]), ("hidden_norm.weight", "['BF16']")),
    (entry(data_offsets=[0, 576]), ("fc.weight", "576, no gap, no overlap")),
    (entry(data_offsets=[576, 0]), ("hidden_norm.weight", "[576, 0]")),
    (entry(data_offsets=[331780, 332356]), ("hidden_norm.weight", "no gap")),
    (entry(data_offsets=[331776]), ("hidden_norm.weight", "[331776]")),
    (entry(data_offsets=[2**70, 2**70 + 576]), ("norm.weight", "no gap")),
    (entry(extra=1), ("hidden_norm.weight", "extra")),
    (lambda header: dict(list(header.items())[:-1]), ("file size",)),
]


@pytest.mark.parametrize(("change", "words"), HEADER_REFUSALS)
def test_wrong_safetensors_header_is_refused(
    tmp_path: Path,
    refuse: Refuse,
    dense_target: Path,
    change: Callable[[dict[str, Any]], Any],
    words: tuple[str, ...],
) -> None:
    weights = checkpoints.weights()
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    header = change(checkpoints.safetensors_header(weights))
    write_safetensors(source / "model.safetensors", weights, header)
    refuse(source, dense_target, "model.safetensors", *words)


def test_folder_without_the_files_is_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path
) -> None:
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), checkpoints.weights())
    second = source / "second.safetensors"
    second.write_bytes((source / "model.safetensors").read_bytes())
    refuse(source, dense_target, "model.safetensors", "second.safetensors")
    second.unlink()
    (source / "model.safetensors").unlink()
    refuse(source, dense_target, "none", "*.safetensors")
    (source / "config.json").unlink()
    refuse(source, dense_target, "config.json")


FIRST, SECOND = "drafter-00001-of-00002.safetensors", "drafter-00002-of-00002.safetensors"


def remapped(index: dict[str, Any], shard: Any) -> dict[str, Any]:
    return index | {"weight_map": index["weight_map"] | {"fc.weight": shard}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index | {"weight_map": None}, ("weight_map", "missing")),
        (lambda index: index | {"weight_map": {}}, ("weight_map", "{}")),
        (lambda index: remapped(index, "third.safetensors"), ("third.safetensors", "missing")),
        (lambda index: remapped(index, f"../d/{FIRST}"), ("fc.weight", f"../d/{FIRST}")),
        (lambda index: remapped(index, "drafter.safetensors.index.json"), ("fc.weight",)),
        (lambda index: remapped(index, 3), ("fc.weight", "3")),
        (lambda index: remapped(index, FIRST), (FIRST, "fc.weight")),
    ],
)
def test_wrong_shard_index_is_refused(
    tmp_path: Path,
    refuse: Refuse,
    dense_target: Path,
    change: Callable[[dict[str, Any]], Any],
    words: tuple[str, ...],
) -> None:
    source = checkpoints.write_sharded(tmp_path / "d", checkpoints.config(), checkpoints.weights())
    index = source / "drafter.safetensors.index.json"
    index.write_text(json.dumps(change(json.loads(index.read_text()))))
    refuse(source, dense_target, index.name, *words)


def test_missing_shard_is_refused(tmp_path: Path, refuse: Refuse, dense_target: Path) -> None:
    source = checkpoints.write_sharded(tmp_path / "d", checkpoints.config(), checkpoints.weights())
    (source / SECOND).unlink()
    refuse(source, dense_target, SECOND, "missing")
