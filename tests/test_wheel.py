"""The installed package: whole, self-contained, and holding nothing else."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from dflash2 import _core
from pin import Pin

PACKAGE = Path(_core.__file__).parent
PROGRAMS = ("llama-server", "llama-quantize", "ggml-rpc-server")
LIBRARIES = ("ggml-base", "ggml", "llama", "llama-common", "mtmd")
EXE = ".exe" if sys.platform == "win32" else ""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, run without help from the environment in finding libraries."""
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


def binaries() -> list[Path]:
    return [
        path
        for path in PACKAGE.rglob("*")
        if path.parent.name == "bin" or re.search(r"\.(so|dylib|dll|pyd)$", path.name)
    ]


def test_holds_programs_libraries_and_licenses() -> None:
    assert {path.stem for path in (PACKAGE / "bin").iterdir()} >= set(PROGRAMS)
    names = {path.name.removeprefix("lib").split(".")[0] for path in binaries()}
    assert names >= {"_core", "ggml-rpc", *LIBRARIES}
    assert any(name.startswith("ggml-cpu") for name in names)
    licenses = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.glob("licenses/*")}
    assert "Copyright (c) 2023-2026 The ggml authors" in licenses["llama.cpp-LICENSE"]
    assert {"llama.cpp-licenses-LICENSE-jsonhpp", "llama.cpp-vendor-cpp-httplib-LICENSE"} <= set(
        licenses
    )


def test_holds_nothing_else() -> None:
    files = importlib.metadata.files("dflash2")
    assert files is not None
    places = {path.parts[0] for path in files}
    scripts = {path.name.removesuffix(EXE) for path in files if path.parts[0] == ".."}
    assert places == {"dflash2", "..", f"dflash2-{importlib.metadata.version('dflash2')}.dist-info"}
    assert scripts == {"dflash2", *PROGRAMS}
    assert not [path for path in files if path.suffix in (".h", ".cmake", ".a", ".pc", ".hpp")]


def test_has_no_versioned_or_linked_libraries() -> None:
    assert not [path for path in PACKAGE.rglob("*") if path.is_symlink()]
    assert not [path for path in binaries() if re.search(r"\.so\.|\.\d+\.dylib", path.name)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads ldd's output")
@pytest.mark.parametrize("binary", binaries(), ids=lambda path: path.name)
def test_libraries_are_found_inside_the_package(binary: Path, tmp_path: Path) -> None:
    needed = dict(re.findall(r"(\S+) => (.+?)(?: \(0x|$)", run("ldd", binary, cwd=tmp_path), re.M))
    assert "not found" not in needed.values()
    ours = {name: path for name, path in needed.items() if re.match("lib(ggml|llama|mtmd)", name)}
    assert all(Path(path).resolve().is_relative_to(PACKAGE) for path in ours.values())
    assert ours or binary.name.startswith("libggml-base.")


def test_imports_from_any_folder(tmp_path: Path) -> None:
    code = "import dflash2._core as core; print(core.llama_cpp_version())"
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == Pin.load().version


def test_knows_its_pin() -> None:
    assert _core.llama_cpp_commit() == Pin.load().commit
    assert _core.llama_cpp_version() == Pin.load().version


@pytest.mark.parametrize(
    ("program", "option", "expected"),
    [
        ("llama-server", "--version", f"commit {Pin.load().commit[:9]}"),
        ("llama-quantize", "--help", "usage:"),
        ("ggml-rpc-server", "--help", "--port"),
    ],
)
def test_program_runs(program: str, option: str, expected: str, tmp_path: Path) -> None:
    assert expected in run(PACKAGE / "bin" / f"{program}{EXE}", option, cwd=tmp_path)
    script = Path(sysconfig.get_path("scripts")) / f"{program}{EXE}"
    assert expected in run(script, option, cwd=tmp_path)
