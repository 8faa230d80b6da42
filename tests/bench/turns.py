"""Engines and servers that take turns on the same prompts, so that a slow minute hits them all."""

import json
import statistics
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import cast

from dflash2 import Dflash2Engine, GenerationChunk, GenerationStats, SamplingParams
from stock import Conversation, ask

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
SETS = ("gsm8k_test", "humaneval", "mtbench")
# temperature alone, without the cuts that llama-server's defaults make
PLAIN_SAMPLING = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
WARM_UP_TOKENS = 8

Prompt = Conversation | list[int]
Batch = Sequence[Prompt]


@dataclass(frozen=True)
class Turn:
    """Sums over one or more answers; seconds are those after the prompt.

    `draft_steps` are the steps that drafted. Stage times of a server are 0, and so are they.
    """

    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    steps: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    inject_seconds: float = 0.0
    draft_steps: int = 0

    @classmethod
    def of(cls, stats: GenerationStats) -> "Turn":
        idle_steps = stats.depth_histogram[0] if stats.depth_histogram else 0
        return cls(
            stats.generated_tokens,
            stats.generation_seconds,
            stats.accepted_tokens,
            stats.verify_steps,
            stats.draft_seconds,
            stats.verify_seconds,
            stats.inject_seconds,
            stats.verify_steps - idle_steps,
        )

    def __add__(self, other: "Turn") -> "Turn":
        return Turn(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: "Turn") -> "Turn":
        return Turn(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted / self.steps

    @property
    def cycle_ms(self) -> float:
        return 1e3 * self.seconds / self.steps

    @property
    def draft_ms(self) -> float:
        return 1e3 * self.draft_seconds / self.draft_steps

    @property
    def target_ms(self) -> float:
        return 1e3 * self.verify_seconds / self.steps


# (prompts decoded together, tokens of each answer)
Contender = Callable[[Batch, int], Turn]


def engine_contender(engine: Dflash2Engine, params: SamplingParams) -> Contender:
    def run(batch: Batch, n_tokens: int) -> Turn:
        if len(batch) > 1:
            return _together(engine, params, batch, n_tokens)
        request = replace(params, max_tokens=n_tokens)
        stream = _stream(engine, batch[0], request)
        # what happens between two steps is part of it
        return Turn.of(cast("GenerationStats", [*stream][-1].stats))

    return run


def _together(engine: Dflash2Engine, params: SamplingParams, batch: Batch, n_tokens: int) -> Turn:
    """Tokens on average while all sequences run.

    Until the last has its own, fewer and fewer would: those that drafted most end first, and what
    they won is worth less where a pass over fewer rows takes as long.
    """
    n_total = n_tokens * len(batch)
    with ExitStack() as stack:
        request = replace(params, max_tokens=2 * n_total)
        streams = [stack.enter_context(closing(_stream(engine, each, request))) for each in batch]
        for stream in streams:
            next(stream)  # a stream starts with the first chunk asked for
        before = turn = Turn.of(engine.stats)
        while (turn - before).tokens < n_total:
            for stream in streams:
                next(stream)
            turn = Turn.of(engine.stats)
        return turn - before


def _stream(
    engine: Dflash2Engine, prompt: Prompt, params: SamplingParams
) -> Generator[GenerationChunk, None, None]:
    if isinstance(prompt[0], int):
        return engine.stream(cast("list[int]", prompt), params)
    return engine.stream_chat(cast("Conversation", prompt), params)


def server_contender(address: str, temperature: float) -> Contender:
    def run(batch: Batch, n_tokens: int) -> Turn:
        (conversation,) = cast("list[Conversation]", batch)
        answer = ask(address, conversation, n_tokens, temperature=temperature, **PLAIN_SAMPLING)
        timings = answer["timings"]
        n, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
        # the first token comes from the prompt
        return Turn(n, timings["predicted_ms"] / 1e3, accepted, n - 1 - accepted)

    return run


def take_turns(
    contenders: Mapping[str, Contender],
    batches: Sequence[Batch],
    *,
    n_tokens: int,
    repeats: int,
    rivals: Collection[str] = (),
    keep: Collection[str] = (),
    cutoff: float = 0.0,
    warm_up_cutoff: float = 0.0,
    n_warm_up: int | None = None,
) -> dict[str, list[Turn]]:
    """Returns the repeats of each contender, each summed over the batches.

    The order is turned round with every batch.

    Args:
        rivals: Names of those of whom the fastest is wanted: whose best repeat so far is slower
            than `cutoff` times the best of all of them takes no further turn.
        keep: Those of them who go on all the same.
        warm_up_cutoff: `cutoff` of the warm-up.
        n_warm_up: Prompts of the first batch that the warm-up has; None is all of them.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}

    def race(done: Mapping[str, Sequence[Turn]], share: float) -> list[str]:
        best = {name: max(turn.speed for turn in each) for name, each in done.items()}
        least = share * max((best[name] for name in best if name in rivals), default=0.0)
        return [n for n in best if n not in rivals or n in keep or best[n] >= least]

    warm_up = {
        name: [contender(batches[0][:n_warm_up], WARM_UP_TOKENS)]
        for name, contender in contenders.items()
    }
    racing = race(warm_up, warm_up_cutoff)
    for repeat in range(repeats):
        totals = {name: Turn() for name in racing}
        for i, batch in enumerate(batches):
            # of two identical engines the one that is always second is some 1 % faster
            for name in racing if (repeat + i) % 2 == 0 else racing[::-1]:
                totals[name] += contenders[name](batch, n_tokens)
        for name, total in totals.items():
            turns[name].append(total)
        racing = race({name: turns[name] for name in racing}, cutoff)
    # who fell out in the warm-up is known from it only
    return {name: turns[name] or warm_up[name] for name in contenders}


def median_speed(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.speed for turn in turns)


def fastest(turns: Mapping[str, Sequence[Turn]], among: Collection[str]) -> str:
    """Of those who went all the way."""
    n_repeats = max(map(len, turns.values()))
    finishers = [name for name in among if len(turns[name]) == n_repeats]
    return max(finishers, key=lambda name: median_speed(turns[name]))


def speed_ratio(ours: Sequence[Turn], theirs: Sequence[Turn]) -> float:
    """Median of the repeats' ratios, in which a slow moment that hit both cancels."""
    return statistics.median(a.speed / b.speed for a, b in zip(ours, theirs, strict=True))


def ratio_spread(ours: Sequence[Turn], theirs: Sequence[Turn]) -> tuple[float, float]:
    ratios = [a.speed / b.speed for a, b in zip(ours, theirs, strict=True)]
    return min(ratios), max(ratios)


def summary(turns: Mapping[str, Sequence[Turn]]) -> dict[str, dict[str, object]]:
    return {
        name: {
            "tokens_per_second": [round(turn.speed, 1) for turn in each],
            "acceptance_length": round(sum(each, Turn()).acceptance_length, 3),
        }
        for name, each in turns.items()
    }


def thread_options(n_threads: int | None) -> list[str]:
    """Of llama-server, which counts the threads of prompts apart."""
    return [] if n_threads is None else ["-t", str(n_threads), "-tb", str(n_threads)]


def prompts_of(name: str, n: int) -> list[Conversation]:
    """The first prompts of one set."""
    lines = (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines[:n]]


def mixed_prompts(n: int) -> list[Conversation]:
    """The sets in turn: the first prompt of each, then the second of each, ..."""
    sets = [prompts_of(name, -(-n // len(SETS))) for name in SETS]
    return list(chain.from_iterable(zip(*sets, strict=True)))[:n]


def open_engines(
    stack: ExitStack, target: Path, drafter: Path, depths: Sequence[int | str], **options: object
) -> dict[str, Dflash2Engine]:
    """Engines by name; depth 0 is one without drafter."""
    engines = {}
    for depth in depths:
        draft = {"draft": drafter, "depth": depth} if depth else {}
        engine = Dflash2Engine(target, **draft, **options)  # type: ignore[arg-type]
        engines[depth_name(depth)] = stack.enter_context(engine)
    return engines


def depth_name(depth: int | str) -> str:
    return f"depth {depth}" if depth else "no drafter"
