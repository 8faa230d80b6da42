"""Numpy restatement of DFlash 2 in float64: what every implementation is judged against."""

from reference.drafter import Draft, Drafter, DrafterConfig
from reference.files import read_gguf, read_safetensors
from reference.selector import greedy_walk, sampled_walk
from reference.target import Target

__all__ = [
    "Draft",
    "Drafter",
    "DrafterConfig",
    "Target",
    "greedy_walk",
    "read_gguf",
    "read_safetensors",
    "sampled_walk",
]
