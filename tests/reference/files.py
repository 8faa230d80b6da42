"""Model files as float64 arrays."""

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray

Array = NDArray[np.float64]

# GGUF value types 0 to 7 and 10 to 12 in struct's letters; 8 is a string, 9 an array
_SCALARS = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9


class _Cursor:
    """Reads a GGUF header; gguf.GGUFReader takes seconds for a vocabulary of 50000."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = 0

    def scalar(self, letter: str) -> Any:
        (value,) = struct.unpack_from("<" + letter, self.data, self.offset)
        self.offset += struct.calcsize("<" + letter)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self.offset += length
        return self.data[self.offset - length : self.offset].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


class GgufTensors(Mapping[str, Array]):
    """The tensors of a GGUF by name, rows first.

    They are dequantised at each access: a whole model in float64 need not fit in memory.
    """

    def __init__(self, data: mmap.mmap, places: Mapping[str, tuple[list[int], int, int]]) -> None:
        self._data = data
        self._places = places  # shape, type, offset

    def __getitem__(self, name: str) -> Array:
        shape, kind, offset = self._places[name]
        quant = gguf.GGMLQuantizationType(kind)
        byte_shape = quant_shape_to_byte_shape(shape, quant)
        raw = np.frombuffer(self._data, np.uint8, int(np.prod(byte_shape)), offset)
        return dequantize(raw.reshape(byte_shape), quant).astype(np.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_gguf(path: Path) -> tuple[dict[str, Any], GgufTensors]:
    """Metadata and tensors of a GGUF; the architecture prefix is cut off the keys."""
    with path.open("rb") as file:
        cursor = _Cursor(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    _magic, _version = cursor.scalar("I"), cursor.scalar("I")
    n_tensor, n_key = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(n_key)}
    places = {}
    for _ in range(n_tensor):
        name = cursor.string()
        shape = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))][::-1]
        places[name] = (shape, cursor.scalar("I"), cursor.scalar("Q"))
    alignment = metadata.get("general.alignment", 32)
    begin = -(-cursor.offset // alignment) * alignment
    places = {name: (shape, kind, begin + at) for name, (shape, kind, at) in places.items()}
    prefix = metadata["general.architecture"] + "."
    metadata = {name.removeprefix(prefix): value for name, value in metadata.items()}
    return metadata, GgufTensors(cursor.data, places)


def read_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file that holds BF16, F16 or F32."""
    data = path.read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:header_end]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[header_end + begin : header_end + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors
