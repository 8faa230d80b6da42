"""Reads ``mask_embedding.pt`` (MiMo), a dict that PyTorch saved, without PyTorch.

The file is a zip archive: a pickle of the dict, whose tensors point to storages stored beside it.
A pickle can name any Python callable, so ours resolves the few names of a plain dense tensor to
functions of this module and refuses everything else.
"""

import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConversionError, mismatch

FILE_NAME = "mask_embedding.pt"

# A few hundred bytes in practice; a damaged size must not fill the memory.
_MAX_PICKLE_BYTES = 1 << 20
_MAX_STORAGE_BYTES = 1 << 24
_STORAGES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
}


@dataclass(frozen=True)
class MaskEmbedding:
    """What a drafter reads in place of its target's embedding of the mask token.

    Attributes:
        token_id: The mask token.
        values: float32 [hidden size].
    """

    token_id: int
    values: NDArray[np.float32]


def read_mask_embedding(path: Path) -> MaskEmbedding:
    """Reads the file.

    Raises:
        ConversionError: It is damaged, or holds anything but a mask token and its embedding.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            saved = _load(archive)
    # Damaged archives and pickles raise nearly anything, and nothing else happens in there.
    except Exception as error:
        message = f"{path.name} is no dict of a mask token and its embedding: {error}"
        raise ConversionError(message) from error
    if not isinstance(saved, dict) or set(saved) != {"embedding", "mask_token_id"}:
        found = sorted(map(str, saved)) if isinstance(saved, dict) else type(saved).__name__
        raise mismatch(found, at=path.name, needed="a dict of embedding and mask_token_id")
    token_id, values = saved["mask_token_id"], saved["embedding"]
    if type(token_id) is not int:
        raise mismatch(token_id, at=f"{path.name}: mask_token_id", needed="an integer")
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        raise mismatch(
            type(values).__name__, at=f"{path.name}: embedding", needed="a tensor of one dimension"
        )
    if not np.isfinite(values).all():
        message = f"{path.name}: embedding has numbers that are NaN or infinite"
        raise ConversionError(message)
    return MaskEmbedding(token_id, values)


def _load(archive: zipfile.ZipFile) -> object:
    pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
    if len(pickles) != 1:
        message = f"the archive has {len(pickles)} entries data.pkl"
        raise ValueError(message)
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in archive.namelist():
        order = _read_entry(archive, f"{root}byteorder", 16)
        if order != b"little":
            message = f"its byte order is {order!r}"
            raise ValueError(message)
    return _TensorUnpickler(archive, root).load()


def _read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    with archive.open(name) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        message = f"{name} has more than {limit} bytes"
        raise ValueError(message)
    return raw


class _TensorUnpickler(pickle.Unpickler):
    """Rebuilds the contiguous tensors of a saved dict as float32 arrays."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        raw = _read_entry(archive, f"{root}data.pkl", _MAX_PICKLE_BYTES)
        for opcode, index, _ in pickletools.genops(raw):
            # The unpickler makes room for as many objects as the index says.
            if opcode.name in ("PUT", "LONG_BINPUT") and int(index or 0) > len(raw):
                message = f"it stores an object under number {index}"
                raise pickle.UnpicklingError(message)
        super().__init__(io.BytesIO(raw))
        self._archive = archive
        self._root = root

    def find_class(self, module: str, name: str) -> Any:
        """Gives a function of this module for each name that a tensor needs."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return name
        message = f"it asks for {module}.{name}"
        raise pickle.UnpicklingError(message)

    def persistent_load(self, pid: Any) -> NDArray[np.float32]:
        """Reads the storage that a tensor points to."""
        kind, storage, key, _, _ = pid
        if kind != "storage" or storage not in _STORAGES or not str(key).isdecimal():
            message = f"it points to {pid!r}"
            raise pickle.UnpicklingError(message)
        raw = _read_entry(self._archive, f"{self._root}data/{key}", _MAX_STORAGE_BYTES)
        stored = np.frombuffer(raw, _STORAGES[storage])
        if storage == "BFloat16Storage":
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored.astype(np.float32)


def _rebuild_tensor(
    storage: object, offset: object, shape: object, stride: object, *_: object
) -> NDArray[np.float32]:
    if (
        not isinstance(storage, np.ndarray)
        or type(offset) is not int
        or not isinstance(shape, tuple)
        or len(shape) != 1
        or stride != (1,)
        or not 0 <= offset <= offset + shape[0] <= storage.size
    ):
        message = f"a tensor of shape {shape!r} and stride {stride!r} at {offset!r}"
        raise pickle.UnpicklingError(message)
    values: NDArray[np.float32] = storage[offset : offset + shape[0]]
    return values
