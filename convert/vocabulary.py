"""Reduced vocabularies: which target token each row of the drafter's own head stands for."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .config import DrafterConfig
from .errors import ConversionError, mismatch
from .safetensors import SourceTensor
from .tensor_map import HEAD
from .weights import TokenIds


def draft_token_ids(config: DrafterConfig, tensors: Mapping[str, SourceTensor]) -> TokenIds | None:
    """Reads ``d2t`` as ids of the target; None when rows and tokens are the same.

    Checkpoints store it as distances from a row's own number, and in ``t2d`` which tokens occur.

    Args:
        config: The drafter's settings.
        tensors: The checkpoint's tensors by the names of `released_names`.

    Raises:
        ConversionError: A table is missing, of another size, or contradicts the other.
    """
    if "d2t" not in tensors:
        if config.draft_vocab_size == config.vocab_size:
            return None
        needed = f"a token for each of draft_vocab_size {config.draft_vocab_size} rows"
        raise mismatch(None, at="tensor d2t", needed=needed)
    if HEAD not in tensors:
        raise mismatch(None, at=f"tensor {HEAD}", needed="the head whose rows tensor d2t names")
    table = tensors["d2t"]
    if table.shape != (config.draft_vocab_size,):
        needed = f"[{config.draft_vocab_size}] by draft_vocab_size"
        raise mismatch(list(table.shape), at="shape of tensor d2t", needed=needed)
    ids = table.read_integers() + np.arange(config.draft_vocab_size)
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        found = f"ids from {ids.min()} to {ids.max()}"
        raise mismatch(found, at="tensor d2t", needed=f"ids of a vocabulary of {config.vocab_size}")
    if np.unique(ids).size != ids.size:
        message = "tensor d2t names a token twice, needed: another token for each row"
        raise ConversionError(message)
    if "t2d" in tensors:
        _check_inverse(config, tensors["t2d"], ids)
    return None if np.array_equal(ids, np.arange(config.vocab_size)) else TokenIds("d2t", ids)


def _check_inverse(config: DrafterConfig, table: SourceTensor, ids: NDArray[np.int64]) -> None:
    if table.shape != (config.vocab_size,):
        needed = f"[{config.vocab_size}] by vocab_size"
        raise mismatch(list(table.shape), at="shape of tensor t2d", needed=needed)
    if not np.array_equal(np.flatnonzero(table.read_integers()), np.sort(ids)):
        message = "tensor t2d marks other tokens than tensor d2t names, needed: the same"
        raise ConversionError(message)
