"""GGUF files taken apart and put together again byte by byte, so that any part can be wrong."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType, GGUFValueType

_FORMATS = {
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
}
_ALIGNMENT = 32


@dataclass
class Key:
    """A key's type, value, and for arrays the type of the items."""

    type: GGUFValueType
    value: Any
    item_type: GGUFValueType | None = None


@dataclass
class Tensor:
    """A tensor's entry and data; `shape` is slowest dimension first."""

    shape: tuple[int, ...]
    type: int
    data: bytes
    offset: int | None = None  # None: where it belongs


@dataclass
class Parts:
    """All that a GGUF file holds."""

    keys: dict[str, Key]
    tensors: dict[str, Tensor]
    boundaries: list[int] = field(default_factory=list)

    def assembled(self) -> bytes:
        """The file; notes in `boundaries` where each part starts."""
        self.boundaries = [4, 8, 16, 24]
        raw = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.keys))
        for name, key in self.keys.items():
            self.boundaries.append(len(raw))
            raw += _string(name) + struct.pack("<I", key.type) + _value(key)
        offset, data = 0, b""
        for name, tensor in self.tensors.items():
            self.boundaries.append(len(raw))
            dimensions = tensor.shape[::-1]
            raw += _string(name) + struct.pack("<I", len(dimensions))
            raw += b"".join(struct.pack("<Q", size) for size in dimensions)
            place = offset if tensor.offset is None else tensor.offset
            raw += struct.pack("<IQ", tensor.type, place)
            data += bytes(offset - len(data)) + tensor.data
            offset = -(-len(data) // _ALIGNMENT) * _ALIGNMENT
        raw += bytes(-len(raw) % _ALIGNMENT)
        start = len(raw)
        self.boundaries += [start, start + len(data) - 1]
        return raw + data


def taken_apart(path: Path) -> Parts:
    """The parts of a good file."""
    reader = gguf.GGUFReader(path)
    keys = {
        name: Key(each.types[0], each.contents(), each.types[1] if len(each.types) > 1 else None)
        for name, each in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        each.name: Tensor(
            tuple(int(size) for size in each.shape[::-1]),
            GGMLQuantizationType(each.tensor_type),
            each.data.tobytes(),
        )
        for each in reader.tensors
    }
    return Parts(keys, tensors)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(key: Key) -> bytes:
    if key.type is GGUFValueType.STRING:
        return _string(key.value)
    if key.type is not GGUFValueType.ARRAY:
        return struct.pack(_FORMATS[key.type], key.value)
    assert key.item_type is not None
    items = b"".join(_value(Key(key.item_type, item)) for item in key.value)
    return struct.pack("<IQ", key.item_type, len(key.value)) + items
