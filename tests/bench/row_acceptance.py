"""Mean acceptance length of the exact rules at temperature 1, on the demo pair in F16."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean

from cells import Cell, Setting
from dflash2 import Dflash2Engine, GenerationStats, SamplingParams, demo
from stock import Conversation
from targets import demo_target
from turns import SETS, Turn, prompts_of

RULES = ("match", "reject", "block")
N_PROMPTS = 40
# README of the demo drafter's checkpoint: PyTorch, accepted drafts + 1 over all verifications, on
# every second of the first so many prompts
REFERENCE = {
    "gsm8k_test": (40, {"match": 1.40, "reject": 1.79}),
    "humaneval": (20, {"match": 1.64, "reject": 2.01}),
    "mtbench": (20, {"match": 1.19, "reject": 1.36}),
}
# times as many seeds for these prompts: of ten answers one that repeats itself makes 5 %
MORE_SEEDS = 4


def cells(setting: Setting) -> Iterator[Cell]:
    n_prompts, n_tokens = (4, 16) if setting.quick else (N_PROMPTS, 128)
    target = demo_target("F16", setting.folder)
    for name in SETS:
        # [rule][seed][prompt]
        runs, same_prompts = {}, {}
        for rule in RULES:
            runs[rule], same_prompts[rule] = _run(rule, target, name, n_prompts, n_tokens, setting)
        yield from _ratios(name, runs)
        for rule, expected in REFERENCE[name][1].items():
            values = [_length(answers) for answers in same_prompts[rule]]
            yield Cell(
                "acceptance",
                f"{name} {rule}, the reference's prompts",
                _length(chain.from_iterable(same_prompts[rule])),
                spread=(min(values), max(values)),
                at_least=0.95 * expected,
                at_most=1.05 * expected,
                details={"reference": expected},
            )


def _ratios(name: str, runs: dict[str, list[list[GenerationStats]]]) -> Iterator[Cell]:
    details = {rule: _details(list(chain.from_iterable(answers))) for rule, answers in runs.items()}
    # over all cycles, as the reference counts, and the other usual figure
    pooled = {rule: each["pooled"] for rule, each in details.items()}
    by_request = {rule: each["mean_of_requests"] for rule, each in details.items()}
    for rule, base, bound in (("reject", "match", 1.12), ("block", "reject", None)):
        ratios = [_length(a) / _length(b) for a, b in zip(runs[rule], runs[base], strict=True)]
        yield Cell(
            "acceptance",
            f"{name} {rule} / {base}: {pooled[rule]:.3f} / {pooled[base]:.3f}"
            f" (per request {by_request[rule]:.3f} / {by_request[base]:.3f})",
            pooled[rule] / pooled[base],
            "x",
            (min(ratios), max(ratios)),
            at_least=bound,
            details={each: details[each] for each in (rule, base)},
        )


def _run(
    rule: str, target: Path, name: str, n_prompts: int, n_tokens: int, setting: Setting
) -> tuple[list[list[GenerationStats]], list[list[GenerationStats]]]:
    """Answers to all prompts and to those of the reference, each by seed."""
    prompts = prompts_of(name, n_prompts)
    n_first, reference = REFERENCE[name]
    n_more = MORE_SEEDS * setting.n_seeds if rule in reference else setting.n_seeds
    with Dflash2Engine(
        target,
        demo.drafter_path(),
        depth=7,
        draft_head="target",  # the reference's; its copy in Q4_0 costs some 2 %
        verify=rule,  # type: ignore[arg-type]
        n_ctx=2048,
        n_parallel=8,
        n_threads=setting.n_threads,
    ) as engine:
        answers = _answer_all(engine, prompts, n_tokens, range(setting.n_seeds))
        more = _answer_all(engine, prompts[:n_first:2], n_tokens, range(setting.n_seeds, n_more))
        return answers, [each[:n_first:2] for each in answers] + more


def _answer_all(
    engine: Dflash2Engine, prompts: Sequence[Conversation], n_tokens: int, seeds: Sequence[int]
) -> list[list[GenerationStats]]:
    """By seed; each prompt has its own: with one for all, their draws are the same."""
    params = SamplingParams(max_tokens=n_tokens, temperature=1)
    streams = [
        engine.stream_chat(prompt, replace(params, seed=1000 * seed + i))
        for seed in seeds
        for i, prompt in enumerate(prompts)
    ]
    # decoded together: a stream starts with the first chunk asked for
    started = [next(stream) for stream in streams]
    last = [[first, *stream][-1] for first, stream in zip(started, streams, strict=True)]
    stats = [chunk.stats for chunk in last if chunk.stats is not None]
    return [stats[i : i + len(prompts)] for i in range(0, len(stats), len(prompts))]


def _length(answers: Iterable[GenerationStats]) -> float:
    return sum(map(Turn.of, answers), Turn()).acceptance_length


def _details(answers: Sequence[GenerationStats]) -> dict[str, float]:
    return {
        "pooled": _length(answers),
        "mean_of_requests": mean(a.mean_acceptance_length for a in answers if a.verify_steps),
        "cycles": sum(a.verify_steps for a in answers),
    }
