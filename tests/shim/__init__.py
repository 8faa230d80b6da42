"""GPU sources on the CPU: builds them against a face of the shim and runs single nodes of them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

SHIM = Path(__file__).parent
ROOT = SHIM.parents[1]

_FLAGS = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
# A misaligned access or an index outside of an array traps, which the executor reports. Pragmas of
# GPU compilers are not for this one, and its warning on longjmp is on variables that are not used
# after the jump.
_FLAGS += ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
_FLAGS += ["-Wno-unknown-pragmas", "-Wno-clobbered"]
# Sums as they are written, and jumps between stacks, which some systems' default forbids.
_FLAGS += ["-ffp-contract=off", "-U_FORTIFY_SOURCE"]


class Fault(Exception):
    """A kernel did what it must not."""


@dataclass(frozen=True)
class Trial:
    """What makes a launch harder; the result must not depend on it."""

    at_end: bool = True
    backward: bool = False
    simd_width: int = 32


# Together: each buffer against a guard page on either side, each two threads in either order.
TRIALS = (Trial(), Trial(at_end=False, backward=True, simd_width=64))


class _Image(ctypes.Structure):
    _fields_ = [
        ("type", c_int32),
        ("ne", c_int64 * 4),
        ("nb", c_uint64 * 4),
        ("size", c_uint64),
        ("data", c_void_p),
    ]


class _Trial(ctypes.Structure):
    _fields_ = [("at_end", c_bool), ("backward", c_bool), ("simd_width", c_int32)]


@dataclass(frozen=True)
class Tensor:
    """A tensor as it lies in memory, gaps included."""

    kind: Type
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    memory: NDArray[Any]

    def image(self) -> _Image:
        data = self.memory.ctypes.data
        return _Image(self.kind, _four(self.ne), _four(self.nb, 0), self.memory.nbytes, data)


def dense(array: NDArray[Any]) -> Tensor:
    """float32 or int32."""
    array = np.ascontiguousarray(array)
    kind = {np.dtype(np.float32): Type.F32, np.dtype(np.int32): Type.I32}[array.dtype]
    return Tensor(kind, array.shape[::-1], array.strides[::-1], array)


def rows(array: NDArray[Any], gap: int) -> Tensor:
    """Rows that lie `gap` values apart, not to be used; the last row ends the memory."""
    n_rows, n = array.shape
    memory = np.full(n_rows * (n + gap) - gap, -1, array.dtype)
    if array.dtype == np.float32:
        memory[:] = np.nan
    for i, row in enumerate(array):
        memory[i * (n + gap) :][:n] = row
    return Tensor(dense(array).kind, (n, n_rows), (4, (n + gap) * 4), memory)


def table(stored: NDArray[Any], kind: Type) -> Tensor:
    """Rows of values, or of blocks of a quantized type."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = stored.nbytes // len(stored)
    ne = (row_bytes // block_bytes * block, len(stored))
    return Tensor(kind, ne, (block_bytes, row_bytes), np.ascontiguousarray(stored))


class Device:
    """A library that was built by `build`."""

    def __init__(self, path: Path) -> None:
        # A fault jumps out of a signal handler, which leaves the thread without its AMX registers
        self._thread = ThreadPoolExecutor(1)
        self._run = ctypes.CDLL(str(path)).shim_run
        self._run.restype = c_char_p
        self._run.argtypes = [
            c_char_p,
            POINTER(c_int32),
            POINTER(_Image),
            c_int32,
            POINTER(_Image),
            POINTER(_Trial),
            c_void_p,
        ]

    def run(
        self,
        op: str,
        sources: Sequence[Tensor | None],
        params: Sequence[int | float],
        shape: tuple[int, ...],
        dtype: type[np.float32 | np.int32] = np.float32,
        trials: Sequence[Trial] = TRIALS,
    ) -> NDArray[Any]:
        """The dense result of one node, in numpy's shape.

        Raises:
            Fault: What a kernel must not do was done; or the result depends on the trial.
        """
        found = [self._run_once(op, sources, params, shape, dtype, trial) for trial in trials]
        for other in found[1:]:
            if other.tobytes() != found[0].tobytes():
                message = (
                    "the result depends on the order of threads or on what lies behind a buffer"
                )
                raise Fault(message)
        return found[0]

    def _run_once(
        self,
        op: str,
        sources: Sequence[Tensor | None],
        params: Sequence[int | float],
        shape: tuple[int, ...],
        dtype: type[np.float32 | np.int32],
        trial: Trial,
    ) -> NDArray[Any]:
        words = np.zeros(16, np.int32)
        for i, value in enumerate(params):
            words[i] = np.float32(value).view(np.int32) if isinstance(value, float) else value
        images = (_Image * len(sources))(
            *(source.image() if source else _Image() for source in sources)
        )
        out = np.empty(shape, dtype)
        result = dense(out).image()
        result.data = None
        message = self._thread.submit(
            self._run,
            op.encode(),
            words.ctypes.data_as(POINTER(c_int32)),
            images,
            len(images),
            result,
            _Trial(trial.at_end, trial.backward, trial.simd_width),
            out.ctypes.data,
        ).result()
        if message is not None:
            raise Fault(message.decode())
        return out


def build(
    library: Path, sources: Sequence[Path], includes: Sequence[Path], system: Sequence[Path]
) -> Path:
    """Compiles sources of any suffix with the system's C++ compiler into a shared library.

    Args:
        library: What is written.
        includes: Folders of headers, before the shim's own.
        system: Folders of headers that are not ours: their warnings are off.
    """
    command = [os.environ.get("CXX", "c++"), *_FLAGS, "-x", "c++", *map(str, sources)]
    command += [f"-I{folder}" for folder in (*includes, SHIM)]
    for folder in system:
        command += ["-isystem", str(folder)]
    child = subprocess.run(
        [*command, "-o", str(library)], capture_output=True, text=True, check=False
    )
    if child.returncode != 0:
        raise RuntimeError(child.stderr)
    return library


def _four(values: tuple[int, ...], last: int = 1) -> Any:
    """Sizes or strides of the dimensions that a tensor does not have: ne 1, nb as if it went on."""
    values += (last,) * (4 - len(values))
    return ((c_int64 if last else c_uint64) * 4)(*values)
