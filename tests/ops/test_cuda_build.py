"""nvcc compiles the CUDA ops, and the patched source of ggml that calls them.

Wants nvcc and the headers of the CUDA runtime, of CCCL and of cuBLAS: those of a CUDA toolkit, or
of the wheels nvidia-cuda-nvcc, nvidia-cuda-runtime, nvidia-cuda-cccl and nvidia-cublas.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from shim import ROOT

CUDA = ROOT / "ggml_ops" / "cuda"
OURS = [path.name for path in sorted(CUDA.glob("*.cu"))]
# an Ampere and a Hopper: with and without launches that overlap
ARCHITECTURES = ("80", "90")
# as ggml's CMakeLists.txt has them
FLAGS = ["-std=c++17", "-use_fast_math", "-extended-lambda", "-DGGML_CUDA_USE_GRAPHS"]

PATTERNS = {
    "registers": r"Used (\d+) registers",
    "bytes of spills": r"(\d+) bytes spill stores",
    "bytes of shared memory": r"(\d+) bytes smem",
}


def find_nvcc() -> str | None:
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("nvcc") or shutil.which(home / "bin" / "nvcc")


def wheel_headers() -> list[Path]:
    return [
        include
        for folder in sys.path
        for include in Path(folder).glob("nvidia/cu*/include")
        if (include / "cublas_v2.h").is_file()
    ]


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The compiler with what it needs to find headers."""
    program = find_nvcc()
    if program is None:
        pytest.skip("nvcc is not here: install the CUDA toolkit, or put its bin folder on PATH")
    probe = tmp_path_factory.mktemp("probe") / "probe.cu"
    probe.write_text("#include <cublas_v2.h>\n#include <cub/cub.cuh>\n")
    missing = ""
    for headers in ([], *([f"-I{folder}"] for folder in wheel_headers())):
        command = [program, *headers]
        child = compile_with([*command, "-E", str(probe), "-o", os.devnull])
        if child.returncode == 0:
            return command
        missing = missing or next(line for line in child.stderr.splitlines() if "error" in line)
    pytest.skip(f"{program} lacks headers: pip install --no-deps nvidia-cublas ({missing})")


def compile_with(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source", [*OURS, "ggml-cuda.cu"])
def test_compiles(
    source: str,
    nvcc: list[str],
    ggml_tree: Path,
    tmp_path: Path,
    report: Callable[[str], None],
) -> None:
    theirs = ggml_tree / "src" / "ggml-cuda"
    command = [*nvcc, *FLAGS, "-c", str((CUDA if source in OURS else theirs) / source)]
    for architecture in ARCHITECTURES:
        command += ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]
    for folder in (CUDA, ROOT / "ggml_ops"):
        command += ["-I", str(folder)]
    for folder in (ggml_tree / "include", ggml_tree / "src", theirs):
        command += ["-isystem", str(folder)]
    if source in OURS:
        command += ["-Xcompiler", "-Wall,-Wextra", "-Werror", "all-warnings", "--resource-usage"]
    child = compile_with([*command, "-o", str(tmp_path / "object.o")])
    assert child.returncode == 0, child.stderr
    for line in resources(child.stderr):
        report(f"{source}: {line}")


def resources(log: str) -> list[str]:
    """The most that kernels of a source take of a multiprocessor, for each architecture."""
    found = []
    for architecture in ARCHITECTURES:
        kernels = re.split(r"Compiling entry function .* for ", log)[1:]
        own = [kernel for kernel in kernels if kernel.startswith(f"'sm_{architecture}'")]
        if own:
            most = {
                name: max(
                    int(number) for kernel in own for number in re.findall(pattern, kernel) or [0]
                )
                for name, pattern in PATTERNS.items()
            }
            numbers = ", ".join(f"{number} {name}" for name, number in most.items())
            found.append(f"sm_{architecture}: {len(own)} kernels, at most {numbers}")
    return found
