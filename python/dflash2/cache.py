"""The user's cache: the demo target and drafters converted on the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder, which need not exist yet.

    `$DFLASH2_CACHE` if set, else `dflash2` in the folder that the system has for caches.
    """
    if own := os.environ.get("DFLASH2_CACHE"):
        return Path(own).expanduser()
    return _system_cache() / "dflash2"


def _system_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return Path(xdg) if xdg else Path.home() / ".cache"
