"""From what a user names to the GGUF files that the engine opens."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2 import hub
from dflash2.cache import cache_dir
from dflash2.errors import ModelLoadError
from dflash2.hub import HubOptions, StrPath

if TYPE_CHECKING:
    from typing_extensions import Unpack

# .pt: MiMo's embedding of the mask token
_CHECKPOINT_FILES = (".json", ".safetensors", ".pt")

_logger = logging.getLogger("dflash2")


def resolve_target(model: StrPath) -> Path:
    """Return the path of a target's GGUF.

    Raises:
        FileNotFoundError: There is no such file.
        ModelLoadError: It is a folder or a safetensors file.
    """
    path = Path(model).expanduser()
    if path.is_dir() or path.suffix == ".safetensors":
        msg = (
            f"the target {path} is a {'folder' if path.is_dir() else 'safetensors file'}, expected "
            "a GGUF file: convert it with llama.cpp's convert_hf_to_gguf.py, or take a GGUF from "
            "the hub with Dflash2Engine.from_pretrained(repo_id, filename)"
        )
        raise ModelLoadError(msg)
    if not path.exists():
        hint = (
            ": for a file on the hub use Dflash2Engine.from_pretrained(repo_id, filename)"
            if _is_hub_id(model)
            else ""
        )
        msg = f"the target {path} does not exist{hint}"
        raise FileNotFoundError(msg)
    return path


def resolve_drafter(
    draft: StrPath, target: Path, revision: str | None = None, **options: Unpack[HubOptions]
) -> Path:
    """Return the path of a drafter's GGUF; a checkpoint is converted once into the user's cache.

    Args:
        draft: A GGUF file, or a checkpoint as `dflash2.convert.convert_drafter` takes it: its
            folder, its safetensors file, or a hub id "owner/name". What exists is taken, and what
            has the form of a path is never looked for on the hub.
        target: The GGUF of its target.
        revision: Branch, tag or commit on the hub.
        **options: Passed to the hub.

    Raises:
        FileNotFoundError: There is no such file, and `draft` is no hub id.
        ValueError: The checkpoint cannot be converted, or not for this target.
        OSError: The hub refuses, or cannot be reached.
    """
    path = Path(draft).expanduser()
    if path.is_dir() or (path.exists() and path.suffix == ".safetensors"):
        source = path.resolve()
        folder, name = (source, source.name) if source.is_dir() else (source.parent, source.stem)
        files = sorted(file for file in folder.iterdir() if file.suffix in _CHECKPOINT_FILES)
        identity = [os.fspath(source), *map(_fingerprint, files)]
        return _converted(source, name, identity, target)
    if path.exists():
        return path
    if not _is_hub_id(draft):
        msg = f"the drafter {path} does not exist"
        raise FileNotFoundError(msg)
    repo_id = str(draft)
    commit = hub.resolve_commit(repo_id, revision, **options)
    name = repo_id.rpartition("/")[2]
    return _converted(repo_id, name, [repo_id, commit], target, commit, **options)


def has_chat_template(target: Path) -> bool:
    """Whether a target's GGUF brings a chat template; ValueError if it is no sound GGUF."""
    return _metadata(target, "tokenizer.chat_template") is not None


def _metadata(path: Path, key: str) -> object:
    # imported late, as it loads numpy and gguf
    from dflash2.convert.gguf_metadata import read_metadata

    entry = read_metadata(path).get(key)
    return None if entry is None else entry.value


def _is_hub_id(name: StrPath) -> bool:
    # imported late, as it loads numpy and gguf
    from dflash2.convert.checkpoint import is_hub_id

    return is_hub_id(name)


def _converted(
    source: StrPath,
    name: str,
    identity: list[str],
    target: Path,
    revision: str | None = None,
    **options: Unpack[HubOptions],
) -> Path:
    key = hashlib.sha256("\n".join([*identity, _fingerprint(target)]).encode()).hexdigest()[:16]
    path = cache_dir() / "drafters" / f"{name}-{key}-F16.gguf"
    if path.exists():
        return path
    # imported late: most users never convert, and it loads numpy and gguf
    from dflash2.convert import convert_drafter

    _logger.info("converting the drafter %s to %s", source, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return convert_drafter(
        source, target, path, outtype="f16", force=True, revision=revision, **options
    )


def _fingerprint(path: Path) -> str:
    status = path.stat()
    return f"{os.fspath(path.resolve())} {status.st_size} {status.st_mtime_ns}"
