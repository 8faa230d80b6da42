"""Converts a DFlash 2 or DFlash drafter from safetensors to GGUF."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias, get_args

from gguf import GGMLQuantizationType

from .checkpoint import open_checkpoint
from .config import parse_config
from .errors import ConversionError, mismatch
from .families import refuse_other_families
from .gguf_values import MetadataValue
from .metadata import drafter_metadata
from .quantize import OutType, encode, tensor_type
from .safetensors import SourceTensor
from .target import check_fit, read_target
from .tensor_map import MappedTensor, match_tensors
from .writer import OutputTensor, write_gguf

logger = logging.getLogger(__name__)

StrPath: TypeAlias = str | PathLike[str]
# Called with the bytes of every piece written.
Progress: TypeAlias = Callable[[int], None]

# As float32. Bounds the memory of a conversion whatever the size of a tensor.
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Plan:
    """A conversion whose inputs passed every check that needs no weights.

    Attributes:
        path: The file to write.
        metadata: Its keys in order, without ``general.architecture``.
        tensors: Its tensors in order; their weights are read when they are written.
    """

    path: Path
    metadata: dict[str, MetadataValue]
    tensors: list[OutputTensor]


def convert_drafter(
    source: StrPath,
    target: StrPath,
    outfile: StrPath | None = None,
    *,
    outtype: OutType = "f16",
    force: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: StrPath | None = None,
    local_files_only: bool = False,
) -> Path:
    """Converts a drafter's safetensors checkpoint to a GGUF file for one target.

    The output is the same, byte for byte, for the same inputs. It exists only when it is complete.

    Args:
        source: Folder with config.json and safetensors, or a hub id ``owner/name``.
        target: GGUF file of the target; its tokenizer is copied and its sizes are checked.
        outfile: File to write, or a folder for the default name ``<source>-<OUTTYPE>.gguf``;
            None writes that into the working directory. ``{ftype}`` and ``{FTYPE}`` in it stand
            for the type.
        outtype: Type of the matrices. Norms and convolution base kernels stay F32. Rows that do
            not divide into blocks of 32 become F16 under ``q8_0``.
        force: Whether an existing ``outfile`` is replaced.
        revision: Branch, tag or commit on the hub.
        token: Hub access token, True for the stored one.
        cache_dir: Cache folder of the hub.
        local_files_only: Whether to use the hub's cache only.

    Returns:
        The file written.

    Raises:
        FileNotFoundError: ``source``, ``target`` or the folder of ``outfile`` does not exist.
        FileExistsError: ``outfile`` exists and ``force`` is not set.
        ConversionError: The checkpoint or the target is damaged, of a kind that cannot be drafted
            with, or the two do not belong together. The message names the key or tensor, the
            value found and the value needed.
        huggingface_hub.errors.HfHubHTTPError: The hub refuses; other hub errors pass through too.
    """
    plan = plan_drafter(
        source,
        target,
        outfile,
        outtype=outtype,
        force=force,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    return write_drafter(plan)


def plan_drafter(
    source: StrPath,
    target: StrPath,
    outfile: StrPath | None = None,
    *,
    outtype: OutType = "f16",
    force: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: StrPath | None = None,
    local_files_only: bool = False,
) -> Plan:
    """Reads and checks the inputs of `convert_drafter`, which has the arguments and errors."""
    if outtype not in get_args(OutType):
        raise mismatch(outtype, at="outtype", needed=", ".join(get_args(OutType)))
    target_path = Path(target)
    target_model = read_target(target_path)
    checkpoint = open_checkpoint(
        source if isinstance(source, str) else Path(source),
        revision=revision,
        token=token,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        local_files_only=local_files_only,
    )
    refuse_other_families(checkpoint)
    config = parse_config(checkpoint.config)
    check_fit(config, target_model)
    pairs = match_tensors(config, checkpoint.tensors)
    path = _output_path(outfile, checkpoint.name, outtype, force)
    inputs = {target_path, *(tensor.path for _, tensor in pairs)}
    if path.exists() and any(path.samefile(other) for other in inputs):
        message = f"{path} is an input of the conversion, needed: another outfile"
        raise ConversionError(message)
    return Plan(
        path,
        drafter_metadata(checkpoint.name, config, target_model, outtype),
        [_output_tensor(mapped, tensor, outtype) for mapped, tensor in pairs],
    )


def write_drafter(plan: Plan, progress: Progress | None = None) -> Path:
    """Writes what was planned; returns the file written.

    Raises:
        ConversionError: A weight is NaN or infinite, or the type cannot hold it.
    """
    tensors = plan.tensors
    if progress is not None:
        tensors = [replace(tensor, pieces=_reported(tensor.pieces, progress)) for tensor in tensors]
    write_gguf(plan.path, "dflash", plan.metadata, tensors)
    logger.info("wrote %s (%d bytes)", plan.path, plan.path.stat().st_size)
    return plan.path


def _output_path(outfile: StrPath | None, name: str, outtype: OutType, force: bool) -> Path:
    if outfile is None:
        path = Path.cwd()
    else:
        given = fspath(outfile).replace("{ftype}", outtype)
        path = Path(given.replace("{FTYPE}", outtype.upper()))
    if path.is_dir():
        path /= f"{name}-{outtype.upper()}.gguf"
    if not path.parent.is_dir():
        message = f"the folder {path.parent} does not exist, needed: a place for {path.name}"
        raise FileNotFoundError(message)
    if path.exists() and not force:
        message = f"{path} exists, needed: another outfile, or force to replace it"
        raise FileExistsError(message)
    return path


def _output_tensor(mapped: MappedTensor, source: SourceTensor, outtype: OutType) -> OutputTensor:
    type_ = tensor_type(outtype, mapped.shape[-1], mapped.keep_f32)
    return OutputTensor(mapped.name, mapped.shape, type_, _pieces(mapped.name, source, type_))


def _pieces(name: str, source: SourceTensor, type_: GGMLQuantizationType) -> Iterator[bytes]:
    logger.info("%s: %s -> %s", name, source.dtype, type_.name)
    for rows in source.read_rows(_PIECE_BYTES):
        yield encode(source.name, rows, type_)


def _reported(pieces: Iterable[bytes], progress: Progress) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        progress(len(piece))
