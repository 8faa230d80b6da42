"""Where the checkpoint comes from and where the output goes."""

from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from dflash2.convert import ConversionError, convert_drafter

from . import checkpoints
from .checkpoints import write_checkpoint
from .conftest import Refuse
from .reading import metadata


def test_default_name_lies_in_the_working_directory(
    tmp_path: Path, dense_target: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = convert_drafter(source, dense_target, outtype="q8_0")
    assert path == tmp_path / "tiny-Q8_0.gguf"
    assert path.exists()


def test_hub_id_is_downloaded_with_the_options_given(
    tmp_path: Path, dense_target: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def download(repo_id: str, **options: Any) -> str:
        calls.append((repo_id, options))
        return str(source)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    hub = {"revision": "v2", "token": "t", "local_files_only": True}
    path = convert_drafter("owner/name-2", dense_target, **hub)  # type: ignore[arg-type]
    assert path.name == "name-2-F16.gguf"
    assert metadata(path)["general.name"] == ("STRING", "name-2")
    [(repo_id, options)] = calls
    assert repo_id == "owner/name-2"
    assert options.items() >= hub.items()


def test_errors_of_the_hub_pass_through(
    tmp_path: Path, dense_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(repo_id: str, **options: Any) -> str:
        raise huggingface_hub.errors.OfflineModeIsEnabled

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(huggingface_hub.errors.OfflineModeIsEnabled):
        convert_drafter("owner/name", dense_target, tmp_path)


def test_wrong_kind_of_path_is_refused(
    tmp_path: Path, refuse: Refuse, source: Path, dense_target: Path
) -> None:
    refuse(source, source, "folder", "GGUF")
    refuse(source, source / "model.safetensors", "GGUF")
    refuse(source, dense_target, "vocab", "its own", vocab=dense_target)
    refuse(dense_target, dense_target, "is a file", "folder")
    refuse(source, dense_target, "outtype", "'q2_k'", "q8_0", outtype="q2_k")


@pytest.mark.parametrize("missing", ["no/such/folder", "owner/name.gguf", "name"])
def test_missing_source_is_not_found(tmp_path: Path, dense_target: Path, missing: str) -> None:
    with pytest.raises(FileNotFoundError, match=missing):
        convert_drafter(missing, dense_target, tmp_path)


def test_path_object_is_no_hub_id(tmp_path: Path, dense_target: Path) -> None:
    with pytest.raises(FileNotFoundError, match="owner"):
        convert_drafter(Path("owner/name"), dense_target, tmp_path)


def test_missing_target_and_folder_are_not_found(
    tmp_path: Path, source: Path, dense_target: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"no-target\.gguf"):
        convert_drafter(source, tmp_path / "no-target.gguf", tmp_path)
    with pytest.raises(FileNotFoundError, match="no-folder"):
        convert_drafter(source, dense_target, tmp_path / "no-folder" / "out.gguf")


def test_existing_file_is_replaced_only_by_force(
    tmp_path: Path, source: Path, dense_target: Path
) -> None:
    path = tmp_path / "out.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"out\.gguf"):
        convert_drafter(source, dense_target, path)
    assert path.read_bytes() == b"precious"
    convert_drafter(source, dense_target, path, force=True)
    assert path.read_bytes().startswith(b"GGUF")


def test_failed_conversion_leaves_the_old_file(tmp_path: Path, dense_target: Path) -> None:
    weights = checkpoints.spoiled(checkpoints.weights(), "norm.weight", np.nan)
    source = write_checkpoint(tmp_path / "d", checkpoints.config(), weights)
    path = tmp_path / "out" / "out.gguf"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    with pytest.raises(ConversionError, match=r"norm\.weight"):
        convert_drafter(source, dense_target, path, force=True)
    assert path.read_bytes() == b"precious"
    assert list(path.parent.iterdir()) == [path]


def test_inputs_are_never_overwritten(source: Path, dense_target: Path) -> None:
    for path in (dense_target, source / "model.safetensors"):
        before = path.read_bytes()
        with pytest.raises(ConversionError, match="is an input"):
            convert_drafter(source, dense_target, path, force=True)
        assert path.read_bytes() == before
