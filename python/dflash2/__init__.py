"""A llama.cpp backend for DFlash 2, the block-diffusion speculative decoder."""

from importlib.metadata import version

from dflash2.engine import Dflash2Engine
from dflash2.errors import Dflash2Error, EngineClosedError, ModelLoadError, ModelMismatchError
from dflash2.sampling import SamplingParams
from dflash2.types import (
    Cycle,
    GenerationChunk,
    GenerationResult,
    GenerationStats,
    TokenLogprobs,
)

__version__ = version("dflash2")

__all__ = [
    "Cycle",
    "Dflash2Engine",
    "Dflash2Error",
    "EngineClosedError",
    "GenerationChunk",
    "GenerationResult",
    "GenerationStats",
    "ModelLoadError",
    "ModelMismatchError",
    "SamplingParams",
    "TokenLogprobs",
    "__version__",
]
