"""Fetching and preparing llama.cpp: once per user, checked, and failing in one sentence."""

import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fetch
import prepare
import pytest
from pin import Pin, SourceError

SOURCE = b"int one() {\n    return 1;\n}\n"
PATCH = """Subject: two instead of one

diff --git a/src/one.cpp b/src/one.cpp
index 1111111..2222222 100644
--- a/src/one.cpp
+++ b/src/one.cpp
@@ -1,3 +1,3 @@
 int one() {
-    return 1;
+    return 2;
 }
"""


def write_sdist(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"small-1.0/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    path = tmp_path / "index" / "small-1.0.tar.gz"
    path.parent.mkdir()
    files = {
        "PKG-INFO": b"Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        "vendor/llama.cpp/CMakeLists.txt": b"project(llama.cpp)\n",
        "vendor/llama.cpp/src/one.cpp": SOURCE,
        "vendor/llama.cpp/models/vocab.gguf": b"large",
        "vendor/llama.cpp/tools/ui/src/page.ts": b"page",
    }
    write_sdist(path, files)
    return path


@pytest.fixture
def pin(sdist: Path) -> Pin:
    return Pin("small", "1.0", fetch.sha256(sdist), "vendor/llama.cpp", "c0ffee" + 34 * "0")


@pytest.fixture
def downloads(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every download so far; each gives a copy of `sdist`."""
    made: list[Path] = []

    def download(pin: Pin, folder: Path) -> Path:
        copy = folder / sdist.name
        copy.write_bytes(sdist.read_bytes())
        made.append(copy)
        return copy

    monkeypatch.setattr(fetch, "download", download)
    return made


@pytest.fixture
def index(sdist: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages."""
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(sdist.parent))
    return sdist.parent


def test_downloads_once(cache: Path, pin: Pin, downloads: list[Path]) -> None:
    first = fetch.fetch(pin)
    assert fetch.fetch(pin) == first
    assert len(downloads) == 1
    assert fetch.sha256(first) == pin.sha256
    assert list(cache.iterdir()) == [first]


def test_damaged_file_in_cache_is_replaced(cache: Path, pin: Pin, downloads: list[Path]) -> None:
    fetch.fetch(pin).write_bytes(b"cut of")
    assert fetch.sha256(fetch.fetch(pin)) == pin.sha256
    assert len(downloads) == 2


def test_builds_at_the_same_time(
    cache: Path, sdist: Path, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_downloaded = threading.Barrier(4, timeout=30)

    def download(pin: Pin, folder: Path) -> Path:
        copy = folder / sdist.name
        copy.write_bytes(sdist.read_bytes())
        all_downloaded.wait()
        return copy

    monkeypatch.setattr(fetch, "download", download)
    with ThreadPoolExecutor(4) as pool:
        results = set(pool.map(fetch.fetch, 4 * [pin]))
    assert list(cache.iterdir()) == list(results)
    assert fetch.sha256(results.pop()) == pin.sha256


def test_wrong_hash(cache: Path, sdist: Path, pin: Pin, downloads: list[Path]) -> None:
    write_sdist(sdist, {"PKG-INFO": b"another"})
    with pytest.raises(SourceError) as error:
        fetch.fetch(pin)
    assert str(error.value) == (
        f"small 1.0 as downloaded has sha256 {fetch.sha256(sdist)} instead of the pinned "
        f"{pin.sha256}: have pip use another package index, or give a llama.cpp checkout with "
        "-DDFLASH2_LLAMA_CPP_SOURCE=DIR"
    )
    assert not list(cache.iterdir())


def test_pip_refuses_a_wrong_hash_before_it_runs_the_package(
    cache: Path, sdist: Path, pin: Pin, index: Path
) -> None:
    ran = index / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\n".encode()
    write_sdist(sdist, {"PKG-INFO": b"Name: small\n", "setup.py": setup})
    with pytest.raises(SourceError, match=f"^small 1.0 as downloaded has sha256 .* {pin.sha256}: "):
        fetch.fetch(pin)
    assert not ran.exists()
    assert not list(cache.iterdir())


def test_no_network(cache: Path, sdist: Path, pin: Pin, index: Path) -> None:
    sdist.unlink()
    with pytest.raises(SourceError) as error:
        fetch.fetch(pin)
    assert str(error.value) == (
        "pip could not download small 1.0 (No matching distribution found for small==1.0): connect "
        "to the network and run this again, or give a llama.cpp checkout with "
        "-DDFLASH2_LLAMA_CPP_SOURCE=DIR"
    )
    assert not list(cache.iterdir())


def test_cache_that_cannot_be_written(
    tmp_path: Path, pin: Pin, downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SourceError) as error:
        fetch.fetch(pin)
    assert str(error.value) == (
        f"cannot keep small 1.0 in {tmp_path / 'file' / 'cache'} (Not a directory): free some "
        "space there or set DFLASH2_CACHE to a folder that can be written"
    )


@pytest.mark.usefixtures("cache", "downloads")
class TestPrepare:
    def test_unpacks_what_the_build_needs(self, tmp_path: Path, pin: Pin) -> None:
        prepare.prepare(tmp_path / "tree", pin, [])
        expected = {"CMakeLists.txt", "src/one.cpp", prepare.STAMP}
        assert {path.as_posix() for path in prepare.files(tmp_path / "tree")} == expected

    def test_applies_patches(self, tmp_path: Path, pin: Pin) -> None:
        patch = tmp_path / "0001-two.patch"
        patch.write_text(PATCH)
        prepare.prepare(tmp_path / "tree", pin, [patch])
        patched = (tmp_path / "tree" / "src" / "one.cpp").read_bytes()
        assert patched == SOURCE.replace(b"1", b"2")

    def test_changed_patch_needs_no_download(
        self, tmp_path: Path, pin: Pin, downloads: list[Path]
    ) -> None:
        patch = tmp_path / "0001-two.patch"
        for result in ("2", "3"):
            patch.write_text(PATCH.replace("return 2", f"return {result}"))
            prepare.prepare(tmp_path / "tree", pin, [patch])
            patched = (tmp_path / "tree" / "src" / "one.cpp").read_bytes()
            assert patched == SOURCE.replace(b"1", result.encode())
        assert len(downloads) == 1

    def test_patch_that_does_not_apply(self, tmp_path: Path, pin: Pin) -> None:
        patch = tmp_path / "0001-two.patch"
        patch.write_text(PATCH.replace("return 1", "return 7"))
        with pytest.raises(SourceError) as error:
            prepare.prepare(tmp_path / "build" / "tree", pin, [patch])
        assert str(error.value) == (
            f"{patch} does not apply to src/one.cpp: regenerate it against small 1.0 "
            "(commit c0ffee000)"
        )
        assert not list((tmp_path / "build").iterdir())

    def test_file_that_is_no_patch(self, tmp_path: Path, pin: Pin) -> None:
        patch = tmp_path / "0001-two.patch"
        patch.write_text("two instead of one\n")
        with pytest.raises(SourceError) as error:
            prepare.prepare(tmp_path / "tree", pin, [patch])
        assert str(error.value) == (
            f"{patch} is not a patch: regenerate it against small 1.0 (commit c0ffee000)"
        )

    def test_failed_patch_leaves_the_tree_as_it_was(self, tmp_path: Path, pin: Pin) -> None:
        tree = tmp_path / "tree"
        prepare.prepare(tree, pin, [])
        patch = tmp_path / "0001-two.patch"
        patch.write_text(PATCH.replace("return 1", "return 7"))
        with pytest.raises(SourceError, match="does not apply"):
            prepare.prepare(tree, pin, [patch])
        prepare.check(tree, pin, [])
        assert (tree / "src" / "one.cpp").read_bytes() == SOURCE

    def test_folder_that_cannot_be_written(self, tmp_path: Path, pin: Pin) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SourceError) as error:
            prepare.prepare(tmp_path / "file" / "build" / "tree", pin, [])
        assert str(error.value) == (
            f"cannot write the sources of llama.cpp to {tmp_path / 'file' / 'build' / 'tree'} (Not "
            "a directory): free some space there or build in another folder"
        )

    def test_check_accepts_a_prepared_tree_with_edits(self, tmp_path: Path, pin: Pin) -> None:
        prepare.prepare(tmp_path / "tree", pin, [])
        (tmp_path / "tree" / "src" / "one.cpp").write_text("int one();\n")
        prepare.check(tmp_path / "tree", pin, [])

    def test_check_refuses_a_tree_without_the_patches(self, tmp_path: Path, pin: Pin) -> None:
        prepare.prepare(tmp_path / "tree", pin, [])
        patch = tmp_path / "0001-two.patch"
        patch.write_text(PATCH)
        with pytest.raises(SourceError) as error:
            prepare.check(tmp_path / "tree", pin, [patch])
        assert str(error.value) == (
            f"{tmp_path / 'tree'} is not the pinned llama.cpp with this project's patches and is "
            "built as it is: to get such a tree, run python cpp/llama_cpp/prepare.py DIR"
        )
