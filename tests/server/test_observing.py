"""What the server tells of itself: timings, /metrics, /props, its log."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from decoding.test_lossless import prompts
from serving import Server, completion, running_server
from tiny import Pair

from server.answers import cycles, stats, traced
from server.options import drafting, exact

Open: TypeAlias = Callable[..., Server]


def test_timings_of_a_request(open_server: Open, wavering_pair: Pair) -> None:
    answer = traced(open_server(*wavering_pair), prompts(2)[1], 80, ignore_eos=True)
    told, trace, timings = stats(answer), cycles(answer), answer["timings"]
    assert told["verify_steps"] == len(trace)
    assert told["draft_tokens"] == timings["draft_n"] == sum(cycle.depth for cycle in trace)
    assert told["accepted_tokens"] == timings["draft_n_accepted"]
    assert told["accepted_tokens"] == sum(cycle.n_accepted for cycle in trace)
    assert told["accepted_per_position"] == [
        sum(cycle.n_accepted > i for cycle in trace) for i in range(7)
    ]
    assert told["depth_histogram"] == [sum(cycle.depth == n for cycle in trace) for n in range(8)]
    # the prompt gives the first token, every cycle its accepted drafts and one more
    assert 1 + told["verify_steps"] + told["accepted_tokens"] == timings["predicted_n"] == 80
    length = 1 + told["accepted_tokens"] / told["verify_steps"]
    assert told["mean_acceptance_length"] == pytest.approx(length)
    rate = told["accepted_tokens"] / told["draft_tokens"]
    assert told["acceptance_rate"] == pytest.approx(rate)
    assert told["verify_rule"] in ("reject", "match", "block")
    assert told["fused_ops"] in ("fused", "composed")
    stages = [told[f"{stage}_seconds"] for stage in ("draft", "inject", "verify", "sample")]
    assert all(seconds > 0 for seconds in stages)
    # stages do not overlap
    assert sum(stages) <= 1e-3 * (timings["predicted_ms"] + timings["prompt_ms"]) * 1.05


def test_positions_of_the_trace(open_server: Open, wavering_pair: Pair) -> None:
    prompt = prompts(2)[1]
    answer = traced(open_server(*wavering_pair), prompt, 60, ignore_eos=True)
    tokens, position = [*prompt, *answer["tokens"]], len(prompt)
    for cycle in cycles(answer):
        assert cycle.position == position
        assert cycle.depth == len(cycle.draft)
        follow = tokens[position + 1 : position + 2 + cycle.n_accepted]
        assert follow == [*cycle.draft[: cycle.n_accepted], cycle.token][: len(follow)]
        position += cycle.n_accepted + 1
    assert position == len(tokens) - 1


def test_trace_is_told_on_request_only(open_server: Open, wavering_pair: Pair) -> None:
    server = open_server(*wavering_pair)
    assert "trace" not in stats(server.complete("abc", 10))
    body = completion("abc", 10, dflash2_trace=True)
    assert stats(list(server.stream("/completion", body))[-1])["trace"]
    messages = [{"role": "user", "content": "abc"}]
    assert stats(server.chat(messages, 10, dflash2_trace=True))["trace"]


def test_server_without_drafter_tells_nothing(open_server: Open, wavering_pair: Pair) -> None:
    plain = open_server(wavering_pair.target)
    assert "dflash2" not in plain.complete("abc", 10, dflash2_trace=True)["timings"]
    assert "dflash2" not in plain.get("/props")
    assert not [name for name in plain.metrics() if "dflash2" in name]


def test_metrics_count_what_requests_tell(open_server: Open, wavering_pair: Pair) -> None:
    server = open_server(*wavering_pair)
    before = server.metrics()
    told = [stats(server.complete(prompt, 30)) for prompt in prompts(4)]
    after = server.metrics()

    def grown(name: str) -> float:
        return after[f"dflash2_{name}"] - before.get(f"dflash2_{name}", 0)

    for name in ("verify_steps", "draft_tokens", "accepted_tokens"):
        assert grown(f"{name}_total") == sum(each[name] for each in told) > 0
    for stage in ("draft", "inject", "verify", "sample"):
        seconds = sum(each[f"{stage}_seconds"] for each in told)
        assert grown(f"{stage}_seconds_total") == pytest.approx(seconds, rel=0.05, abs=1e-3)
    for i in range(7):
        name = f'accepted_tokens_per_position_total{{position="{i}"}}'
        assert grown(name) == sum(each["accepted_per_position"][i] for each in told)
    for n in range(8):
        name = f'cycles_total{{depth="{n}"}}'
        assert grown(name) == sum(each["depth_histogram"][n] for each in told)
    # the counters that llama-server has for every drafter
    for name, ours in (("draft", "draft_tokens"), ("accepted", "accepted_tokens")):
        name = f"spec_decode_num_{name}_tokens_total"
        assert after[name] - before[name] == sum(each[ours] for each in told)


def test_metrics_are_prometheus_text(open_server: Open, wavering_pair: Pair) -> None:
    server = open_server(*wavering_pair)
    server.complete("abc", 20)
    text = server.get("/metrics")
    names = {name.partition("{")[0] for name in server.metrics() if name.startswith("dflash2_")}
    assert names
    for name in names:
        assert re.search(rf"^# HELP (llamacpp:)?{name} \S", text, re.M), name
        assert re.search(rf"^# TYPE (llamacpp:)?{name} counter$", text, re.M), name


@pytest.mark.parametrize("depth", ["auto", 3])
def test_props(
    open_server: Open, dense_target: Path, make_drafter: Callable[..., Path], depth: Any
) -> None:
    drafter = make_drafter(window=32)
    server = open_server(dense_target, drafter, "--dflash2-p-min", 0.25, depth=depth)
    told = server.get("/props")["dflash2"]
    assert told["draft"] == str(drafter)
    assert (told["depth"], told["verify"], told["p_min"]) == (depth, "auto", 0.25)
    assert (told["block_size"], told["window"]) == (8, 32)
    assert told["max_depth"] == (7 if depth == "auto" else depth)
    assert told["fused_ops"] in ("fused", "composed")
    parts = {"weights", "cache", "compute", "head", "features", "rows", "vocabulary"}
    assert set(told["memory"]) == parts
    assert told["memory"]["head"] == 0
    assert told["memory"]["weights"] == pytest.approx(drafter.stat().st_size, rel=0.2)


def test_copy_of_the_head_is_told(open_server: Open, dense_pair: Pair) -> None:
    """Q4_0 is 18 bytes for 32 numbers."""
    server = open_server(*dense_pair, "--dflash2-head", "q4_0")
    n_vocab, n_embd = 320, 288
    size = n_vocab * n_embd // 32 * 18
    assert server.get("/props")["dflash2"]["memory"]["head"] == pytest.approx(size, rel=0.01)


def test_cache_of_a_windowed_drafter_is_as_large_as_its_window(
    dense_target: Path, make_drafter: Callable[..., Path]
) -> None:
    """Two layers of keys and values for 2 heads of 32 in F32: 1 kB a cell."""
    cache = {}
    for n_ctx in (2048, 16384):
        for window in (None, 32):
            options = [*exact(n_ctx=n_ctx), *drafting(make_drafter(window=window))]
            with running_server(dense_target, options) as server:
                memory = server.get("/props")["dflash2"]["memory"]
            cache[n_ctx, window] = memory["cache"]
    assert cache[2048, None] == pytest.approx(2048 * 1024, rel=0.3)
    # what the model was trained for bounds a slot: 4096
    assert cache[16384, None] >= 1.9 * cache[2048, None]
    # the window, a micro-batch of 512 and a block, rounded up
    assert cache[2048, 32] == cache[16384, 32] <= 1024 * 1024


def error_lines(server: Server) -> list[str]:
    """Of the log: time, level, text."""
    return [line for line in server.log().splitlines() if re.match(r"[\d.]+ E ", line)]


def warnings(server: Server) -> list[str]:
    return [line for line in server.log().splitlines() if re.match(r"[\d.]+ W ", line)]


@pytest.mark.parametrize("pair", ["permutation_pair", "dense_pair", "hybrid_pair"])
def test_good_start_prints_no_error(
    open_server: Open, request: pytest.FixtureRequest, pair: str
) -> None:
    models = request.getfixturevalue(pair)
    options = [*exact(2), *drafting(models.drafter, "auto")]
    with running_server(models.target, options) as server:
        server.complete("abc", 20)
        assert error_lines(server) == []
        with running_server(models.target, exact(2)) as plain:
            plain.complete("abc", 20)
            # nor warnings beyond those that come without a drafter
            ours = {line.split(" ", 2)[2] for line in warnings(server)}
            assert ours <= {line.split(" ", 2)[2] for line in warnings(plain)}


def test_plan_at_start_has_the_drafter(open_server: Open, dense_pair: Pair) -> None:
    server = open_server(*dense_pair)
    memory = server.get("/props")["dflash2"]["memory"]
    (line,) = [line for line in server.log().splitlines() if " drafter " in line and "MiB" in line]
    printed = [float(value) for value in re.findall(r"(\d+\.\d+) MiB", line)]
    for size in memory.values():
        assert any(value == pytest.approx(size / 2**20, abs=0.051) for value in printed), line


def test_useless_drafter_is_reported_once(scrambled_pair: Pair, permutation_pair: Pair) -> None:
    for pair, n_warnings in ((scrambled_pair, 1), (permutation_pair, 0)):
        options = [*exact(), *drafting(pair.drafter)]
        with running_server(pair.target, options) as server:
            for _ in range(3):
                server.complete("abc", 100, ignore_eos=True)
            found = [line for line in warnings(server) if "of 448 drafted tokens were" in line]
            assert len(found) == n_warnings, found


def test_depth_beyond_the_block_is_clamped_with_a_warning(permutation_pair: Pair) -> None:
    options = [*exact(), *drafting(permutation_pair.drafter, 64)]
    with running_server(permutation_pair.target, options) as server:
        assert any("64" in line and "7" in line for line in warnings(server))
        assert server.get("/props")["dflash2"]["max_depth"] == 7
        assert stats(server.complete("abc", 1 + 8 * 4))["depth_histogram"] == [0] * 7 + [4]


def test_settings_of_the_environment(permutation_pair: Pair) -> None:
    environment = {
        "LLAMA_ARG_DRAFT_DFLASH2": str(permutation_pair.drafter),
        "LLAMA_ARG_DFLASH2_DEPTH": "3",
        "LLAMA_ARG_DFLASH2_VERIFY": "block",
        "LLAMA_ARG_DFLASH2_P_MIN": "0.125",
        "LLAMA_ARG_DFLASH2_CTX": "512",
    }
    with running_server(permutation_pair.target, exact(), environment=environment) as server:
        told = server.get("/props")["dflash2"]
        assert (told["depth"], told["verify"], told["p_min"], told["n_ctx"]) == (
            *(3, "block", 0.125),
            512,
        )
        assert stats(server.complete("abc", 1 + 4 * 4))["depth_histogram"] == [0, 0, 0, 4]


def test_drafts_end_where_they_are_unsure(open_server: Open, wavering_pair: Pair) -> None:
    sure, unsure = open_server(*wavering_pair, "--dflash2-p-min", 0.9), open_server(*wavering_pair)
    n_drafted = [
        sum(stats(server.complete(prompt, 40))["draft_tokens"] for prompt in prompts(4))
        for server in (sure, unsure)
    ]
    assert n_drafted[0] < n_drafted[1]
