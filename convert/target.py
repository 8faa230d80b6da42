"""What a drafter takes from its target, and whether the two belong together.

A target is a GGUF file, or a checkpoint folder together with a GGUF file of the same tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Checkpoint, Json, open_folder
from .config import DrafterConfig
from .errors import ConversionError, mismatch
from .gguf_file import read_gguf
from .gguf_metadata import read_metadata
from .gguf_values import MetadataValue
from .tensor_map import EMBEDDING, HEAD
from .weights import Weights

# Always multi-dimensional there, even where config.json leaves the sections out.
_ALWAYS_MROPE = ("qwen3_5",)


@dataclass(frozen=True)
class Target:
    """The target as far as a drafter depends on it.

    Attributes:
        path: Its GGUF file or its checkpoint folder.
        architecture: Its ``general.architecture``, or the model type of its config.json.
        n_embd: Hidden size.
        n_layers: Decoder layers, without the extra layers of multi-token prediction.
        n_vocab: Number of tokens, padding included.
        uses_mrope: Whether its positions are multi-dimensional (M-RoPE).
        tokenizer: The ``tokenizer.*`` keys in file order.
        ties_embedding: Whether its embedding is its head too.
    """

    path: Path
    architecture: str
    n_embd: int
    n_layers: int
    n_vocab: int
    uses_mrope: bool
    tokenizer: dict[str, MetadataValue]
    ties_embedding: bool | None = None

    @property
    def name(self) -> str:
        """File or folder name, for messages."""
        return self.path.name

    def embedding(self) -> Weights:
        """Its token embedding [n_vocab, n_embd].

        Raises:
            ConversionError: It has none that can be read.
        """
        return self._weights(("token_embd.weight",), (EMBEDDING,))

    def head(self) -> Weights:
        """Its head [n_vocab, n_embd], which may be the embedding.

        Raises:
            ConversionError: It has none that can be read.
        """
        if self.ties_embedding:
            return self.embedding()
        return self._weights(("output.weight", "token_embd.weight"), (HEAD,))

    def _weights(self, gguf_names: tuple[str, ...], names: tuple[str, ...]) -> Weights:
        tensors: Mapping[str, Weights]
        if self.path.is_dir():
            tensors = {_plain(name): tensor for name, tensor in _open(self.path).tensors.items()}
        else:
            tensors, names = read_gguf(self.path).tensors, gguf_names
        found = next((tensors[name] for name in names if name in tensors), None)
        if found is None:
            raise mismatch(None, at=f"{self.name}: tensor {names[0]}", needed="the target's own")
        if found.shape != (self.n_vocab, self.n_embd):
            needed = f"{[self.n_vocab, self.n_embd]}, a row for each token"
            raise mismatch(list(found.shape), at=f"{self.name}: shape of {names[0]}", needed=needed)
        return found


def read_target(path: Path, vocab: Path | None = None) -> Target:
    """Reads what describes a target.

    Args:
        path: Its GGUF file, or its checkpoint folder.
        vocab: For a folder, a GGUF file of the same tokenizer.

    Raises:
        FileNotFoundError: There is no such file.
        ConversionError: It is no model with a vocabulary, or a drafter.
    """
    if path.is_dir():
        return _read_folder(path, vocab)
    if vocab is not None:
        raise mismatch(str(vocab), at="vocab", needed="a target folder, a GGUF file has its own")
    return _read_gguf(path)


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
        str(mismatch(layer, at="config.json: target_layer_ids: an entry", needed=needed))
        for layer in config.target_layer_ids
        if layer > highest
    ]
    return found


def _read_gguf(path: Path) -> Target:
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

    tokenizer, n_vocab = _tokenizer(path, metadata)
    n_nextn = integer(f"{arch}.nextn_predict_layers", default=0)
    return Target(
        path=path,
        architecture=arch,
        n_embd=integer(f"{arch}.embedding_length"),
        n_layers=integer(f"{arch}.block_count") - n_nextn,
        n_vocab=n_vocab,
        uses_mrope=f"{arch}.rope.dimension_sections" in metadata,
        tokenizer=tokenizer,
    )


def _tokenizer(
    path: Path, metadata: dict[str, MetadataValue]
) -> tuple[dict[str, MetadataValue], int]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, list):
        message = f"{path.name} has no tokenizer.ggml.tokens, needed: a vocabulary"
        raise ConversionError(message)
    keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    return keys, len(tokens.value)


def _read_folder(folder: Path, vocab: Path | None) -> Target:
    checkpoint = _open(folder)
    if vocab is None:
        message = (
            f"{folder} is a folder, whose tokenizer cannot be converted; needed: the target's GGUF "
            "file, or with the folder a GGUF file of the same tokenizer as vocab"
        )
        raise ConversionError(message)
    metadata = read_metadata(vocab)
    tokenizer, n_vocab = _tokenizer(vocab, metadata)
    config = checkpoint.config
    text = config.get("text_config")
    settings: Json = {**config, **text} if isinstance(text, dict) else config

    def integer(key: str) -> int:
        value = settings.get(key)
        if not isinstance(value, int):
            raise mismatch(value, at=f"{folder.name}/config.json: {key}", needed="an integer")
        return value

    if integer("vocab_size") != n_vocab:
        where = f"{vocab.name}: number of tokens"
        needed = f"{integer('vocab_size')} as vocab_size in {folder.name}/config.json"
        raise mismatch(n_vocab, at=where, needed=needed)
    architecture = str(settings.get("model_type"))
    rope = settings.get("rope_parameters") or settings.get("rope_scaling")
    sections = isinstance(rope, dict) and "mrope_section" in rope
    return Target(
        path=folder,
        architecture=architecture,
        n_embd=integer("hidden_size"),
        n_layers=integer("num_hidden_layers"),
        n_vocab=n_vocab,
        uses_mrope=sections or architecture.startswith(_ALWAYS_MROPE),
        tokenizer=tokenizer,
        ties_embedding=settings.get("tie_word_embeddings") is True,
    )


def _open(folder: Path) -> Checkpoint:
    return open_folder(folder, folder.resolve().name)


def _plain(name: str) -> str:
    """A tensor's name without what a multimodal model puts in front of it."""
    return EMBEDDING if name.endswith(EMBEDDING) else HEAD if name.endswith(HEAD) else name
