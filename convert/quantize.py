"""Which GGUF type each tensor gets, and the conversion of float32 rows to it."""

import math
from typing import Literal, TypeAlias

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray

from .errors import ConversionError, mismatch

OutType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0"]

FILE_TYPES: dict[OutType, LlamaFileType] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_TENSOR_TYPES: dict[OutType, GGMLQuantizationType] = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
# Largest magnitude that does not become infinite; Q8_0 scales a block's largest value to 127.
_LARGEST = {
    GGMLQuantizationType.F32: 3.4028234e38,
    GGMLQuantizationType.F16: 65504.0,
    GGMLQuantizationType.BF16: 3.3895313e38,
    GGMLQuantizationType.Q8_0: 127 * 65504.0,
}
# Far below what a Q8_0 block can tell from 0 (its scale is F16), far above where 1 / scale
# overflows and leaves the quants to chance.
_Q8_0_ZERO = np.float32(1e-30)


def tensor_type(outtype: OutType, columns: int, keep_f32: bool) -> GGMLQuantizationType:
    """Picks a tensor's type: F16 where its rows do not divide into the blocks of ``outtype``."""
    if keep_f32:
        return GGMLQuantizationType.F32
    wanted = _TENSOR_TYPES[outtype]
    block, _ = GGML_QUANT_SIZES[wanted]
    return GGMLQuantizationType.F16 if columns % block else wanted


def n_bytes(shape: tuple[int, ...], type_: GGMLQuantizationType) -> int:
    """Size of a tensor of this shape and type."""
    block, block_bytes = GGML_QUANT_SIZES[type_]
    return math.prod(shape) // block * block_bytes


def encode(name: str, rows: NDArray[np.float32], type_: GGMLQuantizationType) -> bytes:
    """Converts rows to a tensor type.

    Args:
        name: Name of the tensor, for messages.
        rows: float32 [rows, columns], columns a multiple of the type's block.
        type_: The type to convert to.

    Raises:
        ConversionError: A weight is NaN or infinite, or would become infinite.
    """
    largest = np.abs(rows).max(initial=0)
    if not np.isfinite(largest):
        message = f"tensor {name} has weights that are NaN or infinite"
        raise ConversionError(message)
    if largest > _LARGEST[type_]:
        needed = f"at most {_LARGEST[type_]} for {type_.name}: choose bf16 or f32"
        raise mismatch(float(largest), at=f"largest weight of tensor {name}", needed=needed)
    if type_ is GGMLQuantizationType.Q8_0:
        rows = np.where(np.abs(rows) < _Q8_0_ZERO, np.float32(0), rows)
    return quantize(rows, type_).tobytes()
