"""Host time per cycle outside ggml's compute: sampling, walking, bookkeeping; depth 7."""

import statistics
from collections.abc import Iterator

from cells import Cell, Setting
from dflash2 import Dflash2Engine, SamplingParams
from large_pairs import QWEN3_0_6B, SMALL, write_constant_pair, write_random_pair
from tiny import Pair
from turns import Turn, engine_contender, take_turns

DEPTH = 7
ALL = "all accepted"
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1, top_k=40, top_p=0.95)


def cells(setting: Setting) -> Iterator[Cell]:
    shape = SMALL if setting.quick else QWEN3_0_6B
    pairs = {
        # the first row decides, and the others need not be looked at
        "nothing accepted": write_random_pair(setting.folder, shape),
        ALL: write_constant_pair(setting.folder, shape.n_vocab),
    }
    cases = [
        (what, rule, params)
        for what in pairs
        for rule, params in (("auto", GREEDY), ("reject", SAMPLED), ("block", SAMPLED))
    ]
    for what, rule, params in cases:
        # 24 cycles, or a few more where not all is accepted
        n_tokens = 24 * (DEPTH + 1) if what == ALL else 24
        turns = _run(setting, pairs[what], rule, params, n_tokens)
        values = [_host_ms(turn) for turn in turns]
        length = sum(turns, Turn()).acceptance_length
        yield Cell(
            "host",
            f"T = {params.temperature:.0f}, {rule}, {what} (length {length:.1f})",
            statistics.median(values),
            "ms",
            (min(values), max(values)),
            at_most=1.0 if params is GREEDY else 2.0,
            details={"n_vocab": shape.n_vocab, "cycle_ms": [turn.cycle_ms for turn in turns]},
        )


def _run(
    setting: Setting, pair: Pair, rule: str, params: SamplingParams, n_tokens: int
) -> list[Turn]:
    with Dflash2Engine(
        pair.target,
        pair.drafter,
        depth=DEPTH,
        verify=rule,  # type: ignore[arg-type]
        n_ctx=1024,
        n_threads=setting.n_threads,
    ) as engine:
        turns = take_turns(
            {"ours": engine_contender(engine, params)},
            [[list(b"some prompt")]],
            n_tokens=n_tokens,
            repeats=1 if setting.quick else 5,
        )
    return turns["ours"]


def _host_ms(turn: Turn) -> float:
    compute = turn.draft_seconds + turn.verify_seconds + turn.inject_seconds
    return 1e3 * (turn.seconds - compute) / turn.steps
