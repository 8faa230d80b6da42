"""What is written is read back and compared with its source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2.convert import ConversionError, convert_drafter
from dflash2.convert.drafter import Plan, plan_drafter
from dflash2.convert.quantize import encode
from dflash2.convert.verify import verify_drafter
from dflash2.convert.weights import Weights
from dflash2.programs import program_path
from gguf import GGUFValueType
from numpy.typing import NDArray

from . import checkpoints
from .gguf_bytes import Key, Parts, taken_apart

TYPES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
K_TYPES = ["q6_k", "q5_k_m", "q4_k_m"]
GATE = "blk.1.ffn_gate.weight"
# what one weight is moved by, as a part of the largest in its tensor: for a quantized type two
# steps, for the others two units in the last place
SHIFT = {
    "f32": 2**-22,
    "f16": 2**-9,
    "bf16": 2**-6,
    "q8_0": 2 / 127,
    "q5_1": 4 / 31,
    "q5_0": 4 / 31,
    "q4_1": 4 / 15,
    "q4_0": 4 / 15,
}


class Shifted:
    """Weights of which the largest one is another."""

    def __init__(self, base: Weights, share: float) -> None:
        self.name, self.shape = base.name, base.shape
        self._rows = base.read(0, int(np.prod(base.shape[:-1])))
        largest = np.abs(self._rows).argmax()
        self._rows.flat[largest] *= 1 - share

    def read(self, first_row: int, n_rows: int) -> NDArray[np.float32]:
        return self._rows[first_row : first_row + n_rows]


@pytest.fixture
def plan(source: Path, dense_target: Path, tmp_path: Path) -> Callable[[Any], Plan]:
    return lambda outtype: plan_drafter(source, dense_target, tmp_path / "a.gguf", outtype=outtype)


def sources(plan: Plan) -> dict[str, Weights]:
    return {tensor.name: tensor.source for tensor in plan.tensors}


@pytest.mark.parametrize("outtype", TYPES)
def test_written_file_is_verified(source: Path, dense_target: Path, outtype: Any) -> None:
    path = source.parent / "out.gguf"
    assert convert_drafter(source, dense_target, path, outtype=outtype, verify=True).exists()


@pytest.mark.parametrize("outtype", K_TYPES)
def test_demo_drafter_in_k_types_is_verified(
    tmp_path: Path, golden: Path, demo_target: Path, outtype: Any
) -> None:
    program = program_path("llama-quantize")
    options: Any = {"outtype": outtype, "quantizer": program, "verify": True}
    assert convert_drafter(golden, demo_target, tmp_path, **options).exists()


@pytest.mark.parametrize("outtype", TYPES)
def test_weight_off_by_two_steps_is_found(
    source: Path, dense_target: Path, plan: Callable[[Any], Plan], outtype: Any
) -> None:
    planned = plan(outtype)
    path = convert_drafter(source, dense_target, planned.path, outtype=outtype)
    good = sources(planned)
    verify_drafter(path, planned.metadata, good)
    wrong = good | {GATE: Shifted(good[GATE], SHIFT[outtype])}
    with pytest.raises(ConversionError, match=rf"{GATE}: weight \[\d+, \d+\] is .* needed: "):
        verify_drafter(path, planned.metadata, wrong)


def other_text(parts: Parts) -> None:
    parts.keys["tokenizer.ggml.tokens"].value[100] += "!"


def other_number(parts: Parts) -> None:
    parts.keys["dflash.rope.freq_base"].value += 0.001


def other_key(parts: Parts) -> None:
    parts.keys["dflash.logit_scale"] = Key(GGUFValueType.FLOAT32, 1.0)


def key_gone(parts: Parts) -> None:
    del parts.keys["dflash.attention.causal"]


def other_key_type(parts: Parts) -> None:
    parts.keys["dflash.block_size"].type = GGUFValueType.INT32


def tensor_gone(parts: Parts) -> None:
    del parts.tensors[GATE]


def tensors_swapped(parts: Parts) -> None:
    up = "blk.1.ffn_up.weight"
    parts.tensors[GATE], parts.tensors[up] = parts.tensors[up], parts.tensors[GATE]


def transposed(parts: Parts) -> None:
    parts.tensors[GATE].shape = parts.tensors[GATE].shape[::-1]


def rows_rolled(parts: Parts) -> None:
    data = parts.tensors[GATE].data
    parts.tensors[GATE].data = data[576:] + data[:576]


def not_a_number(parts: Parts) -> None:
    parts.tensors[GATE].data = b"\xff\xff" + parts.tensors[GATE].data[2:]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (other_text, "tokenizer.ggml.tokens"),
        (other_number, "dflash.rope.freq_base"),
        (other_key, "dflash.logit_scale"),
        (key_gone, "dflash.attention.causal"),
        (other_key_type, "dflash.block_size"),
        (tensor_gone, GATE),
        (tensors_swapped, GATE),
        (transposed, GATE),
        (rows_rolled, GATE),
        (not_a_number, GATE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_difference_is_named(
    source: Path,
    dense_target: Path,
    plan: Callable[[Any], Plan],
    change: Callable[[Parts], None],
    word: str,
) -> None:
    planned = plan("f16")
    path = convert_drafter(source, dense_target, planned.path)
    parts = taken_apart(path)
    change(parts)
    path.write_bytes(parts.assembled())
    with pytest.raises(ConversionError, match=f"verification failed: .*{word}"):
        verify_drafter(path, planned.metadata, sources(planned))


def test_failed_verification_leaves_nothing(
    tmp_path: Path, source: Path, dense_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rolled(name: str, rows: NDArray[np.float32], type_: Any) -> Any:
        return encode(name, np.roll(rows, 1), type_)

    monkeypatch.setattr("dflash2.convert.writer.encode", rolled)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConversionError):
        convert_drafter(source, dense_target, out, verify=True)
    assert list(out.iterdir()) == []


def test_weights_of_vanishing_size_are_verified(tmp_path: Path, dense_target: Path) -> None:
    """Their scales lie below what F16 can hold exactly."""
    tiny = {
        name: checkpoints.stored(checkpoints.values(tensor) * np.float32(1e-6))
        for name, tensor in checkpoints.weights().items()
    }
    source = checkpoints.write_checkpoint(tmp_path / "d", checkpoints.config(), tiny)
    for outtype in TYPES:
        path = tmp_path / f"{outtype}.gguf"
        convert_drafter(source, dense_target, path, outtype=outtype, verify=True)  # type: ignore[arg-type]
