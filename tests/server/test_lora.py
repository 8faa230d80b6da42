"""LoRA adapters of the target: the drafter reads hidden states that they have changed.

The answers are those of the same adapter without a drafter, and the drafts those of a server that
has seen nothing but this adapter, wherever it was changed.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from dflash2 import Cycle
from serving import Server, running_server
from tiny import Pair, write_lora

from server.answers import accepted, cycles, drafted, traced
from server.options import drafting, exact

Open: TypeAlias = Callable[..., Server]
Cold: TypeAlias = Callable[[Pair, Path, float, list[int]], list[Cycle]]

N_PREDICT = 30
PROMPT = (prompts(2, 41)[1] * 100)[:100]


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An adapter that changes what the target says, with options of `tiny.write_lora`."""
    folder, written = tmp_path_factory.mktemp("lora"), dict[str, Path]()

    def write(target: Path, **options: Any) -> Path:
        key = repr((target, options))
        if key not in written:
            written[key] = write_lora(folder / f"{len(written)}.gguf", target, **options)
        return written[key]

    return write


@pytest.fixture(params=["full", "sliding", "hybrid"])
def pair(
    request: pytest.FixtureRequest,
    dense_target: Path,
    hybrid_target: Path,
    make_drafter: Callable[..., Path],
) -> Pair:
    """Random ones, whose drafts show every change of what the drafter has read."""
    if request.param == "hybrid":
        return Pair(hybrid_target, make_drafter(mrope=True))
    return Pair(dense_target, make_drafter(window=32 if request.param == "sliding" else None))


@pytest.fixture(scope="module")
def cold() -> Cold:
    """Cycles of a server whose only adapter, at one scale, is that of its start."""
    seen: dict[str, list[Cycle]] = {}

    def run(pair: Pair, adapter: Path, scale: float, prompt: list[int]) -> list[Cycle]:
        key = repr((pair, adapter, scale, prompt))
        if key not in seen:
            options = [*exact(), *drafting(pair.drafter), "--lora-scaled", f"{adapter}:{scale}"]
            with running_server(pair.target, options) as server:
                seen[key] = cycles(traced(server, prompt, N_PREDICT))
            assert seen[key]
        return seen[key]

    return run


def at(scale: float) -> dict[str, Any]:
    """Fields of a request."""
    return {"lora": [{"id": 0, "scale": scale}]}


def test_from_the_start(open_server: Open, wavering_pair: Pair, lora: Callable[..., Path]) -> None:
    adapter = lora(wavering_pair.target)
    bare = open_server(wavering_pair.target)
    plain = open_server(wavering_pair.target, None, "--lora", adapter)
    server = open_server(*wavering_pair, "--lora", adapter)
    n_drafted = n_accepted = n_changed = 0
    for prompt in prompts(6):
        answer, expected = server.complete(prompt, 60), plain.complete(prompt, 60)
        assert answer["tokens"] == expected["tokens"]
        n_changed += expected["tokens"] != bare.complete(prompt, 60)["tokens"]
        n_drafted += drafted(answer)
        n_accepted += accepted(answer)
    assert n_changed > 3, "the adapter is too weak to show anything"
    assert 0 < n_accepted < n_drafted


def test_scale_of_a_request(
    open_server: Open, pair: Pair, lora: Callable[..., Path], cold: Cold
) -> None:
    adapter = lora(pair.target)
    plain = open_server(pair.target, None, "--lora", adapter)
    server = open_server(*pair, "--lora", adapter)
    texts, last = set(), None
    for scale in (1.0, 1.0, 0.0, -0.5, 1.0, 0.0, 0.0):
        fields = {"cache_prompt": True, **at(scale)}
        answer = traced(server, PROMPT, N_PREDICT, **fields)
        expected = plain.complete(PROMPT, N_PREDICT, **fields)
        assert answer["tokens"] == expected["tokens"]
        assert cycles(answer) == cold(pair, adapter, scale, PROMPT)
        # what another adapter has left in the cache is of no use
        assert (answer["timings"]["cache_n"] > 0) == (scale == last)
        texts.add(tuple(answer["tokens"]))
        last = scale
    assert len(texts) == 3
    assert len({repr(cold(pair, adapter, scale, PROMPT)) for scale in (1.0, 0.0, -0.5)}) == 3


