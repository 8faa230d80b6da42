"""The automatic depth against every fixed one and against no drafter, in tokens per second."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from cells import Cell, Setting
from dflash2 import SamplingParams, demo
from large_pairs import QWEN3_0_6B, SMALL, write_random_pair
from targets import KINDS, demo_target
from turns import (
    Batch,
    Contender,
    depth_name,
    engine_contender,
    fastest,
    mixed_prompts,
    open_engines,
    ratio_spread,
    speed_ratio,
    summary,
    take_turns,
)

RANDOM = "random 0.6B"
AUTO, PLAIN = depth_name("auto"), depth_name(0)
# sequences whose answers are shortened: they are many
MANY_SEQUENCES = 16


def cells(setting: Setting) -> Iterator[Cell]:
    pairs = ("Q4_1", RANDOM) if setting.quick else (*KINDS, RANDOM)
    sequences = (1, 3) if setting.quick else (1, 4, MANY_SEQUENCES)
    for pair, n_sequences, temperature in product(pairs, sequences, (0, 1)):
        yield from _cell(setting, pair, n_sequences, temperature)


def _cell(setting: Setting, pair: str, n_sequences: int, temperature: int) -> Iterator[Cell]:
    random = pair == RANDOM
    target, drafter = _paths(setting, pair)
    fixed = (0, 1, 3, 7) if random or setting.quick else range(8)
    with ExitStack() as stack:
        open_more = partial(
            open_engines,
            stack,
            target,
            drafter,
            n_parallel=n_sequences,
            n_ctx=256 if random else 1024,
            n_threads=setting.n_threads,
        )
        # Engines that are opened later are faster, identical ones by up to 5 %, the first of a
        # process is the slowest of all: it takes no part, and of the two that must be compared to
        # one percent there are two, in turned order
        open_more((0,))
        engines = open_more(("auto", *fixed))
        again = open_more((0, "auto"))
        rivals = [name for name in engines if name != AUTO]
        params = SamplingParams(temperature=temperature, ignore_eos=True)
        contenders = {name: engine_contender(engine, params) for name, engine in engines.items()}
        for name, engine in again.items():
            contenders[name] = _both(contenders[name], engine_contender(engine, params))
        turns = take_turns(
            contenders,
            _random_batches(n_sequences) if random else _batches(n_sequences),
            n_tokens=_n_tokens(setting, random, n_sequences),
            repeats=1 if setting.quick else 7,
            rivals=rivals,
            keep=(PLAIN,),
            cutoff=0.85,
            # few tokens tell who is far behind where none is accepted, or many answers count
            warm_up_cutoff=0.6 if random or n_sequences == MANY_SEQUENCES else 0.0,
        )
        stats = engines[AUTO].stats
    details = {
        "contenders": summary(turns),
        "depth_histogram": stats.depth_histogram,
        "cost_model": stats.cost_model,
    }
    best = fastest(turns, rivals)
    where = f"{pair}, {n_sequences} seq., T = {temperature}: "
    for rival, bound, what in ((best, 0.95, f"best, {best}"), (PLAIN, 0.97, PLAIN)):
        yield Cell(
            "auto",
            where + what,
            speed_ratio(turns[AUTO], turns[rival]),
            "x",
            ratio_spread(turns[AUTO], turns[rival]),
            at_least=bound,
            details=details,
        )


def _both(first: Contender, second: Contender) -> Contender:
    return lambda batch, n_tokens: first(batch, n_tokens) + second(batch, n_tokens)


def _paths(setting: Setting, pair: str) -> tuple[Path, Path]:
    if pair == RANDOM:
        return write_random_pair(setting.folder, SMALL if setting.quick else QWEN3_0_6B)
    return demo_target(pair, setting.folder), demo.drafter_path()


def _n_tokens(setting: Setting, random: bool, n_sequences: int) -> int:
    if setting.quick:
        return 12
    return 64 if random or n_sequences == MANY_SEQUENCES else 96


def _batches(n_sequences: int) -> list[Batch]:
    prompts = mixed_prompts(max(3, n_sequences))
    return [prompts[i : i + n_sequences] for i in range(0, len(prompts), n_sequences)]


def _random_batches(n_sequences: int) -> list[Batch]:
    rng = np.random.default_rng(5)
    # letters: token ids that every vocabulary has
    return [rng.integers(97, 123, (n_sequences, 32)).tolist()]
