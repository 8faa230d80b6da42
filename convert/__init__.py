"""Converts drafters from safetensors to GGUF; needs no PyTorch."""

from .drafter import convert_drafter
from .errors import ConversionError

__all__ = ["ConversionError", "convert_drafter"]
