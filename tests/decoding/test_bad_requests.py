"""Requests and options out of range are refused in words; the engine goes on."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from dflash2 import Dflash2Engine, EngineClosedError, SamplingParams, _core
from tiny import Pair

Open: TypeAlias = Callable[..., Dflash2Engine]
SHORT = SamplingParams(max_tokens=5)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([97, 320], "token id 320"),
        ([-1], "token id.* -1"),
        ([97] * 512, "512 tokens, n_ctx is 512"),
        ("x" * 5000, "5000 tokens, n_ctx is 512"),
    ],
    ids=["no text", "no tokens", "id beyond", "id below", "full", "too long"],
)
def test_prompt(open_engine: Open, dense_pair: Pair, prompt: Any, message: str) -> None:
    engine = open_engine(*dense_pair)
    if prompt == []:
        prompt, message = [[]], "prompt is empty"
    with pytest.raises(ValueError, match=message):
        engine.generate(prompt, SHORT)
    with pytest.raises(ValueError, match=message):
        next(engine.stream(prompt[0] if prompt == [[]] else prompt, SHORT))
    assert len(engine.generate("abc", SHORT).token_ids) == 5


def test_one_bad_prompt_of_several(open_engine: Open, dense_pair: Pair) -> None:
    engine = open_engine(*dense_pair)
    with pytest.raises(ValueError, match=r"prompt 1 of 3.*empty"):
        engine.generate(["abc", "", "def"], SHORT)
    # the good ones do not go on in the background
    first = engine.generate("abc", SHORT)
    assert first.stats.generated_tokens == 5


# native checks, for callers that do not come through SamplingParams
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("typical_p", float("nan")),
        ("xtc_probability", 2.0),
        ("xtc_threshold", -1.0),
        ("dynatemp_range", -1.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", float("nan")),
        ("penalty_last_n", -2),
        ("dry_multiplier", -1.0),
        ("dry_penalty_last_n", -2),
        ("mirostat", 3),
        ("logprobs", 321),
        ("stop", [""]),
        ("stop_token_ids", [320]),
        ("logit_bias", [(-1, 1.0)]),
        ("logit_bias", [(3, float("nan"))]),
        ("logit_bias", [(3, float("inf"))]),
        ("grammar", "root ::= ["),
        ("json_schema", "{"),
        ("json_schema", '{"type": "nonsense"}'),
    ],
)
def test_sampling_value(dense_pair: Pair, open_engine: Open, name: str, value: Any) -> None:
    engine = open_engine(*dense_pair)
    options = _core.SamplingOptions()
    setattr(options, name, value)
    with pytest.raises(ValueError, match=name if name != "grammar" else "grammar|chain"):
        engine._scheduler.call(lambda native: native.submit([97], options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"n_parallel": 0}, "n_parallel"),
        ({"n_parallel": 100_000}, "n_parallel"),
        ({"n_threads": -1}, "n_threads"),
        ({"n_threads": 513}, "n_threads is 513, ggml runs at most 512"),
        ({"n_ctx": 2**24, "n_parallel": 200}, "more than llama.cpp can count"),
        ({"depth": 0}, "depth"),
        ({"verify": "maybe"}, "verify"),
        ({"flash_attn": "sometimes"}, "flash_attn"),
        ({"cache_type": "q3_x"}, "cache_type"),
        ({"device": "CUDA77"}, r"CUDA77.*auto, cpu"),
        ({"device": ","}, "device"),
        ({"cache_type": "q8_0", "flash_attn": "off"}, "flash attention"),
    ],
    ids=str,
)
def test_engine_option(dense_pair: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dflash2Engine(*dense_pair, **options)


@pytest.mark.parametrize("endpoint", ["localhost", "localhost:http", ":50052", "a:b:c:1"])
def test_rpc_server_that_is_no_endpoint(dense_pair: Pair, endpoint: str) -> None:
    with pytest.raises(ValueError, match=f"rpc: '{endpoint}' is not of the form host:port"):
        Dflash2Engine(*dense_pair, rpc=endpoint)


def test_rpc_server_that_does_not_answer(dense_pair: Pair) -> None:
    with socket.socket() as unused:
        # bound but not listening: nobody else can take the port meanwhile
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"{endpoint}.*ggml-rpc-server"):
            Dflash2Engine(*dense_pair, rpc=endpoint)


def test_depth_beyond_the_block_is_clamped(
    dense_pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with Dflash2Engine(*dense_pair, device="cpu", n_threads=1, n_ctx=256, depth=64) as engine:
        assert engine.depth == engine.block_size - 1 == 7
    assert any("depth 64" in record.message for record in caplog.records)


@pytest.mark.parametrize("n_ctx", [1, 2, 5, 9])
def test_tiny_context(hybrid_pair: Pair, dense_pair: Pair, n_ctx: int) -> None:
    for pair in (dense_pair, hybrid_pair):
        with Dflash2Engine(*pair, device="cpu", n_threads=1, n_ctx=n_ctx, n_parallel=2) as engine:
            assert engine.n_ctx == n_ctx
            if n_ctx == 1:
                with pytest.raises(ValueError, match="n_ctx is 1"):
                    engine.generate("a")
                continue
            answers = engine.generate(["a", "b", "c"], SamplingParams(ignore_eos=True))
            assert [len(answer.token_ids) for answer in answers] == [n_ctx] * 3


def test_closed_engine(dense_pair: Pair) -> None:
    engine = Dflash2Engine(*dense_pair, device="cpu", n_threads=1, n_ctx=256)
    stream = engine.stream("abc", SamplingParams(max_tokens=100))
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError):
        next(stream)
    for call in (
        lambda: engine.generate("abc"),
        lambda: engine.tokenize("abc"),
        lambda: engine.stats,
        lambda: next(engine.stream("abc")),
    ):
        with pytest.raises(EngineClosedError):
            call()


def test_messages_the_template_rejects(open_engine: Open, dense_pair: Pair) -> None:
    engine = open_engine(*dense_pair)
    with pytest.raises(ValueError, match="role"):
        engine.chat([{"content": "no role"}], SHORT)
    assert engine.chat([{"role": "user", "content": "hi"}], SHORT).stats.generated_tokens == 5


@pytest.mark.skipif(os.name == "nt", reason="SIGALRM does not exist there")
@pytest.mark.parametrize("stream", [False, True], ids=["generate", "stream"])
def test_ctrl_c(open_engine: Open, wavering_pair: Pair, stream: bool) -> None:
    engine = open_engine(*wavering_pair, n_ctx=4096)
    params = SamplingParams(max_tokens=4000, ignore_eos=True)

    def run() -> None:
        if stream:
            for _ in engine.stream("abc", params):
                pass
        else:
            engine.generate(["abc"] * 3, params)

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - start < 5
    expected = open_engine(wavering_pair.target).generate("abc", SHORT)
    assert engine.generate("abc", SHORT).token_ids == expected.token_ids


def test_threads_share_an_engine(open_engine: Open, wavering_pair: Pair) -> None:
    engine = open_engine(*wavering_pair, n_parallel=2)
    expected = {text: engine.generate(text, SHORT).token_ids for text in ("ab", "cd", "ef", "gh")}
    answers: dict[str, list[int]] = {}

    def work(text: str) -> None:
        answers[text] = engine.generate(text, SHORT).token_ids

    threads = [threading.Thread(target=work, args=(text,)) for text in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected
