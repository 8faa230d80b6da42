"""Runs llama-quantize for the types that only it makes."""

import subprocess
from pathlib import Path

from .errors import ConversionError
from .quantize import OutType


def run_quantizer(program: Path | None, source: Path, outfile: Path, outtype: OutType) -> None:
    """Makes a K-quantized file of an F16 one.

    Args:
        program: Where llama-quantize lies; None if it is not there.
        source: The F16 file.
        outfile: The file to write.
        outtype: The type of its matrices.

    Raises:
        ConversionError: The program is missing, or fails; the message has its last line.
    """
    check_quantizer(program, outtype)
    command = [str(program), str(source), str(outfile), outtype.upper()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0 or not outfile.is_file():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else "it printed nothing"
        message = f"llama-quantize failed (exit status {done.returncode}): {reason}"
        raise ConversionError(message)


def check_quantizer(program: Path | None, outtype: OutType) -> None:
    """Refuses early what `run_quantizer` would refuse after the weights were read.

    Raises:
        ConversionError: The program is missing.
    """
    if program is None or not program.is_file():
        found = "no path to it was given" if program is None else f"there is none at {program}"
        message = (
            f"outtype {outtype} is made by llama-quantize, and {found}; needed: the program that "
            "comes with the package, or another outtype"
        )
        raise ConversionError(message)
