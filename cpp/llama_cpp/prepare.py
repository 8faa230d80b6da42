"""Makes the tree that is built: the pinned llama.cpp with the patch series applied.

CMake runs this at configure time. By hand, `prepare.py --pristine DIR` gives a tree without the
patches, against which a new one is made.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import sys
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

import series
from fetch import fetch
from pin import Pin, SourceError

# What is unpacked of llama.cpp. Its build reads the CMakeLists.txt of every tool, whether built or
# not, and the converters are for comparing ours with.
WANTED = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake/*",
    "common/*",
    "ggml/*",
    "include/*",
    "licenses/*",
    "scripts/ui-assets.cmake",
    "src/*",
    "tools/*",
    "vendor/*",
    "conversion/*",
    "convert_hf_to_gguf.py",
    "gguf-py/gguf/*",
)
# The web page of llama-server is taken prebuilt; its sources are most of the files under tools/.
UNWANTED = (
    "tools/ui/*/*",
    "tools/ui/*.json",
    "tools/server/tests/*",
    "tools/server/bench/*",
    "tools/mtmd/test*",
)

STAMP = ".dflash2-stamp"


def prepare(tree: Path, pin: Pin, patches: list[Path]) -> None:
    """Makes `tree` the pinned llama.cpp with `patches` applied.

    Only files whose content changes are written, so that after a change of a patch the build
    compiles no more than it must. A tree that is up to date is left alone.

    Raises:
        SourceError: There is no source, a patch does not apply, or `tree` cannot be written.
    """
    wanted = stamp(pin, patches)
    if is_stamped(tree, wanted):
        return
    archive = fetch(pin)
    try:
        tree.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
            fresh = Path(scratch)
            unpack(archive, pin, fresh)
            for patch in patches:
                series.apply(patch, fresh, pin)
            (tree / STAMP).unlink(missing_ok=True)
            mirror(fresh, tree)
            (tree / STAMP).write_text(wanted, encoding="utf-8")
    except OSError as error:
        msg = (
            f"cannot write the sources of llama.cpp to {tree} ({error.strerror}): "
            "free some space there or build in another folder"
        )
        raise SourceError(msg) from error


def check(tree: Path, pin: Pin, patches: list[Path]) -> None:
    """Accepts a tree that was prepared for this pin and series, edited since or not.

    Raises:
        SourceError: It was not.
    """
    if not is_stamped(tree, stamp(pin, patches)):
        msg = (
            f"{tree} is not the pinned llama.cpp with this project's patches and is built as it "
            "is: to get such a tree, run python cpp/llama_cpp/prepare.py DIR"
        )
        raise SourceError(msg)


def stamp(pin: Pin, patches: list[Path]) -> str:
    """Hash of everything that decides what a prepared tree holds."""
    parts = {
        "pin": asdict(pin),
        "unpacked": [WANTED, UNWANTED],
        "patches": [patch.read_text(encoding="utf-8") for patch in patches],
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_stamped(tree: Path, wanted: str) -> bool:
    """Whether `tree` carries the stamp `wanted`."""
    path = tree / STAMP
    return path.is_file() and path.read_text(encoding="utf-8") == wanted


def unpack(archive: Path, pin: Pin, folder: Path) -> None:
    """Unpacks what is wanted of llama.cpp from the source distribution into `folder`."""
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            _, _, path = member.name.partition(f"/{pin.folder}/")
            if member.isfile() and matches(path, WANTED) and not matches(path, UNWANTED):
                data = members.extractfile(member)
                assert data is not None
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data.read())


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a path below llama.cpp's folder fits one of the patterns, whose `*` spans folders."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def mirror(fresh: Path, tree: Path) -> None:
    """Moves the files of `fresh` to `tree`, where those with the same content are left alone."""
    wanted = files(fresh)
    for path in files(tree) - wanted:
        (tree / path).unlink()
    for path in wanted:
        source, target = fresh / path, tree / path
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)


def files(folder: Path) -> set[Path]:
    """Every file below `folder`, relative to it."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def main() -> int:
    """Runs the command line; a failure is one sentence on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, metavar="DIR", help="the tree to make")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--pristine", action="store_true", help="apply no patches")
    mode.add_argument("--check", action="store_true", help="only say whether DIR was made by this")
    args = parser.parse_args()
    patches = [] if args.pristine else series.patches()
    try:
        (check if args.check else prepare)(args.tree.resolve(), Pin.load(), patches)
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
