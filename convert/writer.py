"""Writes a GGUF file piece by piece; the file gets its name only when it is complete."""

import logging
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from .gguf_file import GgufTensor
from .gguf_values import MetadataValue
from .quantize import encode, n_bytes
from .weights import TokenIds, Weights, row_ranges

logger = logging.getLogger(__name__)

# Called with the bytes of every piece written.
Progress: TypeAlias = Callable[[int], None]

# As float32: what one thread works on stays in its core's cache, and the memory of a conversion is
# bounded whatever the size of a tensor.
_PIECE_BYTES = 1 << 20
# Reading and numpy's arithmetic run side by side; beyond a few threads the disk is the limit.
_MAX_THREADS = 4


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write.

    Attributes:
        name: Its name in GGUF.
        shape: Its shape, slowest dimension first.
        type: Its GGUF type.
        source: What it is made from.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    source: Weights

    @property
    def n_bytes(self) -> int:
        """Size in the file, without padding."""
        return n_bytes(self.shape, self.type)

    def encode(self, first_row: int, n_rows: int) -> NDArray[np.uint8]:
        """Reads rows and converts them to the tensor's type.

        Raises:
            ConversionError: A weight is NaN or infinite, or the type cannot hold it.
        """
        if isinstance(self.source, TokenIds):
            return self.source.ids.astype("<i8").view(np.uint8)
        if isinstance(self.source, GgufTensor) and self.source.type is self.type:
            return self.source.read_stored(first_row, n_rows)
        return encode(self.source.name, self.source.read(first_row, n_rows), self.type)


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, MetadataValue],
    tensors: Sequence[OutputTensor],
    progress: Progress | None = None,
) -> None:
    """Writes a GGUF file and replaces an existing one; a failure leaves nothing behind.

    Raises:
        ConversionError: A weight is NaN or infinite, or its type cannot hold it.
    """
    with complete_or_nothing(path) as partial:
        _write_head(partial, architecture, metadata, tensors)
        with partial.open("ab") as file:
            for tensor, piece in _encoded_pieces(tensors):
                if tensor is not None:
                    logger.info("%s: %s", tensor.name, tensor.type.name)
                    file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
                file.write(piece.data)
                if progress is not None:
                    progress(piece.nbytes)
            file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))


@contextmanager
def complete_or_nothing(path: Path) -> Iterator[Path]:
    """Gives a temporary path that becomes this one at the end of the block, if all went well."""
    # A name of its own, so that two conversions to one path do not write into each other.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _encoded_pieces(
    tensors: Sequence[OutputTensor],
) -> Iterator[tuple[OutputTensor | None, NDArray[np.uint8]]]:
    """Encodes in several threads; yields the pieces in order, the first of each with its tensor."""
    _keep_freed_memory()
    n_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    running: deque[tuple[OutputTensor | None, Future[NDArray[np.uint8]]]] = deque()
    pool = ThreadPoolExecutor(n_threads)
    try:
        for tensor in tensors:
            for first_row, n_rows in row_ranges(tensor.shape, _PIECE_BYTES):
                future = pool.submit(tensor.encode, first_row, n_rows)
                running.append((None if first_row else tensor, future))
                if len(running) > 2 * n_threads:
                    starting, future = running.popleft()
                    yield starting, future.result()
        for starting, future in running:
            yield starting, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _keep_freed_memory() -> None:
    """Has arrays of a piece's size reuse the memory of earlier ones.

    glibc returns freed blocks of that size to the system and gets them again page by page, which
    costs several times the arithmetic on them, until it has seen a block of nearly 32 MiB freed.
    """
    np.empty(31 << 20, np.uint8)


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
        # The numpy type is not used when the GGUF type is given.
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=tensor.type
        )
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
    finally:
        writer.close()
