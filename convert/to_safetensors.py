"""Turns a drafter's GGUF file back into a checkpoint in the format of the releases."""

import json
import logging
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from .checkpoint import Json
from .errors import ConversionError
from .gguf_drafter import GgufDrafter, read_drafter
from .gguf_file import GgufTensor
from .gguf_settings import LAYER_TYPES, TOKEN_IDS
from .weights import row_ranges

logger = logging.getLogger(__name__)

Encode: TypeAlias = Callable[[NDArray[np.float32]], bytes]

_PIECE_BYTES = 16 << 20  # as float32
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_UNQUANTIZED = {
    GGMLQuantizationType.F32: "F32",
    GGMLQuantizationType.F16: "F16",
    GGMLQuantizationType.BF16: "BF16",
}
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
_ENCODE: dict[str, Encode] = {
    "F32": lambda rows: rows.astype("<f4").tobytes(),
    "F16": lambda rows: rows.astype("<f2").tobytes(),
    "BF16": lambda rows: quantize(rows, GGMLQuantizationType.BF16).tobytes(),
    # Checkpoints store how far a token's id is from its row's number.
    "I64": lambda rows: (rows.astype("<i8") - np.arange(rows.size)).tobytes(),
}


@dataclass(frozen=True)
class _Entry:
    """A tensor to write: its name there, its type there, and where it comes from."""

    name: str
    dtype: str
    tensor: GgufTensor

    @property
    def n_bytes(self) -> int:
        return math.prod(self.tensor.shape) * _ITEM_BYTES[self.dtype]


def convert_to_safetensors(
    source: str | Path,
    folder: str | Path | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes a drafter's GGUF file as config.json and model.safetensors.

    Quantized tensors are rounded to BF16. All others keep every bit they have in the file: they
    become BF16 where that holds them exactly, as it does whatever came from a BF16 checkpoint, and
    keep their type else. Converted again under its ``general.name``, an unquantized file is the
    same byte for byte. (It is the first conversion to F16 that rounds weights below 2**-14.)

    Args:
        source: The GGUF file.
        folder: Where to write; made if it is not there. None: ``general.name`` in the working
            directory.
        force: Whether an existing checkpoint is replaced.
        progress: Called with the bytes of every piece written.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: ``source`` or the place of ``folder`` does not exist.
        FileExistsError: ``folder`` holds a checkpoint and ``force`` is not set.
        ConversionError: ``source`` is damaged or no drafter, or ``folder`` holds other weights.
    """
    drafter = read_drafter(Path(source))
    path = Path.cwd() / _default_name(drafter) if folder is None else Path(folder)
    _check_output(path, force)
    entries = [
        _Entry(mapped.source_name, _stored_dtype(tensor), tensor)
        for mapped, tensor in drafter.tensors
    ]
    if drafter.token_ids is not None:
        entries.append(_Entry(TOKEN_IDS, "I64", drafter.token_ids))
    with _complete_or_nothing(path) as (config, weights):
        config.write_text(json.dumps(_config(drafter), indent=2) + "\n", encoding="utf-8")
        with weights.open("wb") as file:
            file.write(_header(entries))
            for entry in entries:
                for piece in _pieces(entry):
                    file.write(piece)
                    if progress is not None:
                        progress(len(piece))
    logger.info("wrote %s", path)
    return path


def _default_name(drafter: GgufDrafter) -> str:
    file = drafter.file
    entry = file.metadata.get("general.name")
    name = entry.value.decode(errors="replace") if entry and isinstance(entry.value, bytes) else ""
    # The name of another folder must not be reached through it.
    return name if name not in ("", ".", "..") and Path(name).name == name else file.path.stem


def _check_output(folder: Path, force: bool) -> None:
    if not folder.parent.is_dir():
        message = f"the folder {folder.parent} does not exist, needed: a place for {folder.name}"
        raise FileNotFoundError(message)
    if folder.exists() and not folder.is_dir():
        message = f"{folder} is a file, needed: a folder to write the checkpoint to"
        raise FileExistsError(message)
    ours = {folder / _CONFIG, folder / _WEIGHTS}
    if not force and (there := sorted(path for path in ours if path.exists())):
        message = f"{there[0]} exists, needed: another folder, or force to replace it"
        raise FileExistsError(message)
    if others := sorted({*folder.glob("*.safetensors"), *folder.glob("*.index.json")} - ours):
        message = f"{folder} holds other weights ({others[0].name}), needed: another folder"
        raise ConversionError(message)


def _stored_dtype(tensor: GgufTensor) -> str:
    """BF16 unless that loses bits of a tensor that is not quantized."""
    own = _UNQUANTIZED.get(tensor.type, "BF16")
    if own == "BF16":
        return own
    for first_row, n_rows in row_ranges(tensor.shape, _PIECE_BYTES):
        if np.any(tensor.read(first_row, n_rows).view(np.uint32) & 0xFFFF):
            return own
    return "BF16"


def _config(drafter: GgufDrafter) -> Json:
    # Stated even where no layer slides: transformers would derive them from other keys.
    layer_types = [LAYER_TYPES[slides] for slides in drafter.config.visibility.sliding_layers]
    special = {
        f"{role}_token_id": entry.value
        for role in ("bos", "eos")
        if (entry := drafter.file.metadata.get(f"tokenizer.ggml.{role}_token_id"))
    }
    return {**drafter.settings, "layer_types": layer_types, **special}


def _header(entries: list[_Entry]) -> bytes:
    header: Json = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        begin, end = end, end + entry.n_bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the weights are aligned
    return len(text).to_bytes(8, "little") + text


def _pieces(entry: _Entry) -> Iterator[bytes]:
    logger.info("%s: %s -> %s", entry.name, entry.tensor.type.name, entry.dtype)
    for first_row, n_rows in row_ranges(entry.tensor.shape, _PIECE_BYTES):
        yield _ENCODE[entry.dtype](entry.tensor.read(first_row, n_rows))


@contextmanager
def _complete_or_nothing(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Gives names to write to; both files get theirs only when both are complete."""
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    # Names of their own, so that two conversions to one folder do not write into each other.
    suffix = f".{uuid.uuid4().hex}.part"
    config, weights = (folder / f"{name}{suffix}" for name in (_CONFIG, _WEIGHTS))
    try:
        yield config, weights
        weights.replace(folder / _WEIGHTS)
        config.replace(folder / _CONFIG)
    except BaseException:
        config.unlink(missing_ok=True)
        weights.unlink(missing_ok=True)
        if made:
            folder.rmdir()
        raise
