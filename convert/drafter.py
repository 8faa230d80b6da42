"""Converts a DFlash 2 or DFlash drafter from safetensors to GGUF."""

import logging
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from gguf import GGMLQuantizationType

from .checkpoint import open_checkpoint
from .config import parse_config
from .errors import ConversionError, mismatch
from .families import identify_layout
from .gguf_file import GgufTensor
from .gguf_values import MetadataValue
from .metadata import drafter_metadata
from .quantize import FILE_TYPES, OUT_TYPES, QUANTIZER_TYPES, OutType, tensor_type
from .quantizer import check_quantizer, run_quantizer
from .sources import output_sources
from .target import check_fit, read_target
from .tensor_map import MappedTensor
from .verify import verify_drafter
from .weights import TokenIds, Weights
from .writer import OutputTensor, Progress, complete_or_nothing, write_gguf

logger = logging.getLogger(__name__)

StrPath: TypeAlias = str | PathLike[str]


@dataclass(frozen=True)
class Plan:
    """A conversion whose inputs passed every check that needs no weights.

    Attributes:
        path: The file to write.
        outtype: The type of its matrices.
        metadata: Its keys in order, without ``general.architecture``.
        tensors: Its tensors in order; their weights are read when they are written. For the types
            that llama-quantize makes, these are its input.
        quantizer: Where llama-quantize lies.
        source_bytes: Size of the checkpoint's tensors.
    """

    path: Path
    outtype: OutType
    metadata: dict[str, MetadataValue]
    tensors: list[OutputTensor]
    quantizer: Path | None
    source_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of weights that are written."""
        return sum(tensor.n_bytes for tensor in self.tensors)


def convert_drafter(
    source: StrPath,
    target: StrPath,
    outfile: StrPath | None = None,
    *,
    outtype: OutType = "f16",
    vocab: StrPath | None = None,
    quantizer: StrPath | None = None,
    force: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: StrPath | None = None,
    local_files_only: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Converts a drafter's safetensors checkpoint to a GGUF file for one target.

    The output is the same, byte for byte, for the same inputs. It exists only when it is complete.

    Args:
        source: Folder with config.json and safetensors, one of its safetensors files, or a hub id
            ``owner/name``.
        target: GGUF file of the target; its tokenizer is copied and its sizes are checked. Or the
            target's checkpoint folder, with ``vocab``.
        outfile: File to write, or a folder for the default name ``<source>-<OUTTYPE>.gguf``;
            None writes that into the working directory. ``{ftype}`` and ``{FTYPE}`` in it stand
            for the type.
        outtype: Type of the matrices. Norms, sinks and convolution base kernels stay F32. Rows that
            do not divide into the blocks of 32 of a quantized type become F16. ``q4_k_m``,
            ``q5_k_m`` and ``q6_k`` are made by llama-quantize, which has its own rules.
        vocab: GGUF file of the same tokenizer, for a ``target`` that is a folder.
        quantizer: Where llama-quantize lies, for the types that it makes.
        force: Whether an existing ``outfile`` is replaced.
        revision: Branch, tag or commit on the hub.
        token: Hub access token, True for the stored one.
        cache_dir: Cache folder of the hub.
        local_files_only: Whether to use the hub's cache only.
        verify: Whether every key and weight written is read back and compared with its source.
        progress: Called with the bytes of every piece written.

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
        vocab=vocab,
        quantizer=quantizer,
        force=force,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
    )
    return write_drafter(plan, verify=verify, progress=progress)


def plan_drafter(
    source: StrPath,
    target: StrPath,
    outfile: StrPath | None = None,
    *,
    outtype: OutType = "f16",
    vocab: StrPath | None = None,
    quantizer: StrPath | None = None,
    force: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: StrPath | None = None,
    local_files_only: bool = False,
) -> Plan:
    """Reads and checks the inputs of `convert_drafter`, which has the arguments and errors."""
    if outtype not in OUT_TYPES:
        raise mismatch(outtype, at="outtype", needed=", ".join(OUT_TYPES))
    program = None if quantizer is None else Path(quantizer)
    if outtype in QUANTIZER_TYPES:
        check_quantizer(program, outtype)
    target_model = read_target(Path(target), None if vocab is None else Path(vocab))
    checkpoint = open_checkpoint(
        source if isinstance(source, str) else Path(source),
        revision=revision,
        token=token,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        local_files_only=local_files_only,
    )
    config = parse_config(checkpoint.config, identify_layout(checkpoint), target_model.n_vocab)
    check_fit(config, target_model)
    sources = output_sources(config, checkpoint, target_model)
    path = _output_path(outfile, checkpoint.name, outtype, force)
    inputs = [Path(target), *(tensor.path for tensor in checkpoint.tensors.values())]
    if vocab is not None:
        inputs.append(Path(vocab))
    if path.exists() and any(path.samefile(other) for other in inputs):
        message = f"{path} is an input of the conversion, needed: another outfile"
        raise ConversionError(message)
    file_type = FILE_TYPES["f16" if outtype in QUANTIZER_TYPES else outtype]
    return Plan(
        path,
        outtype,
        drafter_metadata(checkpoint.name, config, target_model, file_type),
        [_output_tensor(mapped, weights, outtype) for mapped, weights in sources],
        program,
        sum(tensor.n_bytes for tensor in checkpoint.tensors.values()),
    )


def write_drafter(plan: Plan, *, verify: bool = False, progress: Progress | None = None) -> Path:
    """Writes what was planned; returns the file written.

    Args:
        plan: From `plan_drafter`.
        verify: Whether the file is read back and compared before it gets its name.
        progress: Called with the bytes of every piece written, or given to llama-quantize.

    Raises:
        ConversionError: A weight is NaN or infinite, or the type cannot hold it; or llama-quantize
            or the verification fails.
    """
    with complete_or_nothing(plan.path) as partial:
        if plan.outtype in QUANTIZER_TYPES:
            with TemporaryDirectory(prefix=".dflash2-", dir=plan.path.parent) as folder:
                intermediate = Path(folder) / "f16.gguf"
                write_gguf(intermediate, "dflash", plan.metadata, plan.tensors, progress)
                run_quantizer(plan.quantizer, intermediate, partial, plan.outtype)
        else:
            write_gguf(partial, "dflash", plan.metadata, plan.tensors, progress)
        if verify:
            sources = {tensor.name: tensor.source for tensor in plan.tensors}
            verify_drafter(partial, plan.metadata, sources)
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


def _output_tensor(mapped: MappedTensor, source: Weights, outtype: OutType) -> OutputTensor:
    type_ = tensor_type(outtype, mapped.shape[-1], mapped.keep_f32)
    if isinstance(source, TokenIds):
        type_ = GGMLQuantizationType.I64
    elif isinstance(source, GgufTensor) and outtype not in QUANTIZER_TYPES:
        # As the target has it: quantizing it once more would only lose.
        type_ = source.type
    return OutputTensor(mapped.name, mapped.shape, type_, source)
