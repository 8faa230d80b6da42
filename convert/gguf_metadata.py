"""Reads the key-value part of a GGUF file.

The `gguf` package's own reader keeps several array objects per token (hundreds of megabytes for a
large vocabulary) and refuses files with tensor types newer than itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .errors import ConversionError, mismatch
from .gguf_values import DamagedError, GgufValues, MetadataValue


class GgufHead(NamedTuple):
    """The keys of a GGUF file, and its values from the first tensor's entry on."""

    metadata: dict[str, MetadataValue]
    n_tensors: int
    values: GgufValues


def read_metadata(path: Path) -> dict[str, MetadataValue]:
    """Reads all keys of a GGUF file of version 2 or 3.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no GGUF file, or damaged before its tensors start.
    """
    with open_gguf(path) as head:
        return head.metadata


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufHead]:
    """Opens a GGUF file and reads its keys; names the file in every `DamagedError` of the block.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no GGUF file, or damaged.
    """
    if path.is_dir():
        message = f"{path} is a folder, needed: a GGUF file"
        raise ConversionError(message)
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            message = f"{path} does not start with 'GGUF', needed: a GGUF file"
            raise ConversionError(message)
        try:
            values = GgufValues(file, path.stat().st_size)
            version = values.u32()
            if version not in (2, 3):
                raise mismatch(
                    version, at=f"{path.name}: GGUF version", needed="2 or 3, little-endian"
                )
            n_tensors = values.u64()
            yield GgufHead(_read_keys(values), n_tensors, values)
        except DamagedError as error:
            message = f"{path.name} is damaged: {error}"
            raise ConversionError(message) from error


def _read_keys(values: GgufValues) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for _ in range(values.count(minimum_item_bytes=13)):
        key, value = values.pair()
        if key in metadata:
            message = f"key {key} appears twice"
            raise DamagedError(message)
        metadata[key] = value
    return metadata
