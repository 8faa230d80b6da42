"""Which GGUF type each tensor gets, and the conversion of float32 rows to it.

Norms, attention sinks and convolution base kernels stay F32 in every output type: they are small,
and the runtime reads base kernels as F32 only.
"""

import math
from typing import Literal, TypeAlias, get_args

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from numpy.typing import NDArray

from .blocks import ENCODERS, is_finite
from .errors import ConversionError, mismatch

OutType: TypeAlias = Literal[
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "q6_k"
]
OUT_TYPES: tuple[OutType, ...] = get_args(OutType)
# Made by llama-quantize from F16: their search for scales is far beyond a few lines.
QUANTIZER_TYPES: tuple[OutType, ...] = ("q4_k_m", "q5_k_m", "q6_k")

FILE_TYPES: dict[OutType, LlamaFileType] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
    "q5_0": LlamaFileType.MOSTLY_Q5_0,
    "q5_1": LlamaFileType.MOSTLY_Q5_1,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k_m": LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": LlamaFileType.MOSTLY_Q6_K,
}
_F16_LARGEST = 65504.0
# Largest magnitude that surely does not become infinite. Scales are F16, and a block's largest
# weight is as many scales away from 0; the types with an offset keep its smallest weight as F16.
_LARGEST = {
    GGMLQuantizationType.F32: 3.4028234e38,
    GGMLQuantizationType.F16: _F16_LARGEST,
    GGMLQuantizationType.BF16: 3.3895313e38,
    GGMLQuantizationType.Q8_0: 127 * _F16_LARGEST,
    GGMLQuantizationType.Q4_0: 8 * _F16_LARGEST,
    GGMLQuantizationType.Q4_1: _F16_LARGEST,
    GGMLQuantizationType.Q5_0: 16 * _F16_LARGEST,
    GGMLQuantizationType.Q5_1: _F16_LARGEST,
}


def tensor_type(outtype: OutType, columns: int, keep_f32: bool) -> GGMLQuantizationType:
    """Picks a tensor's type: F16 where its rows do not divide into the blocks of ``outtype``.

    For the types that llama-quantize makes, this is the type of its input.
    """
    if keep_f32:
        return GGMLQuantizationType.F32
    if outtype in QUANTIZER_TYPES:
        return GGMLQuantizationType.F16
    wanted = GGMLQuantizationType[outtype.upper()]
    block, _ = GGML_QUANT_SIZES[wanted]
    return GGMLQuantizationType.F16 if columns % block else wanted


def n_bytes(shape: tuple[int, ...], type_: GGMLQuantizationType) -> int:
    """Size of a tensor of this shape and type."""
    block, block_bytes = GGML_QUANT_SIZES[type_]
    return math.prod(shape) // block * block_bytes


def encode(name: str, rows: NDArray[np.float32], type_: GGMLQuantizationType) -> NDArray[np.uint8]:
    """Converts rows to a tensor type.

    Args:
        name: Name of the tensor, for messages.
        rows: float32 [rows, columns], columns a multiple of the type's block.
        type_: The type to convert to.

    Returns:
        The bytes of the rows in the file.

    Raises:
        ConversionError: A weight is NaN or infinite, or would become infinite.
    """
    # Numbers that a type cannot hold are reported below, not by NumPy.
    with np.errstate(over="ignore", invalid="ignore"):
        encoded = ENCODERS[type_](rows)
    if not is_finite(encoded):
        largest = float(np.abs(rows).max())
        if not math.isfinite(largest):
            message = f"tensor {name} has weights that are NaN or infinite"
            raise ConversionError(message)
        needed = f"at most {_LARGEST[type_]} for {type_.name}: choose bf16 or f32"
        raise mismatch(largest, at=f"largest weight of tensor {name}", needed=needed)
    return encoded.reshape(-1).view(np.uint8)
