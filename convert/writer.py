"""Writes a GGUF file piece by piece; the file gets its name only when it is complete."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFWriter

from .gguf_values import MetadataValue
from .quantize import n_bytes


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write.

    Attributes:
        name: Its name in GGUF.
        shape: Its shape, slowest dimension first.
        type: Its GGUF type.
        pieces: Its bytes in order; taken once.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    pieces: Iterable[bytes]


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, MetadataValue],
    tensors: Sequence[OutputTensor],
) -> None:
    """Writes a GGUF file and replaces an existing one; a failure leaves nothing behind."""
    with _complete_or_nothing(path) as partial:
        _write_head(partial, architecture, metadata, tensors)
        with partial.open("ab") as file:
            for tensor in tensors:
                file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
                file.writelines(tensor.pieces)
            file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))


@contextmanager
def _complete_or_nothing(path: Path) -> Iterator[Path]:
    # A name of its own, so that two conversions to one path do not write into each other.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_head(
    path: Path,
    architecture: str,
    metadata: Mapping[str, MetadataValue],
    tensors: Sequence[OutputTensor],
) -> None:
    writer = GGUFWriter(path, architecture)
    for key, (value, type_, item_type) in metadata.items():
        writer.add_key_value(key, value, type_, item_type)
    for tensor in tensors:
        size = n_bytes(tensor.shape, tensor.type)
        # The numpy type is not used when the GGUF type is given.
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=tensor.type
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
