"""Hundreds of damaged GGUF drafters: each is refused by the part's name."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from dflash2.convert import (
    ConversionError,
    convert_drafter,
    convert_to_safetensors,
    inspect_drafter,
)
from gguf import GGMLQuantizationType, GGUFValueType

from . import checkpoints
from .gguf_bytes import Key, Parts, Tensor, taken_apart

WEIGHTS = checkpoints.weights()
CONFIG = checkpoints.config()

Inspect: TypeAlias = Callable[[bytes], str]


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, dense_target: Path) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    source = checkpoints.write_checkpoint(folder / "d", CONFIG, WEIGHTS)
    return convert_drafter(source, dense_target, folder)


@pytest.fixture(scope="module")
def good_parts(drafter: Path) -> Parts:
    return taken_apart(drafter)


@pytest.fixture
def parts(good_parts: Parts) -> Parts:
    return copy.deepcopy(good_parts)


@pytest.fixture
def inspect(tmp_path: Path, empty: Path, dense_target: Path) -> Inspect:
    """The error of inspecting these bytes; converting them back must be refused alike."""

    def run(raw: bytes) -> str:
        path = tmp_path / "bad.gguf"
        path.write_bytes(raw)
        with pytest.raises(ConversionError, match=r"bad\.gguf") as error:
            inspect_drafter(path, dense_target)
        with pytest.raises(ConversionError, match=re.escape(str(error.value))):
            convert_to_safetensors(path, empty / "out")
        return str(error.value)

    return run


def test_parts_put_together_are_the_drafter(
    tmp_path: Path, drafter: Path, parts: Parts, dense_target: Path
) -> None:
    assert drafter.read_bytes().startswith(parts.assembled())
    path = tmp_path / "good.gguf"
    path.write_bytes(parts.assembled())
    assert inspect_drafter(path, dense_target) == replace(
        inspect_drafter(drafter, dense_target), path=str(path), n_bytes=path.stat().st_size
    )


GGUF_TENSORS = [
    "fc.weight",
    "enc.output_norm.weight",
    "output_norm.weight",
    *(
        f"blk.{layer}.{name}"
        for layer in range(2)
        for name in (
            *("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight"),
            *("attn_output.weight", "attn_q_norm.weight", "attn_k_norm.weight"),
            *("ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
            *("attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight"),
        )
    ),
    "selector_predecessor.weight",
    "selector_successor.weight",
    "selector_hidden.weight",
]


def drop_tensor(parts: Parts, name: str) -> None:
    del parts.tensors[name]


def rename_tensor(parts: Parts, name: str) -> None:
    parts.tensors = {f"{n}.x" if n == name else n: each for n, each in parts.tensors.items()}


def lengthen_tensor(parts: Parts, name: str) -> None:
    tensor = parts.tensors[name]
    row = len(tensor.data) // tensor.shape[0]
    tensor.shape = (tensor.shape[0] + 1, *tensor.shape[1:])
    tensor.data += tensor.data[:row]


def reshape_tensor(parts: Parts, name: str) -> None:
    tensor = parts.tensors[name]
    tensor.shape = (1, *tensor.shape)


def make_integers(parts: Parts, name: str) -> None:
    tensor = parts.tensors[name]
    wide = len(tensor.data) == 4 * int(np.prod(tensor.shape))
    tensor.type = GGMLQuantizationType.I32 if wide else GGMLQuantizationType.I16


def make_unknown_type(parts: Parts, name: str) -> None:
    parts.tensors[name].type = 999


def move_tensor(parts: Parts, name: str) -> None:
    parts.tensors[name].offset = 2**40


def no_dimensions(parts: Parts, name: str) -> None:
    parts.tensors[name].shape = ()


def absurd_dimension(parts: Parts, name: str) -> None:
    tensor = parts.tensors[name]
    tensor.shape = (2**60, *tensor.shape[1:])


@pytest.mark.parametrize(
    "change",
    [
        drop_tensor,
        rename_tensor,
        lengthen_tensor,
        reshape_tensor,
        make_integers,
        make_unknown_type,
        move_tensor,
        no_dimensions,
        absurd_dimension,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("name", GGUF_TENSORS)
def test_tensor_of_a_gguf(
    parts: Parts,
    inspect: Inspect,
    change: Callable[[Parts, str], None],
    name: str,
) -> None:
    change(parts, name)
    assert name in inspect(parts.assembled())


TOKENS = "tokenizer.ggml.tokens"
REQUIRED_KEYS = [
    "general.architecture",
    *("dflash.block_count", "dflash.context_length", "dflash.embedding_length"),
    *("dflash.feed_forward_length", "dflash.attention.head_count"),
    *("dflash.attention.head_count_kv", "dflash.attention.key_length"),
    *("dflash.attention.value_length", "dflash.attention.layer_norm_rms_epsilon"),
    *("dflash.rope.freq_base", "dflash.block_size", "dflash.target_layers"),
    *("dflash.conv_kernel_size", "dflash.conv_group_size", "dflash.selector_rank"),
    *("dflash.selector_top_k", TOKENS, "tokenizer.ggml.mask_token_id"),
]
OTHER_KEYS = ["dflash.attention.causal", "dflash.target_block_count"]


def test_every_key_of_the_drafter_is_mutated(parts: Parts) -> None:
    assert {key for key in parts.keys if key.startswith("dflash.")} <= {*REQUIRED_KEYS, *OTHER_KEYS}


@pytest.mark.parametrize("key", REQUIRED_KEYS)
def test_key_left_out_of_a_gguf(parts: Parts, inspect: Inspect, key: str) -> None:
    del parts.keys[key]
    # without the number of candidates it is a DFlash file with tensors and keys of DFlash 2
    assert key.removeprefix("dflash.") in inspect(parts.assembled())


@pytest.mark.parametrize("key", [key for key in REQUIRED_KEYS if key.startswith("dflash.")])
def test_renamed_key_of_a_gguf(parts: Parts, inspect: Inspect, key: str) -> None:
    parts.keys = {f"{k}_x" if k == key else k: value for k, value in parts.keys.items()}
    assert key in inspect(parts.assembled())


@pytest.mark.parametrize(
    "value",
    [
        Key(GGUFValueType.STRING, "nonsense"),
        Key(GGUFValueType.ARRAY, [], GGUFValueType.INT32),
        Key(GGUFValueType.ARRAY, ["a"], GGUFValueType.STRING),
        Key(GGUFValueType.FLOAT32, float("nan")),
        Key(GGUFValueType.INT32, -5),
        Key(GGUFValueType.UINT64, 2**63),
    ],
    ids=lambda value: f"{value.type.name}-{value.value}",
)
@pytest.mark.parametrize("key", [*REQUIRED_KEYS, *OTHER_KEYS])
def test_nonsense_in_a_key_of_a_gguf(parts: Parts, inspect: Inspect, key: str, value: Key) -> None:
    parts.keys[key] = value
    error = inspect(parts.assembled())
    # a vocabulary of one token is noticed by the mask token, which lies beyond it
    assert key.removeprefix("dflash.") in error or (key, value.value) == (TOKENS, ["a"])


def test_more_layers_than_memory_could_list_in_a_gguf(parts: Parts, inspect: Inspect) -> None:
    parts.keys["dflash.block_count"] = Key(GGUFValueType.UINT32, 2**32 - 1)
    assert "dflash.block_count" in inspect(parts.assembled())


def gguf_boundaries() -> range:
    # 4 of the head, one for each of the keys and tensors, 2 of the data
    return range(4 + 30 + len(GGUF_TENSORS) + 2)


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("number", gguf_boundaries())
def test_gguf_cut_at_a_boundary(parts: Parts, inspect: Inspect, number: int, off: int) -> None:
    raw = parts.assembled()
    boundary = parts.boundaries[number - len(gguf_boundaries())]
    cut = raw[: boundary + off]
    if len(cut) == len(raw):
        return
    inspect(cut)


@pytest.mark.parametrize("value", [2**31, 2**32, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("offset", [8, 16, 24], ids=["n_tensors", "n_keys", "length of a key"])
def test_gguf_with_absurd_numbers(parts: Parts, inspect: Inspect, offset: int, value: int) -> None:
    raw = bytearray(parts.assembled())
    raw[offset : offset + 8] = value.to_bytes(8, "little")
    assert str(value) in inspect(bytes(raw))


def test_tensor_twice_in_a_gguf(parts: Parts, inspect: Inspect) -> None:
    parts.tensors["fc.weighu"] = Tensor((288,), GGMLQuantizationType.F32, bytes(4 * 288))
    assert "fc.weight" in inspect(parts.assembled().replace(b"fc.weighu", b"fc.weight"))


def test_key_twice_in_a_gguf(parts: Parts, inspect: Inspect) -> None:
    parts.keys["dflash.block_sizf"] = Key(GGUFValueType.UINT32, 4)
    raw = parts.assembled().replace(b"dflash.block_sizf", b"dflash.block_size")
    assert "dflash.block_size" in inspect(raw)
