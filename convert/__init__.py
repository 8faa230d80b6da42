"""Converts drafters from safetensors to GGUF and back; needs no PyTorch."""

from .drafter import convert_drafter
from .errors import ConversionError
from .inspect import Inspection, inspect_drafter
from .to_safetensors import convert_to_safetensors

__all__ = [
    "ConversionError",
    "Inspection",
    "convert_drafter",
    "convert_to_safetensors",
    "inspect_drafter",
]
