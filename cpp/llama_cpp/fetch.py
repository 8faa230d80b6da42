"""Downloads the pinned source distribution once per user."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pin import Pin, SourceError

INSTEAD = "give a llama.cpp checkout with -DDFLASH2_LLAMA_CPP_SOURCE=DIR"


def fetch(pin: Pin) -> Path:
    """Returns the verified source distribution, downloading it when the cache has none.

    Raises:
        SourceError: There is no network, the file is not the pinned one, or the cache cannot be
            written.
    """
    kept = cache_dir() / f"{pin.package}-{pin.version}.tar.gz"
    try:
        if kept.is_file() and sha256(kept) == pin.sha256:
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            archive = download(pin, Path(scratch))
            if (found := sha256(archive)) != pin.sha256:
                raise wrong_hash(pin, found)
            archive.replace(kept)
    except OSError as error:
        msg = (
            f"cannot keep {pin} in {kept.parent} ({error.strerror}): "
            "free some space there or set DFLASH2_CACHE to a folder that can be written"
        )
        raise SourceError(msg) from error
    return kept


def cache_dir() -> Path:
    """The user's cache: `$DFLASH2_CACHE`, or `dflash2` in the place the platform has for caches."""
    if chosen := os.environ.get("DFLASH2_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "dflash2"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "dflash2"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash2"


def download(pin: Pin, folder: Path) -> Path:
    """Has pip put the source distribution into `folder` and returns its path.

    Raises:
        SourceError: pip could not get it, or got another file than the pinned one.
    """
    # With the hash in a requirements file pip checks the file before it runs any code in it.
    wanted = folder / "wanted.txt"
    line = f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n"
    wanted.write_text(line, encoding="utf-8")
    options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command: list[str | Path] = [*pip, *options, "-r", wanted, "-d", folder]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return next(folder.glob("*.tar.gz"))
    if got := re.search(r"Got\s+([0-9a-f]{64})", result.stderr):
        raise wrong_hash(pin, got[1])
    errors = [text for text in result.stderr.splitlines() if text.strip()]
    reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "no reason given"
    msg = (
        f"pip could not download {pin} ({reason}): "
        f"connect to the network and run this again, or {INSTEAD}"
    )
    raise SourceError(msg)


def wrong_hash(pin: Pin, found: str) -> SourceError:
    """The error for a file that is not the pinned one."""
    return SourceError(
        f"{pin} as downloaded has sha256 {found} instead of the pinned {pin.sha256}: "
        f"have pip use another package index, or {INSTEAD}"
    )


def sha256(path: Path) -> str:
    """Hash of a file, as 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
