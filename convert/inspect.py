"""Says what a drafter is, what it costs at runtime, and whether it fits a target."""

import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from .checkpoint import open_checkpoint
from .config import DrafterConfig, parse_config
from .drafter import StrPath
from .errors import mismatch
from .families import Layout, identify_layout
from .gguf_drafter import GgufDrafter, read_drafter
from .gguf_settings import in_gguf_terms
from .gguf_values import strings
from .target import Target, misfits, read_target
from .tensor_map import match_tensors, released_names

_CACHE_ITEM_BYTES = 2  # the drafter's cache is F16
_FEATURE_ITEM_BYTES = 4  # llama.cpp hands out hidden states as F32
# Of all tokens. A fine-tuned target may rename a few reserved ones; another tokenizer differs
# nearly everywhere. The engine draws the same line.
_RENAMED_TOKENS = 0.01


@dataclass(frozen=True)
class Memory:
    """What a drafter takes at runtime, in bytes.

    Attributes:
        weights: Its tensors as they are stored.
        cache_per_1k_tokens: Keys and values of 1000 tokens of one sequence in the layers that see
            the whole context.
        cache_of_windows: Keys and values of one sequence in the sliding layers, however long it is.
        features_per_token: Hidden states of the target that are read for a token.
    """

    weights: int
    cache_per_1k_tokens: int
    cache_of_windows: int
    features_per_token: int


@dataclass(frozen=True)
class Fit:
    """Whether a drafter can draft for a target.

    Attributes:
        target: The target's file.
        mismatches: What rules it out; empty if it fits.
        warnings: What differs and does no harm to text.
    """

    target: str
    mismatches: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """A drafter, described.

    Attributes:
        path: The GGUF file or the checkpoint's folder.
        format: ``gguf`` or ``safetensors``.
        family: ``DFlash 2`` or ``DFlash``, and the layout where it is not that of the releases.
        config: Its settings.
        mask_token: The mask token as text; None if no tokenizer is at hand.
        n_tensors: Number of tensors.
        n_weights: Number of weights.
        tensor_types: How many tensors there are of each type.
        n_bytes: Size of the file, or of the weight files.
        memory: What it takes at runtime.
        fit: Whether it fits the target; None without one.
    """

    path: str
    format: str
    family: str
    config: DrafterConfig
    mask_token: str | None
    n_tensors: int
    n_weights: int
    tensor_types: dict[str, int]
    n_bytes: int
    memory: Memory
    fit: Fit | None

    def as_dict(self) -> dict[str, object]:
        """Returns everything as values that JSON has."""
        values = asdict(self)
        values["config"]["layout"] = self.config.layout.value
        if self.fit is not None:
            values["fit"]["fits"] = not self.fit.mismatches
        return values


def inspect_drafter(
    path: StrPath, target: StrPath | None = None, vocab: StrPath | None = None
) -> Inspection:
    """Describes a drafter and compares it with a target.

    Args:
        path: GGUF file, or a checkpoint on disk as `convert_drafter` takes it.
        target: Target as `convert_drafter` takes it.
        vocab: For a target folder, a GGUF file of the same tokenizer.

    Raises:
        FileNotFoundError: One of them does not exist.
        ConversionError: One of them is damaged, or the drafter is none that can be drafted with.
    """
    source = Path(path)
    fit_to = None
    if target is not None:
        fit_to = read_target(Path(target), None if vocab is None else Path(vocab))
    if source.suffix == ".gguf":
        return _inspect_gguf(read_drafter(source), fit_to)
    return _inspect_checkpoint(source, fit_to)


