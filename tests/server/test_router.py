"""A router whose models draft: each in a server of its own, with the flags it was given."""

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import HOST, Server, completion, running_server
from tiny import Pair

from server.answers import accepted, drafted, stats
from server.options import drafting, exact

N_PREDICT = 1 + 8 * 3


@pytest.fixture
def models(tmp_path: Path, permutation_pair: Pair, dense_pair: Pair) -> Path:
    """A folder of two models: `letters`, which the drafter fits, and `noise`."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "letters.gguf").symlink_to(permutation_pair.target)
    (folder / "noise.gguf").symlink_to(dense_pair.target)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """No models but those named here."""
    return {"LLAMA_CACHE": str(tmp_path / "cache")}


def ask(router: Server, model: str, **fields: Any) -> dict[str, Any]:
    return router.complete("abc", N_PREDICT, model=model, **fields)


def state(router: Server, model: str) -> dict[str, Any]:
    [found] = [each for each in router.get("/models")["data"] if each["id"] == model]
    return dict(found["status"])


def test_models_of_a_folder(models: Path, cache: dict[str, str], permutation_pair: Pair) -> None:
    """Flags of the router are those of its models."""
    options = ["--models-dir", models, *exact(), *drafting(permutation_pair.drafter)]
    with running_server(None, options, environment=cache) as router:
        answer = ask(router, "letters")
        assert answer["content"] == ("defghijklmnop" + "abcdefghijkl")
        assert accepted(answer) == drafted(answer) == 7 * 3
        metrics = router.get("/metrics?model=letters")
        assert "dflash2_accepted_tokens_total 21\n" in metrics
        assert router.get("/props?model=letters")["dflash2"]["depth"] == 7
        chunks = list(router.stream("/completion", completion("abc", N_PREDICT, model="letters")))
        assert accepted(chunks[-1]) == 7 * 3


def test_models_of_a_preset(
    tmp_path: Path, cache: dict[str, str], permutation_pair: Pair, scrambled_pair: Pair
) -> None:
    """Each has a drafter and settings of its own, or none."""
    preset = tmp_path / "models.ini"
    lines = [
        "version = 1",
        *["[*]", "ctx-size = 1024", "parallel = 1", "threads = 1"],
        *["[short]", f"model = {permutation_pair.target}"],
        *[f"draft-dflash2 = {permutation_pair.drafter}", "dflash2-depth = 3"],
        *["[long]", f"model = {scrambled_pair.target}", "dflash2-verify = match"],
        *[f"LLAMA_ARG_DRAFT_DFLASH2 = {scrambled_pair.drafter}", "LLAMA_ARG_DFLASH2_DEPTH = 7"],
        *["[plain]", f"model = {permutation_pair.target}"],
    ]
    preset.write_text("\n".join(lines))
    with running_server(None, ["--models-preset", preset], environment=cache) as router:
        short, long, plain = (ask(router, model) for model in ("short", "long", "plain"))
        assert stats(short)["depth_histogram"][3] > 5
        assert stats(long)["depth_histogram"][7] > 5
        assert accepted(short) > accepted(long) == 0
        assert "dflash2" not in plain["timings"]
        assert short["content"] == long["content"] == plain["content"]
        assert router.get("/props?model=long")["dflash2"]["verify"] == "match"


def test_drafter_that_does_not_fit(
    models: Path, cache: dict[str, str], permutation_pair: Pair
) -> None:
    """Costs that model; the router says so and goes on."""
    options = ["--models-dir", models, *exact(), *drafting(permutation_pair.drafter)]
    with running_server(None, options, environment=cache) as router:
        for _ in range(2):
            reply = router.ask("POST", "/completion", completion("abc", 5, model="noise"))
            assert reply.status == 500
            assert "noise" in reply.body["error"]["message"]
        assert state(router, "noise")["failed"]
        assert state(router, "noise")["exit_code"] == 1
        log = router.log()
        assert "272 tokens, the target of 320" in log
        assert "GGML_ASSERT" not in log
        assert accepted(ask(router, "letters")) == 7 * 3


@pytest.mark.parametrize("client", ["none", "streams", "waits"])
def test_sigterm_ends_all(
    models: Path, cache: dict[str, str], permutation_pair: Pair, client: str
) -> None:
    options = ["--models-dir", models, *exact(), *drafting(permutation_pair.drafter)]
    with running_server(None, [*options, "--context-shift"], environment=cache) as router:
        ask(router, "letters")
        port = port_of(router, "letters")
        assert is_open(port)
        with endless(router, "letters", client) if client != "none" else contextlib.nullcontext():
            router.process.send_signal(signal.SIGTERM)
            # ten seconds are what a router gives a model to end by itself
            status = router.process.wait(30)
        assert "force-killing" not in router.log()
    assert status == 0
    assert not is_open(port)


def port_of(router: Server, model: str) -> int:
    args = state(router, model)["args"]
    return int(args[args.index("--port") + 1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


@contextlib.contextmanager
def endless(router: Server, model: str, client: str) -> Iterator[None]:
    """While a request runs whose client goes only when it is sent away."""
    body = completion("abc", -1, ignore_eos=True, model=model)

    def ask() -> None:
        # no connection, an error, half an answer, or one without content
        cut_off = OSError, RuntimeError, http.client.HTTPException, json.JSONDecodeError
        with contextlib.suppress(*cut_off):
            if client == "streams":
                list(router.stream("/completion", body, 60))
            else:
                router.ask("POST", "/completion", body, 60)

    thread = threading.Thread(target=ask)
    thread.start()
    end = time.monotonic() + 30
    while not any(slot["is_processing"] for slot in router.get(f"/slots?model={model}")):
        assert time.monotonic() < end, "the request did not begin"
        time.sleep(0.02)
    yield
    thread.join(30)
    assert not thread.is_alive()
