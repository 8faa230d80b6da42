"""The patch series on llama.cpp: it applies, stays small, and is what its tables say."""

import re
from pathlib import Path

import prepare
import pytest
import series
from pin import Pin

PATCHES = series.patches()
MAX_CHANGED_LINES = 400


def read_tree(tree: Path) -> dict[str, bytes]:
    return {path.as_posix(): (tree / path).read_bytes() for path in prepare.files(tree)}


def read_times(tree: Path) -> dict[str, int]:
    return {path.as_posix(): (tree / path).stat().st_mtime_ns for path in prepare.files(tree)}


def table(readme: Path) -> dict[str, set[str]]:
    """Patch name -> files, of a README's table."""
    rows = {}
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows[cells[0].strip("`")] = set(re.findall(r"`([^`]+)`", cells[2]))
    return rows


def patched_files(patch: Path) -> set[str]:
    lines = patch.read_text(encoding="utf-8").splitlines()
    return {line.removeprefix("+++ b/") for line in lines if line.startswith("+++ ")}


ALL_PATCHED_FILES = {file for patch in PATCHES for file in patched_files(patch)}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("pristine") / "llama.cpp"
    prepare.prepare(tree, Pin.load(), [])
    return tree


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("patched") / "llama.cpp"
    prepare.prepare(tree, Pin.load(), PATCHES)
    return tree


def test_series_changes_exactly_the_files_it_names(pristine: Path, patched: Path) -> None:
    before, after = read_tree(pristine), read_tree(patched)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == ALL_PATCHED_FILES | {prepare.STAMP}


def test_prepared_tree_is_left_alone(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "fetch", lambda pin: pytest.fail("sources were fetched again"))
    times = read_times(patched)
    prepare.prepare(patched, Pin.load(), PATCHES)
    assert read_times(patched) == times


def test_another_series_rewrites_only_the_files_it_touches(pristine: Path) -> None:
    times, content = read_times(pristine), read_tree(pristine)
    prepare.prepare(pristine, Pin.load(), PATCHES)
    rewritten = {path for path, time in read_times(pristine).items() if times[path] != time}
    assert rewritten == ALL_PATCHED_FILES | {prepare.STAMP}
    prepare.prepare(pristine, Pin.load(), [])
    assert read_tree(pristine) == content


def enums(header: Path) -> list[list[str]]:
    """The names of each enum, in its order."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    bodies = re.findall(r"\benum\b[^{;]*\{([^}]*)\}", text)
    return [[entry.strip() for entry in body.split(",") if entry.strip()] for body in bodies]


def test_ops_and_types_of_upstream_keep_their_numbers(pristine: Path, patched: Path) -> None:
    """They go over the network to ggml-rpc-servers that are not ours, and types into files."""
    header = "ggml/include/ggml.h"
    before, after = enums(pristine / header), enums(patched / header)
    assert len(before) == len(after) > 10
    longer = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(longer) == 1
    [(old, new)] = longer
    assert {"GGML_OP_MUL_MAT", "GGML_OP_ROPE"} <= set(old)
    assert [old[-1], new[-1]] == ["GGML_OP_COUNT", "GGML_OP_COUNT"]
    assert new[: len(old) - 1] == old[:-1]
    assert all("DFLASH2" in name for name in new[len(old) - 1 : -1])


def test_rpc_protocol_is_that_of_upstream(pristine: Path, patched: Path) -> None:
    """But for the number of ops, and that ours are not sent."""
    changed: set[str] = set()
    for path in ("ggml/include/ggml-rpc.h", *files_below(pristine, "ggml/src/ggml-rpc")):
        trees = [(tree / path).read_text(encoding="utf-8") for tree in (pristine, patched)]
        before, after = (set(text.splitlines()) for text in trees)
        changed |= before ^ after
    allowed = r"static_assert\(GGML_OP_COUNT == |\s+return op->op < GGML_OP_DFLASH2_CONV;"
    assert len(changed) == 3
    assert all(re.match(allowed, line) for line in changed), changed


def files_below(tree: Path, folder: str) -> list[str]:
    return [path.as_posix() for path in prepare.files(tree) if path.as_posix().startswith(folder)]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patch_has_a_row_that_lists_its_files(patch: Path) -> None:
    assert table(patch.with_name("README.md"))[patch.name] == patched_files(patch)


def test_every_row_has_a_patch() -> None:
    rows = {name for patch in PATCHES for name in table(patch.with_name("README.md"))}
    assert rows == {patch.name for patch in PATCHES}


def test_series_is_small() -> None:
    lines = [line for patch in PATCHES for line in patch.read_text(encoding="utf-8").splitlines()]
    changed = [line for line in lines if re.match(r"[-+](?![-+]{2} )", line)]
    assert 0 < len(changed) <= MAX_CHANGED_LINES
