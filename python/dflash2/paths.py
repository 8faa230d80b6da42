"""Where the package keeps its native parts."""

from pathlib import Path

from dflash2 import _core

# not this file's folder: an editable installation keeps sources and native parts apart
_NATIVE = Path(_core.__file__).parent

PROGRAMS = _NATIVE / "bin"
LIBRARIES = _NATIVE / "lib"
