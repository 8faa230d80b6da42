"""Quantized files against ggml's own code and against dequantised references."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from dflash2.convert import ConversionError, convert_drafter
from dflash2.convert.quantize import encode
from dflash2.paths import LIBRARIES, PROGRAMS
from dflash2.programs import program_path
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from tiny import MASK, mutate_gguf

from . import checkpoints
from .checkpoints import Stored, spoiled, write_checkpoint
from .conftest import Refuse
from .drafting import draft, draftable
from .reading import dflash_keys, gguf_name, metadata, tensors

QUANTIZED = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
RNG = np.random.default_rng(0)
GGML_FUNCTIONS = {
    "f16": "ggml_fp32_to_fp16_row",
    "bf16": "ggml_fp32_to_bf16_row_ref",
    **{name: f"quantize_row_{name}_ref" for name in QUANTIZED},
}
K_TYPES = {"q4_k_m": (15, "Q4_K"), "q5_k_m": (17, "Q5_K"), "q6_k": (18, "Q6_K")}


def library(name: str) -> ctypes.CDLL:
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    found = [*LIBRARIES.glob(f"*{name}{suffix}*"), *PROGRAMS.glob(f"*{name}{suffix}*")]
    return ctypes.CDLL(str(found[0]))


def ggml_encoded(rows: NDArray[np.float32], name: str) -> bytes:
    block, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    out = np.empty(rows.size // block * block_bytes, np.uint8)
    arguments = rows.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)
    getattr(library("ggml-base"), GGML_FUNCTIONS[name])(*arguments, ctypes.c_int64(rows.size))
    return out.tobytes()


def normal(scale: float) -> NDArray[np.float32]:
    return (RNG.standard_normal((256, 256)) * scale).astype(np.float32)


def few_values() -> NDArray[np.float32]:
    """Blocks of one value, of zeros, and of one weight among zeros."""
    rows = np.zeros((64, 256), np.float32)
    rows[::2, 5], rows[1::4], rows[3::4, 7] = 1, 3, -2
    return rows


CASES = {
    **{f"normal {scale}": normal(scale) for scale in (1, 0.02, 1e-4, 1e-7, 1e-20, 2000)},
    "bf16": (normal(0.02).view(np.uint32) & 0xFFFF0000).view(np.float32),
    "halves": RNG.integers(-16, 17, (256, 256)).astype(np.float32) / 2,
    "steps of 127": RNG.integers(-254, 255, (256, 256)).astype(np.float32) / 2,
    "few values": few_values(),
    "largest": (normal(20000)).clip(-65504, 65504),
}


@pytest.mark.parametrize("outtype", GGML_FUNCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_bits_are_ggmls(outtype: str, case: str) -> None:
    rows = CASES[case]
    encoded = encode("x", rows, GGMLQuantizationType[outtype.upper()])
    assert encoded.tobytes() == ggml_encoded(rows, outtype)


@pytest.mark.parametrize("outtype", QUANTIZED)
def test_quantized_tensors_are_near_the_weights(
    tmp_path: Path, dense_target: Path, outtype: Any
) -> None:
    weights = checkpoints.weights()
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    path = convert_drafter(source, dense_target, tmp_path, outtype=outtype)
    assert path.name == f"d-{outtype.upper()}.gguf"
    file_types = {"q8_0": 7, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9}
    assert metadata(path)["general.file_type"] == ("UINT32", file_types[outtype])
    found_tensors = tensors(path)
    for released, stored in weights.items():
        written = found_tensors[gguf_name(released)]
        expected = checkpoints.values(stored)
        if written.tensor_type.name == "F32":
            np.testing.assert_array_equal(written.data, expected)
            continue
        assert written.tensor_type.name == outtype.upper()
        found = gguf.quants.dequantize(written.data, written.tensor_type)
        blocks = expected.reshape(-1, 32)
        reach = 2 * np.abs(blocks).max(axis=1, keepdims=True)
        step = reach / (2 ** int(outtype[1]) - 1)
        assert (np.abs(found.reshape(-1, 32) - blocks) <= step).all()


@pytest.mark.parametrize("outtype", QUANTIZED)
def test_rows_that_are_no_whole_blocks_become_f16(
    tmp_path: Path, dense_target: Path, outtype: Any
) -> None:
    settings = checkpoints.config()
    settings["dflash_config"]["selector_rank"] = 8
    weights = checkpoints.weights()
    for name, tensor in weights.items():
        if name.endswith("_codebook"):
            weights[name] = Stored(tensor.dtype, tensor.data[:, :8].copy())
        elif name.endswith("hidden_projection.weight"):
            weights[name] = Stored(tensor.dtype, tensor.data[:8].copy())
    source = write_checkpoint(tmp_path / "d", settings, weights)
    written = tensors(convert_drafter(source, dense_target, tmp_path, outtype=outtype))
    assert written["selector_predecessor.weight"].tensor_type.name == "F16"
    assert written["selector_hidden.weight"].tensor_type.name == outtype.upper()


@pytest.mark.parametrize("outtype", ["q4_1", "q5_1"])
def test_weights_above_what_a_type_holds_are_refused(
    tmp_path: Path, refuse: Refuse, dense_target: Path, outtype: str
) -> None:
    weights = spoiled(checkpoints.weights(), "fc.weight", -70000.0)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    refuse(source, dense_target, "fc.weight", "65504", outtype=outtype)


def wide_drafter(folder: Path) -> Path:
    """A drafter for a target of 512, whose rows are whole blocks of 256."""
    settings = checkpoints.config() | {"hidden_size": 512, "intermediate_size": 256}
    settings |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    settings["dflash_config"]["selector_rank"] = 256
    sizes = {288: 512, 576: 1024, 96: 256, 128: 256, 64: 256, 72: 128}
    weights = {}
    for name, tensor in checkpoints.weights().items():
        shape = [sizes.get(size, size) for size in tensor.data.shape]
        if name.endswith("_codebook"):
            shape = [320, 256]
        elif name.endswith("hidden_projection.weight"):
            shape = [256, 512]
        data = RNG.standard_normal(shape).astype(np.float32)
        weights[name] = checkpoints.stored(data)
    return write_checkpoint(folder, settings, weights)


@pytest.fixture(scope="module")
def wide_target(tiny_folder: Path, dense_target: Path) -> Path:
    changes = {"set_kv": {"qwen3.embedding_length": 512}}
    return mutate_gguf(dense_target, tiny_folder / "wide.gguf", **changes)


@pytest.mark.parametrize("outtype", K_TYPES)
def test_quantizer_makes_k_types(tmp_path: Path, wide_target: Path, outtype: Any) -> None:
    source = wide_drafter(tmp_path / "d")
    program = program_path("llama-quantize")
    path = convert_drafter(source, wide_target, tmp_path, outtype=outtype, quantizer=program)
    f16 = convert_drafter(source, wide_target, tmp_path, outtype="f16")
    file_type, kind = K_TYPES[outtype]
    assert metadata(path)["general.file_type"] == ("UINT32", file_type)
    assert dflash_keys(path) == dflash_keys(f16)
    assert metadata(path, "tokenizer.") == metadata(f16, "tokenizer.")
    assert metadata(path)["tokenizer.ggml.mask_token_id"] == ("UINT32", MASK)
    written, exact = tensors(path), tensors(f16)
    assert written.keys() == exact.keys()
    kinds = {tensor.tensor_type.name for tensor in written.values()}
    assert kinds <= {"F32", kind, "Q6_K"}
    assert kind in kinds
    for name, tensor in written.items():
        reference = gguf.quants.dequantize(exact[name].data, exact[name].tensor_type)
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        error = np.sqrt(np.mean((found - reference) ** 2) / np.mean(reference**2))
        # of 4 bits; nothing at all for norms and base kernels
        assert error < 0.09 if name.endswith(".weight") and "norm" not in name else error == 0
    assert not [child for child in tmp_path.iterdir() if child.name.startswith(".")]


def test_quantizers_file_drafts(tmp_path: Path, dense_target: Path) -> None:
    """Rows that are no whole blocks of 256 get another type from it."""
    weights = draftable(checkpoints.weights())
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    program = program_path("llama-quantize")
    path = convert_drafter(source, dense_target, tmp_path, outtype="q4_k_m", quantizer=program)
    assert path.name == "d-Q4_K_M.gguf"
    assert np.isfinite(draft(dense_target, path).scores).all()


def test_missing_quantizer_is_refused_before_anything_is_read(
    tmp_path: Path, refuse: Refuse
) -> None:
    nowhere = tmp_path / "nowhere"
    refuse(nowhere, nowhere, "q6_k", "llama-quantize", "no path", outtype="q6_k")
    refuse(nowhere, nowhere, "llama-quantize", str(nowhere), outtype="q4_k_m", quantizer=nowhere)


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_failing_quantizer_leaves_nothing(tmp_path: Path, dense_target: Path, source: Path) -> None:
    program = tmp_path / "llama-quantize"
    program.write_text("#!/bin/sh\necho hello\necho out of luck >&2\nexit 3\n")
    program.chmod(0o755)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ConversionError, match=r"exit status 3.*out of luck"):
        convert_drafter(source, dense_target, folder, outtype="q6_k", quantizer=program)
    assert list(folder.iterdir()) == []
