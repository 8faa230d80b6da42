"""`dflash2 convert`."""

import json
import sys
from pathlib import Path

import pytest
from conversion import checkpoints
from dflash2.cli.progress import ProgressBar
from dflash2.convert.quantize import OUT_TYPES
from gguf import GGUFReader

from .conftest import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    return checkpoints.write_checkpoint(folder, checkpoints.config(), checkpoints.weights())


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_convert_writes_and_says_so(run: Run, source: Path, dense_target: Path, work: Path) -> None:
    target = str(dense_target)
    status, out, err = run("convert", str(source), "--target", target, "--outtype", "q8_0")
    assert (status, err) == (0, "")
    assert names(work) == ["tiny-Q8_0.gguf"]
    assert out.startswith(f"wrote {work / 'tiny-Q8_0.gguf'}: ")
    assert out.endswith(" MB/s\n")
    status, out, _ = run(
        *("convert", str(source), "--target", target, "--outfile", "d-{ftype}.gguf", "--verify")
    )
    assert status == 0
    assert "wrote d-f16.gguf and verified it: " in out
    assert names(work) == ["d-f16.gguf", "tiny-Q8_0.gguf"]


def test_convert_json(run: Run, source: Path, dense_target: Path, work: Path) -> None:
    _, out, _ = run("convert", str(source), "--target", str(dense_target), "--json", "--verify")
    document = json.loads(out)
    assert document.keys() == {"path", "verified", "bytes_read", "seconds", "mb_per_second"}
    assert document["path"] == str(work / "tiny-F16.gguf")
    assert document["verified"] is True
    stored = sum(tensor.data.nbytes for tensor in checkpoints.weights().values())
    assert document["bytes_read"] == stored


def test_dry_run_shows_keys_and_tensors_of_what_it_does_not_write(
    run: Run, source: Path, dense_target: Path, work: Path
) -> None:
    arguments = ["convert", str(source), "--target", str(dense_target), "--outtype", "q8_0"]
    status, out, _ = run(*arguments, "--dry-run")
    assert status == 0
    _, text, _ = run(*arguments, "--dry-run", "--json")
    assert names(work) == []
    document = json.loads(text)
    run(*arguments)
    reader = GGUFReader(work / "tiny-Q8_0.gguf")
    written = [
        {
            "name": tensor.name,
            "shape": [int(size) for size in tensor.shape[::-1]],
            "type": tensor.tensor_type.name,
        }
        for tensor in reader.tensors
    ]
    assert document["tensors"] == written
    fields = [name for name in reader.fields if not name.startswith("GGUF.")]
    assert ["general.architecture", *document["metadata"]] == fields
    assert document["metadata"]["dflash.target_layers"] == [1, 3]
    assert document["metadata"]["tokenizer.ggml.tokens"] == "320 items"
    for tensor in written:
        assert f"{tensor['name']} " in out
    for name in fields[1:]:
        assert f"\n{name} = " in out


def test_existing_file_needs_force(run: Run, source: Path, dense_target: Path, work: Path) -> None:
    arguments = ["convert", str(source), "--target", str(dense_target), "--outfile", "d.gguf"]
    assert run(*arguments)[0] == 0
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert "d.gguf exists" in err
    assert run(*arguments, "--force")[0] == 0
    assert names(work) == ["d.gguf"]


def test_there_and_back_again(run: Run, source: Path, dense_target: Path, work: Path) -> None:
    target = ["--target", str(dense_target)]
    run("convert", str(source), *target, "--outfile", "1.gguf")
    status, out, _ = run("convert", "1.gguf", "--to-safetensors")
    assert status == 0
    assert out.startswith(f"wrote {work / 'tiny'}: ")
    run("convert", "tiny", *target, "--outfile", "2.gguf")
    assert (work / "2.gguf").read_bytes() == (work / "1.gguf").read_bytes()
    _, out, _ = run("convert", "1.gguf", "--to-safetensors", "--json", "--outfile", "other")
    assert json.loads(out)["path"] == "other"


@pytest.mark.parametrize(
    "flag", [["--target", "x"], ["--vocab", "x"], ["--revision", "x"], ["--verify"], ["--dry-run"]]
)
def test_flags_that_the_way_back_does_not_have(run: Run, flag: list[str]) -> None:
    status, _, err = run("convert", "x.gguf", "--to-safetensors", *flag)
    assert status == 2
    assert f"{flag[0]} has no meaning with --to-safetensors" in err


def test_help_names_every_type(run: Run) -> None:
    _, out, _ = run("convert", "--help")
    words = out.replace(",", " ").split()
    assert [type_ for type_ in OUT_TYPES if type_ not in words] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothere", "--target", "TARGET"], "nothere does not exist"),
        (["SOURCE", "--target", "nothere.gguf"], "nothere.gguf"),
        (["SOURCE", "--target", "TARGET", "--outtype", "q3_k"], "outtype is 'q3_k', needed: f32"),
        (["SOURCE", "--target", "TARGET", "--outfile", "no/d.gguf"], "the folder no does not"),
        (["SOURCE", "--target", "SOURCE"], "is a folder"),
        (["SOURCE", "--target", "TARGET", "--vocab", "TARGET"], "vocab"),
        (["TARGET", "--target", "TARGET"], "is a file, needed: the checkpoint's folder"),
        (["SOURCE", "--to-safetensors"], "is a folder, needed: a GGUF file"),
        (["nothere.gguf", "--to-safetensors"], "nothere.gguf"),
        (["TARGET", "--to-safetensors"], "general.architecture is 'qwen3', needed: dflash"),
    ],
)
def test_errors_are_one_line(
    run: Run,
    source: Path,
    dense_target: Path,
    work: Path,
    arguments: list[str],
    message: str,
) -> None:
    places = {"SOURCE": str(source), "TARGET": str(dense_target)}
    status, out, err = run("convert", *(places.get(each, each) for each in arguments))
    assert (status, out) == (1, "")
    assert err.startswith("dflash2: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert names(work) == []


def test_progress_bar_needs_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressBar(100) as bar:
        bar.add(50)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("dflash2.cli.progress._REDRAW_SECONDS", 0.0)
    with ProgressBar(100) as bar:
        bar.add(50)
    shown, blank = capsys.readouterr().err.split("\r")[1:3]
    assert " 50% " in shown
    assert "#" * 15 + "-" * 15 in shown
    assert blank.strip() == ""