def _inspect_gguf(drafter: GgufDrafter, target: Target | None) -> Inspection:
    path, config = drafter.file.path, drafter.config
    fit = None
    if target is not None:
        mismatches = [in_gguf_terms(text, path) for text in misfits(config, target)]
        differing, warnings = _compare_tokens(drafter.tokens, target, config.mask_token_id)
        if target.uses_mrope and "dflash.rope.dimension_sections" not in drafter.file.metadata:
            warnings.append(
                f"{path.name} lacks dflash.rope.dimension_sections, which drafters of targets with "
                "M-RoPE have: images would shift its positions, convert it again"
            )
        fit = Fit(target.name, (*mismatches, *differing), tuple(warnings))
    tensors = drafter.file.tensors.values()
    return Inspection(
        path=str(path),
        format="gguf",
        family=config.family,
        config=config,
        mask_token=_text(drafter.tokens, config.mask_token_id),
        n_tensors=len(tensors),
        n_weights=sum(math.prod(tensor.shape) for tensor in tensors),
        tensor_types=dict(Counter(tensor.type.name for tensor in tensors)),
        n_bytes=path.stat().st_size,
        memory=_memory(config, sum(tensor.n_bytes for tensor in tensors)),
        fit=fit,
    )


def _inspect_checkpoint(path: Path, target: Target | None) -> Inspection:
    checkpoint = open_checkpoint(
        path, revision=None, token=None, cache_dir=None, local_files_only=True
    )
    layout = identify_layout(checkpoint)
    if layout is Layout.ASSISTANT and target is None:
        where = f"the vocabulary of {path.name}, a {layout.value},"
        raise mismatch(None, at=where, needed="a target, from which its size is taken")
    config = parse_config(checkpoint.config, layout, None if target is None else target.n_vocab)
    tensors = [tensor for _, tensor in match_tensors(config, released_names(checkpoint.tensors))]
    return Inspection(
        path=str(path),
        format="safetensors",
        family=config.family,
        config=config,
        mask_token=None
        if target is None
        else _text(strings(target.tokenizer["tokenizer.ggml.tokens"]), config.mask_token_id),
        n_tensors=len(tensors),
        n_weights=sum(math.prod(tensor.shape) for tensor in tensors),
        tensor_types=dict(Counter(tensor.dtype for tensor in tensors)),
        n_bytes=sum(file.stat().st_size for file in {tensor.path for tensor in tensors}),
        memory=_memory(config, sum(tensor.n_bytes for tensor in tensors)),
        fit=None if target is None else Fit(target.name, tuple(misfits(config, target)), ()),
    )


def _memory(config: DrafterConfig, weights: int) -> Memory:
    n_sliding = sum(config.visibility.sliding_layers)
    row = 2 * config.num_key_value_heads * config.head_dim * _CACHE_ITEM_BYTES
    return Memory(
        weights=weights,
        cache_per_1k_tokens=1000 * row * (config.num_hidden_layers - n_sliding),
        cache_of_windows=(config.visibility.window or 0) * row * n_sliding,
        features_per_token=len(config.target_layer_ids) * config.hidden_size * _FEATURE_ITEM_BYTES,
    )


def _compare_tokens(
    ours: list[bytes], target: Target, mask_token_id: int
) -> tuple[list[str], list[str]]:
    """What rules a target out by its vocabulary, and what does not."""
    theirs = strings(target.tokenizer["tokenizer.ggml.tokens"])
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if not differing:
        return [], []
    first = differing[0]
    message = (
        f"{len(differing)} of {len(ours)} tokens differ from those of {target.name}, the first is "
        f"{first}: {_text(ours, first)!r} and {_text(theirs, first)!r}"
    )
    messages = [message]
    if mask_token_id in differing:
        messages.append(
            f"the mask token {mask_token_id} is {_text(ours, mask_token_id)!r} in the drafter and "
            f"{_text(theirs, mask_token_id)!r} in {target.name}"
        )
    return (messages, []) if len(differing) > _RENAMED_TOKENS * len(ours) else ([], messages)


def _text(tokens: list[bytes], token: int) -> str | None:
    return tokens[token].decode(errors="replace") if token < len(tokens) else None
