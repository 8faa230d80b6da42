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
_SIGN = np.uint32(1 << 31)
# Added with a weight's sign before cutting off the fraction, rounds halves away from zero as C's
# roundf does. With 0.5 itself, the largest float below 0.5 would become 1.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0)).view(np.uint32)
# Far below what an F16 scale can tell from 0, far above where 1 / scale overflows and leaves the
# integers to chance.
_VANISHING = np.float32(1e-30)
# Smallest float32 magnitudes, as bits, that become a normal F16 number and infinity.
_F16_NORMAL, _F16_INFINITE = np.uint32(0x38800000), np.uint32(0x477FF000)

# As bits, by the type of an encoder's result without scales; u2 is BF16.
_INFINITY = {"<f4": 0x7F800000, "<f2": 0x7C00, "<u2": 0x7F80}


def encode_f32(rows: Rows) -> NDArray[Any]:
    """F32."""
    return rows.astype("<f4", copy=False)


def encode_f16(rows: Rows) -> NDArray[Any]:
    """F16. NumPy converts one number after the other; whole arrays of bits are faster."""
    bits = rows.ravel().view(np.uint32)
    magnitudes = bits & ~_SIGN
    # Cuts 13 bits off the mantissa, halves rounded to even, and moves the exponent's bias.
    rounded = magnitudes + (((bits >> np.uint32(13)) & np.uint32(1)) + np.uint32(0xFFF))
    halves = ((rounded >> np.uint32(13)) - np.uint32(112 << 10)).astype(np.uint16)
    halves |= ((bits & _SIGN) >> np.uint32(16)).astype(np.uint16)
    others = np.flatnonzero((magnitudes < _F16_NORMAL) | (magnitudes >= _F16_INFINITE))
    halves[others] = rows.ravel()[others].astype(np.float16).view(np.uint16)
    return halves.view(np.float16).astype("<f2", copy=False)


def encode_bf16(rows: Rows) -> NDArray[Any]:
    """BF16 as its bits: float32 cut in half, halves rounded to even."""
    bits = rows.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype("<u2")


def encode_q8_0(rows: Rows) -> NDArray[Any]:
    """8 bits, symmetric."""
    blocks, largest = _blocks(rows)
    scale = largest / np.float32(127)
    scaled = blocks * _inverse(scale)[:, None]
    scaled += ((scaled.view(np.uint32) & _SIGN) | _BELOW_HALF).view(np.float32)
    out = np.empty(len(blocks), [("d", "<f2"), ("qs", f"V{_BLOCK}")])
    out["d"], out["qs"] = scale, scaled.astype(np.int8).view(f"V{_BLOCK}")[:, 0]
    return out


def encode_q4_0(rows: Rows) -> NDArray[Any]:
    """4 bits, the weight of largest magnitude exact."""
    scale, quants = _one_sided(_blocks(rows)[0], 16)
    out = np.empty(len(quants), [("d", "<f2"), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["qs"] = scale, _nibbles(quants)
    return out


def encode_q5_0(rows: Rows) -> NDArray[Any]:
    """5 bits, the weight of largest magnitude exact; the fifth bits lie together."""
    scale, quants = _one_sided(_blocks(rows)[0], 32)
    out = np.empty(len(quants), [("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["qh"], out["qs"] = scale, _fifth_bits(quants), _nibbles(quants)
    return out


def encode_q4_1(rows: Rows) -> NDArray[Any]:
    """4 bits above the smallest weight."""
    scale, offset, quants = _two_sided(_blocks(rows)[0], 16)
    out = np.empty(len(quants), [("d", "<f2"), ("m", "<f2"), ("qs", "u1", _BLOCK // 2)])
    out["d"], out["m"], out["qs"] = scale, offset, _nibbles(quants)
    return out


def encode_q5_1(rows: Rows) -> NDArray[Any]:
    """5 bits above the smallest weight; the fifth bits lie together."""
    scale, offset, quants = _two_sided(_blocks(rows)[0], 32)
    fields = [("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", _BLOCK // 2)]
    out = np.empty(len(quants), fields)
    out["d"], out["m"] = scale, offset
    out["qh"], out["qs"] = _fifth_bits(quants), _nibbles(quants)
    return out


ENCODERS: dict[GGMLQuantizationType, Callable[[Rows], NDArray[Any]]] = {
    GGMLQuantizationType.F32: encode_f32,
    GGMLQuantizationType.F16: encode_f16,
    GGMLQuantizationType.BF16: encode_bf16,
    GGMLQuantizationType.Q8_0: encode_q8_0,
    GGMLQuantizationType.Q4_0: encode_q4_0,
    GGMLQuantizationType.Q4_1: encode_q4_1,
    GGMLQuantizationType.Q5_0: encode_q5_0,
    GGMLQuantizationType.Q5_1: encode_q5_1,
}


def is_finite(encoded: NDArray[Any]) -> bool:
    """Whether no weight, scale or offset of an encoder's result is NaN or infinite."""
    if encoded.dtype.names is not None:
        scales = [encoded[name] for name in ("d", "m") if name in encoded.dtype.names]
        return all(bool(np.isfinite(scale).all()) for scale in scales)
    bits = encoded.view(f"<u{encoded.itemsize}")
    magnitudes = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    return bool(magnitudes.max(initial=0) < _INFINITY[encoded.dtype.str])


def _blocks(rows: Rows) -> tuple[Rows, Rows]:
    """Rows as blocks, and the largest magnitude of each."""
    blocks = rows.reshape(-1, _BLOCK)
    magnitudes = np.abs(blocks)
    largest = magnitudes.max(axis=1)
    if (largest < _VANISHING).any():
        blocks = np.where(magnitudes < _VANISHING, np.float32(0), blocks)
        largest = np.where(largest < _VANISHING, np.float32(0), largest)
    return blocks, largest


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