@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "cache"])
def test_scale_of_the_server(
    open_server: Open, pair: Pair, lora: Callable[..., Path], cold: Cold, cache: bool
) -> None:
    adapter = lora(pair.target)
    # other arguments than above: the scale outlives the requests
    options = ["--lora", adapter, "-cram", 1]
    plain, server = open_server(pair.target, None, *options), open_server(*pair, *options)
    for scale in (0.0, 1.0, -0.5, 0.0):
        for each in (plain, server):
            each.post("/lora-adapters", [{"id": 0, "scale": scale}])
        assert server.get("/lora-adapters")[0]["scale"] == scale
        for prompt in (PROMPT, PROMPT[:70]):
            answer = traced(server, prompt, N_PREDICT, cache_prompt=cache)
            expected = plain.complete(prompt, N_PREDICT, cache_prompt=cache)
            assert answer["tokens"] == expected["tokens"]
            assert cycles(answer) == cold(pair, adapter, scale, prompt)


def test_prompt_cache_in_memory(
    open_server: Open, pair: Pair, lora: Callable[..., Path], cold: Cold
) -> None:
    """Holds states of both scales, and gives a slot the one that its adapter has made."""
    adapter = lora(pair.target)
    server = open_server(*pair, "--lora", adapter, "-cram", 64)
    other = (prompts(4, 41)[3] * 100)[:100]
    for prompt, scale in ((PROMPT, 1.0), (other, 0.0), (PROMPT, 0.0), (other, 1.0), (PROMPT, 0.0)):
        answer = traced(server, prompt, N_PREDICT, cache_prompt=True, **at(scale))
        assert cycles(answer) == cold(pair, adapter, scale, prompt)


def test_activated_adapter(
    open_server: Open, pair: Pair, lora: Callable[..., Path], cold: Cold
) -> None:
    """Works from its invocation in the prompt on; what comes before is cached without it."""
    adapter = lora(pair.target, invocation=list(b"!?"))
    plain = open_server(pair.target, None, "--lora", adapter)
    server = open_server(*pair, "--lora", adapter)
    texts = set()
    for n_before, after in ((70, PROMPT[:20]), (70, PROMPT[:20]), (70, [99]), (50, PROMPT[:20])):
        prompt = [*PROMPT[:n_before], *b"!?", *after]
        answer = traced(server, prompt, N_PREDICT, cache_prompt=True)
        expected = plain.complete(prompt, N_PREDICT, cache_prompt=True)
        assert answer["tokens"] == expected["tokens"]
        assert cycles(answer) == cold(pair, adapter, 1.0, prompt)
        texts.add(tuple(answer["tokens"]))
    assert len(texts) == 3


def test_two_slots_of_different_scale(
    open_server: Open, pair: Pair, lora: Callable[..., Path], cold: Cold
) -> None:
    """Never in one decode: llama.cpp lets one of them wait."""
    adapter = lora(pair.target)
    plain = open_server(pair.target, None, "--lora", adapter)
    server = open_server(*pair, "--lora", adapter, n_slots=2)
    scales = [0.0, 1.0]
    for _ in range(2):  # the second time, each has something to lose
        with ThreadPoolExecutor(len(scales)) as pool:
            answers = list(
                pool.map(
                    lambda scale: traced(
                        server,
                        PROMPT,
                        N_PREDICT,
                        cache_prompt=True,
                        id_slot=int(scale),
                        **at(scale),
                    ),
                    scales,
                )
            )
        for scale, answer in zip(scales, answers, strict=True):
            expected = plain.complete(PROMPT, N_PREDICT, **at(scale))
            assert answer["tokens"] == expected["tokens"]
            if "hybrid" not in pair.target.name:  # which drafts while one slot is at work
                assert cycles(answer) == cold(pair, adapter, scale, PROMPT)
    assert answers[0]["tokens"] != answers[1]["tokens"]
