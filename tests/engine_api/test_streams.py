"""Requests that live side by side: streams, threads, errors, interrupts, closing."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from types import SimpleNamespace

import pytest
from dflash2 import Dflash2Engine, Dflash2Error, EngineClosedError, GenerationChunk
from fake_engine import BLOCK

from .conftest import Open


def join(chunks: Iterable[GenerationChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_stream_yields_blocks_that_join_to_the_result(open_engine: Open) -> None:
    engine, _ = open_engine()
    chunks = list(engine.stream("abcdefghij"))
    assert [chunk.text for chunk in chunks] == ["ABCD", "EFGH", "IJ"]
    assert [chunk.n_accepted for chunk in chunks] == [3, 3, 1]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert [chunk.stats is None for chunk in chunks] == [True, True, False]


def test_stream_checks_its_prompt_at_once(open_engine: Open) -> None:
    engine, _ = open_engine()
    with pytest.raises(TypeError, match="prompt"):
        engine.stream(5)  # type: ignore[arg-type]


def test_stream_that_is_never_read_asks_for_nothing(open_engine: Open) -> None:
    engine, fake = open_engine()
    engine.stream("abc").close()
    assert engine.generate("x").text == "X"
    assert len(fake.samplings) == 1


def test_live_streams_interleave(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=3)
    first, second = engine.stream("abcdefghij"), engine.stream("klmnopqrst")
    texts = ["", ""]
    for one, other in zip(first, second, strict=True):
        texts[0] += one.text
        texts[1] += other.text
        assert engine.generate("z").text == "Z"
    assert texts == ["ABCDEFGHIJ", "KLMNOPQRST"]
    assert fake.n_active == 0


def test_streams_share_steps(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=2)
    first, second = engine.stream("a" * 5 * BLOCK), engine.stream("b" * 5 * BLOCK)
    for _ in zip(first, second, strict=True):
        pass
    assert fake.n_steps == 6  # one before the second was asked for, then one for both


def test_waiting_request_gets_its_turn(open_engine: Open) -> None:
    engine, _ = open_engine(n_parallel=1)
    first, second = engine.stream("abcdefgh"), engine.stream("xy")
    assert next(first).text == "ABCD"
    assert join(second) == "XY"
    assert join(first) == "EFGH"


def test_abandoned_stream_is_cancelled(open_engine: Open) -> None:
    engine, fake = open_engine()
    for chunk in engine.stream("abcdefghij"):
        assert chunk.text == "ABCD"
        break
    gc.collect()
    assert engine.generate("x").text == "X"
    assert fake.cancelled == [0]
    assert fake.n_active == 0


def test_closed_stream_ends(open_engine: Open) -> None:
    engine, fake = open_engine()
    stream = engine.stream("abcdefghij")
    next(stream)
    stream.close()
    assert list(stream) == []
    engine.generate("x")
    assert fake.cancelled == [0]


def test_finished_request_is_not_cancelled(open_engine: Open) -> None:
    engine, fake = open_engine()
    assert join(engine.stream("abc")) == "ABC"
    engine.generate("x")
    assert fake.cancelled == []


def test_error_in_step_reaches_every_request(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=2)
    first, second = engine.stream("a" * 20), engine.stream("b" * 20)
    next(first)
    next(second)  # its step gave `first` a chunk too
    fake.fail_next_step = Dflash2Error("[decode] out of memory")
    with pytest.raises(Dflash2Error, match="out of memory"):
        next(second)
    assert next(first).text == "AAAA"
    with pytest.raises(Dflash2Error, match="out of memory"):
        next(first)
    assert engine.generate("again").text == "AGAIN"


def test_interrupt_in_step_ends_other_requests_with_an_error(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=4)
    other = engine.stream("abcdefghij")
    assert next(other).text == "ABCD"
    fake.fail_next_step = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["one prompt", "another one"])
    with pytest.raises(Dflash2Error, match="Ctrl-C came during another"):
        next(other)
    assert engine.generate("again").text == "AGAIN"


def test_interrupt_after_step_loses_no_chunk(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # a process started in the background of a shell may ignore it
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, previous))
    engine, fake = open_engine(n_parallel=2)
    other = engine.stream("abcdefghij")
    assert next(other).text == "ABCD"
    step = fake.step

    def interrupted_step() -> Iterable[SimpleNamespace]:
        monkeypatch.setattr(fake, "step", step)
        # the signal comes while the step's chunks are being stored, as from a native step
        return chain(step(), filter(None, map(signal.raise_signal, [signal.SIGINT])))

    monkeypatch.setattr(fake, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        engine.generate("uvwxyz")
    assert join(other) == "EFGHIJ"
    assert fake.cancelled == [1]
    assert fake.n_active == 0


def test_close_while_streams_live(open_engine: Open) -> None:
    engine, _ = open_engine(n_parallel=2)
    stream, other = engine.stream("abcdefghij"), engine.stream("klmnopqrst")
    next(stream)
    next(other)  # its step gave `stream` a chunk too
    engine.close()
    for each in (stream, other):
        with pytest.raises(EngineClosedError, match="closed"):
            next(each)


@pytest.mark.parametrize(
    "use",
    [
        lambda engine: engine.generate("a"),
        lambda engine: engine.generate([[1]]),
        lambda engine: list(engine.stream([1])),
        lambda engine: engine.chat([{"role": "user", "content": "a"}]),
        lambda engine: engine.tokenize("a"),
        lambda engine: engine.detokenize([65]),
        lambda engine: engine.stats,
        lambda engine: engine.reset_stats(),
    ],
)
def test_closed_engine_refuses(open_engine: Open, use: Callable[[Dflash2Engine], object]) -> None:
    with open_engine()[0] as engine:
        assert not engine.closed
    assert engine.closed
    engine.close()
    with pytest.raises(EngineClosedError):
        use(engine)
    assert engine.n_vocab == 256


def test_close_waits_for_a_running_step(open_engine: Open) -> None:
    engine, fake = open_engine()
    fake.step_seconds = 0.02
    errors: list[Exception] = []

    def read() -> None:
        try:
            engine.generate("a" * 90)
        except EngineClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while fake.n_steps == 0:
        pass
    engine.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_threads_share_an_engine(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=3)
    fake.step_seconds = 0.001
    wrong: list[str] = []

    def work(letter: str) -> None:
        for length in range(1, 20):
            text = letter * length
            answers = [engine.generate(text).text, join(engine.stream(text))]
            wrong.extend(answer for answer in answers if answer != text.upper())

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert fake.n_active == 0


def test_thread_that_steps_lets_others_in(open_engine: Open) -> None:
    engine, fake = open_engine()
    fake.step_seconds = 0.01
    thread = threading.Thread(target=lambda: engine.generate("a" * 100))
    thread.start()
    while fake.n_steps == 0:
        pass
    assert engine.tokenize("a") == [97]
    assert fake.n_steps < 100 / BLOCK
    thread.join(10)


def test_short_request_is_answered_beside_a_long_one(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=2)
    fake.step_seconds = 0.01
    thread = threading.Thread(target=lambda: engine.generate("a" * 100))
    thread.start()
    while fake.n_steps == 0:
        pass
    assert engine.generate("b" * BLOCK).text == "B" * BLOCK
    assert fake.n_steps < 100 / BLOCK
    thread.join(10)


def test_error_in_step_reaches_waiting_threads(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=4)
    fake.step_seconds = 0.02
    errors: list[str] = []

    def work() -> None:
        try:
            engine.generate("a" * 100)
        except Dflash2Error as error:
            errors.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(fake.samplings) < 4:
        pass
    fake.fail_next_step = Dflash2Error("[decode] failed")
    for thread in threads:
        thread.join(10)
    assert errors == ["[decode] failed"] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_is_refused(open_engine: Open) -> None:
    engine, _ = open_engine()
    child = os.fork()
    if child == 0:
        try:
            engine.generate("a")
        except Dflash2Error as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
