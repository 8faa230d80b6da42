"""The patch series on llama.cpp: which patches there are, and how they are applied."""

from __future__ import annotations

import logging
from pathlib import Path

from pin import Pin, SourceError

PROJECT = Path(__file__).resolve().parents[2]


def patches() -> list[Path]:
    """All patches, in the order in which they are applied."""
    folders = [PROJECT / "ggml_ops" / "patches", PROJECT / "cpp" / "patches"]
    return [patch for folder in folders for patch in sorted(folder.glob("*.patch"))]


def apply(patch: Path, tree: Path, pin: Pin) -> None:
    """Applies one patch to a tree in which it is not applied yet.

    Raises:
        SourceError: The patch does not apply.
    """
    # Imported here, because a tree that is already prepared needs no patch-ng.
    import patch_ng

    # What it would print about a hunk that does not fit is in the error below.
    logging.getLogger("patch_ng").setLevel(logging.CRITICAL)
    parsed = patch_ng.fromfile(str(patch))
    if not parsed:
        raise does_not_apply(patch, "is not a patch", pin)
    for change in list(parsed.items):
        # One file at a time, so that the error can name it.
        parsed.items = [change]
        if not parsed.apply(root=str(tree.resolve())):
            raise does_not_apply(patch, f"does not apply to {change.target.decode()}", pin)


def does_not_apply(patch: Path, problem: str, pin: Pin) -> SourceError:
    """The error for a patch that cannot be used."""
    name = patch.relative_to(PROJECT) if patch.is_relative_to(PROJECT) else patch
    return SourceError(f"{name} {problem}: regenerate it against {pin} (commit {pin.commit[:9]})")
