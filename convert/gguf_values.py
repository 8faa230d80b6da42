"""The values of a GGUF file, read in order and with every length checked."""

import struct
from typing import BinaryIO, NamedTuple

from gguf import GGUFValueType

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


def strings(entry: MetadataValue) -> list[bytes]:
    """Returns an array of strings; an empty list for anything else."""
    items = entry.value if isinstance(entry.value, list) else []
    return [item for item in items if isinstance(item, bytes)]


class DamagedError(Exception):
    """The bytes make no sense; whoever knows the file adds its name."""


class GgufValues:
    """Reads values in order and never past the end of the file.

    Every method raises `DamagedError` for bytes that cannot be what is read.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        """Reads on from where an open file of this size stands."""
        self._file = file
        self._size = size

    @property
    def position(self) -> int:
        """Where the next value starts, in bytes."""
        return self._file.tell()

    def pair(self) -> tuple[str, MetadataValue]:
        """Reads a key and its value."""
        key = self.name("a key")
        type_ = self._type()
        if type_ is GGUFValueType.ARRAY:
            item_type = self._type()
            return key, MetadataValue(self._array(item_type), type_, item_type)
        if type_ is GGUFValueType.STRING:
            return key, MetadataValue(self._string(), type_)
        return key, MetadataValue(self._scalars(_FORMATS[type_], 1)[0], type_)

    def name(self, what: str) -> str:
        """Reads a string that must be text; `what` is for messages."""
        try:
            return self._string().decode()
        except UnicodeDecodeError as error:
            message = f"{what} is no UTF-8: {error}"
            raise DamagedError(message) from error

    def count(self, minimum_item_bytes: int) -> int:
        """Reads how many items follow, so many that the rest of the file can hold them."""
        count = self.u64()
        left = self._size - self._file.tell()
        if count * minimum_item_bytes > left:
            message = f"a length of {count} at byte {self._size - left}, {left} are left"
            raise DamagedError(message)
        return count

    def u32(self) -> int:
        """Reads an unsigned 32-bit integer."""
        return int(self._scalars("I", 1)[0])

    def u64(self) -> int:
        """Reads an unsigned 64-bit integer."""
        return int(self._scalars("Q", 1)[0])

    def _array(self, item_type: GGUFValueType) -> list[object]:
        if item_type is GGUFValueType.ARRAY:
            message = "an array of arrays, which no known key has"
            raise DamagedError(message)
        if item_type is GGUFValueType.STRING:
            return [self._string() for _ in range(self.count(minimum_item_bytes=8))]
        format_ = _FORMATS[item_type]
        return list(self._scalars(format_, self.count(struct.calcsize(format_))))

    def _string(self) -> bytes:
        return self._bytes(self.count(minimum_item_bytes=1))

    def _type(self) -> GGUFValueType:
        number = self.u32()
        try:
            return GGUFValueType(number)
        except ValueError as error:
            message = f"{number} is no value type"
            raise DamagedError(message) from error

    def _scalars(self, format_: str, count: int) -> tuple[int | float | bool, ...]:
        return struct.unpack(f"<{count}{format_}", self._bytes(count * struct.calcsize(format_)))

    def _bytes(self, n_bytes: int) -> bytes:
        raw = self._file.read(n_bytes)
        if len(raw) != n_bytes:
            message = f"the file ends at byte {self._size}, before its tensors start"
            raise DamagedError(message)
        return raw
