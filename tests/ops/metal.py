"""The sources of the Metal ops, put together as their build does, and as a device of the shim."""

import functools
import re
from pathlib import Path

from shim import ROOT, build

METAL = ROOT / "ggml_ops" / "metal"


def kernels() -> str:
    """The text that Metal compiles."""
    parts = re.search(r"IN ITEMS ([^)]*)", (METAL / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert parts
    return "".join((METAL / part).read_text(encoding="utf-8") for part in parts[1].split())


def write_kernels(folder: Path) -> None:
    """Writes what the encoders include."""
    (folder / "dflash2-kernels.inc").write_text(f'R"metal({kernels()})metal"\n', encoding="utf-8")


@functools.cache
def build_metal(ggml: Path) -> Path:
    """Builds encoders and kernels into a library beside the sources of ggml, once."""
    folder = ggml.with_name("metal")
    folder.mkdir()
    write_kernels(folder)
    sources = [METAL / "dflash2-metal.cpp", Path(__file__).with_name("metal_shim.cpp")]
    system = [ggml / "include", ggml / "src", ggml / "src" / "ggml-metal"]
    return build(folder / "metal.so", sources, [METAL, folder], system)
