"""Reads the key-value part of a GGUF file, with every length checked.

The `gguf` package's own reader keeps several array objects per token (hundreds of megabytes for a
large vocabulary) and refuses files with tensor types newer than itself.
"""

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gguf import GGUFValueType

from .errors import ConversionError, mismatch

_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


class MetadataValue(NamedTuple):
    """A value with its GGUF type; strings are bytes, so that copies are exact."""

    value: object
    type: GGUFValueType
    item_type: GGUFValueType | None = None


def read_metadata(path: Path) -> dict[str, MetadataValue]:
    """Reads all keys of a GGUF file of version 2 or 3.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no GGUF file, or damaged before its tensors start.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            message = f"{path} does not start with 'GGUF', needed: a GGUF file"
            raise ConversionError(message)
        try:
            reader = _Reader(file, path.stat().st_size)
            version = reader.integer("I")
            if version not in (2, 3):
                raise mismatch(
                    version, at=f"{path.name}: GGUF version", needed="2 or 3, little-endian"
                )
            reader.integer("Q")  # number of tensors
            return dict(reader.pair() for _ in range(reader.count(minimum_item_bytes=13)))
        except _DamagedError as error:
            message = f"{path.name} is damaged: {error}"
            raise ConversionError(message) from error


class _DamagedError(Exception):
    """The bytes make no sense; `read_metadata` adds the file's name."""


class _Reader:
    """Reads values in order and never past the end of the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def pair(self) -> tuple[str, MetadataValue]:
        try:
            key = self.string().decode()
        except UnicodeDecodeError as error:
            message = f"a key is no UTF-8: {error}"
            raise _DamagedError(message) from error
        type_ = self.type()
        if type_ is GGUFValueType.ARRAY:
            item_type = self.type()
            return key, MetadataValue(self.array(item_type), type_, item_type)
        if type_ is GGUFValueType.STRING:
            return key, MetadataValue(self.string(), type_)
        return key, MetadataValue(self.scalars(_FORMATS[type_], 1)[0], type_)

    def array(self, item_type: GGUFValueType) -> list[object]:
        if item_type is GGUFValueType.ARRAY:
            message = "an array of arrays, which no known key has"
            raise _DamagedError(message)
        if item_type is GGUFValueType.STRING:
            return [self.string() for _ in range(self.count(minimum_item_bytes=8))]
        format_ = _FORMATS[item_type]
        return list(self.scalars(format_, self.count(struct.calcsize(format_))))

    def string(self) -> bytes:
        return self._bytes(self.count(minimum_item_bytes=1))

    def type(self) -> GGUFValueType:
        number = self.integer("I")
        try:
            return GGUFValueType(number)
        except ValueError as error:
            message = f"{number} is no value type"
            raise _DamagedError(message) from error

    def count(self, minimum_item_bytes: int) -> int:
        count = self.integer("Q")
        left = self._size - self._file.tell()
        if count * minimum_item_bytes > left:
            message = f"a length of {count} at byte {self._size - left}, {left} are left"
            raise _DamagedError(message)
        return count

    def integer(self, format_: str) -> int:
        return int(self.scalars(format_, 1)[0])

    def scalars(self, format_: str, count: int) -> tuple[int | float | bool, ...]:
        return struct.unpack(f"<{count}{format_}", self._bytes(count * struct.calcsize(format_)))

    def _bytes(self, n_bytes: int) -> bytes:
        raw = self._file.read(n_bytes)
        if len(raw) != n_bytes:
            message = f"the file ends at byte {self._size}, inside its metadata"
            raise _DamagedError(message)
        return raw
