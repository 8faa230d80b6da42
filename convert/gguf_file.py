"""Reads GGUF files whole: keys, and tensors by range."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from .errors import ConversionError, mismatch
from .gguf_metadata import GgufHead, open_gguf
from .gguf_values import DamagedError, GgufValues, MetadataValue
from .quantize import n_bytes

_MAX_DIMENSIONS = 4  # ggml's own limit
_SMALLEST_ENTRY = 8 + 4 + 4 + 8  # bytes of an empty name, no dimension, type and offset


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file; its weights stay on disk until they are read.

    Attributes:
        path: The file that holds it.
        name: Its name in that file.
        type: Its GGUF type.
        shape: Its shape, slowest dimension first.
        offset: Where its first byte lies in the file.
    """

    path: Path
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return n_bytes(self.shape, self.type)

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads rows of weights as float32 [n_rows, last dimension].

        Raises:
            ConversionError: The type holds no weights, or the file ends early.
        """
        stored = self.read_stored(first_row, n_rows)
        return self._dequantized(stored).reshape(n_rows, self.shape[-1])

    def read_stored(self, first_row: int, n_rows: int) -> NDArray[np.uint8]:
        """Reads the bytes of rows, [n_rows * bytes of a row].

        Raises:
            ConversionError: The file ends early.
        """
        row_bytes = n_bytes(self.shape[-1:], self.type)
        with self.path.open("rb") as file:
            file.seek(self.offset + first_row * row_bytes)
            stored = np.fromfile(file, np.uint8, n_rows * row_bytes)
        if stored.size != n_rows * row_bytes:
            message = f"{self.path.name}: tensor {self.name} ends before its last row"
            raise ConversionError(message)
        return stored

    def _dequantized(self, stored: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self.type is GGMLQuantizationType.I64:  # token ids, all below 2**24
            return stored.view(np.int64).astype(np.float32)
        try:
            values: NDArray[np.float32] = dequantize(stored, self.type)
        except NotImplementedError as error:
            message = (
                f"{self.path.name}: tensor {self.name} is {self.type.name}, "
                "needed: a type of floating-point weights"
            )
            raise ConversionError(message) from error
        return values


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file with its head read.

    Attributes:
        path: Where it lies.
        metadata: Its keys in file order.
        tensors: Its tensors in file order, by name.
    """

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Reads the keys of a GGUF file and where its tensors lie.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no GGUF file, or damaged, or cut short.
    """
    with open_gguf(path) as head:
        tensors = _read_tensors(path, head)
    return GgufFile(path, head.metadata, tensors)


def _read_tensors(path: Path, head: GgufHead) -> dict[str, GgufTensor]:
    alignment = head.metadata.get("general.alignment")
    step = GGUF_DEFAULT_ALIGNMENT if alignment is None else alignment.value
    if not isinstance(step, int) or step < 1:
        raise mismatch(step, at=f"{path.name}: general.alignment", needed="a number of bytes")
    left = path.stat().st_size - head.values.position
    if head.n_tensors * _SMALLEST_ENTRY > left:
        message = f"it names {head.n_tensors} tensors, {left} bytes are left for them"
        raise DamagedError(message)
    entries = [_read_entry(path, head.values) for _ in range(head.n_tensors)]
    data_start = -(-head.values.position // step) * step
    tensors: dict[str, GgufTensor] = {}
    for name, type_, shape, offset in entries:
        if name in tensors:
            message = f"tensor {name} appears twice"
            raise DamagedError(message)
        tensors[name] = GgufTensor(path, name, type_, shape, data_start + offset)
    _check_places(path, tensors, data_start, step)
    return tensors


def _read_entry(
    path: Path, values: GgufValues
) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = values.name("a tensor's name")
    where = f"{path.name}: tensor {name}"
    n_dimensions = values.u32()
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise mismatch(n_dimensions, at=f"{where}: number of dimensions", needed="1 to 4")
    shape = tuple(values.u64() for _ in range(n_dimensions))[::-1]
    number = values.u32()
    try:
        type_ = GGMLQuantizationType(number)
    except ValueError as error:
        raise mismatch(number, at=f"{where}: type", needed="a type that ggml knows") from error
    block, _ = GGML_QUANT_SIZES[type_]
    if 0 in shape or shape[-1] % block:
        needed = f"rows that divide into blocks of {block}, as it is {type_.name}"
        raise mismatch(list(shape), at=f"{where}: shape", needed=needed)
    return name, type_, shape, values.u64()


def _check_places(
    path: Path, tensors: dict[str, GgufTensor], data_start: int, alignment: int
) -> None:
    size = path.stat().st_size
    end = data_start
    for tensor in tensors.values():
        start = -(-end // alignment) * alignment
        if tensor.offset != start:
            where = f"{path.name}: place of tensor {tensor.name}"
            raise mismatch(tensor.offset, at=where, needed=f"{start}, no gap, no overlap")
        end = start + tensor.n_bytes
        if end > size:
            needed = f"{end} for tensor {tensor.name}: the file is cut short"
            raise mismatch(size, at=f"{path.name}: file size", needed=needed)
