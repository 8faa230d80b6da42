"""What a drafter takes from its target's GGUF file, and whether the two belong together."""

from dataclasses import dataclass
from pathlib import Path

from .config import DrafterConfig
from .errors import ConversionError, mismatch
from .gguf_metadata import read_metadata
from .gguf_values import MetadataValue


@dataclass(frozen=True)
class Target:
    """The target as far as a drafter depends on it.

    Attributes:
        name: File name, for messages.
        n_embd: Hidden size.
        n_layers: Decoder layers, without the extra layers of multi-token prediction.
        n_vocab: Number of tokens, padding included.
        uses_mrope: Whether its positions are multi-dimensional (M-RoPE).
        tokenizer: Its ``tokenizer.*`` keys in file order.
    """

    name: str
    n_embd: int
    n_layers: int
    n_vocab: int
    uses_mrope: bool
    tokenizer: dict[str, MetadataValue]


def read_target(path: Path) -> Target:
    """Reads the metadata of a target GGUF file.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no GGUF model with a vocabulary, or a drafter.
    """
    if path.is_dir():
        message = f"{path} is a folder, needed: the target's GGUF file"
        raise ConversionError(message)
    metadata = read_metadata(path)
    architecture = metadata.get("general.architecture")
    if architecture is None or not isinstance(architecture.value, bytes):
        message = f"{path.name} has no general.architecture, needed: a GGUF model"
        raise ConversionError(message)
    arch = architecture.value.decode(errors="replace")
    if arch == "dflash":
        message = f"{path.name} is a drafter, needed: the target it drafts for"
        raise ConversionError(message)

    def integer(key: str, default: int | None = None) -> int:
        value = metadata[key].value if key in metadata else default
        if not isinstance(value, int):
            raise mismatch(value, at=f"{path.name}: {key}", needed="an integer")
        return value

    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, list):
        message = f"{path.name} has no tokenizer.ggml.tokens, needed: a vocabulary"
        raise ConversionError(message)
    n_nextn = integer(f"{arch}.nextn_predict_layers", default=0)
    return Target(
        name=path.name,
        n_embd=integer(f"{arch}.embedding_length"),
        n_layers=integer(f"{arch}.block_count") - n_nextn,
        n_vocab=len(tokens.value),
        uses_mrope=f"{arch}.rope.dimension_sections" in metadata,
        tokenizer={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
    )


def check_fit(config: DrafterConfig, target: Target) -> None:
    """Checks that a drafter was made for a target of these sizes.

    Raises:
        ConversionError: A size differs, or a tap cannot be read in this target.
    """
    if found := misfits(config, target):
        message = "; ".join(found)
        raise ConversionError(message)


def misfits(config: DrafterConfig, target: Target) -> list[str]:
    """Lists everything in which a drafter was made for another target than this one."""
    found = [
        str(mismatch(value, at=f"config.json: {key}", needed=f"{wanted} as in {target.name}"))
        for key, value, wanted in (
            ("hidden_size", config.hidden_size, target.n_embd),
            ("vocab_size", config.vocab_size, target.n_vocab),
            ("num_target_layers", config.num_target_layers, target.n_layers),
        )
        if value not in (None, wanted)
    ]
    # A tap is read at the input of the layer after it, so the last layer has none.
    highest = target.n_layers - 2
    needed = (
        f"at most {highest}, as {target.name} has {target.n_layers} layers "
        "and the last one's output cannot be tapped"
    )
    found += [
        str(mismatch(layer, at="config.json: an entry of target_layer_ids", needed=needed))
        for layer in config.target_layer_ids
        if layer > highest
    ]
    return found
