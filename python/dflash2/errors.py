"""Exceptions of the package.

A missing file is a `FileNotFoundError` and a bad argument or request a `ValueError`; everything
else that can go wrong derives from `Dflash2Error`.
"""

from dflash2._core import Dflash2Error, ModelLoadError, ModelMismatchError


class EngineClosedError(Dflash2Error):
    """The engine was closed before or while it was used."""


__all__ = ["Dflash2Error", "EngineClosedError", "ModelLoadError", "ModelMismatchError"]
