"""ggml's simple types, encoded as ggml's reference code does, bit for bit.

A block of 32 weights becomes a scale, perhaps an offset, and 32 small integers. The arithmetic is
float32 throughout, since another precision would round some weights to another integer.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.float32]

_BLOCK = 32
# Added before cutting off the fraction, rounds halves away from zero as C's roundf does. With 0.5
# itself, the largest float below 0.5 would become 1.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
# Far below what an F16 scale can tell from 0, far above where 1 / scale overflows and leaves the
# integers to chance.
_VANISHING = np.float32(1e-30)


def encode_f32(rows: Rows) -> bytes:
    """F32."""
    return rows.astype("<f4", copy=False).tobytes()


def encode_f16(rows: Rows) -> bytes:
    """F16."""
    return rows.astype("<f2").tobytes()


def encode_bf16(rows: Rows) -> bytes:
    """BF16: float32 cut in half, halves rounded to even."""
    bits = rows.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype("<u2").tobytes()


def encode_q8_0(rows: Rows) -> bytes:
    """8 bits, symmetric."""
    blocks = _blocks(rows)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    scaled = blocks * _inverse(scale)[:, None]
    scaled += np.copysign(_BELOW_HALF, scaled)
    out = np.empty(len(blocks), [("d", "<f2"), ("qs", "i1", _BLOCK)])
    out["d"], out["qs"] = scale, scaled
    return out.tobytes()


def encode_q4_0(rows: Rows) -> bytes:
    """4 bits, the weight of largest magnitude exact."""
    scale, quants = _one_sided(_blocks(rows), 16)
    out = np.empty(len(quants), [("d", "<f2"), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["qs"] = scale, _nibbles(quants)
    return out.tobytes()


def encode_q5_0(rows: Rows) -> bytes:
    """5 bits, the weight of largest magnitude exact; the fifth bits lie together."""
    scale, quants = _one_sided(_blocks(rows), 32)
    out = np.empty(len(quants), [("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["qh"], out["qs"] = scale, _fifth_bits(quants), _nibbles(quants)
    return out.tobytes()


def encode_q4_1(rows: Rows) -> bytes:
    """4 bits above the smallest weight."""
    scale, offset, quants = _two_sided(_blocks(rows), 16)
    out = np.empty(len(quants), [("d", "<f2"), ("m", "<f2"), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["m"], out["qs"] = scale, offset, _nibbles(quants)
    return out.tobytes()


def encode_q5_1(rows: Rows) -> bytes:
    """5 bits above the smallest weight; the fifth bits lie together."""
    scale, offset, quants = _two_sided(_blocks(rows), 32)
    fields = [("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", _BLOCK // 2)]
    out = np.empty(len(quants), fields)
    out["d"], out["m"] = scale, offset
    out["qh"], out["qs"] = _fifth_bits(quants), _nibbles(quants)
    return out.tobytes()


ENCODERS: dict[GGMLQuantizationType, Callable[[Rows], bytes]] = {
    GGMLQuantizationType.F32: encode_f32,
    GGMLQuantizationType.F16: encode_f16,
    GGMLQuantizationType.BF16: encode_bf16,
    GGMLQuantizationType.Q8_0: encode_q8_0,
    GGMLQuantizationType.Q4_0: encode_q4_0,
    GGMLQuantizationType.Q4_1: encode_q4_1,
    GGMLQuantizationType.Q5_0: encode_q5_0,
    GGMLQuantizationType.Q5_1: encode_q5_1,
}


def _blocks(rows: Rows) -> Rows:
    blocks = rows.reshape(-1, _BLOCK)
    magnitudes = np.abs(blocks)
    if magnitudes.max(axis=1).min(initial=np.inf) >= _VANISHING:
        return blocks
    return np.where(magnitudes < _VANISHING, np.float32(0), blocks)


def _one_sided(blocks: Rows, n_levels: int) -> tuple[Rows, NDArray[np.uint8]]:
    """Scales such that the weight of largest magnitude becomes level 0, and the levels."""
    high, low = blocks.max(axis=1), blocks.min(axis=1)
    extreme = np.where(high > -low, high, low)
    if (tied := np.flatnonzero(high == -low)).size:  # the first of them counts
        first = np.abs(blocks[tied]).argmax(axis=1)
        extreme[tied] = blocks[tied, first]
    # + 0 makes a negative zero positive, as ggml starts its search from there.
    scale = (extreme + np.float32(0)) / np.float32(-n_levels // 2)
    scaled = blocks * _inverse(scale)[:, None]
    scaled += np.float32(n_levels // 2 + 0.5)
    return scale, np.minimum(scaled, np.float32(n_levels - 1)).astype(np.uint8)


def _two_sided(blocks: Rows, n_levels: int) -> tuple[Rows, Rows, NDArray[np.uint8]]:
    """Scales and offsets such that the weights reach from level 0 to the last, and the levels."""
    high, low = blocks.max(axis=1), blocks.min(axis=1)
    scale = (high - low) / np.float32(n_levels - 1)
    scaled = (blocks - low[:, None]) * _inverse(scale)[:, None]
    scaled += np.float32(0.5)
    return scale, low, np.minimum(scaled, np.float32(n_levels - 1)).astype(np.uint8)


def _inverse(scale: Rows) -> Rows:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _nibbles(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two to a byte: the first half of a block in the low bits, the second in the high ones."""
    low, high = quants[:, : _BLOCK // 2] & np.uint8(15), quants[:, _BLOCK // 2 :] & np.uint8(15)
    return low | (high << np.uint8(4))


def _fifth_bits(quants: NDArray[np.uint8]) -> NDArray[Any]:
    return np.packbits(quants >> np.uint8(4), axis=1, bitorder="little")
