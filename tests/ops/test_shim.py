"""The shim finds the faults that README.md in its folder says it finds, and no others."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shim import SHIM, TRIALS, Device, Fault, Trial, build, dense

KERNELS = Path(__file__).with_name("faulty_kernels.cpp")
# the table at the end of the file
NUMBERS = {name: int(i) for i, name in re.findall(r"\{ (\d+), +(\w+) +\}", KERNELS.read_text())}

IN = np.arange(128, dtype=np.float32)
SUMS = IN.reshape(2, 64).sum(axis=1)
ORDER = "the result depends on the order"
OUTSIDE = r"block \(\d,0,0\) thread \(\d+,0,0\): access outside of every buffer"


@pytest.fixture(scope="module")
def device(ggml_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Device:
    library = tmp_path_factory.mktemp("faults") / "faulty_kernels.so"
    system = [ggml_tree / "include", ggml_tree / "src"]
    return Device(build(library, [KERNELS], [SHIM / "cuda"], system))


def run(device: Device, kernel: str, trials: tuple[Trial, ...] = TRIALS) -> NDArray[Any]:
    return device.run("conv", [dense(IN)], [NUMBERS[kernel]], (2,), trials=trials)


@pytest.mark.parametrize("kernel", ["good", "good_shuffles", "good_reduction"])
def test_right_kernel(device: Device, kernel: str) -> None:
    every = tuple(
        Trial(at_end, backward, width)
        for at_end in (False, True)
        for backward in (False, True)
        for width in (32, 64)
    )
    np.testing.assert_array_equal(run(device, kernel, every), SUMS)


@pytest.mark.parametrize(
    ("kernel", "message"),
    {
        "missing_second_barrier": ORDER,
        "race_of_two_writers": ORDER,
        "race_of_two_blocks": ORDER,
        "read_behind": OUTSIDE,
        "read_in_front": OUTSIDE,
        "write_behind": "something was written beside the result",
        "write_a_source": "a source was written",
        "null_pointer": OUTSIDE + ", at 0x40",
        "misaligned_vector": "undefined behaviour: a misaligned access",
        "index_outside_of_an_array": "undefined behaviour: .* an index outside of an array",
        "outside_of_dynamic_shared_memory": OUTSIDE,
        "barrier_of_some": r"divergent barrier .* 3 threads waiting at faulty_kernels.cpp:\d+;",
        "two_barriers": r"divergent .* 3 threads waiting at .*:\d+; 61 threads waiting at .*:\d+;",
        "shuffle_of_some": r"divergent .* 32 threads waiting at .* \(SIMD group\);",
    }.items(),
)
def test_planted_fault(device: Device, kernel: str, message: str) -> None:
    with pytest.raises(Fault, match=message):
        run(device, kernel)
    # and the next launch is none the worse for it
    np.testing.assert_array_equal(run(device, "good"), SUMS)


# what is read before it is written, or never written, is NaN in either order
@pytest.mark.parametrize(
    ("kernel", "expected"),
    {
        "missing_barrier": [np.nan, np.nan],
        "stale_shared_memory": [1, np.nan],
        "result_not_written": [1, np.nan],
        "shuffle_from_an_ended_lane": [np.nan, np.nan],
    }.items(),
)
def test_poison(device: Device, kernel: str, expected: list[float]) -> None:
    np.testing.assert_array_equal(run(device, kernel), np.array(expected, np.float32))
