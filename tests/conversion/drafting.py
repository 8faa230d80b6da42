"""Drafts of one block in the engine, after seeded target features."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dflash2 import _core
from numpy.typing import NDArray
from reference.files import read_gguf

from .checkpoints import Stored, Weights, stored, values

ANCHOR = 65
N_CONTEXT = 100  # more than the windows of the tiny checkpoints


class Lattice(NamedTuple):
    ids: NDArray[np.int64]
    scores: NDArray[np.float32]


def draft(target: Path, drafter: Path) -> Lattice:
    """What the engine drafts; raises if it does not load the drafter for this target."""
    options = _core.EngineOptions()
    options.model, options.draft = str(target), str(drafter)
    options.device, options.n_threads, options.n_ctx = "cpu", 1, 256
    # exact, so that the same drafter in other words gives the same numbers
    options.cache_type, options.flash_attn = "f32", "off"
    engine = _core.Engine(options)
    ids, scores = engine.draft_lattice(features(), ANCHOR)
    return Lattice(ids.astype(np.int64), scores)


def draftable(weights: Weights, dtype: str = "BF16") -> Weights:
    """The same weights at sizes that keep activations near 1, but for tables and sinks."""

    def tamed(name: str, tensor: Stored) -> Stored:
        if tensor.dtype not in ("BF16", "F32") or "sink" in name or "embed" in name:
            return tensor
        data = values(tensor)
        if name.endswith(("norm.weight", "norm_enc.weight")):
            return stored(1 + data / np.float32(10), dtype)
        return stored(data / np.float32(data.shape[-1] ** 0.5), dtype)

    return {name: tamed(name, tensor) for name, tensor in weights.items()}


def features() -> NDArray[np.float32]:
    """Of two taps, [context, 2 * 288]."""
    return np.random.default_rng(5).standard_normal((N_CONTEXT, 2 * 288)).astype(np.float32)


def target_tensor(target: Path, name: str) -> NDArray[Any]:
    _, tensors = read_gguf(target)
    return tensors[name].astype(np.float32)


def assert_same(found: Lattice, expected: Lattice, atol: float = 1e-3) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=atol)
