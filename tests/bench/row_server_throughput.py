"""Tokens per second under continuous load, prompts included, against no drafter and stock."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from statistics import geometric_mean

from cells import Cell
from server_load import OURS, PLAIN, ServerSetting, load_contender, open_servers
from turns import fastest, mixed_prompts, ratio_spread, speed_ratio, summary, take_turns

CONCURRENCIES = (1, 4, 8, 16, 32)
TEMPERATURES = (0, 1)
N_MAXES = (1, 2, 3, 5, 7)
# clients beyond whom answers are fewer and shorter: they are many
MANY = 8


def cells(setting: ServerSetting) -> Iterator[Cell]:
    gains = []
    for n_clients, temperature in product(setting.clients or CONCURRENCIES, TEMPERATURES):
        for cell in _cell(setting, n_clients, temperature):
            if cell.name.partition("ours / ")[2] != PLAIN:
                gains.append(cell.value)
            yield cell
    yield Cell(
        "throughput",
        "geometric mean of ours / best stock",
        geometric_mean(gains),
        "x",
        at_least=1.1,
    )


def _cell(setting: ServerSetting, n_clients: int, temperature: int) -> Iterator[Cell]:
    stock = [f"n_max {n}" for n in ((1, 3) if setting.quick else N_MAXES)]
    n_tokens, repeats = (12, 1) if setting.quick else (64 if n_clients > MANY else 96, 3)
    with ExitStack() as stack:
        servers = open_servers(stack, setting, [OURS, PLAIN, *stock], n_clients)
        turns = take_turns(
            {
                name: load_contender(server, n_clients, temperature)
                for name, server in servers.items()
            },
            # two answers and a half of each slot, or one and a half
            [mixed_prompts(max(3, n_clients * (5 if n_clients <= MANY else 3) // 2))],
            n_tokens=n_tokens,
            repeats=repeats,
            rivals=stock,
            cutoff=0.85,
            warm_up_cutoff=0.6,
            n_warm_up=max(3, n_clients),
        )
        told = servers[OURS].metrics()
    depths = {name: value for name, value in told.items() if name.startswith("dflash2_cycles")}
    details = {"contenders": summary(turns), "depths": depths}
    best = fastest(turns, stock)
    for rival, bound in ((PLAIN, 0.97), (best, 1.0)):
        yield Cell(
            "throughput",
            f"{n_clients} clients, T = {temperature}: ours / {rival}",
            speed_ratio(turns[OURS], turns[rival]),
            "x",
            ratio_spread(turns[OURS], turns[rival]),
            at_least=bound,
            details=details,
        )
