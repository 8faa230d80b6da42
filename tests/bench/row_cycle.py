"""What a greedy cycle costs outside the target's pass, here and in llama-server; F16 target."""

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from cells import Cell, Setting
from dflash2 import Dflash2Engine, SamplingParams, demo
from dflash2.options import EngineOptions
from stock import ask, stock_server
from targets import demo_target
from turns import engine_contender, mixed_prompts, server_contender, take_turns, thread_options

DEPTH = 3


def cells(setting: Setting) -> Iterator[Cell]:
    n_prompts, n_tokens, repeats = (1, 16, 1) if setting.quick else (6, 96, 5)
    target, drafter = demo_target("F16", setting.folder), demo.drafter_path()
    prompts = mixed_prompts(n_prompts)
    options: EngineOptions = {"depth": DEPTH, "n_ctx": 2048, "n_threads": setting.n_threads}
    with (
        Dflash2Engine(target, drafter, **options) as engine,
        Dflash2Engine(target, drafter, fused_ops="upstream", **options) as upstream,
        stock_server(target, drafter, DEPTH, thread_options(setting.n_threads)) as address,
    ):
        turns = take_turns(
            {
                "ours": engine_contender(engine, SamplingParams()),
                "upstream": engine_contender(upstream, SamplingParams()),
                "stock": server_contender(address, temperature=0),
            },
            [[prompt] for prompt in prompts],
            n_tokens=n_tokens,
            repeats=repeats,
        )
    # the server does not tell the time of its pass over DEPTH + 1 rows, which is that of an engine
    # with llama.cpp's attention
    passes = {
        name: [turn.target_ms for turn in turns[engine]]
        for name, engine in (("ours", "ours"), ("stock", "upstream"))
    }
    ours, stock = (
        [
            turn.cycle_ms - target_ms
            for turn, target_ms in zip(turns[name], passes[name], strict=True)
        ]
        for name in ("ours", "stock")
    )
    ratios = [a / b for a, b in zip(ours, stock, strict=True)]
    median = statistics.median
    yield Cell(
        "cycle",
        f"outside the target pass: {median(ours):.1f} / {median(stock):.1f} ms",
        median(ours) / median(stock),
        "x",
        (min(ratios), max(ratios)),
        at_most=0.5,
        details={
            "target_pass_ms": passes,
            "our_cycle_ms": [turn.cycle_ms for turn in turns["ours"]],
            "our_draft_ms": [1e3 * turn.draft_seconds / turn.steps for turn in turns["ours"]],
            "our_inject_ms": [1e3 * turn.inject_seconds / turn.steps for turn in turns["ours"]],
            "stock_cycle_ms": [turn.cycle_ms for turn in turns["stock"]],
            "stock_draft_ms_by_its_log": _stock_draft_ms(setting, target, n_tokens),
        },
    )


def _stock_draft_ms(setting: Setting, target: Path, n_tokens: int) -> float:
    """Draft time per draft of a server that logs its statistics: a check of the subtraction."""
    log = setting.folder / "llama-server.log"
    log.unlink(missing_ok=True)
    options = [*thread_options(setting.n_threads), "-lv", "4", "--log-file", str(log)]
    with stock_server(target, demo.drafter_path(), DEPTH, options) as address:
        for prompt in mixed_prompts(1):
            ask(address, prompt, n_tokens)
    # (b,g,a): calls and times of refreshing, generating and accepting drafts
    lines = re.findall(
        r"#calls\(b,g,a\) = +\d+ +(\d+) .*dur\(b,g,a\) = [\d.]+, ([\d.]+),", log.read_text()
    )
    n_drafts, milliseconds = lines[-1]
    return float(milliseconds) / int(n_drafts)
