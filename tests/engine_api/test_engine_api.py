"""What Dflash2Engine passes to the native engine and makes of its answers."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash2 import (
    Cycle,
    Dflash2Engine,
    ModelLoadError,
    SamplingParams,
    TokenLogprobs,
    _core,
)

from .conftest import Open


def test_options_reach_the_native_engine(open_engine: Open, tmp_path: Path) -> None:
    engine, fake = open_engine(
        n_ctx=64, n_threads=3, n_parallel=2, depth=5, p_min=0.25, verify="match", rpc=["a:1", "b:2"]
    )
    options = fake.options
    assert options.model == str(tmp_path / "target.gguf")
    assert options.draft == str(tmp_path / "draft.gguf")
    assert (options.n_ctx, options.n_threads, options.n_parallel) == (64, 3, 2)
    assert (options.depth, options.p_min) == (5, 0.25)
    assert (options.verify, options.rpc) == ("match", "a:1,b:2")
    assert (engine.n_ctx, engine.n_parallel, engine.n_vocab) == (64, 2, 256)
    assert (engine.block_size, engine.depth, engine.devices) == (8, 7, ("CPU",))
    assert (engine.model_path.name, engine.draft_path) == ("target.gguf", tmp_path / "draft.gguf")


def test_options_default_to_native_defaults(open_engine: Open) -> None:
    _, fake = open_engine()
    default = _core.EngineOptions()
    for name in ("n_ctx", "n_batch", "n_gpu_layers", "n_threads", "n_parallel", "device", "depth"):
        assert getattr(fake.options, name) == getattr(default, name), name
    for name in ("flash_attn", "verify", "cache_type", "rpc"):
        assert getattr(fake.options, name) == getattr(default, name), name


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_ctx": -1}, ValueError, "n_ctx must be an integer >= 0"),
        ({"n_batch": 0}, ValueError, "n_batch"),
        ({"n_gpu_layers": -2}, ValueError, "n_gpu_layers"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"n_parallel": 0}, ValueError, "n_parallel"),
        ({"depth": 0}, ValueError, "depth must be an integer >= 1"),
        ({"depth": "deep"}, TypeError, "depth"),
        (
            {"verify": "luck"},
            ValueError,
            "verify must be one of auto, reject, block, match, got 'luck'",
        ),
        ({"flash_attn": True}, ValueError, "flash_attn must be one of auto, on, off"),
        ({"device": ""}, ValueError, "device"),
        ({"cache_type": 16}, TypeError, "cache_type"),
        ({"rpc": [1]}, TypeError, "rpc"),
        ({"n_ctxx": 1}, TypeError, "n_ctxx"),
    ],
)
def test_options_are_checked(
    open_engine: Open, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_engine(**options)


def test_generate_one_prompt(open_engine: Open) -> None:
    engine, _ = open_engine()
    result = engine.generate("abcdefghij")
    assert result.text == "ABCDEFGHIJ"
    assert result.token_ids == [ord(character) for character in "ABCDEFGHIJ"]
    assert result.finish_reason == "stop"
    assert result.stats.accepted_tokens == 3
    assert result.logprobs is None
    assert result.trace is None


def test_generate_token_ids(open_engine: Open) -> None:
    engine, _ = open_engine()
    assert engine.generate([97, 98]).text == "AB"
    assert engine.generate((97, 98)).text == "AB"
    assert engine.generate(np.array([97, 98])).text == "AB"  # type: ignore[call-overload]


def test_generate_many_prompts_in_their_order(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=2)
    prompts = ["a long first prompt", "b", "cc", "another long prompt", "e"]
    results = engine.generate(prompts)
    assert [result.text for result in results] == [prompt.upper() for prompt in prompts]
    assert fake.n_active == 0
    assert not fake.cancelled
    assert [result.text for result in engine.generate([[97], [98, 99]])] == ["A", "BC"]


def test_generate_no_prompts(open_engine: Open) -> None:
    engine, fake = open_engine()
    results: object = engine.generate([])
    assert results == []
    assert fake.n_steps == 0


@pytest.mark.parametrize("prompt", [b"text", 5, None, [1, "a"], [1.5], ["a", 1], [True]])
def test_generate_refuses_other_prompts(open_engine: Open, prompt: Any) -> None:
    engine, _ = open_engine()
    with pytest.raises(TypeError, match="prompt"):
        engine.generate(prompt)


def test_generate_refuses_params_of_another_type(open_engine: Open) -> None:
    engine, _ = open_engine()
    with pytest.raises(TypeError, match="params must be SamplingParams"):
        engine.generate("a", {"temperature": 0})  # type: ignore[call-overload]


def test_generate_names_the_bad_prompt_and_drops_the_others(open_engine: Open) -> None:
    engine, fake = open_engine(n_ctx=8)
    with pytest.raises(ValueError, match=r"prompt 2 of 4, counted from 0: .*9 tokens"):
        engine.generate(["a", "b", "too long!", "d"])
    assert engine.generate("ok").text == "OK"
    assert sorted(fake.cancelled) == [0, 1]
    with pytest.raises(ValueError, match=r"^\[submit\] the prompt has 0 tokens"):
        engine.generate("")


def test_generate_reports_logprobs_and_trace(open_engine: Open) -> None:
    engine, _ = open_engine()
    result = engine.generate("abcdef", SamplingParams(logprobs=1, trace=True))
    assert result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == result.token_ids
    assert result.logprobs[0] == TokenLogprobs(65, -0.5, ((65, -0.5),))
    assert result.trace == [Cycle(position=4, depth=2, draft=(69, 120), n_accepted=1, token=70)]


def test_chat_renders_the_template(open_engine: Open) -> None:
    engine, fake = open_engine(n_ctx=200)
    result = engine.chat(
        [{"role": "user", "content": "hi"}],
        SamplingParams(stop="!"),
        chat_template_kwargs={"enable_thinking": False},
    )
    expected = '[{"role": "user", "content": "hi"}]{"enable_thinking": false}'
    assert result.text == expected.upper()
    assert list(fake.samplings[0].stop) == ["!", "<end>"]
    chunks = engine.stream_chat([{"role": "user", "content": "hi"}])
    assert (
        "".join(chunk.text for chunk in chunks) == '[{"role": "user", "content": "hi"}]{}'.upper()
    )


def test_chat_answers_several_conversations(open_engine: Open) -> None:
    engine, fake = open_engine(n_parallel=2)
    conversations = [[{"role": "user", "content": text}] for text in ("a", "b")]
    results = engine.chat(conversations)
    assert [result.text for result in results] == [
        '[{"ROLE": "USER", "CONTENT": "A"}]{}',
        '[{"ROLE": "USER", "CONTENT": "B"}]{}',
    ]
    assert fake.n_steps == 9  # as many as one answer of 36 characters takes


@pytest.mark.parametrize("messages", ["hi", {"role": "user"}, ["hi"], 5, [{"content": {1}}]])
def test_chat_refuses_what_is_no_conversation(open_engine: Open, messages: Any) -> None:
    engine, _ = open_engine()
    with pytest.raises(TypeError):
        engine.chat(messages)
    with pytest.raises(TypeError):
        engine.stream_chat(messages)


def test_chat_refuses_an_empty_conversation(open_engine: Open) -> None:
    engine, _ = open_engine()
    with pytest.raises(ValueError, match="at least one message"):
        engine.chat([])


def test_detokenize_replaces_what_is_no_character(open_engine: Open) -> None:
    engine, _ = open_engine()
    assert engine.tokenize("ab") == [97, 98]
    assert engine.detokenize([97, 0xC3]) == "a\ufffd"
    with pytest.raises(TypeError, match="text or token ids"):
        engine.detokenize(5)  # type: ignore[arg-type]


def test_text_that_is_no_unicode_is_refused(open_engine: Open) -> None:
    engine, fake = open_engine()
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        engine.generate("ab\ud800")
    with pytest.raises(TypeError, match="text must be a string, got 5"):
        engine.tokenize(5)  # type: ignore[arg-type]
    assert not fake.samplings


def test_stats_are_totals(open_engine: Open) -> None:
    engine, _ = open_engine()
    engine.generate(["abc", "de"])
    assert engine.stats.generated_tokens == 5
    engine.reset_stats()
    assert engine.stats.generated_tokens == 0


def test_seed_is_kept_and_drawn_for_each_request(open_engine: Open) -> None:
    engine, fake = open_engine()
    engine.generate(["a", "b"], SamplingParams(seed=5))
    engine.generate(["a", "b", "c"])
    seeds = [sampling.seed for sampling in fake.samplings.values()]
    assert seeds[:2] == [5, 5]
    assert len(set(seeds[2:])) > 1


def test_native_log_goes_to_logging(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [(logging.WARNING, "n_ctx is 100%"), (logging.INFO, "loaded")]
    monkeypatch.setattr("dflash2.native._core.drain_log", lambda: [lines.pop(0)] if lines else [])
    engine, _ = open_engine()
    with caplog.at_level(logging.INFO, "dflash2"):
        engine.generate("a")
    assert caplog.record_tuples == [
        ("dflash2", logging.WARNING, "n_ctx is 100%"),
        ("dflash2", logging.INFO, "loaded"),
    ]


def test_log_is_forwarded_when_opening_fails(
    open_engine: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: _core.EngineOptions) -> None:
        msg = "[load] no GGUF"
        raise ModelLoadError(msg)

    open_engine()
    monkeypatch.setattr("dflash2.engine._core.Engine", fail)
    monkeypatch.setattr("dflash2.native._core.drain_log", lambda: [(logging.ERROR, "bad magic")])
    with pytest.raises(ModelLoadError, match="no GGUF"):
        Dflash2Engine(tmp_path / "target.gguf")
    assert "bad magic" in caplog.messages


def test_verbose_shows_the_log(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("dflash2")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr("dflash2.native._core.drain_log", lambda: [(logging.INFO, "loaded")])
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    open_engine()
    assert capsys.readouterr().err == ""
    open_engine(verbose=True)
    open_engine(verbose=True)
    assert capsys.readouterr().err == "loaded\nloaded\n"
    logger.manager._clear_cache()  # type: ignore[attr-defined]
