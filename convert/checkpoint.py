"""Finds the files of a checkpoint: a local folder or a hub repository, one file or shards."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from . import mask_embedding
from .errors import ConversionError, mismatch
from .safetensors import SourceTensor, read_header

Json: TypeAlias = dict[str, object]

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILES = (".gguf", ".safetensors")  # a mistyped path must not be looked for on the hub
_WANTED_FILES = [
    *("config.json", "*.safetensors", "*.safetensors.index.json"),
    mask_embedding.FILE_NAME,
]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk with its headers read.

    Attributes:
        name: The last part of its folder's name or hub id.
        folder: Where its files lie.
        config: The object in its config.json.
        tensors: Its tensors, by their names in the files.
    """

    name: str
    folder: Path
    config: Json
    tensors: dict[str, SourceTensor]


def open_checkpoint(
    source: str | Path,
    *,
    revision: str | None,
    token: str | bool | None,
    cache_dir: str | Path | None,
    local_files_only: bool,
) -> Checkpoint:
    """Opens a local folder or file, or downloads a hub repository first.

    Raises:
        FileNotFoundError: Neither a folder, nor a file, nor the form of a hub id.
        ConversionError: A file is missing in the folder or damaged.
    """
    path = Path(source)
    if path.is_dir():
        return open_folder(path, path.resolve().name)
    if path.is_file() and path.suffix == ".safetensors":
        return Checkpoint(path.stem, path.parent, _read_config(path.parent), read_header(path))
    if path.exists():
        message = (
            f"{path} is a file, needed: the checkpoint's folder, its *.safetensors file, or its "
            "hub id ('owner/name')"
        )
        raise ConversionError(message)
    if is_hub_id(source):
        folder = _download(str(source), revision, token, cache_dir, local_files_only)
        return open_folder(folder, path.name)
    message = f"{source} does not exist, needed: a checkpoint's folder or a hub id ('owner/name')"
    raise FileNotFoundError(message)


def is_hub_id(source: object) -> bool:
    """Whether a source that is not on disk is one on the hub; a path object never is."""
    return (
        isinstance(source, str)
        and _HUB_ID.fullmatch(source) is not None
        and not source.endswith(_FILES)
    )


def open_folder(folder: Path, name: str) -> Checkpoint:
    """Reads config.json and the headers of the weights in a folder.

    Raises:
        ConversionError: A file is missing in the folder or damaged.
    """
    return Checkpoint(name, folder, _read_config(folder), _read_tensors(folder))


def _download(
    repo_id: str,
    revision: str | None,
    token: str | bool | None,
    cache_dir: str | Path | None,
    local_files_only: bool,
) -> Path:
    # The hub reads its environment variables when it is imported, so not before it is needed.
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repo_id,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        allow_patterns=_WANTED_FILES,
        library_name="dflash2",
    )
    return Path(folder)


def _read_config(folder: Path) -> Json:
    path = folder / "config.json"
    if not path.is_file():
        message = f"{folder} has no config.json: it is no checkpoint folder"
        raise ConversionError(message)
    return _read_json(path)


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        message = f"{path.name} is no valid JSON: {error}"
        raise ConversionError(message) from error
    if not isinstance(value, dict):
        raise mismatch(type(value).__name__, at=path.name, needed="a JSON object")
    return value


def _read_tensors(folder: Path) -> dict[str, SourceTensor]:
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) == 1:
        return _read_shards(folder, indexes[0])
    files = sorted(folder.glob("*.safetensors"))
    if len(indexes) > 1 or len(files) != 1:
        found = ", ".join(path.name for path in [*indexes, *files]) or "none"
        message = (
            f"{folder} has these weight files: {found}; needed: one *.safetensors, "
            "or shards with one *.safetensors.index.json"
        )
        raise ConversionError(message)
    return read_header(files[0])


def _read_shards(folder: Path, index: Path) -> dict[str, SourceTensor]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise mismatch(
            weight_map, at=f"{index.name}: weight_map", needed="an object of tensor: shard"
        )
    by_shard: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        # Only files of this folder: an index must not make us read elsewhere.
        if (
            not isinstance(shard, str)
            or Path(shard).name != shard
            or not shard.endswith(".safetensors")
        ):
            raise mismatch(
                shard, at=f"{index.name}: shard of {name!r}", needed="a *.safetensors file name"
            )
        by_shard.setdefault(shard, set()).add(name)
    if missing := [shard for shard in sorted(by_shard) if not (folder / shard).is_file()]:
        message = f"{index.name} names shards that are missing: {', '.join(missing)}"
        raise ConversionError(message)
    tensors: dict[str, SourceTensor] = {}
    for shard, names in sorted(by_shard.items()):
        found = read_header(folder / shard)
        if names != found.keys():
            differing = ", ".join(sorted(names ^ found.keys()))
            message = f"{index.name} and {shard} disagree on which tensors it holds: {differing}"
            raise ConversionError(message)
        tensors.update(found)
    return tensors
