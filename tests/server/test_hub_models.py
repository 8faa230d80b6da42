"""-hf and --draft-dflash2 with names of repositories: found, downloaded once, kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import running_server
from tiny import Pair

from server.answers import accepted
from server.hub import Hub, running_hub
from server.options import exact
from server.test_refusals import refusal

TARGET, DRAFTER, OTHER = "someone/letters-GGUF", "someone/letters-DFlash2-GGUF", "someone/other"


@pytest.fixture
def hub(permutation_pair: Pair, dense_pair: Pair) -> Iterator[Hub]:
    """The drafter that fits is only one of those in its repository."""
    target, drafter = permutation_pair
    repositories = {
        TARGET: {"letters-F32.gguf": target, "README.md": Path(__file__)},
        DRAFTER: {
            "letters-DFlash2-Q8_0.gguf": dense_pair.drafter,
            "letters-DFlash2-F32.gguf": drafter,
        },
        # named as llama.cpp's own drafters are
        OTHER: {"letters-F32.gguf": target, "dflash-letters-F32.gguf": drafter},
    }
    with running_hub(repositories) as running:
        yield running


def drafting_from(name: str) -> list[object]:
    return [*exact(), "--draft-dflash2", name, "--dflash2-depth", 7]


def test_both_are_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    options = ["-hf", TARGET, *drafting_from(f"{DRAFTER}:F32")]
    files = [f"{TARGET}/letters-F32.gguf", f"{DRAFTER}/letters-DFlash2-F32.gguf"]
    with running_server(None, options, environment=environment) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3
        assert server.get("/props")["dflash2"]["draft"].endswith("letters-DFlash2-F32.gguf")
    assert sorted(hub.downloads) == sorted(files)
    with running_server(None, options, environment=environment) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3
    assert sorted(hub.downloads) == sorted(files)
    hub.repositories = {}
    with running_server(None, [*options, "--offline"], environment=environment) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3


def test_target_from_the_hub_and_drafter_from_a_file(
    hub: Hub, permutation_pair: Pair, tmp_path: Path
) -> None:
    options = ["-hf", TARGET, *drafting_from(str(permutation_pair.drafter))]
    with running_server(None, options, environment=hub.environment(tmp_path)) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3
    assert hub.downloads == [f"{TARGET}/letters-F32.gguf"]


def test_target_from_a_file_and_drafter_from_the_hub(
    hub: Hub, permutation_pair: Pair, tmp_path: Path
) -> None:
    options = ["-m", permutation_pair.target, *drafting_from(f"{DRAFTER}:F32")]
    with running_server(None, options, environment=hub.environment(tmp_path)) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3
    assert hub.downloads == [f"{DRAFTER}/letters-DFlash2-F32.gguf"]


def test_drafter_beside_a_target(hub: Hub, tmp_path: Path) -> None:
    """In one repository, under the name that llama.cpp gives drafters there."""
    options = ["-hf", OTHER, *drafting_from(OTHER)]
    with running_server(None, options, environment=hub.environment(tmp_path)) as server:
        assert accepted(server.complete("abc", 1 + 8 * 3)) == 7 * 3


@pytest.mark.parametrize(
    ("target", "drafter", "options", "message"),
    [
        (TARGET, "someone/none", [], "--draft-dflash2 someone/none: the hub has no such"),
        (TARGET, f"{DRAFTER}:Q4_0", [], f"--draft-dflash2 {DRAFTER}:Q4_0: the hub has no such"),
        ("someone/none", DRAFTER, [], "-hf someone/none: the hub has no such"),
        (TARGET, DRAFTER, ["--offline"], f"-hf {TARGET}: nothing in the cache"),
        (TARGET, DRAFTER, [], "320 tokens, the target of 272"),
    ],
    ids=["no drafter", "no such type", "no target", "not in the cache", "of another target"],
)
def test_refusal(
    hub: Hub, tmp_path: Path, target: str, drafter: str, options: list[object], message: str
) -> None:
    options = ["-hf", target, *drafting_from(drafter), *options]
    refusal(None, options, message, hub.environment(tmp_path))


def test_hub_out_of_reach(tmp_path: Path, permutation_pair: Pair) -> None:
    with running_hub({}) as hub:
        environment = hub.environment(tmp_path)
    options = ["-m", permutation_pair.target, *drafting_from(DRAFTER)]
    refusal(None, options, f"--draft-dflash2 {DRAFTER}: ", environment)
