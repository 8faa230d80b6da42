"""Tokens per second against llama-server at its best fixed depth; one request at a time."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

from cells import Cell, Setting
from dflash2 import Dflash2Engine, SamplingParams, demo
from stock import stock_server
from targets import KINDS, demo_target
from turns import (
    engine_contender,
    fastest,
    mixed_prompts,
    ratio_spread,
    server_contender,
    speed_ratio,
    summary,
    take_turns,
    thread_options,
)

OURS = "ours"
BOUNDS = {0: 1.10, 1: 1.25}


def cells(setting: Setting) -> Iterator[Cell]:
    kinds, n_maxes = (("Q4_1",), (1, 7)) if setting.quick else (KINDS, (1, 2, 3, 5, 7))
    n_prompts, n_tokens, repeats = (1, 16, 1) if setting.quick else (3, 96, 3)
    drafter = demo.drafter_path()
    for kind, (temperature, bound) in product(kinds, BOUNDS.items()):
        target = demo_target(kind, setting.folder)
        with ExitStack() as stack:
            engine = stack.enter_context(
                Dflash2Engine(target, drafter, n_ctx=2048, n_threads=setting.n_threads)
            )
            contenders = {OURS: engine_contender(engine, SamplingParams(temperature=temperature))}
            for n_max in n_maxes:
                address = stack.enter_context(
                    stock_server(target, drafter, n_max, thread_options(setting.n_threads))
                )
                contenders[f"n_max {n_max}"] = server_contender(address, temperature)
            rivals = [name for name in contenders if name != OURS]
            turns = take_turns(
                contenders,
                [[prompt] for prompt in mixed_prompts(n_prompts)],
                n_tokens=n_tokens,
                repeats=repeats,
                rivals=rivals,
                cutoff=0.85,
            )
            stats = engine.stats
        best = fastest(turns, rivals)
        yield Cell(
            "stock",
            f"{kind}, T = {temperature}: ours / {best}",
            speed_ratio(turns[OURS], turns[best]),
            "x",
            ratio_spread(turns[OURS], turns[best]),
            at_least=bound,
            details={
                "contenders": summary(turns),
                "depth_histogram": stats.depth_histogram,
                "verify_rule": stats.verify_rule,
            },
        )
