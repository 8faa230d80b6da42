"""The demo target in three types, which differ in what a row of a decode costs."""

import subprocess
from pathlib import Path

from dflash2 import demo
from dflash2.programs import program_path

KINDS = ("Q4_1", "Q8_0", "F16")


def demo_target(kind: str, folder: Path) -> Path:
    """Path of the demo target as `kind`, made from its Q4_1 file unless `folder` has it."""
    source = demo.target_path()
    if kind == "Q4_1":
        return source
    path = folder / f"{source.name.partition('.')[0]}.{kind}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        command = [program_path("llama-quantize"), "--allow-requantize", source, unfinished, kind]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        unfinished.rename(path)
    return path
