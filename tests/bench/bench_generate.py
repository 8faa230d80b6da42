"""Tokens per second of the demo pair, with and without drafter, here and in stock llama.cpp.

    python tests/bench/bench_generate.py [--json] [--prompts 4] [--repeats 3] [--tokens 128]

All engines are open at once and take turns prompt by prompt, so that a slower minute of the machine
hits all of them. A figure is the median over the repeats of tokens / seconds over all prompts, the
prompts' own evaluation left out; ratios are against plain decoding in this engine.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dflash2 import Dflash2Engine, SamplingParams, __version__, _core, demo
from stock import Conversation, ask, stock_server

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
# tokens, seconds, mean acceptance length's terms: accepted, target passes
Run = tuple[int, float, int, int]
Contender = Callable[[Conversation, int], Run]


def conversations(n: int) -> list[Conversation]:
    return [
        [{"role": "user", "content": json.loads(line)["prompt"]}]
        for path in sorted(PROMPTS.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()[:n]
    ]


def engine_contender(engine: Dflash2Engine) -> Contender:
    def run(conversation: Conversation, n_tokens: int) -> Run:
        stats = engine.chat(conversation, SamplingParams(max_tokens=n_tokens)).stats
        return (
            stats.generated_tokens,
            stats.generation_seconds,
            stats.accepted_tokens,
            stats.verify_steps,
        )

    return run


def server_contender(address: str) -> Contender:
    def run(conversation: Conversation, n_tokens: int) -> Run:
        timings = ask(address, conversation, n_tokens)["timings"]
        n, accepted = timings["predicted_n"], timings.get("draft_n_accepted", 0)
        return n, timings["predicted_ms"] / 1e3, accepted, n - 1 - accepted

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompts", type=int, default=4, help="of each of the three sets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()

    target, drafter = demo.target_path(), demo.drafter_path()
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        engine = stack.enter_context(Dflash2Engine(target, n_ctx=2048))
        contenders["dflash2, no drafter"] = engine_contender(engine)
        for depth in ("auto", 1, 3, 7):
            engine = stack.enter_context(Dflash2Engine(target, drafter, n_ctx=2048, depth=depth))
            contenders[f"dflash2, depth {depth}"] = engine_contender(engine)
        for n_max in (3, 7):
            address = stack.enter_context(stock_server(target, drafter, n_max))
            contenders[f"stock llama-server, n_max {n_max}"] = server_contender(address)
        rows = measure(contenders, conversations(args.prompts), args.repeats, args.tokens)

    result = {
        "version": __version__,
        "llama_cpp": _core.llama_cpp_commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {'/'.join(_core.cpu_features())}",
        "rows": rows,
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(f"dflash2 {__version__}, llama.cpp {result['llama_cpp'][:8]}, {result['machine']}")
    print(f"{'':32}{'tokens/s':>10}{'ratio':>8}{'acceptance length':>20}")
    for row in rows:
        print(
            f"{row['name']:32}{row['tokens_per_second']:10.1f}{row['ratio']:8.2f}"
            f"{row['mean_acceptance_length']:20.2f}"
        )


def measure(
    contenders: dict[str, Contender], prompts: list[Conversation], repeats: int, n_tokens: int
) -> list[dict[str, object]]:
    """One row per contender; the first is what the ratios compare with."""
    for contender in contenders.values():
        contender(prompts[0], 8)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    lengths: dict[str, float] = {}
    for _ in range(repeats):
        totals = {name: [0.0] * 4 for name in contenders}
        for prompt in prompts:
            for name, contender in contenders.items():
                for i, value in enumerate(contender(prompt, n_tokens)):
                    totals[name][i] += value
        for name, (tokens, seconds, accepted, passes) in totals.items():
            speeds[name].append(tokens / seconds)
            lengths[name] = 1 + accepted / passes
    base = statistics.median(next(iter(speeds.values())))
    return [
        {
            "name": name,
            "tokens_per_second": statistics.median(values),
            "ratio": statistics.median(values) / base,
            "mean_acceptance_length": lengths[name],
        }
        for name, values in speeds.items()
    ]


if __name__ == "__main__":
    main()
