"""Reads a written drafter back and compares it with what it was made from."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from .errors import ConversionError, mismatch
from .gguf_file import GgufTensor, read_gguf
from .gguf_values import MetadataValue
from .weights import Weights, row_ranges

# As float32, of each of the two tensors compared.
_PIECE_BYTES = 16 << 20
# Bits of a stored weight, and the largest number that its F16 scale is multiplied by. No weight may
# be further off than one step of the type over its block, from minus to plus the largest magnitude
# there: half a step is rounding, the rest covers that scales are rounded too (to F16, in K-quants
# to 6 bits) and that the types without an offset reach one step less far on one side.
_QUANTIZED = {
    GGMLQuantizationType.Q8_0: (8, 127),
    GGMLQuantizationType.Q4_0: (4, 8),
    GGMLQuantizationType.Q4_1: (4, 16),
    GGMLQuantizationType.Q5_0: (5, 16),
    GGMLQuantizationType.Q5_1: (5, 32),
    GGMLQuantizationType.Q4_K: (4, 63 * 16),
    GGMLQuantizationType.Q5_K: (5, 63 * 32),
    GGMLQuantizationType.Q6_K: (6, 128 * 32),
}
_SMALLEST_F16 = 2.0**-24
# Half a unit in the last place relative to the weight, and half of the smallest number.
_ROUNDING = {
    GGMLQuantizationType.I64: (0.0, 0.0),
    GGMLQuantizationType.F32: (0.0, 0.0),
    GGMLQuantizationType.F16: (2.0**-11, _SMALLEST_F16 / 2),
    GGMLQuantizationType.BF16: (2.0**-8, 2.0**-134),
}
# Keys that llama-quantize sets itself when it makes the types that only it can.
_QUANTIZER_KEYS = ("general.file_type", "general.quantization_version")


def verify_drafter(
    path: Path, metadata: Mapping[str, MetadataValue], sources: Mapping[str, Weights]
) -> None:
    """Compares keys, names, shapes and every weight of a written file with their sources.

    A weight may be off by what its type loses: F32 nothing, F16 and BF16 half a unit in the last
    place, quantized types one step of their block.

    Args:
        path: The GGUF file.
        metadata: What its keys must be, ``general.architecture`` left out.
        sources: What each of its tensors was made from, by its GGUF name.

    Raises:
        ConversionError: Something differs; the message names the first key or tensor.
    """
    file = read_gguf(path)
    _compare_names("key", file.metadata.keys() - {"general.architecture"}, set(metadata))
    for key, wanted in metadata.items():
        if key not in _QUANTIZER_KEYS and not _equal(file.metadata[key], wanted):
            message = f"verification failed: key {key} differs from what was to be written"
            raise ConversionError(message)
    _compare_names("tensor", set(file.tensors), set(sources))
    for name, source in sources.items():
        _compare_weights(file.tensors[name], source)


def _compare_names(what: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        differing = ", ".join(sorted(found ^ wanted))
        message = f"verification failed: a {what} is missing or was not to be written: {differing}"
        raise ConversionError(message)


def _equal(found: MetadataValue, wanted: MetadataValue) -> bool:
    value = wanted.value
    if isinstance(value, float) and wanted.type is GGUFValueType.FLOAT32:
        value = float(np.float32(value))
    return found == wanted._replace(value=value)


def _compare_weights(written: GgufTensor, source: Weights) -> None:
    where = f"verification failed: tensor {written.name}"
    if written.shape != source.shape:
        raise mismatch(list(written.shape), at=f"{where}: shape", needed=f"{list(source.shape)}")
    for first_row, n_rows in row_ranges(source.shape, _PIECE_BYTES):
        wanted = source.read(first_row, n_rows)
        found = written.read(first_row, n_rows)
        # Written so that NaN is wrong too.
        wrong = ~(np.abs(found - wanted) <= _tolerance(wanted, written.type))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise mismatch(
                float(found[row, column]),
                at=f"{where}: weight [{first_row + row}, {column}]",
                needed=f"{float(wanted[row, column])} within what {written.type.name} loses",
            )


def _tolerance(weights: NDArray[np.float32], type_: GGMLQuantizationType) -> NDArray[np.float32]:
    if type_ in _ROUNDING:
        relative, smallest = _ROUNDING[type_]
        return np.abs(weights) * np.float32(relative) + np.float32(smallest)
    if type_ not in _QUANTIZED:  # copied as the target has it
        return np.zeros_like(weights)
    block, _ = GGML_QUANT_SIZES[type_]
    largest = np.abs(weights.reshape(-1, block)).max(axis=1)
    bits, multiplier = _QUANTIZED[type_]
    step = largest * np.float32(2 / (2**bits - 1)) + np.float32(multiplier * _SMALLEST_F16 / 2)
    return np.repeat(step, block).reshape(weights.shape)
