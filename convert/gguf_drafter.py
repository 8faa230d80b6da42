"""Reads a drafter's GGUF file and checks it as the converter checks a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from gguf import GGMLQuantizationType

from .checkpoint import Json
from .config import DrafterConfig, parse_config
from .errors import ConversionError, mismatch
from .families import refuse_other_tensors
from .gguf_file import GgufFile, GgufTensor, read_gguf
from .gguf_settings import TOKEN_IDS, in_gguf_terms, released_settings
from .gguf_values import strings
from .tensor_map import MappedTensor, expected_tensors, pair_tensors

_INTEGERS = tuple(GGMLQuantizationType[name] for name in ("I8", "I16", "I32", "I64"))


@dataclass(frozen=True)
class GgufDrafter:
    """A drafter read from a GGUF file that passed the converter's checks.

    Attributes:
        file: The file.
        settings: The config.json of the same drafter as a released checkpoint.
        config: The same, checked.
        tensors: Every tensor of the drafter with the file's.
        token_ids: Which token each row of a reduced vocabulary is; None without one.
    """

    file: GgufFile
    settings: Json
    config: DrafterConfig
    tensors: list[tuple[MappedTensor, GgufTensor]]
    token_ids: GgufTensor | None

    @property
    def tokens(self) -> list[bytes]:
        """Its copy of the target's vocabulary."""
        return strings(self.file.metadata["tokenizer.ggml.tokens"])


def read_drafter(path: Path) -> GgufDrafter:
    """Reads a drafter's GGUF file, all but its weights.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is damaged, no drafter, or one that cannot be drafted with.
    """
    file = read_gguf(path)
    weights = dict(file.tensors)
    token_ids = weights.pop(TOKEN_IDS, None)
    try:
        for tensor in weights.values():
            if tensor.type in _INTEGERS:
                where = f"type of tensor {tensor.name}"
                raise mismatch(tensor.type.name, at=where, needed="a type of weights")
        refuse_other_tensors(weights)
        settings = released_settings(file)
        config = parse_config(settings)
        expected = {mapped.name: mapped for mapped in expected_tensors(config)}
        tensors = pair_tensors(expected, weights)
    except ConversionError as error:
        raise ConversionError(in_gguf_terms(str(error), path)) from error
    return GgufDrafter(file, settings, config, tensors, token_ids)
