"""Reads safetensors files by range: the header is checked first, weights are read row by row."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import ConversionError, mismatch

# The reference implementation refuses longer headers too.
_MAX_HEADER_BYTES = 100_000_000
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_WEIGHT_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_INTEGER_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
}


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a safetensors file; its weights stay on disk until they are read.

    Attributes:
        path: The file that holds it.
        name: Its name in that file.
        dtype: Its safetensors type, for example ``BF16``.
        shape: Its shape, slowest dimension first.
        offset: Where its first byte lies in the file.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        """Reads rows of weights as float32 [n_rows, last dimension].

        Raises:
            ConversionError: The type holds no weights, or the file ends early.
        """
        dtype = _WEIGHT_DTYPES.get(self.dtype)
        if dtype is None:
            raise mismatch(self.dtype, at=self._where("dtype"), needed=" or ".join(_WEIGHT_DTYPES))
        return _widen(self._load(dtype, first_row, n_rows), self.dtype)

    def read_integers(self) -> NDArray[np.int64]:
        """Reads a whole tensor of integers or booleans.

        Raises:
            ConversionError: The type is another, or the file ends early.
        """
        dtype = _INTEGER_DTYPES.get(self.dtype)
        if dtype is None:
            raise mismatch(self.dtype, at=self._where("dtype"), needed=" or ".join(_INTEGER_DTYPES))
        n_rows = math.prod(self.shape[:-1])
        return self._load(dtype, 0, n_rows).astype(np.int64).reshape(self.shape)

    def _load(self, dtype: np.dtype[Any], first_row: int, n_rows: int) -> NDArray[Any]:
        columns = self.shape[-1]
        with self.path.open("rb") as file:
            file.seek(self.offset + first_row * columns * dtype.itemsize)
            stored = np.fromfile(file, dtype, n_rows * columns)
        if stored.size != n_rows * columns:
            message = f"{self._where('data')} ends before its last row"
            raise ConversionError(message)
        return stored.reshape(n_rows, columns)

    def _where(self, part: str) -> str:
        return f"{self.path.name}: {part} of tensor {self.name!r}"


def read_header(path: Path) -> dict[str, SourceTensor]:
    """Lists the tensors of a safetensors file by name.

    Raises:
        ConversionError: The header is damaged, or the tensors do not cover the data exactly.
    """
    if not path.is_file():
        message = f"{path} is no file but a folder, or a link that leads nowhere"
        raise ConversionError(message)
    size = path.stat().st_size
    with path.open("rb") as file:
        header = _parse_header(_read_header_bytes(file, path, size), path)
        data_start = file.tell()
    header.pop("__metadata__", None)
    tensors = {name: _parse_entry(path, name, entry, data_start) for name, entry in header.items()}
    _check_cover(path, tensors.values(), data_start, size)
    return tensors


def _widen(stored: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":
        widened = np.empty(stored.shape, np.uint32)
        np.left_shift(stored, 16, out=widened, dtype=np.uint32, casting="unsafe")
        return widened.view(np.float32)
    return stored.astype(np.float32)


def _read_header_bytes(file: BinaryIO, path: Path, size: int) -> bytes:
    length = int.from_bytes(file.read(8), "little")
    limit = min(size - 8, _MAX_HEADER_BYTES)
    if not 2 <= length <= limit:
        needed = f"2 to {limit} bytes, as the file has {size}: it is cut short or no safetensors"
        raise mismatch(length, at=f"{path.name}: header length", needed=needed)
    return file.read(length)


def _parse_header(raw: bytes, path: Path) -> dict[str, object]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        message = f"{path.name}: the header is no valid JSON: {error}"
        raise ConversionError(message) from error
    if not isinstance(header, dict):
        raise mismatch(type(header).__name__, at=f"{path.name}: header", needed="a JSON object")
    return header


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        message = f"key {doubled!r} appears twice"
        raise ValueError(message)
    return keys


def _parse_entry(path: Path, name: str, entry: object, data_start: int) -> SourceTensor:
    where = f"{path.name}: header entry {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise mismatch(entry, at=where, needed="an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise mismatch(dtype, at=f"{where}: dtype", needed="one of " + ", ".join(_ITEM_BYTES))
    if not _is_sizes(shape):
        raise mismatch(shape, at=f"{where}: shape", needed="a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise mismatch(offsets, at=f"{where}: data_offsets", needed="a begin and an end")
    begin, end = offsets
    n_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != n_bytes:
        raise mismatch(
            offsets, at=f"{where}: data_offsets", needed=f"{n_bytes} bytes for {dtype} {shape}"
        )
    return SourceTensor(path, name, dtype, tuple(shape), data_start + begin)


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_cover(path: Path, tensors: Iterable[SourceTensor], data_start: int, size: int) -> None:
    end = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.n_bytes)):
        if tensor.offset != end:
            where = f"{path.name}: data_offsets of tensor {tensor.name!r}"
            raise mismatch(
                tensor.offset - data_start,
                at=where,
                needed=f"{end - data_start}, no gap, no overlap",
            )
        end += tensor.n_bytes
    if end != size:
        needed = f"{end} by its header: the file is cut short or was changed"
        raise mismatch(size, at=f"{path.name}: file size", needed=needed)
