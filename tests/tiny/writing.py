"""A GGUF from plain Python values and arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from tiny.vocabulary import add_vocabulary

Array = NDArray[np.float32]

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


class Pair(NamedTuple):
    """Paths of a target and its drafter."""

    target: Path
    drafter: Path


def normal(rng: np.random.Generator, *shape: int, std: float | None = None) -> Array:
    """Random [out, in] that keeps the size of its input, or has the given standard deviation."""
    scale = shape[-1] ** -0.5 if std is None else std
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def near_one(rng: np.random.Generator, *shape: int, mean: float = 1.0) -> Array:
    """Norm weights: spread enough that leaving one out shows."""
    return (mean * (1 + 0.1 * rng.standard_normal(shape))).astype(np.float32)


def write_model(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Array],
    n_vocab: int,
    dtype: str = "f32",
) -> Path:
    """Writes a model with the byte-level tokenizer.

    Keys that start with "." get the architecture as prefix. Matrices are stored as `dtype`, in F16
    where their rows do not fit it; norms, biases and kernels in F32.
    """
    writer = gguf.GGUFWriter(path, arch)
    add_vocabulary(writer, n_vocab)
    for key, value in metadata.items():
        add_value(writer, arch + key if key.startswith(".") else key, value)
    for name, value in tensors.items():
        kind = TYPES[dtype] if value.ndim == 2 and name.endswith(".weight") else TYPES["f32"]
        if kind.name.startswith("Q") and value.shape[-1] % 32:
            kind = TYPES["f16"]
        # the short convolution of a delta net has a kernel that only exists in F32
        if name.endswith("ssm_conv1d.weight"):
            kind = TYPES["f32"]
        writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    finish(writer)
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Writes whole numbers as u32, fractions as f32, lists of them as i32[]: llama.cpp's types."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
