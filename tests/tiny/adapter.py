"""LoRA adapters for the tiny targets."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from tiny.writing import finish, normal


def write_lora(
    path: Path,
    target: Path,
    *,
    seed: int = 8,
    rank: int = 4,
    strength: float = 0.5,
    invocation: Sequence[int] = (),
) -> Path:
    """An adapter of every feed-forward matrix of `target`.

    Args:
        strength: size of what it adds at scale 1, as a share of what the matrix gives.
        invocation: tokens from which on it works, of an activated adapter.
    """
    rng = np.random.default_rng(seed)
    model = gguf.GGUFReader(target)
    writer = gguf.GGUFWriter(path, model.fields["general.architecture"].contents())
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(rank))
    if invocation:
        # the writer's own array of integers is signed
        writer.add_key_value(
            gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS,
            list(invocation),
            gguf.GGUFValueType.ARRAY,
            gguf.GGUFValueType.UINT32,
        )
    for tensor in model.tensors:
        if ".ffn_" in tensor.name and tensor.name.endswith(".weight") and tensor.data.ndim == 2:
            n_out, n_in = tensor.data.shape
            size = strength * float(np.linalg.norm(tensor.data)) * n_out**-0.5
            writer.add_tensor(f"{tensor.name}.lora_a", normal(rng, rank, n_in))
            writer.add_tensor(f"{tensor.name}.lora_b", size * normal(rng, n_out, rank))
    finish(writer)
    return path
