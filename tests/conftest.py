"""Models for tests: tiny ones written once per session, and the demo pair."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reference import Target
from tiny import (
    Pair,
    write_dense_target,
    write_drafter,
    write_hybrid_target,
    write_permutation_pair,
)

_MEASURED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        type=float,
        default=5,
        metavar="SECONDS",
        help="how long each case of the soak test asks the server (default: 5)",
    )


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Adds a line to the end of the test run: what a passing test measured and must not hide."""
    return pytestconfig.stash.setdefault(_MEASURED, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(_MEASURED, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def dense_target(tiny_folder: Path) -> Path:
    return write_dense_target(tiny_folder / "dense.gguf")


@pytest.fixture(scope="session")
def dense_target_q8_0(tiny_folder: Path) -> Path:
    return write_dense_target(tiny_folder / "dense-q8_0.gguf", dtype="q8_0")


@pytest.fixture(scope="session")
def hybrid_target(tiny_folder: Path) -> Path:
    return write_hybrid_target(tiny_folder / "hybrid.gguf")


@pytest.fixture(scope="session")
def make_drafter(tiny_folder: Path) -> Callable[..., Path]:
    """Path of a random drafter with the options of `tiny.write_drafter`, written once for each."""
    written: dict[str, Path] = {}

    def make(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in written:
            written[key] = write_drafter(tiny_folder / f"drafter-{len(written)}.gguf", **options)
        return written[key]

    return make


@pytest.fixture(scope="session")
def dense_pair(dense_target: Path, make_drafter: Callable[..., Path]) -> Pair:
    """Random target and drafter: nearly every draft is rejected."""
    return Pair(dense_target, make_drafter())


@pytest.fixture(scope="session")
def hybrid_pair(hybrid_target: Path, make_drafter: Callable[..., Path]) -> Pair:
    return Pair(hybrid_target, make_drafter(mrope=True))


@pytest.fixture(scope="session")
def permutation_pair(tiny_folder: Path) -> Pair:
    """Every cycle accepts block_size - 1 drafts."""
    return write_permutation_pair(tiny_folder / "permutation")


@pytest.fixture(scope="session")
def scrambled_pair(tiny_folder: Path) -> Pair:
    """No draft is ever accepted."""
    return write_permutation_pair(tiny_folder / "scrambled", scrambled=True)


@pytest.fixture(scope="session", params=["dense", "hybrid"])
def wavering_pair(request: pytest.FixtureRequest, tiny_folder: Path) -> Pair:
    """Cycles accept anything from no draft to all of them."""
    return write_permutation_pair(
        tiny_folder / f"wavering-{request.param}",
        hybrid=request.param == "hybrid",
        # the weight at which short texts show every accepted length
        context_weight=0.05,
    )


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the demo drafter's checkpoint and of what its authors' code computed with it."""
    return Path(__file__).parent / "data" / "smollm2-135m-dflash2"


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The demo pair's target, downloaded on first use."""
    from dflash2 import demo

    return demo.target_path()


@pytest.fixture(scope="session")
def demo_drafter() -> Path:
    from dflash2 import demo

    return demo.drafter_path()


@pytest.fixture(scope="session")
def demo_reference(demo_target: Path) -> Target:
    return Target(demo_target)
