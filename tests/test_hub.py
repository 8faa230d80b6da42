"""From names to files: local GGUFs, checkpoints and the hub, none of which is reached here."""

from pathlib import Path
from typing import Any

import pytest
from dflash2 import Dflash2Engine, ModelLoadError, hub
from dflash2.cache import cache_dir
from dflash2.models import resolve_drafter, resolve_target

COMMIT = "5" * 40


class Hub:
    """Stands in for the hub and the converter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[dict[str, Any]] = []
        self.conversions: list[dict[str, Any]] = []

    def hf_hub_download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.requests.append({"repo_id": repo_id, "filename": filename, **options})
        path = self.folder / repo_id / "snapshots" / COMMIT / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    def convert_drafter(self, source: object, target: Path, outfile: Path, **options: Any) -> Path:
        self.conversions.append({"source": source, "target": target, **options})
        outfile.write_bytes(b"GGUF")
        return outfile


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(tmp_path / "hub")
    monkeypatch.setenv("DFLASH2_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fake.hf_hub_download)
    monkeypatch.setattr("dflash2.convert.convert_drafter", fake.convert_drafter)
    return fake


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "some-1.5B-drafter"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_existing_gguf_is_taken_as_it_is(fake_hub: Hub, target: Path) -> None:
    assert resolve_target(str(target)) == target
    assert resolve_drafter(target, target) == target
    assert not fake_hub.requests
    assert not fake_hub.conversions


@pytest.mark.parametrize(
    "name",
    [
        "missing.gguf",
        "org/missing.gguf",
        "./org/name",
        "../name",
        "~/name",
        "/abs/name",
        "a/b/c",
        "name",
        "org/",
    ],
)
def test_what_looks_like_a_path_is_never_looked_for_on_the_hub(
    fake_hub: Hub, target: Path, name: str
) -> None:
    with pytest.raises(FileNotFoundError, match=r"the drafter .* does not exist"):
        resolve_drafter(name, target)
    assert not fake_hub.requests


def test_missing_target(target: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothere\.gguf does not exist$"):
        resolve_target(target.with_name("nothere.gguf"))


def test_hub_id_as_target_points_to_from_pretrained() -> None:
    with pytest.raises(FileNotFoundError, match="from_pretrained"):
        resolve_target("Qwen/Qwen3-8B-GGUF")


def test_checkpoint_as_target_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"is a folder, expected a GGUF file.*from_pretrained"):
        resolve_target(checkpoint)
    with pytest.raises(ModelLoadError, match="is a safetensors file, expected a GGUF file"):
        resolve_target(checkpoint / "model.safetensors")


def test_safetensors_file_as_drafter_is_converted(
    fake_hub: Hub, target: Path, checkpoint: Path
) -> None:
    file = checkpoint / "model.safetensors"
    assert resolve_drafter(file, target).name.startswith("model-")
    assert fake_hub.conversions[0]["source"] == file


def test_checkpoint_is_converted_once(fake_hub: Hub, target: Path, checkpoint: Path) -> None:
    path = resolve_drafter(checkpoint, target)
    assert path.is_relative_to(cache_dir())
    assert path.name.startswith("some-1.5B-drafter-")
    assert resolve_drafter(str(checkpoint), target) == path
    (conversion,) = fake_hub.conversions
    assert conversion["source"] == checkpoint
    assert conversion["target"] == target


def test_checkpoint_is_converted_again_when_files_change(
    fake_hub: Hub, target: Path, checkpoint: Path
) -> None:
    first = resolve_drafter(checkpoint, target)
    (checkpoint / "model.safetensors").write_bytes(b"other weights")
    second = resolve_drafter(checkpoint, target)
    target.write_bytes(b"GGUF of another tokenizer")
    third = resolve_drafter(checkpoint, target)
    assert len({first, second, third}) == len(fake_hub.conversions) == 3


def test_hub_checkpoint_is_converted_at_its_commit(fake_hub: Hub, target: Path) -> None:
    path = resolve_drafter("org/drafter", target, "main", token="secret", local_files_only=True)
    assert path.name.startswith("drafter-")
    assert fake_hub.requests[0]["revision"] == "main"
    assert fake_hub.conversions == [
        {
            "source": "org/drafter",
            "target": target,
            "outtype": "f16",
            "force": True,
            "revision": COMMIT,
            "token": "secret",
            "local_files_only": True,
        }
    ]
    assert resolve_drafter("org/drafter", target) == path
    assert len(fake_hub.conversions) == 1


def test_existing_folder_goes_before_the_hub(
    fake_hub: Hub, target: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent.parent)
    name = f"{checkpoint.parent.name}/{checkpoint.name}"
    resolve_drafter(name, target)
    assert not fake_hub.requests
    assert len(fake_hub.conversions) == 1


def test_download_passes_everything_through(
    fake_hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "dflash2"):
        path = hub.download_file(
            "org/repo",
            "folder/model.gguf",
            "v1",
            cache_dir=tmp_path,
            token=False,
            local_files_only=True,
        )
    assert path.exists()
    assert fake_hub.requests == [
        {
            "repo_id": "org/repo",
            "filename": "folder/model.gguf",
            "revision": "v1",
            "cache_dir": tmp_path,
            "token": False,
            "local_files_only": True,
            "library_name": "dflash2",
        }
    ]
    assert caplog.messages == [f"org/repo: folder/model.gguf at commit {COMMIT}"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, dict[str, Any]]]:
    calls: list[tuple[Any, Any, dict[str, Any]]] = []
    signature = Dflash2Engine.__init__

    def init(self: Dflash2Engine, model: Any, draft: Any = None, **options: Any) -> None:
        calls.append((model, draft, options))

    init.__wrapped__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(Dflash2Engine, "__init__", init)
    return calls


def test_from_pretrained_opens_both_files(
    fake_hub: Hub, opened: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    Dflash2Engine.from_pretrained(
        "org/target",
        "t.gguf",
        draft_repo_id="org/drafter",
        draft_filename="d.gguf",
        revision="r1",
        draft_revision="r2",
        token="secret",
        n_ctx=64,
    )
    ((model, draft, options),) = opened
    assert (model.name, draft.name, options) == ("t.gguf", "d.gguf", {"n_ctx": 64})
    assert [request["revision"] for request in fake_hub.requests] == ["r1", "r2"]
    assert [request["repo_id"] for request in fake_hub.requests] == ["org/target", "org/drafter"]
    assert {request["token"] for request in fake_hub.requests} == {"secret"}


def test_from_pretrained_without_drafter(
    fake_hub: Hub, opened: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    Dflash2Engine.from_pretrained("org/target", "t.gguf")
    assert opened[0][1] is None
    assert len(fake_hub.requests) == 1


def test_from_pretrained_takes_the_drafter_from_the_same_repository(
    fake_hub: Hub, opened: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    Dflash2Engine.from_pretrained("org/target", "t.gguf", draft_filename="d.gguf")
    assert fake_hub.requests[1]["repo_id"] == "org/target"
    assert opened[0][1].name == "d.gguf"


def test_from_pretrained_converts_a_drafter_checkpoint(
    fake_hub: Hub, opened: list[tuple[Any, Any, dict[str, Any]]]
) -> None:
    Dflash2Engine.from_pretrained("org/target", "t.gguf", draft_repo_id="org/drafter")
    assert fake_hub.conversions[0]["source"] == "org/drafter"
    assert opened[0][1].name.startswith("drafter-")


def test_from_pretrained_refuses_unknown_options_before_it_downloads(fake_hub: Hub) -> None:
    with pytest.raises(TypeError, match="n_contexts"):
        Dflash2Engine.from_pretrained("org/target", "t.gguf", n_contexts=5)  # type: ignore[call-arg]
    assert not fake_hub.requests
