"""A slot saved to disk and restored drafts as a cold run does (D4)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from dflash2 import Cycle
from serving import Server, running_server
from tiny import Pair

from server.answers import cycles, traced
from server.options import drafting, exact

Run: TypeAlias = Callable[[Path | None], "Any"]
N_PREDICT = 30


def conversation(seed: int) -> list[int]:
    return (prompts(seed + 1, 41)[seed] * 200)[:200]


FIRST, SECOND = conversation(0), conversation(2)


@pytest.fixture(
    params=["dense full", "dense sliding", "hybrid full", "hybrid sliding"], scope="module"
)
def pair(
    request: pytest.FixtureRequest,
    dense_target: Path,
    hybrid_target: Path,
    make_drafter: Callable[..., Path],
) -> Pair:
    kind, _, drafter = request.param.partition(" ")
    options = {"window": 32 if drafter == "sliding" else None, "mrope": kind == "hybrid"}
    return Pair(hybrid_target if kind == "hybrid" else dense_target, make_drafter(**options))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def server(pair: Pair, folder: Path) -> Iterator[Server]:
    with running_server(pair.target, options(pair, folder)) as running:
        yield running


def options(pair: Pair, folder: Path, n_slots: int = 2, drafter: bool = True) -> list[object]:
    drafts = drafting(pair.drafter if drafter else None)
    # no help from states kept in memory
    return [*exact(n_slots), *drafts, "-cram", 0, "--slot-save-path", f"{folder}/"]


@pytest.fixture(scope="module")
def cold(pair: Pair) -> dict[str, list[Cycle]]:
    """Of the prompts asked below, by their text."""
    found = {}
    for prompt in (FIRST + prompts(2)[1], FIRST):
        with running_server(pair.target, [*exact(), *drafting(pair.drafter)]) as server:
            found[repr(prompt)] = cycles(traced(server, prompt, N_PREDICT))
    return found


def act(server: Server, slot: int, action: str, filename: str = "saved.bin") -> dict[str, Any]:
    return server.post(f"/slots/{slot}?action={action}", {"filename": filename})


def fill(server: Server, prompt: list[int], slot: int) -> dict[str, Any]:
    return traced(server, prompt, 1, cache_prompt=True, id_slot=slot)


def check_goes_on(server: Server, slot: int, cold: dict[str, list[Cycle]], hybrid: bool) -> None:
    prompt = FIRST + prompts(2)[1]
    answer = traced(server, prompt, N_PREDICT, cache_prompt=True, id_slot=slot)
    assert cycles(answer) == cold[repr(prompt)]
    # what was restored was of use
    assert hybrid or answer["timings"]["cache_n"] >= len(FIRST) - 1


@pytest.mark.parametrize("way", ["same slot", "erased", "other slot", "over another", "twice"])
def test_restore(server: Server, pair: Pair, cold: dict[str, list[Cycle]], way: str) -> None:
    fill(server, FIRST, 0)
    assert act(server, 0, "save")["n_saved"] == len(FIRST)
    slot = 1 if way in ("other slot", "over another") else 0
    if way == "erased":
        act(server, 0, "erase")
    if way in ("over another", "twice"):
        traced(server, SECOND, N_PREDICT, cache_prompt=True, id_slot=slot)
    for _ in range(2 if way == "twice" else 1):
        assert act(server, slot, "restore")["n_restored"] == len(FIRST)
    check_goes_on(server, slot, cold, "hybrid" in pair.target.name)


def test_restore_in_another_process(pair: Pair, folder: Path, cold: dict[str, list[Cycle]]) -> None:
    with running_server(pair.target, options(pair, folder)) as server:
        fill(server, FIRST, 0)
        act(server, 0, "save")
    with running_server(pair.target, options(pair, folder)) as server:
        act(server, 1, "restore")
        check_goes_on(server, 1, cold, "hybrid" in pair.target.name)


def test_file_of_a_server_without_drafter(
    pair: Pair, folder: Path, cold: dict[str, list[Cycle]]
) -> None:
    """And the other way round: files stay those of llama-server."""
    with running_server(pair.target, options(pair, folder, drafter=False)) as plain:
        fill_plain = plain.complete(FIRST, 1, cache_prompt=True, id_slot=0)
        act(plain, 0, "save", "plain.bin")
    assert fill_plain["tokens"]
    with running_server(pair.target, options(pair, folder)) as server:
        act(server, 0, "restore", "plain.bin")
        prompt = FIRST + prompts(2)[1]
        answer = traced(server, prompt, N_PREDICT, cache_prompt=True, id_slot=0)
        assert cycles(answer) == cold[repr(prompt)]
        act(server, 0, "save", "ours.bin")
    with running_server(pair.target, options(pair, folder, drafter=False)) as plain:
        expected = plain.complete(answer["tokens"], 10)
        assert act(plain, 1, "restore", "ours.bin")["n_restored"] > len(FIRST)
        assert plain.complete(answer["tokens"], 10)["tokens"] == expected["tokens"]


def test_the_drafters_part_of_another_drafter(
    pair: Pair, folder: Path, make_drafter: Callable[..., Path], hybrid_target: Path
) -> None:
    """A drafter of other sizes must not take the keys for its own."""
    mrope = pair.target == hybrid_target
    other = Pair(pair.target, make_drafter(n_layer=3, seed=9, mrope=mrope))
    prompt = FIRST + prompts(2)[1]
    with running_server(pair.target, [*exact(), *drafting(other.drafter)]) as server:
        expected = cycles(traced(server, prompt, N_PREDICT))
    with running_server(pair.target, options(pair, folder)) as server:
        fill(server, FIRST, 0)
        act(server, 0, "save")
    with running_server(pair.target, options(other, folder)) as server:
        act(server, 0, "restore")
        answer = traced(server, prompt, N_PREDICT, cache_prompt=True, id_slot=0)
        assert cycles(answer) == expected


@pytest.mark.parametrize("part", [0.0, 0.5, 0.9, 0.999])
def test_file_cut_short(server: Server, pair: Pair, folder: Path, part: float) -> None:
    """Refused or made up for, never half of it."""
    fill(server, FIRST, 0)
    act(server, 0, "save")
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {"saved.bin", "saved.bin.dflash2"}
    if "hybrid" in pair.target.name:
        # llama.cpp itself asserts that a recurrent state is whole, with a drafter or without
        del files["saved.bin"]
    for path in files.values():
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])
        reply = server.ask("POST", "/slots/0?action=restore", {"filename": "saved.bin"})
        assert reply.status in (200, 400), reply
        answer = traced(server, FIRST, N_PREDICT, cache_prompt=True, id_slot=0)
        expected = traced(server, FIRST, N_PREDICT, id_slot=1)
        assert cycles(answer) == cycles(expected)
        path.write_bytes(data)


def test_missing_file(server: Server) -> None:
    reply = server.ask("POST", "/slots/0?action=restore", {"filename": "none.bin"})
    assert reply.status == 400
    assert server.complete("abc", 5)["tokens_predicted"] == 5


def test_erased_slot_starts_anew(server: Server, cold: dict[str, list[Cycle]]) -> None:
    traced(server, SECOND, N_PREDICT, cache_prompt=True, id_slot=0)
    act(server, 0, "erase")
    answer = traced(server, FIRST, N_PREDICT, cache_prompt=True, id_slot=0)
    assert answer["timings"]["cache_n"] == 0
    assert cycles(answer) == cold[repr(FIRST)]
