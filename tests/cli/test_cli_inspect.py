"""`dflash2 inspect`."""

import json
from pathlib import Path

import pytest
from conversion import checkpoints
from dflash2.convert import convert_drafter, inspect_drafter
from tiny import mutate_gguf

from .conftest import Run


@pytest.fixture
def drafter(tmp_path: Path, dense_target: Path) -> Path:
    weights = checkpoints.weights()
    source = checkpoints.write_checkpoint(tmp_path / "tiny", checkpoints.config(), weights)
    return convert_drafter(source, dense_target, tmp_path / "draft.gguf")


def test_inspect_describes_a_pair_that_fits(run: Run, drafter: Path, dense_target: Path) -> None:
    status, out, err = run("inspect", str(drafter), "--target", str(dense_target))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"{drafter}: DFlash 2 drafter, gguf"
    for words in (
        "2 layers, hidden size 288, MLP 96, 4 heads (2 of keys) of 32",
        "target layers 0, 2 of 4",
        "4 tokens, so 3 drafted; mask token 258 '<|mask|>'; vocabulary 320",
        "no window, not causal",
        "2 taps, groups of 16; selector: rank 32, 16 candidates",
        "cache 512 kB for 1000 tokens and 0 B for windows, features 2.3 kB a token",
        f"fits {dense_target.name}",
    ):
        assert words in out


def test_inspect_lists_what_does_not_fit(
    run: Run, tmp_path: Path, drafter: Path, dense_target: Path
) -> None:
    changes = {"qwen3.embedding_length": 320, "qwen3.block_count": 5}
    target = mutate_gguf(dense_target, tmp_path / "other.gguf", set_kv=changes)
    status, out, err = run("inspect", str(drafter), "--target", str(target))
    assert (status, err) == (1, "")
    *_, verdict, hidden, layers = out.splitlines()
    assert verdict == "does not fit other.gguf:"
    assert "dflash.embedding_length is 288, needed: 320 as in other.gguf" in hidden
    assert "dflash.target_block_count is 4, needed: 5 as in other.gguf" in layers
    status, out, _ = run("inspect", str(drafter), "--target", str(target), "--json")
    assert status == 1
    assert json.loads(out)["fit"] == {
        "target": "other.gguf",
        "mismatches": [hidden.strip(), layers.strip()],
        "warnings": [],
        "fits": False,
    }


def test_inspect_json(run: Run, drafter: Path) -> None:
    status, out, _ = run("inspect", str(drafter), "--json")
    assert status == 0
    assert json.loads(out) == json.loads(json.dumps(inspect_drafter(drafter).as_dict()))


def test_inspect_reads_checkpoints(run: Run, drafter: Path, dense_target: Path) -> None:
    folder = drafter.parent / "tiny"
    status, out, _ = run("inspect", str(folder), "--target", str(dense_target))
    assert status == 0
    assert out.startswith(f"{folder}: DFlash 2 drafter, safetensors\n")


def test_inspect_shows_sliding_windows(run: Run, tmp_path: Path, dense_target: Path) -> None:
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    settings = checkpoints.config(dflash2=False) | sliding | {"is_causal": None}
    weights = checkpoints.weights(dflash2=False)
    source = checkpoints.write_checkpoint(tmp_path / "d", settings, weights)
    _, out, _ = run("inspect", str(source))
    assert "attention: window 64 in 1 layers, causal in those and not in the others" in out
    assert "selector" not in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothere.gguf", "nothere.gguf"),
        ("nothere", "nothere does not exist"),
        ("TARGET", "general.architecture is 'qwen3', needed: dflash, a drafter"),
    ],
)
def test_errors_are_one_line(run: Run, dense_target: Path, name: str, message: str) -> None:
    status, out, err = run("inspect", str(dense_target) if name == "TARGET" else name)
    assert (status, out) == (1, "")
    assert err.startswith("dflash2: error: ")
    assert message in err
    assert err.count("\n") == 1
