"""Keys, names, shapes and types of the output, compared with the tables of the format."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from dflash2.convert import convert_drafter
from numpy.typing import NDArray

from . import checkpoints
from .checkpoints import write_checkpoint
from .reading import TINY, TINY_DFLASH2, dflash_keys, gguf_name, metadata, tensors

SHIPPED = {
    "dflash.block_count": ("UINT32", 4),
    "dflash.context_length": ("UINT32", 8192),
    "dflash.embedding_length": ("UINT32", 576),
    "dflash.feed_forward_length": ("UINT32", 1536),
    "dflash.attention.head_count": ("UINT32", 9),
    "dflash.attention.head_count_kv": ("UINT32", 3),
    "dflash.attention.key_length": ("UINT32", 64),
    "dflash.attention.value_length": ("UINT32", 64),
    "dflash.attention.layer_norm_rms_epsilon": ("FLOAT32", float(np.float32(1e-5))),
    "dflash.attention.causal": ("BOOL", False),
    "dflash.rope.freq_base": ("FLOAT32", 100000.0),
    "dflash.block_size": ("UINT32", 8),
    "dflash.target_layers": ("ARRAY INT32", [2, 9, 16, 23, 29]),
    "dflash.target_block_count": ("UINT32", 30),
    "dflash.conv_kernel_size": ("UINT32", 2),
    "dflash.conv_group_size": ("UINT32", 16),
    "dflash.selector_rank": ("UINT32", 128),
    "dflash.selector_top_k": ("UINT32", 16),
}


def is_kept_f32(name: str) -> bool:
    return name.endswith(("norm.weight", "_conv_base"))


def q8_0(block: NDArray[np.float32]) -> NDArray[np.float32]:
    """What Q8_0 keeps of rows of 32, as ggml rounds: halves go away from zero."""
    scale = np.abs(block).max(axis=-1, keepdims=True) / np.float32(127)
    steps = (block * (np.float32(1) / scale)).astype(np.float64)
    steps = np.sign(steps) * np.floor(np.abs(steps) + 0.5)
    return steps.astype(np.float32) * scale.astype(np.float16)


def expected_values(source: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    if kind == "Q8_0":
        return q8_0(source.reshape(-1, 32)).reshape(source.shape)
    return source.astype(np.float16).astype(np.float32) if kind == "F16" else source


@pytest.mark.parametrize("dflash2", [True, False], ids=["dflash2", "dflash1"])
@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_metadata_and_tensors_follow_the_format(
    tmp_path: Path, dense_target: Path, outtype: Any, dflash2: bool
) -> None:
    weights = checkpoints.weights(dflash2=dflash2)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(dflash2=dflash2), weights)
    path = convert_drafter(source, dense_target, tmp_path / "out.gguf", outtype=outtype)

    tokenizer = metadata(dense_target, "tokenizer.")
    assert metadata(path) == {
        "general.architecture": ("STRING", "dflash"),
        "general.type": ("STRING", "model"),
        "general.name": ("STRING", "d"),
        "general.file_type": ("UINT32", {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[outtype]),
        "general.quantization_version": ("UINT32", 2),
        "tokenizer.ggml.mask_token_id": ("UINT32", checkpoints.MASK),
        **TINY,
        **(TINY_DFLASH2 if dflash2 else {}),
        **tokenizer,
    }
    written = tensors(path)
    assert written.keys() == {gguf_name(name) for name in weights}
    for released, stored in weights.items():
        name = gguf_name(released)
        kind = "F32" if is_kept_f32(name) else outtype.upper()
        assert written[name].tensor_type.name == kind
        assert list(written[name].shape) == list(reversed(stored.data.shape))
        found = gguf.quants.dequantize(written[name].data, written[name].tensor_type)
        expected = expected_values(checkpoints.values(stored), kind)
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_demo_drafter_has_the_released_tables(demo_drafter: Path) -> None:
    reader = gguf.GGUFReader(demo_drafter)
    assert dflash_keys(reader) == SHIPPED
    layer = {
        "attn_norm.weight": ([576], "F32"),
        "attn_q.weight": ([576, 576], "F16"),
        "attn_k.weight": ([576, 192], "F16"),
        "attn_v.weight": ([576, 192], "F16"),
        "attn_output.weight": ([576, 576], "F16"),
        "attn_q_norm.weight": ([64], "F32"),
        "attn_k_norm.weight": ([64], "F32"),
        "ffn_norm.weight": ([576], "F32"),
        "ffn_gate.weight": ([576, 1536], "F16"),
        "ffn_up.weight": ([576, 1536], "F16"),
        "ffn_down.weight": ([1536, 576], "F16"),
        "attn_conv_base": ([576, 2, 2], "F32"),
        "attn_conv_proj.weight": ([576, 144], "F16"),
        "ffn_conv_base": ([576, 2, 2], "F32"),
        "ffn_conv_proj.weight": ([576, 144], "F16"),
    }
    assert {
        tensor.name: (tensor.shape.tolist(), tensor.tensor_type.name) for tensor in reader.tensors
    } == {
        "fc.weight": ([2880, 576], "F16"),
        "enc.output_norm.weight": ([576], "F32"),
        "output_norm.weight": ([576], "F32"),
        **{f"blk.{i}.{name}": value for i in range(4) for name, value in layer.items()},
        "selector_predecessor.weight": ([128, 49152], "F16"),
        "selector_successor.weight": ([128, 49152], "F16"),
        "selector_hidden.weight": ([576, 128], "F16"),
    }


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_output_is_the_same_in_every_run(
    tmp_path: Path, dense_target: Path, source: Path, outtype: Any
) -> None:
    first = convert_drafter(source, dense_target, tmp_path / "1.gguf", outtype=outtype)
    second = convert_drafter(source, dense_target, tmp_path / "2.gguf", outtype=outtype)
    assert first.read_bytes() == second.read_bytes()


def test_target_with_mrope_gives_plain_sections(
    tmp_path: Path, hybrid_target: Path, source: Path
) -> None:
    keys = dflash_keys(convert_drafter(source, hybrid_target, tmp_path))
    assert keys.pop("dflash.rope.dimension_sections") == ("ARRAY INT32", [16, 0, 0, 0])
    assert keys == {**TINY, **TINY_DFLASH2}
