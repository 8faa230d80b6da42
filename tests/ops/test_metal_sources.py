"""The sources of the Metal ops, as far as they can be judged where there is no Metal."""

import ctypes
import os
import re
import shutil
import subprocess
from ctypes import c_bool, c_int
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from shim import ROOT, SHIM

from .metal import METAL, build_metal, kernels, write_kernels

CONV, TOPK, SCORE = range(3)
MANY_THREADS = 1024
# They leave out what their compiler's library includes by itself.
UPSTREAM = ["-include", "memory"]
OURS = ["-Wall", "-Wextra", "-Werror"]


def check(compiler: str, source: Path, *options: str, ggml: Path | None = None) -> None:
    """Compiles a source to nothing."""
    command = [compiler, "-fsyntax-only", *options, f"-I{METAL}", f"-I{ROOT / 'ggml_ops'}"]
    for folder in ("include", "src", "src/ggml-metal") if ggml else ():
        command += ["-isystem", str(ggml / folder)]
    child = subprocess.run([*command, source], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_encoders_compile(ggml_tree: Path, tmp_path: Path) -> None:
    write_kernels(tmp_path)
    compiler = os.environ.get("CXX", "c++")
    source = METAL / "dflash2-metal.cpp"
    check(compiler, source, "-std=c++17", *OURS, f"-I{tmp_path}", ggml=ggml_tree)


@pytest.mark.parametrize("name", ["ggml-metal-ops.cpp", "ggml-metal-device.cpp", "ggml-metal.cpp"])
def test_patched_sources_compile(name: str, ggml_tree: Path) -> None:
    source = ggml_tree / "src" / "ggml-metal" / name
    check(os.environ.get("CXX", "c++"), source, "-std=c++17", *UPSTREAM, ggml=ggml_tree)


def test_patched_question_to_the_device_compiles(ggml_tree: Path, tmp_path: Path) -> None:
    """Objective-C is not for this compiler, but the function that was patched is plain C."""
    text = (ggml_tree / "src" / "ggml-metal" / "ggml-metal-device.m").read_text(encoding="utf-8")
    imports = re.findall(r'^#import (".*")', text, re.MULTILINE)
    functions = [
        re.search(rf"^(static )?bool {name}\(.*?^}}", text, re.MULTILINE | re.DOTALL)
        for name in ("ggml_metal_supports_mul_mat_op", "ggml_metal_device_supports_op")
    ]
    source = tmp_path / "device.c"
    source.write_text(
        "\n".join(
            [
                *(f"#include {header}" for header in imports),
                "struct ggml_metal_device { struct ggml_metal_device_props props; };",
                *(function[0] for function in functions if function),
            ]
        ),
        encoding="utf-8",
    )
    assert "GGML_OP_DFLASH2" in source.read_text(encoding="utf-8")
    check(os.environ.get("CC", "cc"), source, "-std=gnu11", ggml=ggml_tree)


def test_kernels_keep_to_their_address_spaces(tmp_path: Path) -> None:
    """A warning is a fault as well: ggml-metal takes no library with one."""
    compiler = shutil.which("clang++")
    if compiler is None:
        pytest.skip("clang++ is not installed, which alone tells address spaces apart")
    # the attributes of parameters and functions, which clang has not
    text = re.sub(r"\[\[.*?\]\]", "", kernels()).replace("#include <metal_stdlib>", "")
    source = tmp_path / "kernels.cpp"
    source.write_text(text.replace("using namespace metal;", ""), encoding="utf-8")
    face = SHIM / "metal_address_spaces.h"
    check(compiler, source, "-std=c++14", "-D__METAL_VERSION__", "-include", str(face), "-Werror")


@pytest.fixture(scope="module")
def library(ggml_tree: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_metal(ggml_tree)))
    library.metal_supports.argtypes = [c_int, c_int, c_int, c_bool, c_bool, c_int]
    library.metal_supports.restype = c_bool
    return library


def supports(
    library: ctypes.CDLL,
    op: int,
    kind: Type = Type.F32,
    *,
    successor: Type | None = None,
    reductions: bool = True,
    compiles: bool = True,
    threads: int = MANY_THREADS,
) -> bool:
    successor = kind if successor is None else successor
    return bool(library.metal_supports(op, kind, successor, reductions, compiles, threads))


def test_what_a_device_supports(library: ctypes.CDLL) -> None:
    for op in (CONV, TOPK, SCORE):
        assert supports(library, op)
        assert not supports(library, op, compiles=False)
        assert supports(library, op, threads=256)
        assert not supports(library, op, threads=255)
        assert supports(library, op, reductions=False) == (op != TOPK)
    for kind in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0):
        assert supports(library, SCORE, kind)
    for kind in (Type.Q4_1, Type.Q6_K, Type.I32):
        assert not supports(library, SCORE, kind)
    assert not supports(library, SCORE, Type.F16, successor=Type.F32)
